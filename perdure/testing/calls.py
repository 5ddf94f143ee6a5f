"""Activities without Temporal: the engine's calls through all stages, tried again as Temporal would."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from temporalio.exceptions import ActivityError, ApplicationError

from ..ports import ModelCall, ToolCall
from ..stages.indexed import said_indexed
from ..stages.keys import tool_key
from ..stages.verdict import verdict
from ..types.indexing import ATTRIBUTES
from ..types.wire import MODEL_ACTIVITY, TOOL_ACTIVITY, ModelInput, ModelOutput, ToolInput, ToolOutput
from ..worker import Engine

_OF_ENGINE = {"scope", "op", "context_id", "call_id", "name"}
"""What the input of the engine's own tool activities has."""
ATTEMPTS = 25
"""How often a call is tried that fails in a way that may pass: Temporal would go on, and a test must end."""


class Calls:
    """The activities of one execution."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self._engine = engine
        self._run_id = run_id
        self._numbers = itertools.count(1)

    async def run(self, name: str, argument: dict[str, Any]) -> Any:
        """What activity ``name`` comes to; both go through JSON. Raises ``ApplicationError``."""
        plain = json.loads(json.dumps(argument))
        if name != MODEL_ACTIVITY and not plain.keys() >= _OF_ENGINE:
            return await self._remote(name.removeprefix(TOOL_ACTIVITY), plain)
        number, asked_at = next(self._numbers), datetime.now(UTC).isoformat(timespec="microseconds")
        scheduled = monotonic()
        for attempt in itertools.count(1):
            owner = f"{self._run_id}/{number}/{attempt}"
            try:
                output = await self._attempt(name, plain, owner, attempt, asked_at, scheduled)
            except Exception as error:
                found = verdict(error, attempt)
                if found.retry and attempt < ATTEMPTS:
                    await asyncio.sleep(0)  # at once, whatever delay is asked for
                    continue
                text = f"{found.message} (given up after {ATTEMPTS} attempts)" if found.retry else found.message
                raise ApplicationError(text, *found.details, type=found.kind, non_retryable=True) from None
            return json.loads(output.model_dump_json(exclude_none=True))
        raise AssertionError("counting does not end")

    async def _remote(self, name: str, arguments: dict[str, Any]) -> Any:
        """A remote tool: what the tool of its name that was given to ``scripted(tools=…)`` answers in its place."""
        stand_in = self._engine.agents.tools.get(name)
        if stand_in is None:
            text = f'nobody runs it here; give the script one in its place: tools=[tool(name="{name}")(function)]'
            raise ApplicationError(text, type="NotFoundError", non_retryable=True)
        try:
            value = stand_in.bind(arguments)()
            value = await value if inspect.isawaitable(value) else value
        except Exception as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error
        return json.loads(json.dumps(value))

    async def _attempt(
        self, name: str, argument: dict[str, Any], owner: str, attempt: int, asked_at: str, scheduled: float
    ) -> ModelOutput | ToolOutput:
        if name == MODEL_ACTIVITY:
            call = ModelCall(ModelInput.model_validate(argument), owner, attempt, asked_at, scheduled)
            return said_indexed(call, (await self._engine.call_model(call)).output, tuple(ATTRIBUTES))
        task = ToolInput.model_validate(argument)
        asked = ToolCall(task, tool_key(task), owner, attempt, task.arguments or {}, asked_at=asked_at)
        return await self._engine.call_tool(asked)


def activity_error(name: str) -> ActivityError:
    """What Temporal wraps the failure of activity ``name`` in; the failure is its cause."""
    return ActivityError(
        "Activity task failed",
        scheduled_event_id=0,
        started_event_id=0,
        identity="",
        activity_type=name,
        activity_id="",
        retry_state=None,
    )
