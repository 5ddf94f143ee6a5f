"""Which search attributes a run may keep up to date, and if its memo: said with its replies, behind the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..ports import ModelCall
from ..types.indexing import PENDING
from ..types.wire import ModelOutput

Indexed = Callable[[], Awaitable[tuple[str, ...] | None]]
"""The attributes that the namespace of the present activity has; None where it cannot be told."""


def says_indexed(call: ModelCall, output: ModelOutput) -> bool:
    """Whether the run is told with this reply: it needs to know before it first waits, and again now and then."""
    if call.input.purpose not in ("call", "force_finish"):
        return False
    return call.input.iteration <= 1 or any(one.approval is not None for one in output.calls)


def said_indexed(call: ModelCall, output: ModelOutput, names: tuple[str, ...] | None) -> ModelOutput:
    """``output`` with ``names``, where the run is told of them. What is recorded is the same in every namespace."""
    if not says_indexed(call, output):
        return output
    # Without that attribute nobody would find what the memo says, nor know whether it is all there is.
    return output.model_copy(update={"indexed": names, "noted": PENDING in (names or ())})
