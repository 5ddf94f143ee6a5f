"""Who decided and answered, as ``perdure show`` says it."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.cli.show import RunDetails, format_run_details, serialize_run_details
from perdure.types.approvals import DecidedApproval
from perdure.types.interface import Status


def one(state: str, **facts: Any) -> DecidedApproval:
    return DecidedApproval.model_validate({"call_id": "c", "tool": "pay", "state": state, "at": "noon", **facts})


@pytest.mark.parametrize(
    ("past", "line"),
    [
        (one("approved", by="ana"), "pay (c): approved by ana at noon"),
        (one("approved", by="ana", changed=True), "pay (c): approved by ana at noon, with other arguments"),
        (one("approved", by="ana", always=True), "pay (c): approved by ana at noon, as all later calls of it"),
        (
            one("approved", by="ana", standing="dawn"),
            "pay (c): approved by ana at noon, as every call of pay since dawn",
        ),
        (one("denied", by="bea", comment="too much"), "pay (c): denied by bea at noon: too much"),
        (one("denied", by="b\x1b[2Jea", comment="a\nb"), "pay (c): denied by b\\x1b[2Jea at noon: a\\nb"),
        (one("expired"), "pay (c): expired: no decision by noon"),
        (one("answered", by="cleo"), "pay (c): answered by cleo at noon"),
    ],
)
def test_a_line_for_each(past: DecidedApproval, line: str) -> None:
    shown = RunDetails(Status(state="completed", agent="a", context_id="r"), [], decided=[past])
    assert format_run_details(shown)[-1] == line
    assert serialize_run_details(shown)["decided"] == [past.model_dump(mode="json")]
