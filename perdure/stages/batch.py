"""The events of a call as the store is given them."""

from __future__ import annotations

from collections.abc import Sequence

from ..ports import Batch, ModelCall, NewEvent, ToolCall


def batch_of(
    call: ModelCall | ToolCall, events: Sequence[NewEvent], token: str = "", *, advances: bool = False
) -> Batch:
    """Of the conversation that ``call`` is of, where its events stand. See ``Batch`` for ``token`` and ``advances``."""
    return Batch(call.input.context_id, events, token, advances, call.input.lineage if call.input.is_child else None)
