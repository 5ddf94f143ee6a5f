"""Errors and their hints are sentences wherever both are shown, and one function joins them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure import errors
from perdure.cli.output import print_error
from perdure.console.decisions import build_problem_outcome
from perdure.errors import InvalidInputError, PerdureError, build_error, end_sentence, join_sentences
from perdure.ports.tokens import ROLES
from perdure.web.openai_requests import describe_error
from perdure.web.problems import build_forbidden_error, build_problem

FOLDER = Path(perdure.__file__).parent
ENDS = (".", "!", "?", "…")


def list_classes() -> list[type[PerdureError]]:
    named = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, PerdureError)]
    return sorted(named, key=lambda kind: kind.__name__)


def iter_raised() -> Iterator[tuple[str, str, str | None]]:
    """Where an error is made, and the ends of its message and its hint, as far as they are written in the source."""
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            hint = next((read_end(word.value) for word in node.keywords if word.arg == "hint"), None)
            message = read_end(node.args[0]) if node.args else None
            if (name.endswith("Error") or hint is not None) and message is not None:
                yield f"{path.relative_to(FOLDER)}:{node.lineno}", message, hint


def read_end(node: ast.expr) -> str | None:
    last = node.values[-1] if isinstance(node, ast.JoinedStr) and node.values else node
    if isinstance(last, ast.FormattedValue):
        return "x"
    return last.value if isinstance(last, ast.Constant) and isinstance(last.value, str) else None


def test_messages_and_hints_in_the_source_are_sentences() -> None:
    raised = list(iter_raised())
    assert len(raised) > 500
    for where, message, hint in raised:
        for text in (message, hint or "x"):
            assert text == text.strip("\n"), f"{where}: {text!r}"
            assert not text.endswith((" ", ",", ";", ":")), f"{where}: {text!r}"


def test_nothing_else_joins_an_error_and_its_hint() -> None:
    """What has both in one expression passes them to ``join_sentences``, or keeps them apart."""
    joining = []
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_join = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "join"
            if isinstance(node, ast.JoinedStr) or is_join:
                read = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                if {"message", "hint"} <= read and path.name != "errors.py":
                    joining.append(f"{path.relative_to(FOLDER)}:{node.lineno}")
    assert joining == []


@pytest.mark.parametrize("kind", list_classes(), ids=lambda kind: kind.__name__)
def test_every_class_has_two_sentences(kind: type[PerdureError]) -> None:
    for message, hint in (("it is wrong", "Do it"), ("It is wrong.", "Do it."), ("wrong: 'x'", "Say `y`.")):
        first, second = str(kind(message, hint=hint)).split("\n")
        assert first.endswith(ENDS)
        assert second.endswith(ENDS)
        assert str(kind(message)) == message


@given(st.lists(st.none() | st.text()))
def test_joining_is_total(texts: list[str | None]) -> None:
    joined = join_sentences(*texts)
    assert join_sentences(joined) == joined
    assert not any(f"{mark}." in end_sentence(f"x{mark}") for mark in ENDS)


def test_a_command_is_not_changed() -> None:
    assert end_sentence("pip install 'perdure[mcp]'") == "pip install 'perdure[mcp]'"
    assert end_sentence("Write 'x.'") == "Write 'x.'"
    assert end_sentence("it is 'x'") == "it is 'x'."


def test_the_surfaces(capsys: pytest.CaptureFixture[str]) -> None:
    error = InvalidInputError("loader requested what led to call 'c', and cannot approve it", hint="Ask another person")
    first, second = "loader requested what led to call 'c', and cannot approve it.", "Ask another person."
    problem = json.loads(bytes(build_problem(error).body))
    assert (problem["detail"], problem["hint"]) == (first, second)
    assert describe_error(error)["message"] == f"{first} {second}"
    assert build_problem_outcome("k", "s", problem).text == f"{first} {second}"
    assert print_error(error) == 2
    assert capsys.readouterr().err == f"error: {first}\nhint: {second}\n"
    arrived = build_error("InvalidInputError", str(error))  # as through a workflow's failure
    assert " ".join(str(arrived).split()) == f"{first} {second}"


@pytest.mark.parametrize("verb", sorted(ROLES["admin"]))
def test_a_refusal_says_what_is_missing_and_who_gives_it(verb: str) -> None:
    error = build_forbidden_error("ana", verb)  # type: ignore[arg-type]  # one of them
    assert f"takes the right to {verb!r}" in error.message
    assert error.hint is not None
    assert "admin" in error.hint
    assert "perdure token create" in error.hint
