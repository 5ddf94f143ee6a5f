"""The prepare stage: makes what a call needs before it may begin. It has no effects, so it may fail and be retried.

A step's call, other than the record of an ending, which must be possible without encryption keys, and a tool call. It
is outside the journal. After the journal's claim the same failure would leave "begun, outcome unknown", and the
model would get that as the result of a call that never ran. A deploy is enough for it: the worker that took the call
does not serve the agent yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..context.auth import AuthContext
from ..errors import TranscriptCorruptedError
from ..ports.store import TranscriptChain
from ..types.messages import BlobRef
from ..types.tool_calls import AfterExternalCall
from ..types.wire import CallFacts, ToolOutput
from .call import CallT, NextTool, OutputT, ToolCall
from .journal_keys import build_first_run_key
from .transcript import check_store_id, format_unreadable_result


class PrepareStage:
    """Checks store and agent, loads arguments that are too large for history, and resolves the ``auth_context``.

    ``find_agent`` raises ``AgentNotFoundError`` for an agent that this worker does not serve; ``authorise`` returns a
    run's ``auth_context``.
    """

    def __init__(
        self,
        chain: TranscriptChain,
        store_id: str,
        find_agent: Callable[[str], object],
        authorise: Callable[[CallFacts], Awaitable[AuthContext | None]] | None = None,
    ) -> None:
        self._chain = chain
        self._store_id = store_id
        self._find_agent = find_agent
        self._authorise = authorise

    async def step(self, call: CallT, next: Callable[[CallT], Awaitable[OutputT]]) -> OutputT:
        """Resolve the ``auth_context`` only: a step's call that failed before its outcome may be retried anyway."""
        call.auth = await self._resolve_auth(call.input)
        return await next(call)

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Prepare a tool call.

        Raises ``AgentNotFoundError``, ``StoreMismatchError``, ``TranscriptCorruptedError``, ``AuthContextError``.
        """
        check_store_id(call.input, self._store_id)
        self._find_agent(call.input.agent)
        if call.auth is None:
            call.auth = await self._resolve_auth(call.input)
        call.first_key = build_first_run_key(call.input) if call.input.answers or call.input.side else ""
        if call.input.arguments is None:
            call.arguments = await self._load_arguments(call)
        if isinstance(side := call.input.side, AfterExternalCall):
            call.arguments = call.arguments if side.arguments is None else side.arguments
            if side.blob is not None:
                call.input = call.input.model_copy(update={"side": await self._resolve_side_text(side, side.blob)})
        return await next(call)

    async def _resolve_side_text(self, side: AfterExternalCall, blob: BlobRef) -> AfterExternalCall:
        """Load the text of the blob that a client has named. A blob that is not there becomes an error result."""
        try:
            return side.model_copy(update={"text": await self._chain.resolve_blob(blob), "blob": None})
        except TranscriptCorruptedError as error:
            text = format_unreadable_result(error)
            return side.model_copy(update={"text": text, "blob": None, "is_error": True, "error_type": "ToolError"})

    async def _resolve_auth(self, task: CallFacts) -> AuthContext | None:
        given = task.auth_context is not None or task.auth_ref is not None
        return await self._authorise(task) if given and self._authorise is not None else None

    async def _load_arguments(self, call: ToolCall) -> dict[str, object]:
        messages = await self._chain.load(call.input.head)
        for message in reversed(messages):
            for part in message.tool_calls:
                if part.id == call.input.call_id:
                    return part.arguments
        raise TranscriptCorruptedError(f"tool call {call.input.call_id} is not in the transcript at {call.input.head}")
