"""The page on plain clients names the workflow's interface: all of it, and no more."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from perdure.types.interface import ChildStatus, Override, Response, Start, Status, TurnStatus, UserMessage
from perdure.workflows import AgentWorkflow
from tests.docs.loopback import ROOT

PAGE = (ROOT / "docs/how-to/plain-clients.md").read_text()


def section(heading: str) -> str:
    """What stands under a heading."""
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(heading: str) -> list[list[str]]:
    """The cells of the section's table, without its head."""
    table = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


def fields(heading: str) -> set[str]:
    """The fields that a table names in its first column."""
    return {name for row in rows(heading) for name in re.findall(r"`(\w+)`", row[0])}


def test_the_handlers_are_those_of_the_workflow() -> None:
    definition: Any = AgentWorkflow.__temporal_workflow_definition  # type: ignore[attr-defined]
    there = {
        *(("signal", name) for name in definition.signals),
        *(("update", name) for name in definition.updates),
        *(("query", name) for name in definition.queries),
        ("start", definition.name),
    }
    assert {(row[0], row[1].strip("`")) for row in rows("The interface") if row[0] != "cancel"} == there


@pytest.mark.parametrize(
    ("heading", "model"),
    [("Start", Start), ("Message", UserMessage), ("Result", Response), ("Turn", TurnStatus), ("Status", Status)],
)
def test_the_fields_are_those_of_the_model(heading: str, model: Any) -> None:
    assert fields(heading) == set(model.model_fields)


@pytest.mark.parametrize(
    ("heading", "field", "model"),
    [("Start", "override", Override), ("Status", "calls", ChildStatus)],
)
def test_the_fields_of_what_stands_inside(heading: str, field: str, model: Any) -> None:
    (row,) = (row for row in rows(heading) if f"`{field}`" in row[0])
    assert set(re.findall(r"`(\w+)`", row[-1])) == set(model.model_fields)


@pytest.mark.parametrize(
    ("heading", "model", "field"),
    [("Result", Response, "finish_reason"), ("Status", Status, "doing"), ("Turn", TurnStatus, "state")],
)
def test_the_values_are_those_of_the_type(heading: str, model: Any, field: str) -> None:
    (row,) = (row for row in rows(heading) if f"`{field}`" in row[0])
    allowed = {value for each in get_args(model.model_fields[field].annotation) for value in get_args(each) or [each]}
    assert set(re.findall(r"`(\w+)`", row[-1])) <= allowed
