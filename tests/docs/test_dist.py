"""What `make dist` builds, as those get it who have the wheel alone: it is whole, the same each time, and works."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import uuid
import venv
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.docs.loopback import ROOT
from tests.docs.pages import Page
from tests.support.engine import Engine
from tests.support.namespaces import indexed_namespace

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel and a source archive, by the command of `make dist`."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def build(source: Path, target: Path, *options: str, **variables: str) -> None:
    command = (sys.executable, "-m", "hatchling", "build", "-d", str(target), *options)
    env = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"} | variables
    subprocess.run(command, cwd=source, env=env, check=True, capture_output=True)


def test_the_makefile_builds_so() -> None:
    assert "$(PY) -m hatchling build -d dist\n" in (ROOT / "Makefile").read_text()


def test_the_wheel_has_all_files_of_the_package_and_no_others(dist: tuple[Path, Path]) -> None:
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "perdure"], cwd=ROOT, capture_output=True, text=True, check=True)  # fmt: skip  # noqa: E501
    files = {name for name in tracked.stdout.splitlines() if (ROOT / name).is_file()}
    packed = {name for name in zipfile.ZipFile(dist[0]).namelist() if ".dist-info/" not in name}
    assert packed == files
    kinds = {Path(name).suffix for name in packed}
    assert {".sql", ".html", ".css", ".js", ".svg", ".mako", ".tmpl", ".typed"} <= kinds


def test_the_archive_builds_the_same_wheel(dist: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, archive = dist
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    build(source, tmp_path / "again", "-t", "wheel")
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_date_is_that_of_the_environment(tmp_path: Path) -> None:
    for name in ("first", "second"):
        build(ROOT, tmp_path / name, "-t", "wheel", SOURCE_DATE_EPOCH="1700000000")
    first, second = (next((tmp_path / name).glob("*.whl")) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert {entry.date_time for entry in zipfile.ZipFile(first).infolist()} == {(2023, 11, 14, 22, 13, 20)}


# ---
# A machine that has the wheel, and nothing of the checkout.


class Machine:
    """An environment with perdure from the wheel. Commands run in its folder."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder, self.bin, self.env = folder, folder / "env/bin", dict(env)

    async def run(self, *command: str, code: int = 0) -> str:
        """Run it to its end; what it says on both streams."""
        process = await self.start(*command)
        out, _ = await process.communicate()
        assert process.returncode == code, out.decode()
        return out.decode()

    async def start(self, *command: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(str(self.bin / command[0]), *command[1:]), cwd=self.folder, env=self.env,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip

    @asynccontextmanager
    async def running(self, *command: str, until: str) -> AsyncIterator[str]:
        """It runs within the block, which gets the line that matches ``until``."""
        process = await self.start(*command)
        try:
            assert process.stdout is not None
            said = ""
            async with asyncio.timeout(90):
                while not (found := re.search(until, said)):
                    line = (await process.stdout.readline()).decode()
                    assert line, said
                    said += line
            yield found[0]
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()


async def make_machine(engine: Engine, folder: Path) -> Machine:
    namespace = f"dist-{uuid.uuid4().hex[:8]}"
    await indexed_namespace(engine.address, namespace)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "PERDURE_", "PYTHON"))
    }
    env = kept | {
        "TEMPORAL_ADDRESS": engine.address,
        "TEMPORAL_NAMESPACE": namespace,
        "PERDURE_HOME": str(folder / "home"),
        "PERDURE_STORE_URL": f"sqlite:///{folder}/store.db",
        "PATH": f"{folder}/env/bin:{os.environ['PATH']}",
    }
    (folder / "support.py").write_text(read_readme_program())
    return Machine(folder, env)


def read_readme_program() -> str:
    return next(block.body for block in Page(ROOT / "README.md").programs if block.mark == "file support.py")


def install(machine: Machine, requirement: str, *options: str) -> None:
    python = machine.folder / "env/bin/python"
    command = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *options, requirement)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
