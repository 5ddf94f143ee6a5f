"""A command that needs an extra which is not installed says all that is missing, once, and ends with a code of its own.

In processes that cannot import the packages: what the environment of the tests has is hidden from them.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.cli.agent_loader import load_agent_module
from perdure.errors import PerdureError
from perdure.providers import registry
from tests.support.cli import Done

MAIN = """
import sys
for name in {hidden!r}:
    sys.modules[name] = None
from perdure.cli import main
main()
"""
AGENTS = """
from perdure import Agent
from perdure.mcp import MCPServer
helper = Agent("helper", "openai:gpt-5", toolsets=[MCPServer.stdio("echo", ["1"])])
"""
SERVER_MODULES = ("starlette", "uvicorn", "sse_starlette", "jinja2", "markdown_it", "python_multipart", "ag_ui")
FILE_COMMANDS = [
    ("run", "helper", "Hello", "--file", "agents.py"),
    ("chat", "helper", "--file", "agents.py"),
    ("worker", "agents.py"),
    ("serve", "agents.py"),
    ("console", "agents.py"),
    ("schema", "--file", "agents.py"),
    ("replay", "--open", "--worker", "agents.py"),
    ("doctor", "agents.py"),
]
"""Not `perdure dev`, which shows the error and waits for the file to change: tests/docs/test_dist.py."""
STORE_COMMANDS = [("store", "status"), ("store", "migrate")]
"""Others ask a Temporal server first."""


async def run_without(hidden: Sequence[str], arguments: Sequence[str], folder: Path, **variables: str) -> Done:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MAIN.format(hidden=tuple(hidden)), *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PERDURE_HOME": str(folder / "home"), "HOME": str(folder), **variables},
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


@pytest.mark.parametrize("arguments", FILE_COMMANDS, ids=lambda arguments: arguments[0])
async def test_an_extra_of_the_file(arguments: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(AGENTS)
    done = await run_without(["mcp"], arguments, tmp_path)
    assert (done.code, "needs the extra 'mcp'" in done.err) == (6, True), done
    assert done.err.count("hint: Install it: ") == 1


@pytest.mark.parametrize("arguments", STORE_COMMANDS, ids="-".join)
async def test_an_extra_of_the_store(arguments: Sequence[str], tmp_path: Path) -> None:
    done = await run_without(
        ["asyncpg"], arguments, tmp_path, PERDURE_STORE_URL="postgresql://ana:hunter2@db.test/perdure"
    )
    assert (done.code, "needs the extra 'postgres'" in done.err) == (6, True), done
    assert "hunter2" not in done.err


@pytest.mark.parametrize("command", ["serve", "console"])
async def test_the_extra_server_is_asked_for_once(command: str, tmp_path: Path) -> None:
    """Whichever of its packages is missing: there is one extra, and one message."""
    runs = [run_without([name], [command], tmp_path) for name in (*SERVER_MODULES[:2], SERVER_MODULES[-1])]
    for done in await asyncio.gather(*runs, run_without(SERVER_MODULES, [command], tmp_path)):
        assert done.code == 6, done
        assert f"error: `perdure {command}` needs the extra 'server' of perdure, which is not installed" in done.err
        assert re.search(r"hint: Install it: .*\[server\]", done.err)
        assert "Traceback" not in done.err


@pytest.mark.parametrize("program", ["serve", "console"])
async def test_the_models_and_toolsets_of_the_file_are_asked_for_with_it(program: str, tmp_path: Path) -> None:
    """One message, not one extra after the other."""
    (tmp_path / "models.py").write_text(
        "from perdure import Agent\na = Agent('a', ['openai:x', 'anthropic:y', 'demo:echo', 'openai-responses:z'])\n"
    )
    (tmp_path / "tools.py").write_text(AGENTS)
    hidden = [*SERVER_MODULES, "openai", "anthropic", "mcp"]
    models, tools = await asyncio.gather(
        run_without(hidden, [program, "models.py"], tmp_path), run_without(hidden, [program, "tools.py"], tmp_path)
    )
    assert (models.code, tools.code) == (6, 6)
    assert re.search(r"hint: Install it: .*\[server,openai,anthropic\]", models.err), models.err
    assert re.search(r"hint: Install it: .*\[server,mcp\]", tools.err), tools.err


def test_a_worker_says_which_models_it_cannot_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As `perdure worker`, `serve` and `dev` do at their start; agents with other models are served."""
    models = ("openai:x", "google:y", "demo:echo", "openai:z")
    agents = "\n".join(f"a{number} = Agent('a{number}', {model!r})" for number, model in enumerate(models))
    (tmp_path / "some_agents.py").write_text(f"from perdure import Agent\n{agents}\n")
    loaded = load_agent_module(str(tmp_path / "some_agents.py"))
    loaded.warn_of_missing_extras()
    assert caplog.messages == [], "all are installed here"
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    loaded.warn_of_missing_extras()
    (warning,) = caplog.messages
    assert "some_agents.py: a model of its agents needs the extras 'openai' and 'google'" in warning
    assert re.search(r"\. Install it: .*\[openai,google\]", warning)


def test_the_documented_codes_are_those_of_the_errors() -> None:
    from perdure.cli.output import INTERRUPTED, get_exit_code

    page = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page.partition("| exit code | meaning |")[2], re.MULTILINE))

    def iterate(kind: type[PerdureError]) -> set[type[PerdureError]]:
        return {kind}.union(*map(iterate, kind.__subclasses__()))

    own = [kind for kind in iterate(PerdureError) if kind.__module__ == "perdure.errors"]
    codes = {str(get_exit_code(kind("x"))) for kind in own}
    assert {"0", *codes, str(INTERRUPTED)} == set(rows)
    assert "extra" in rows["6"]
