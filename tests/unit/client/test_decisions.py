"""What events say that people decided and answered."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.client.decisions import extract_decision, merge_decisions
from perdure.types.approvals import DecidedApproval
from perdure.types.events import ApprovalDecided, ApprovalRequested, Event, QuestionAnswered, ToolCompleted

CALL: dict[str, Any] = {"call_id": "c", "name": "pay"}
AT = "2026-01-02T03:04:05+00:00"


def past(state: str, by: str | None, **more: Any) -> DecidedApproval:
    call = {"call_id": CALL["call_id"], "tool": CALL["name"]}
    return DecidedApproval.model_validate({**call, "state": state, "by": by, "at": AT, **more})


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (ApprovalDecided(**CALL, decision="approved", by="ana", decided_at=AT), past("approved", "ana")),
        (
            ApprovalDecided(**CALL, decision="approved", by="ana", decided_at=AT, arguments={}, comment="ok"),
            past("approved", "ana", changed=True, comment="ok"),
        ),
        (
            ApprovalDecided(**CALL, decision="approved", by="ana", decided_at=AT, standing="yesterday"),
            past("approved", "ana", standing="yesterday"),
        ),
        (
            ApprovalDecided(**CALL, decision="approved", by="ana", decided_at=AT, always=True),
            past("approved", "ana", always=True),
        ),
        (ApprovalDecided(**CALL, decision="denied", by="bea", decided_at=AT), past("denied", "bea")),
        (ApprovalDecided(**CALL, decision="expired", decided_at=AT), past("expired", None)),
        (QuestionAnswered(**CALL, by="cleo", answered_at=AT, value=3), past("answered", "cleo")),
        (QuestionAnswered(**CALL, by="cleo", answered_at=AT, error="no"), past("answered", "cleo", comment="no")),
        (ToolCompleted(**CALL, at=AT, content="3", answered_by="dora"), past("answered", "dora")),
        (
            ToolCompleted(**CALL, at=AT, content="gone", is_error=True, answered_by="dora"),
            past("answered", "dora", comment="gone"),
        ),
        (ToolCompleted(**CALL, at=AT, content="3"), None),
        (ApprovalRequested(**CALL), None),
    ],
)
def test_who_decided_or_answered(event: Event, said: DecidedApproval | None) -> None:
    assert extract_decision(event) == said


def test_an_id_that_comes_again_hides_no_earlier_decision() -> None:
    first, second, third = (past("approved", by) for by in ("ana", "bea", "cleo"))
    assert merge_decisions([first, second], [second]) == [first, second]
    assert merge_decisions([first], [second]) == [first, second], "the second is not told yet"
    assert merge_decisions([first, first], [first]) == [first, first]
    assert merge_decisions([first, second], [second, third]) == [first, second, third]
    assert merge_decisions([first, past("denied", "bea")], []) == [first, past("denied", "bea")]
