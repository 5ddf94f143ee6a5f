"""What a person reads of subagents: who it is, and the calls it makes, but not its words as they are written."""

from __future__ import annotations

import io

import pytest

from perdure.cli.chat.terminal import LiveTurn
from perdure.cli.events import EventPrinter
from perdure.types.events import (
    ApprovalRequested,
    CallSaid,
    Event,
    ModelCompleted,
    ModelDelta,
    ModelStarted,
    RunEvent,
    ToolCompleted,
    TurnEvent,
)
from perdure.types.subagents import PathStep

ONE = (PathStep(agent="researcher", call_id="c1", task_id="t"),)
TWO = (*ONE, PathStep(agent="critic\x1b[31m", call_id="c2", task_id="t1"))
SEARCH = CallSaid(id="c9", name="search", arguments={"query": "x"})
EVENTS: list[Event] = [
    ModelStarted(context_id="r"),
    ModelDelta(context_id="r", text="I ask"),
    RunEvent(context_id="r/1", path=ONE, state="started"),
    ModelDelta(context_id="r/1", path=ONE, text="quiet"),
    ModelCompleted(context_id="r/1", path=ONE, text="quiet words", calls=(SEARCH,)),
    ToolCompleted(context_id="r/1", path=ONE, call_id="c9", name="search", content="three books"),
    ApprovalRequested(context_id="r/1/2", path=TWO, call_id="c8", name="pay", arguments={}),
    TurnEvent(context_id="r/1", path=ONE, state="completed"),
    ModelDelta(context_id="r", text=" them.", offset=5),
    ModelCompleted(context_id="r", text="I ask them."),
]


@pytest.mark.parametrize(
    ("brief", "lines"),
    [
        (
            True,
            ['[researcher/1] → search(query="x")', "[researcher/1 critic\\x1b[31m/2] ? pay() waits for approval: c8"],
        ),
        (
            False,
            [
                "[researcher/1] run started",
                "[researcher/1] quiet words",
                '[researcher/1] → search(query="x")',
                "[researcher/1] ← search: three books",
                "[researcher/1 critic\\x1b[31m/2] ? pay() waits for approval: c8",
                "[researcher/1] turn completed (0 tokens)",
            ],
        ),
    ],
)
def test_lines_of_subagents(brief: bool, lines: list[str]) -> None:
    text, beside = io.StringIO(), io.StringIO()
    shown = EventPrinter(text, beside, brief=brief)
    for event in EVENTS:
        shown.print_event(event)
    shown.end_line()
    assert beside.getvalue().splitlines() == lines
    assert text.getvalue().replace("\n", "") == "I ask them."


def test_a_chat_shows_the_calls_and_is_not_over_with_a_subagent() -> None:
    live = LiveTurn()
    lines = [line for event in EVENTS for line in live.feed(event)]
    assert lines[:2] == ["I ask", '[researcher/1] → search(query="x")']
    assert "quiet" not in "".join(lines)
    assert not live.is_over
