"""The failures stage: an attempt that failed is said to have failed, wherever in the stages behind it that was."""

from __future__ import annotations

from ..errors import StoreError, TranscriptCorruptedError
from ..ports import Events, ModelCall, ModelReply, NextModel, NextTool, ToolCall, token
from ..types.wire import ToolOutput
from .batch import batch_of
from .happened import failed
from .heartbeat import agent_missing
from .verdict import verdict
from .writer import say


class FailuresStage:
    """Records the errors of attempts, inline tools' each as their own. Passes every error on."""

    def __init__(self, store: Events) -> None:
        self._store = store

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around a model call."""
        try:
            return await next(call)
        except Exception as error:
            await self._say(call, error, token(call.asked_at, call.attempt))
            raise

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Around a tool call. An exception of the tool itself does not come here: it is a result."""
        try:
            return await next(call)
        except Exception as error:
            await self._say(call, error, token(call.asked_at))
            raise

    async def _say(self, call: ModelCall | ToolCall, error: Exception, token: str) -> None:
        if isinstance(error, StoreError) and not isinstance(error, TranscriptCorruptedError):
            return  # it is down, or not the run's
        events = [*call.pending, *failed(call, verdict(error, call.attempt, agent_missing(error)))]
        advances = isinstance(call, ModelCall)
        await say(self._store, batch_of(call, events, token, advances=advances))
