"""Sizes of payloads that Temporal accepts.

Temporal ends a run that schedules an activity with an input of more than 2 MB, and retries a workflow task whose
completion has more than 4 MB without end. So input is measured where it comes in, and output is divided into steps.
Bytes are those of JSON as Temporal's Python SDK writes it: a ``ж`` that came as two bytes goes out as six.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel

from ..types.plain_json import measure_json

Row = TypeVar("Row", bound=BaseModel)

MESSAGE_BYTES = 1024 * 1024
"""Bytes of one message. The client puts a longer one into the store."""
MESSAGE_ID_BYTES = 400
"""Bytes of a message's id. A thousand of them are carried from execution to execution."""
CONTEXT_BYTES = 16 * 1024
"""Bytes of the run's context, which is part of every activity's input, and so many times in history."""
OVERRIDE_BYTES = 128 * 1024
"""Bytes of the overrides of a run or a turn, which are part of every model call's input."""
INBOX_BYTES = 8 * 1024 * 1024
"""Bytes of all messages that wait for a model call. A run whose state is too large to be continued as new first has
model calls take some, ``STEP_MESSAGES_BYTES`` in a step."""
STEP_MESSAGES_BYTES = 512 * 1024
"""Bytes of all messages that one step is given, unless a single one is larger. Further messages come next."""
STEP_BYTES = MESSAGE_BYTES + STEP_MESSAGES_BYTES + 256 * 1024
"""Bytes of what a step is given together with the answers of its branches; the rest of Temporal's limit is for what
every step is given."""
STATE_BYTES = 1_900_000
"""Bytes of a run's state. Temporal ends a run that continues as new with more than 2 MB."""
CALL_INPUTS_BYTES = 2 * 1024 * 1024
"""Bytes of the inputs of all tool calls that begin at once; the others begin when these have ended."""
CALLS_AT_ONCE = 500
"""Tool calls that begin at once. Temporal lets a run have 2,000 open activities."""
SUBAGENTS_AT_ONCE = 20
"""Subagents that begin at once; the others begin when these have ended."""
CALL_OVERHEAD_BYTES = 1024
"""Bytes of a tool call's input besides its arguments and the context."""
PAST_TURNS = 20
"""Past turns that a session keeps in its state, for queries of the workflow; the store has them all."""
PAST_TURNS_BYTES = 64 * 1024
"""Bytes of these together."""
MAX_PAST_DECISIONS = 100
"""Most past decisions on approvals that are kept in the state, for late deciders."""
DECISIONS_BYTES = 64 * 1024
"""Bytes of these together."""
MESSAGE_IDS_BYTES = 256 * 1024
"""Bytes of the message ids kept in the state."""


def measure_model(model: BaseModel) -> int:
    """Measure ``model`` as it is sent: bytes of JSON, without its empty fields."""
    return measure_json(model.model_dump(mode="json", exclude_none=True))


def select_latest_rows(rows: Sequence[Row], most: int) -> list[Row]:
    """Return the last of ``rows`` that have at most ``most`` bytes of JSON together; the very last one in any case."""
    left = most
    for count, row in enumerate(reversed(rows)):
        left -= measure_model(row)
        if left < 0 and count:
            return list(rows[-count:])
    return list(rows)
