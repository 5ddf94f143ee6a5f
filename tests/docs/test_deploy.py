"""The image, the systemd units and the locks in deploy/ fit the program: commands run, also with a read-only root
filesystem, timeouts cover the drain, locks agree. Needs no Docker engine and no running systemd."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from perdure import _config as config
from perdure.tools.tool import DEFAULT_TIMEOUT
from perdure.worker.plugin import DRAIN_MARGIN
from tests.docs.loopback import ROOT, Loopback, ended, said
from tests.docs.test_docs import check_perdure
from tests.support.left_out import leave_out
from tests.support.ports import find_free_ports
from tests.support.validators import find_package_program, judge
from tests.support.wait import eventually

DEPLOY = ROOT / "deploy"
UNITS = ("perdure-worker@.service", "perdure-store-gc.service", "perdure-store-gc.timer")
EXTRAS = (
    "openai",
    "anthropic",
    "google",
    "encryption",
    "yaml",
    "mcp",
    "postgres",
    "objects",
    "server",
    "uvloop",
)
"""What the image has beside perdure itself."""
EXPOSURE = 20
"""The largest exposure of a unit that systemd's own judgement may find, in tenths; without any hardening it is 96."""
LONGEST_DRAIN = DEFAULT_TIMEOUT + DRAIN_MARGIN.total_seconds()


def unit(name: str = UNITS[0]) -> dict[str, list[str]]:
    """The unit's settings; one may stand there several times."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / name).read_text().splitlines():
        if match := re.match(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def dockerfile() -> dict[str, list[str]]:
    """The last stage's instructions."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text[text.rindex("\nFROM ") :].splitlines():
        if match := re.match(r"([A-Z]+) (.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def pins(path: Path) -> dict[str, str]:
    """Package to version."""
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[\w+\])?==([^ ;\\]+)", path.read_text(), re.MULTILINE))


def unit_command() -> list[str]:
    return shlex.split(unit()["ExecStart"][0])


def image_command() -> list[str]:
    return [*json.loads(dockerfile()["ENTRYPOINT"][0]), *json.loads(dockerfile()["CMD"][0])]


def health_address() -> str:
    """What the image sets."""
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(dockerfile()["ENV"])))["PERDURE_HEALTH_ADDRESS"]


def health_check(port: int) -> list[str]:
    """The arguments with which the image's health check calls Python, for another port."""
    check = dockerfile()["HEALTHCHECK"][0]
    program, *arguments = json.loads(check[check.index("[") :])
    asked = "http://127.0.0.1:8080/healthz"
    assert program == "python"
    assert asked in arguments[-1]
    return [word.replace(asked, asked.replace(":8080", f":{port}")) for word in arguments]


@pytest.mark.parametrize("name", UNITS[:2])
def test_the_commands_of_the_units_exist(name: str) -> None:
    program, *words = shlex.split(unit(name)["ExecStart"][0])
    assert Path(program).parent.parent == Path(unit(name)["WorkingDirectory"][0]) / "venv"
    check_perdure(words, whole=True)


@pytest.mark.server
@pytest.mark.parametrize("command", [unit_command(), image_command()], ids=["unit", "image"])
async def test_the_command_serves_and_ends_on_sigterm(command: list[str], loopback: Loopback) -> None:
    assert Path(command[0]).name == "perdure"
    shutil.copy(ROOT / "examples/11_worker.py", loopback.folder / "agents.py")
    worker = await loopback.spawn(Path(sys.executable).with_name("perdure"), *command[1:], cwd=loopback.folder)
    assert worker.stdout is not None
    async with asyncio.timeout(60):
        line = (await worker.stdout.readline()).decode()
    assert "support" in line
    assert loopback.task_queue in line
    os.kill(worker.pid, signal.SIGTERM)
    await worker.communicate()
    assert worker.returncode == 0, "the process itself gets the signal, and drains"


