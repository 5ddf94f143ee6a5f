"""``perdure new``: a project is made, checked by the tools of those who write it, and run."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from typer.testing import CliRunner

from perdure._installation import Installation
from perdure.cli import app
from perdure.cli.new import check_name
from perdure.cli.output import get_exit_code
from perdure.errors import InvalidInputError, PerdureError
from tests.docs.test_deploy_chart import CHART, DEFAULTS, SCHEMA, merged
from tests.docs.test_docs import check_perdure
from tests.support import forkserver
from tests.support.engine import Engine
from tests.support.namespaces import indexed_namespace
from tests.support.validators import find_go_program, find_package_program

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
LONGEST = "a-very-long-name-for-a-project-of-a-team"


def make_project(folder: Path) -> Path:
    result = CliRunner().invoke(app, ["new", str(folder)])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"made {folder}: ")
    return folder


def judge(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "shop-desk")


@pytest.mark.parametrize("name", ["x", "shop-desk", LONGEST])
def test_it_is_formatted_and_free_of_faults_whatever_its_name(name: str, tmp_path: Path) -> None:
    assert len(LONGEST) == 40
    folder = make_project(tmp_path / name)
    for command in (["check", "."], ["format", "--check", "."]):
        done = judge(BIN / "ruff", *command, "--no-cache", cwd=folder)
        assert done.returncode == 0, done.stdout
    texts = {path.relative_to(folder): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert not any("{{" in text or ".tmpl" in str(path) for path, text in texts.items())
    assert max(len(texts), 30) == 30, "few files, so that each is read"
    folders = {path.parts[0] for path in texts if len(path.parts) > 1}
    assert folders == {name.replace("-", "_"), "tests", "deploy", "docs", ".github"}


@pytest.mark.slow
def test_its_types_are_right(project: Path, tmp_path: Path) -> None:
    done = judge(BIN / "mypy", "--cache-dir", str(tmp_path / "mypy"), cwd=project)
    assert done.returncode == 0, done.stdout


def test_its_dependency_is_this_copy(project: Path) -> None:
    data = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    requirement = Requirement(data["dependencies"][0])
    assert (requirement.name, requirement.extras) == ("perdure", {"server"})
    assert requirement.url == ROOT.as_uri()
    assert data["name"] == "shop-desk"


def test_a_dependency_with_odd_characters_is_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = '/srv/a "wheel" \\ é/perdure-9.1-py3-none-any.whl'
    monkeypatch.setattr("perdure.cli.new.read_installation", lambda: Installation("file", odd, exists=False))
    result = CliRunner().invoke(app, ["new", str(tmp_path / "desk")])
    assert f"{odd}, which is gone: correct pyproject.toml first" in result.output
    data = tomllib.loads((tmp_path / "desk/pyproject.toml").read_text())
    assert Requirement(data["project"]["dependencies"][0]).url == Path(odd).as_uri()


def test_its_commands_and_files_of_deployment_exist(project: Path) -> None:
    compose: dict[str, Any] = yaml.safe_load((project / "deploy/compose.yaml").read_text())
    for service in ("agents", "web"):
        check_perdure(compose["services"][service]["command"])
    values = yaml.safe_load((project / "deploy/values.yaml").read_text())
    jsonschema.validate(merged(DEFAULTS, values), SCHEMA)
    pages = "\n".join(path.read_text() for path in project.rglob("*.md"))
    for command in re.findall(r"`(perdure [^`]*)`|^(perdure [^#\n]*)", pages, re.MULTILINE):
        check_perdure("".join(command).split()[1:], whole=False)
    targets = set(re.findall(r"^([a-z]+):", (project / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"\bmake ([a-z]+)", pages + (project / ".github/workflows/ci.yml").read_text()))
    assert used <= targets


@pytest.mark.slow
def test_the_tools_of_others_accept_its_deployment(project: Path, tmp_path: Path) -> None:
    deploy = project / "deploy"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "STORE_PASSWORD": "x"}
    hadolint = find_package_program("hadolint", "the Dockerfile of a new project, by hadolint")
    compose = find_go_program("compose-config", "compose.yaml of a new project, by Docker Compose's reader")
    helm = find_go_program("helm", "the values of a new project, by Helm")
    template = (helm, "template", "x", CHART, "--values", "values.yaml")
    for command in ((hadolint, "Dockerfile"), (compose, "compose.yaml"), template):
        judged = judge(*command, cwd=deploy, env=env)
        assert judged.returncode == 0, judged.stdout + judged.stderr
    del env["STORE_PASSWORD"]
    refused = judge(compose, "compose.yaml", cwd=deploy, env=env)
    assert "set it" in refused.stderr, "no password has a default"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Desk", "cannot be the name of a Python package"), ("9lives", "cannot be"), ("a__b", "cannot be"),
        ("desk-", "cannot be"), ("dé", "cannot be"), ("a b", "cannot be"), (LONGEST + "x", "cannot be"),
        ("class", "Python's own"), ("json", "Python's own"), ("perdure", "already"), ("temporalio", "already"),
        ("tests", "already"), ("pydantic-core", "already"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=reason) as caught:
        check_name(name)
    assert get_exit_code(caught.value) == 2
    result = CliRunner().invoke(app, ["new", str(tmp_path / name)])
    assert isinstance(result.exception, InvalidInputError)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    file.write_text("")
    for path, reason in ((full, "is not empty: it has mine.txt"), (file, "is not a folder")):
        result = CliRunner().invoke(app, ["new", str(path)])
        assert reason in str(result.exception)
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    (empty / ".git").mkdir(parents=True)
    monkeypatch.chdir(empty)
    result = CliRunner().invoke(app, ["new", "."])
    assert result.exit_code == 0, result.output
    assert (empty / "empty/agents/support.py").is_file()
    assert isinstance(CliRunner().invoke(app, ["new", "."]).exception, InvalidInputError), "not twice"


def test_a_place_that_cannot_be_written_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing/desk")
    for path, reason in (("file/desk", "cannot write"), ("nowhere", "is not a folder"), ("..", "cannot be the name")):
        result = CliRunner().invoke(app, ["new", str(tmp_path / path)])
        assert isinstance(result.exception, PerdureError), result.exception
        assert reason in result.exception.message


async def build_environment(engine: Engine, folder: Path) -> dict[str, str]:
    """That of a user whose Temporal server has nothing else: a project's task queues have fixed names."""
    namespace = f"new-{uuid.uuid4().hex[:8]}"
    await indexed_namespace(engine.address, namespace)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "PERDURE_"))}
    return env | {
        "TEMPORAL_ADDRESS": engine.address,
        "TEMPORAL_NAMESPACE": namespace,
        "PERDURE_HOME": str(folder / "home"),
        "PERDURE_STORE_URL": f"sqlite:///{folder}/store.db",
    }


