"""Hints of errors that commands show name options, and not the arguments of Python functions."""

from __future__ import annotations

import ast
import errno
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest
from temporalio import workflow
from typer.testing import CliRunner

import perdure
from perdure import cli
from perdure.cli import app
from perdure.cli.output import get_exit_code, print_unexpected_error, translate_hint
from perdure.errors import StoreLocationError
from perdure.store import open_store
from perdure.workflows.agent import AgentWorkflow

HANDLERS = workflow._Definition.must_from_class(AgentWorkflow)
PACKAGE = Path(perdure.__file__).parent
SHOWN = ("client", "store", "loop", "temporal", "embedded")
"""Where errors are raised that a command shows as they are. Those of agents' definitions are about Python code."""
NO_AUTH = "no command sends an auth_context"
PYTHON_ONLY = {
    "Give an auth_ref, which the worker resolves at each run: Worker(resolve_auth=…).": NO_AUTH,
    'For instance id="user-7".': "`perdure send` requires its argument",
    "For instance datetime(2026, 1, 1, tzinfo=UTC).": "no command backfills",
    "For instance client.run(id).": "`perdure diff` makes runs itself",
    "Give messages, a Run, a Response, or a head (64 hexadecimal digits); of a run: client.run(id).": "no --history",
    'For instance [Message.user("hi"), Message.assistant("Hello.")].': "no --history",
    "Give its bytes: File(data).": "no --history",
    "Give JSON as json.dumps(…).": "--result takes text",
    "It is event.seq; int(…) converts a header's or a file's text.": "--after takes a number",
    'Send {"by": "<name>", "reason": "<text>"}, or nothing.': "a signal, whose sender gets no error",
    "Call open() first.": "of a store that a program opens",
    "Open it again with open().": "of a store that a program opens",
}
"""Whole hints that no command shows, each with the reason."""
REQUESTS = sorted(name for name in (*HANDLERS.updates, *HANDLERS.signals, *HANDLERS.queries) if name and "_" in name)
ARGUMENT = re.compile(
    rf"\b[a-z_]+=(…|[\"'\d])|await |: by\.|\w\(|\bclient\.\w|`status`|`hash`|Send \{{|{'|'.join(REQUESTS)}"
)


def list_hints() -> list[str]:
    """Texts of the parameter ``hint``, and of constants and variables whose name ends so."""
    hints = []
    for place in SHOWN:
        for file in [PACKAGE / place] if place.endswith(".py") else sorted((PACKAGE / place).rglob("*.py")):
            tree = ast.parse(file.read_text())
            texts: dict[str, ast.AST] = {}
            for node in ast.walk(tree):
                match node:
                    case ast.keyword(arg="hint", value=value):
                        hints.append(join_text(value, texts))
                    case ast.Assign(targets=[ast.Name(id=name)], value=value):
                        texts[name] = value
                        if name.lower().endswith("hint"):
                            hints.append(join_text(value, texts))
    return hints


def join_text(node: ast.AST, texts: Mapping[str, ast.AST]) -> str:
    """The constant parts of a text, also those of constants of the module that it names."""
    if isinstance(node, ast.Name) and node.id.isupper() and node.id in texts:
        node = texts[node.id]
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(join_text(part, texts) for part in ast.iter_child_nodes(node))


def test_hints_name_options() -> None:
    hints = list_hints()
    assert len(hints) > 50
    assert PYTHON_ONLY.keys() <= set(hints), "an exempted hint has changed"
    assert [hint for hint in map(translate_hint, set(hints) - PYTHON_ONLY.keys()) if ARGUMENT.search(hint)] == []


def test_an_option_replaces_an_argument() -> None:
    assert translate_hint('replace that one with if_exists="replace".') == "replace that one with --replace."
    assert translate_hint("Look there.") == "Look there."


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "sqlite:nothing", "postgresql://u:secret@h", "text"])
def test_a_url_that_names_no_store_is_an_error_of_the_store(url: str) -> None:
    with pytest.raises(StoreLocationError) as caught:
        open_store(url)
    assert get_exit_code(caught.value) == 1
    assert caught.value.hint
    assert "secret" not in str(caught.value)


def test_an_unexpected_error_is_one_line_and_its_traceback_in_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert print_unexpected_error(LookupError("lost")) == 1
    said = capsys.readouterr().err
    (file,) = tmp_path.iterdir()
    assert said.splitlines()[0] == "error: unexpected LookupError: lost."
    assert str(file) in said
    assert "Traceback" not in said
    assert "LookupError: lost" in file.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_a_full_disk_is_not_a_fault_of_perdure() -> None:
    with Path("/dev/full").open("w") as full:
        program = [sys.executable, "-m", "perdure", "--version"]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: cannot write the output: No space left on device.\n")


@pytest.mark.parametrize(("file", "place"), [(None, "a file"), ("/tmp/s.db", "/tmp/s.db")])
def test_a_full_disk_of_something_else_is_not_called_the_output(
    file: str | None, place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", file)

    monkeypatch.setattr(cli, "app", fill)
    assert cli._run_app() == 1
    assert capsys.readouterr().err == f"error: cannot write {place}: No space left on device.\n"


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"perdure {metadata.version('perdure')}\n")
    program = [sys.executable, "-m", "perdure", "--version"]
    assert subprocess.run(program, capture_output=True, text=True).stdout == result.output
