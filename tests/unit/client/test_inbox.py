"""What a run's memo says of what waits in it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from temporalio.client import WorkflowExecution
from temporalio.common import TypedSearchAttributes

from perdure.client.inbox import read_pending_memo
from perdure.temporal.attributes import build_search_attributes
from perdure.types.interface import AGENT_ATTRIBUTE, PENDING_ATTRIBUTE, WAITING_MEMO

ONE = {"kind": "approval", "call_id": "c", "tool": "pay", "hash": "h", "arguments": {"a": None}}


class Seen:
    """What is asked of an execution."""

    id = "run"

    def __init__(self, attributes: dict[str, Any], memo: Any) -> None:
        self.typed_search_attributes: TypedSearchAttributes = build_search_attributes(attributes)
        self._memo = memo

    async def memo(self) -> Any:
        if isinstance(self._memo, Exception):
            raise self._memo
        return self._memo


@pytest.mark.parametrize(
    ("attributes", "memo", "found"),
    [
        ({PENDING_ATTRIBUTE: 1}, {WAITING_MEMO: [ONE]}, ["c"]),
        ({PENDING_ATTRIBUTE: 0}, {}, []),
        ({PENDING_ATTRIBUTE: 0}, {WAITING_MEMO: None}, []),  # taken away behind a codec
        ({PENDING_ATTRIBUTE: 1}, {WAITING_MEMO: [{**ONE, "of a newer engine": 1}]}, ["c"]),
        # Only the run itself can say.
        ({AGENT_ATTRIBUTE: "support"}, {WAITING_MEMO: [ONE]}, None),
        ({PENDING_ATTRIBUTE: 1}, {"agent": "support"}, None),
        ({PENDING_ATTRIBUTE: 2}, {WAITING_MEMO: [ONE]}, None),
        ({PENDING_ATTRIBUTE: 1}, {WAITING_MEMO: "anything"}, None),
        ({PENDING_ATTRIBUTE: 1}, {WAITING_MEMO: [{"kind": "of a newer engine"}]}, None),
        ({PENDING_ATTRIBUTE: 1}, RuntimeError("the codec is away"), None),
    ],
)
async def test_what_it_says(attributes: dict[str, Any], memo: Any, found: list[str] | None) -> None:
    said = await read_pending_memo(cast(WorkflowExecution, Seen(attributes, memo)))
    assert (None if said is None else [one.call_id for one in said]) == found