async def machine(engine: Engine, tmp_path: Path, dist: tuple[Path, Path]) -> Machine:
    """With the packages of this environment, but for perdure: behind its own on the path, where no .pth is read."""
    machine = await make_machine(engine, tmp_path)
    venv.create(tmp_path / "env", with_pip=False)
    (site,) = (tmp_path / "env/lib").glob("python3*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))
    install(machine, str(dist[0]), "--no-deps", "--no-index")
    return machine


async def fetch(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return (await asyncio.to_thread(lambda: opener.open(url, timeout=30).read())).decode()


@pytest.mark.slow
@pytest.mark.server
async def test_the_wheel_alone_runs_the_readme(machine: Machine, dist: tuple[Path, Path]) -> None:
    async def get(*command: str, until: str, path: str = "") -> str:
        async with machine.running("perdure", *command, until=until) as url:
            return await fetch(f"{url}{path}")

    where, answer, doctor, made, dev, api, console = await asyncio.gather(
        machine.run("python", "-c", "import perdure; print(perdure.__file__)"),
        machine.run("python", "support.py"),
        machine.run("perdure", "doctor"),
        machine.run("perdure", "new", "desk"),
        get("dev", "support.py", until=r"http://127\S+/console"),
        get("serve", "support.py", "--dev", "--port", "0", until=r"http://\S+/v1", path="/openapi.json"),
        get("console", "--port", "0", until=r"http://\S+/console"),
    )
    assert where.startswith(str(machine.folder))
    assert "[demo:tools] refund answered: refunded 12.5 for 77" in answer
    assert re.search(r"extras +.*\bserver\b", doctor)
    assert '"openapi"' in api
    assert "</html>" in dev
    assert "</html>" in console
    assert made.startswith("made ")
    assert f"perdure[server] @ {dist[0].as_uri()}" in (machine.folder / "desk/pyproject.toml").read_text()


@pytest.mark.server
async def test_dev_names_what_is_missing_and_works_without_it(machine: Machine, dist: tuple[Path, Path]) -> None:
    hidden = "import sys\nsys.modules.update(dict.fromkeys(['mcp', 'starlette', 'jinja2']))\n"
    (machine.folder / "sitecustomize.py").write_text(hidden)
    machine.env["PYTHONPATH"] = str(machine.folder)
    hint = f"Install it: .*{re.escape(str(dist[0]))}"
    (machine.folder / "tools.py").write_text("from perdure.mcp import MCPServer\nMCPServer.stdio('echo', ['1'])\n")

    async def say(file: str, until: str) -> str:
        async with machine.running("perdure", "dev", file, until=until) as said:
            return said

    served, broken = await asyncio.gather(
        say("support.py", f"(?s)console .*none: .*'server'.*{hint}.*serving +support"),
        say("tools.py", f"(?s)tools.py:2: .*'mcp' .*{hint}"),
    )
    assert "starlette" in served
    assert "needs the extra 'mcp'" in broken


@pytest.mark.slow
@pytest.mark.server
async def test_the_hint_of_a_missing_extra_is_a_command_that_works(
    engine: Engine, tmp_path: Path, dist: tuple[Path, Path]
) -> None:
    """From the package index of this machine: the wheel without an extra, and then what `perdure console` says."""
    machine = await make_machine(engine, tmp_path)
    venv.create(tmp_path / "env", with_pip=True)
    install(machine, str(dist[0]))
    assert "[demo:tools] refund answered: refunded 12.5 for 77" in await machine.run("python", "support.py")
    said = await machine.run("perdure", "console", code=6)
    command = said.partition("hint: Install it: ")[2].strip()
    assert shlex.split(command) == ["pip", "install", f"{dist[0]}[server]"]
    assert set(re.findall(r"[\w-]+", said)) >= {"starlette", "uvicorn", "sse-starlette", "jinja2", "ag-ui-protocol"}
    done = subprocess.run(["sh", "-c", command], env=machine.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    async with machine.running("perdure", "console", "--port", "0", until=r"http://\S+/console") as url:
        assert "</html>" in await fetch(url)