@pytest.mark.server
async def test_its_tests_demo_worker_and_client_run(engine: Engine, project: Path, tmp_path: Path) -> None:
    """With the packages of this environment; `test_a_project_works_on_a_bare_machine` installs its own."""
    env = {**await build_environment(engine, tmp_path), "PYTHONPATH": str(project)}

    async def start(*arguments: str) -> forkserver.Process:
        pipe = asyncio.subprocess.PIPE
        return await forkserver.create_process(
            sys.executable, *arguments, cwd=project, env=env, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )

    async def run(*arguments: str) -> str:
        process = await start(*arguments)
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return out.decode()

    workers = [
        await start("-m", "perdure", "worker", "shop_desk.agents", "--task-queue", "shop-desk"),
        await start("-m", "shop_desk.worker"),
    ]
    try:
        tests, demo, answer = await asyncio.gather(
            run("-m", "pytest", "--quiet", "-p", "no:cacheprovider"),
            run("-m", "shop_desk.demo"),
            run("-m", "perdure", "run", "support", "Find order 78.", "--task-queue", "shop-desk"),
        )
    finally:
        for process in workers:
            process.terminate()
        ends = [(await process.communicate(), process.returncode) for process in workers]
    assert "4 passed" in tests
    assert "[demo:tools] find_order answered: order 77: a blue chair" in demo
    assert answer.endswith("[demo:tools] find_order answered: order 78: a lamp, 40.00, on its way\n")
    assert [code for _, code in ends] == [0, 0], ends


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(1800)
async def test_a_project_works_on_a_bare_machine(engine: Engine, project: Path, tmp_path: Path) -> None:
    """Its own two commands and its lint, in an environment that they make themselves."""
    assert shutil.which("make")
    env = await build_environment(engine, tmp_path)
    for target in ("demo", "test", "lint"):
        done = await asyncio.to_thread(judge, "make", target, f"PYTHON={sys.executable}", cwd=project, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (project / ".venv/bin/perdure").is_file()
