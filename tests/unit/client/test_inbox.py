"""What a run's memo says of what waits in it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from temporalio.client import WorkflowExecution
from temporalio.common import TypedSearchAttributes

from perdure.client.inbox import noted
from perdure.temporal_service import typed
from perdure.types.interface import AGENT, PENDING, WAITING

ONE = {"kind": "approval", "call_id": "c", "name": "pay", "hash": "h", "arguments": {"a": None}}


class Seen:
    """What is asked of an execution."""

    id = "run"

    def __init__(self, attributes: dict[str, Any], memo: Any) -> None:
        self.typed_search_attributes: TypedSearchAttributes = typed(attributes)
        self._memo = memo

    async def memo(self) -> Any:
        if isinstance(self._memo, Exception):
            raise self._memo
        return self._memo


@pytest.mark.parametrize(
    ("attributes", "memo", "found"),
    [
        ({PENDING: 1}, {WAITING: [ONE]}, ["c"]),
        ({PENDING: 0}, {}, []),
        ({PENDING: 0}, {WAITING: None}, []),  # taken away behind a codec
        ({PENDING: 1}, {WAITING: [{**ONE, "of a newer engine": 1}]}, ["c"]),
        # Only the run itself can say.
        ({AGENT: "support"}, {WAITING: [ONE]}, None),
        ({PENDING: 1}, {"agent": "support"}, None),
        ({PENDING: 2}, {WAITING: [ONE]}, None),
        ({PENDING: 1}, {WAITING: "anything"}, None),
        ({PENDING: 1}, {WAITING: [{"kind": "of a newer engine"}]}, None),
        ({PENDING: 1}, RuntimeError("the codec is away"), None),
    ],
)
async def test_what_it_says(attributes: dict[str, Any], memo: Any, found: list[str] | None) -> None:
    said = await noted(cast(WorkflowExecution, Seen(attributes, memo)))
    assert (None if said is None else [one.call_id for one in said]) == found
