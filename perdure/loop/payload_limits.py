"""How much may be said at once, so that Temporal takes it.

Temporal ends a run that asks for an activity with more than 2 MB, and a workflow task whose answer has more than 4 MB
is tried again for ever. So what comes in is measured where it comes in, and what goes out is cut into steps. Bytes are
those of JSON as Python's SDK writes it: a ``ж`` that came as two bytes goes out as six.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel

from ..types.plain_json import measure_json

Row = TypeVar("Row", bound=BaseModel)

MESSAGE_BYTES = 1024 * 1024
"""Of one message. A longer one goes by way of the store."""
MESSAGE_ID_BYTES = 400
"""Of a message's id. A thousand of them are carried from execution to execution."""
RUN_ID_BYTES = 1000
"""Of the id of a run: Temporal takes no more for a workflow's."""
CONTEXT_BYTES = 16 * 1024
"""Of the run's own data, which every activity is told, so that history has it again and again."""
OVERRIDE_BYTES = 128 * 1024
"""Of what a run, or a turn, changes of its agent, which every model call is told."""
INBOX_BYTES = 8 * 1024 * 1024
"""Of all messages that wait for a model call. A run with more than it can be continued as new with first has the model
take some, ``STEP_MESSAGES_BYTES`` in a step."""
STEP_MESSAGES_BYTES = 512 * 1024
"""Of all that one step is given, unless a single message is larger. What waits beyond it comes next."""
STEP_BYTES = MESSAGE_BYTES + STEP_MESSAGES_BYTES + 256 * 1024
"""Of what a step is given together with the answers of its branches; the rest is for what every step is told."""
STATE_BYTES = 1_900_000
"""Of a run's state. Temporal ends a run that continues as new with more than 2 MB."""
CALL_INPUTS_BYTES = 2 * 1024 * 1024
"""Of the inputs of all tool calls that begin at once; the others begin when these have ended."""
CALLS_AT_ONCE = 500
"""Tool calls that begin at once. Temporal lets a run have 2,000 open activities."""
SUBAGENTS_AT_ONCE = 20
"""Subagents that begin at once; the others begin when these have ended."""
CALL_OVERHEAD_BYTES = 1024
"""Of a tool call's input, besides its arguments and the context."""
PAST_TURNS = 20
"""Turns that a session remembers for whoever asks the workflow; the store has them all."""
PAST_TURNS_BYTES = 64 * 1024
"""Of these, together."""
DECISIONS_BYTES = 64 * 1024
"""Of the decisions that are remembered."""
MESSAGE_IDS_BYTES = 256 * 1024
"""Of the ids of messages that are remembered."""


def select_latest_rows(rows: Sequence[Row], most: int) -> list[Row]:
    """The last of ``rows`` that have at most ``most`` bytes together; the very last one in any case."""
    left = most
    for count, row in enumerate(reversed(rows)):
        left -= measure_json(row.model_dump(mode="json", exclude_none=True))
        if left < 0 and count:
            return list(rows[-count:])
    return list(rows)
