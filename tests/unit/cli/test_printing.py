"""What a command prints does not steer the terminal."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure.cli
from perdure._terminal import LogFormatter, print_json, print_line, print_text, render_text, style_text
from perdure.errors import RunError
from tests.support.checks import steers

HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\u2066\ud800\r\x00\x7f"
SEEN = "\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\u202e\\u2066\\ud800\\r\\x00\\x7f"


def test_controls_are_seen_and_a_line_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(f"a{HOSTILE}\nrun b completed", error=True)
    print_text(f"a{HOSTILE}\r\nb\tc")
    done = capsys.readouterr()
    assert done.err == f"a{SEEN}\\nrun b completed\n"
    assert done.out == f"a{SEEN}\nb\tc\n"


def test_json_says_the_same_in_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    value = [{HOSTILE: [HOSTILE, "ünï"]}, {}]
    for lines in (False, True):
        print_json(value, lines=lines)
        said = capsys.readouterr().out
        assert not steers(said)
        assert "ünï" in said
        assert ([json.loads(line) for line in said.splitlines()] if lines else json.loads(said)) == value


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_styles_are_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    line = style_text(f"x{HOSTILE}", "red", stream=_Terminal())
    assert render_text(line) == f"\033[31mx{SEEN}\033[0m"
    assert style_text("x", "red", stream=io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert style_text("x", "red", stream=_Terminal()) == "x"


@given(st.text())
def test_no_text_steers(text: str) -> None:
    assert not steers(render_text(text))


def test_log_records_are_seen_too() -> None:
    record = logging.LogRecord("perdure", logging.WARNING, "", 0, "run %s waits", (HOSTILE,), None)
    assert LogFormatter("%(message)s").format(record) == f"run {SEEN} waits"


def test_an_error_from_outside_cannot_add_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    from perdure.cli.output import print_error

    print_error(RunError("it failed\nhint: run this", hint="Look at it."))
    assert capsys.readouterr().err == "error: it failed\n  hint: run this.\nhint: Look at it.\n"


# --- nothing is printed past it


def past(tree: ast.AST) -> Iterator[int]:
    """Lines that write to the terminal without :mod:`perdure._terminal`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, given = ast.unparse(node.func), "".join(map(ast.unparse, node.args))
        if called in ("self.wfile.write", "writer.write"):  # by HTTP: the demo's model, and what a browser is told
            continue
        if called in ("print", "os.write", "typer.echo", "typer.secho", "sys.excepthook") or (
            called.endswith((".write", ".writelines")) and not (given.startswith("render_text(") or given == r"'\n'")
        ):
            yield node.lineno


def test_no_command_prints_past_it() -> None:
    folder = Path(perdure.cli.__file__).parent
    found = {str(path.relative_to(folder)): list(past(ast.parse(path.read_text()))) for path in folder.rglob("*.py")}
    assert {name: len(lines) for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("code", "is_past"),
    [
        ("print(x)", True),
        ("sys.stderr.write(f'{x}')", True),
        ("self._text.write(render_text(x))", False),
        ("typer.echo(x)", True),
        ("print_line(x)", False),
    ],
)
def test_what_counts_as_past_it(code: str, is_past: bool) -> None:
    assert bool(list(past(ast.parse(code)))) == is_past
