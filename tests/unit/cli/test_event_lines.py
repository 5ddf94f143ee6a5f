"""What a person reads of a step."""

from __future__ import annotations

import io
from typing import Any

import pytest

from perdure.cli.events import EventPrinter
from perdure.types.events import BranchCompleted, BranchStarted, Event, MessageWithheld, StepTaken, TurnEvent
from perdure.types.messages import BlobRef


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"model": "openai:gpt-5-mini"}, "(step: model openai:gpt-5-mini)"),
        ({"settings": {"temperature": 0, "seed": None}}, "(step: settings temperature=0, seed=(none))"),
        ({"tools_added": ("a", "b"), "tools_removed": ("c",)}, "(step: +a; +b; -c)"),
        ({"results": ("1", "2"), "injected": 1}, "(step: 2 of the results changed; a message)"),
        (
            {"instructions": True, "injected": 2, "edited": True},
            "(step: other instructions; 2 messages; the conversation edited)",
        ),
        ({"finished": True, "kept": ("turn", "run")}, "(step: finished; kept for the turn and the run)"),
    ],
)
def test_what_a_step_has_changed(changed: dict[str, Any], line: str) -> None:
    beside = io.StringIO()
    EventPrinter(io.StringIO(), beside).print_event(StepTaken(**changed))
    assert beside.getvalue() == f"{line}\n"


@pytest.mark.parametrize("brief", [True, False])
def test_what_a_limit_has_left_without_an_answer(brief: bool) -> None:
    beside = io.StringIO()
    lines = EventPrinter(io.StringIO(), beside, brief=brief)
    lines.print_event(TurnEvent(state="completed", unanswered=("m-\x1b1", "")))
    lines.print_event(TurnEvent(state="completed", unanswered=("",)))
    lines.print_event(TurnEvent(state="completed"))
    said = [line for line in beside.getvalue().splitlines() if not line.startswith("turn")]
    assert said == ["(at a limit: 2 messages got no answer (m-\\x1b1))", "(at a limit: a message got no answer)"]


BLOB = BlobRef(hash="a" * 64, size=40_000)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (BranchStarted(agent="critic", message="Enough?"), "⑂ critic: Enough?"),
        (BranchStarted(agent="critic"), "⑂ critic"),
        (BranchStarted(agent="critic", blob=BLOB), "⑂ critic: …"),
        (BranchCompleted(agent="critic", content="Yes."), "← critic: Yes."),
        (BranchCompleted(agent="critic", blob=BLOB), "← critic: 40,000 bytes"),
        (BranchCompleted(agent="critic", error_type="ParseError", error="no"), "✗ critic: ParseError: no"),
    ],
)
def test_what_a_branch_asks_and_comes_to(event: Event, line: str) -> None:
    beside = io.StringIO()
    EventPrinter(io.StringIO(), beside).print_event(event)
    assert beside.getvalue() == f"{line}\n"


@pytest.mark.parametrize("brief", [True, False])
def test_what_is_withheld_and_why(brief: bool) -> None:
    beside = io.StringIO()
    lines = EventPrinter(io.StringIO(), beside, brief=brief)
    lines.print_event(MessageWithheld(what="image/png cat\x1b.png", id="m1", reason="BadRequestError: no\x1b[2J image"))
    lines.print_event(
        MessageWithheld(kind="result", what="result of look", call_id="c1", reason="ContentFilterError: no")
    )
    assert beside.getvalue().splitlines() == [
        "(withheld: image/png cat\\x1b.png of message m1: BadRequestError: no\\x1b[2J image)",
        "(withheld: result of look of call c1: ContentFilterError: no)",
    ]