@pytest.fixture
def in_read_only_root(tmp_path: Path) -> Callable[..., list[str]]:
    """Makes of a command one that can write only into the folder ``writable``, as with ``docker run --read-only``. The
    namespace of mounts ends with the command."""
    mount = 'mount --rbind / "$0" && mount -o remount,bind,ro "$0" && mount --bind "$1" "$0$1"'
    script = f'{mount} && exec chroot "$0" sh -c \'cd "$0" && exec "$@"\' "$@"'
    root = tmp_path / "root"
    root.mkdir()
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(root)]
    try:
        tried = judge(*prefix, tmp_path, "true", cwd=tmp_path)
        why = tried.stderr.strip() if tried.returncode else ""
    except FileNotFoundError:
        why = "there is no unshare"
    if why:
        leave_out("a worker with a read-only root filesystem", why, required_by="PERDURE_REQUIRE_MOUNT")
    return lambda writable, *command: [*prefix, str(writable), *command]


@pytest.mark.slow
@pytest.mark.server
async def test_the_image_needs_no_writable_root(
    loopback: Loopback, in_read_only_root: Callable[..., list[str]]
) -> None:
    """Migration, worker and a run, which write below PERDURE_HOME and the folder of temporary files alone; the image's
    health check and Kubernetes' question whether the worker is ready are answered."""
    app, state = loopback.folder / "app", loopback.folder / "state"
    app.mkdir()
    state.mkdir()
    shutil.copy(ROOT / "examples/11_worker.py", app / "agents.py")
    perdure = str(Path(sys.executable).with_name("perdure"))
    (port,) = find_free_ports(1)
    env = {
        "PERDURE_HOME": str(state),
        "TMPDIR": str(state),
        "PERDURE_STORE_URL": f"sqlite:///{state}/perdure.db",
        "PERDURE_HEALTH_ADDRESS": health_address().replace(":8080", f":{port}"),
    }
    probe = await loopback.spawn(*in_read_only_root(state, "touch", app / "x"))
    assert "Read-only file system" in (await ended(probe)).err, "the root is read-only indeed"
    migrated = await loopback.run(*in_read_only_root(state, perdure, "store", "migrate"), env=env)
    assert (migrated.code, migrated.err) == (0, ""), migrated
    serve = in_read_only_root(state, perdure, *image_command()[1:-1], str(app / "agents.py"))
    worker = await loopback.spawn(*serve, env=env)
    await said(worker.stdout, "support")
    asked = await asyncio.to_thread(judge, sys.executable, *health_check(port), cwd=ROOT)
    assert asked.returncode == 0, asked.stderr
    async with httpx.AsyncClient() as client:

        async def is_ready() -> bool:
            return (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200

        await eventually(is_ready, what="the worker is ready")
    answer = await loopback.run(perdure, "run", "support", "Where is order 77?", env=env)
    assert answer.code == 0, answer
    os.kill(worker.pid, signal.SIGTERM)
    assert (await ended(worker)).code == 0


def test_the_unit_waits_longer_than_a_worker_drains() -> None:
    assert int(unit()["TimeoutStopSec"][0]) > LONGEST_DRAIN
    assert unit()["KillSignal"] == ["SIGTERM"]
    assert unit()["KillMode"] == ["mixed"], "what tools have started is not cut off before the worker has drained"
    assert unit()["Restart"] == ["always"]


def test_the_readme_says_the_same() -> None:
    text = (DEPLOY / "README.md").read_text()
    said = re.findall(r"(?:TimeoutStopSec=|--stop-timeout |terminationGracePeriodSeconds: )(\d+)", text)
    assert set(said) == set(unit()["TimeoutStopSec"])
    assert f"({DEFAULT_TIMEOUT:g} s for a" in text
    assert f"and {DRAIN_MARGIN.total_seconds():g} s" in text


def test_the_image_is_not_run_by_root_and_passes_the_signal_on() -> None:
    image = dockerfile()
    assert image["USER"] == ["10001"]
    assert image["STOPSIGNAL"] == ["SIGTERM"]
    assert all(image[name][0].startswith("[") for name in ("ENTRYPOINT", "CMD")), "a shell would keep the signal"


def test_unit_and_image_keep_state_in_one_place() -> None:
    settings = dict(line.split("=", 1) for line in unit()["Environment"])
    image = dict(re.findall(r"(\w+)=(\S+)", " ".join(dockerfile()["ENV"])))
    for name in ("PERDURE_HOME", "PERDURE_STORE_URL"):
        assert settings[name] == image[name]
    assert dockerfile()["VOLUME"] == [settings["PERDURE_HOME"]]
    assert settings["PERDURE_HOME"] == f"/var/lib/{unit()['StateDirectory'][0]}"
    assert settings["PERDURE_STORE_URL"].startswith(f"sqlite:///{settings['PERDURE_HOME']}/")
    collector = unit(UNITS[1])
    assert set(collector["Environment"]) <= set(unit()["Environment"]), "it deletes from the workers' store"
    assert collector["EnvironmentFile"] == unit()["EnvironmentFile"]


def test_units_and_image_set_variables_that_exist() -> None:
    text = "\n".join((DEPLOY / name).read_text() for name in UNITS[:2])
    named = set(re.findall(r"^Environment=(\w+)=", text, re.MULTILINE))
    named |= set(re.findall(r"(\w+)=", " ".join(dockerfile()["ENV"])))
    documented = re.findall(r"`([A-Z_]+)`", (ROOT / "docs/reference/environment.md").read_text())
    assert named - {"PATH", "PYTHONUNBUFFERED"} <= set(documented)


def test_the_environment_file_names_variables_that_exist() -> None:
    named = re.findall(r"\b([A-Z]+_[A-Z_]+)=", (DEPLOY / "worker.env.example").read_text())
    documented = re.findall(r"`([A-Z_]+)`", (ROOT / "docs/reference/environment.md").read_text())
    assert set(named) <= set(documented)
    example = (DEPLOY / "worker.env.example").read_text()
    assert f"PERDURE_TASK_QUEUE={config.DEFAULT_TASK_QUEUE}\n" in example


@pytest.fixture
def installed_units(tmp_path: Path) -> Path:
    """A folder with the units, whose program is there."""
    if shutil.which("systemd-analyze") is None:
        leave_out("the systemd units", "there is no systemd-analyze", required_by="PERDURE_REQUIRE_VALIDATORS")
    for name in UNITS:
        text = (DEPLOY / name).read_text().replace(unit_command()[0], sys.executable)
        (tmp_path / name).write_text(text.replace("/opt/perdure/current", str(tmp_path)))
    return tmp_path


def test_systemd_accepts_the_units(installed_units: Path) -> None:
    checked = judge("systemd-analyze", "verify", *(f"./{name}" for name in UNITS), cwd=installed_units)
    complaints = [line for line in checked.stderr.splitlines() if "perdure" in line]
    assert (checked.returncode, complaints) == (0, [])


@pytest.mark.parametrize("name", UNITS[:2])
def test_systemd_finds_the_units_hardened(name: str, installed_units: Path) -> None:
    unit_file = (installed_units / name).rename(installed_units / name.replace("@", "@1"))
    analyze = ("systemd-analyze", "security", "--offline=true", "--no-pager")
    if "unrecognized option" in (judged := judge(*analyze, f"./{unit_file.name}", cwd=installed_units)).stderr:
        leave_out("how the units are hardened", "systemd is older than 250", required_by="PERDURE_REQUIRE_VALIDATORS")
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", judged.stdout)
    assert level is not None, judged
    assert float(level[1]) * 10 <= EXPOSURE, judged.stdout


@pytest.mark.slow
def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    linted = judge(find_package_program("hadolint", "the Dockerfile, by hadolint"), DEPLOY / "Dockerfile", cwd=DEPLOY)
    assert (linted.returncode, linted.stdout) == (0, "")


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_of_the_image_tells_what_the_worker_answers(status: int, code: int) -> None:
    assert health_address() == "0.0.0.0:8080", "Kubernetes asks from outside of the container"

    class Worker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Worker) as server:
        threading.Thread(target=server.handle_request).start()
        proxy = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1", "no_proxy": ""}
        asked = judge(sys.executable, *health_check(server.server_port), cwd=ROOT, env=proxy)
    assert asked.returncode == code, asked.stderr
    assert ("HTTP Error 503" in asked.stderr) == (status == 503), asked.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_is_built_from_the_locks(tmp_path: Path) -> None:
    """The commands of the first stage, with folders of this test in place of the image's: perdure and all that it needs
    is installed from the locks alone, by hash, and every extra can be imported."""
    text = (
        (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").replace("${REQUIREMENTS}", "deploy/requirements.txt")
    )
    stage = text[: text.rindex("\nFROM ")]
    source = tmp_path / "src"
    source.mkdir()
    for words in re.findall(r"^(?:COPY|RUN) .*", stage, re.MULTILINE):
        if words.startswith("RUN "):
            command = (
                words[4:]
                .replace("pip install --no-cache-dir", "pip install --no-compile")
                .replace("/build", f"{tmp_path}/build")
                .replace("/venv", f"{tmp_path}/venv")
            )
            built = subprocess.run(["sh", "-ec", command], cwd=source, capture_output=True, text=True, check=False)
            if built.returncode and (
                why := re.search(r"NewConnectionError|\w+TimeoutError|NameResolutionError", built.stderr)
            ):
                leave_out("the image's packages", f"pip: {why[0]}", required_by="PERDURE_REQUIRE_VALIDATORS")
            assert built.returncode == 0, built.stdout + built.stderr
            continue
        *names, target = words.split()[1:]
        for name in names:
            path = source / target
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, path, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, path)
    drivers = "openai, anthropic, google.genai, cryptography, yaml, mcp, asyncpg, obstore"
    drivers += ", perdure.web.agui, perdure.web.mcp, perdure.console"
    installed = judge(tmp_path / "venv/bin/python", "-c", f"import {drivers}", cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    assert judge(tmp_path / "venv/bin/perdure", "--version", cwd=tmp_path).stdout.startswith("perdure ")


def test_the_locks_are_parts_of_the_development_lock() -> None:
    whole = pins(ROOT / "requirements/dev.txt")
    for name in ("requirements.txt", "build-requirements.txt"):
        part = pins(DEPLOY / name)
        assert part
        differing = {package: (pin, whole.get(package)) for package, pin in part.items() if whole.get(package) != pin}
        assert not differing, (
            f"deploy/{name} is out of date: see 'Updating the locked requirements' in deploy/README.md"
        )
        text = (DEPLOY / name).read_text()
        assert text.count("==") <= text.count("--hash=sha256:")


def test_the_locks_name_the_extras_that_packages_ask_for() -> None:
    """For a package that asks for `google-auth[requests]`, pip before 23.3 takes the newest google-auth where the lock
    pins the bare name, and refuses it as not pinned: the lock breaks on the day of that package's next release."""
    for lock in (ROOT / "requirements/dev.txt", DEPLOY / "requirements.txt"):
        pinned = {
            name: set(extras.split(",")) if extras else set()
            for name, extras in re.findall(r"^([a-z0-9-]+)(?:\[([\w,-]+)\])?==", lock.read_text(), re.MULTILINE)
        }
        asked: dict[str, set[str]] = {}
        for name, extras in pinned.items():
            try:
                requirements = metadata.requires(name) or []
            except metadata.PackageNotFoundError:  # of another platform
                continue
            for requirement in map(Requirement, requirements):
                marker = requirement.marker
                if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
                    asked.setdefault(canonicalize_name(requirement.name), set()).update(requirement.extras)
        assert asked.get("google-auth") == {"requests"}
        missing = {name: extras - pinned.get(name, set()) for name, extras in asked.items()}
        assert not any(missing.values()), f"{lock.name}: resolve with --no-strip-extras ({missing})"


def test_the_lock_has_what_a_worker_needs_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(package for extra in EXTRAS for package in extras[extra])]
    names = {re.split(r"[\[>=<~ ]", each)[0] for each in needed} - {"perdure"}  # another extra
    locked = pins(DEPLOY / "requirements.txt")
    assert names <= set(locked)
    assert not {"pytest", "ruff", "mypy"} & set(locked)
    command = (DEPLOY / "README.md").read_text().partition("## Updating the locked requirements")[2]
    assert re.findall(r"--extra (\S+)", command) == list(EXTRAS)


def test_no_file_names_a_package_index() -> None:
    for path in (each for each in DEPLOY.rglob("*") if each.is_file()):
        assert not re.search(r"--(extra-)?index-url[ =]|https?://[^ ]*/simple", path.read_text())
