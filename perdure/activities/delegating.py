"""Hooks around subagents: before one is asked, behind the reply that asks; after it has answered, before the next call.

A subagent is a run of its own, which no activity stands around. So both run beside its parent's model calls: what they
change is part of what these record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..agent import Agent
from ..errors import HookError
from ..hooks import Event, Given, Hook, Veto, fire_all
from ..ports import ModelCall
from ..tools import RunContext, SubagentTool
from ..types.background import AsTell
from ..types.messages import Message, ToolResultPart, clean
from ..types.wire import INLINE_BYTES, AsSubagent, Call, ModelOutput, Refused
from .author_loop import AuthorLoop

On = Callable[[Event, Agent], tuple[Hook, ...]]


class Delegating:
    """Runs the hooks that ``on`` gives for an event and an agent."""

    def __init__(self, author: AuthorLoop, on: On) -> None:
        self._author = author
        self._on = on

    async def before(self, agent: Agent, told: RunContext[Any], output: ModelOutput) -> ModelOutput:
        """Let hooks change or veto what subagents are asked. Raises ``HookError``, ``AbortError``."""
        hooks = self._on("before_subagent", agent)
        if not hooks or not any(isinstance(call.disposition, AsSubagent | AsTell) for call in output.calls):
            return output
        return output.model_copy(update={"calls": tuple([await self._asked(hooks, told, one) for one in output.calls])})

    async def _asked(self, hooks: Sequence[Hook], told: RunContext[Any], call: Call) -> Call:
        how = call.disposition
        if not isinstance(how, AsSubagent | AsTell):
            return call
        vetoes: list[Veto] = []

        def take(hook: Hook, returned: Any, given: Given) -> bool:
            if isinstance(returned, Veto):
                vetoes.append(returned)
            elif returned is not None:
                given["message"] = _message(hook, returned)
            return bool(vetoes)

        given: Given = {
            "agent": how.agent if isinstance(how, AsSubagent) else how.handle,
            "message": how.message,
            "name": call.name,
            "call_id": call.id,
            "ctx": told,
        }
        await fire_all(self._author.run, hooks, given, take)
        if vetoes:
            refused = Refused(text=clean(f"Vetoed: {vetoes[0].reason}"))
            return call.model_copy(update={"disposition": refused, "approval": None})
        if given["message"] == how.message:
            return call
        return call.model_copy(update={"disposition": how.model_copy(update={"message": given["message"]})})

    async def after(self, agent: Agent, call: ModelCall, told: RunContext[Any]) -> None:
        """Let hooks change what subagents have answered. Raises ``HookError``, ``AbortError``."""
        hooks = self._on("after_subagent", agent)
        if not hooks or not any(message.tool_results for message in call.fresh):
            return
        fresh = list(call.fresh)
        for place, message in enumerate(fresh):
            if message.tool_results:
                parts = [await self._answered(hooks, agent, told, part) for part in message.parts]
                fresh[place] = Message(role="tool", parts=tuple(parts))
        call.fresh = fresh

    async def _answered(self, hooks: Sequence[Hook], agent: Agent, told: RunContext[Any], part: Any) -> Any:
        tool = agent.toolbox.get(part.name) if isinstance(part, ToolResultPart) else None
        if not isinstance(tool, SubagentTool) or not tool.answers:
            return part

        def take(hook: Hook, returned: Any, given: Given) -> None:
            if returned is not None:
                given["result"] = _result(hook, returned, given["result"])

        given: Given = {"name": part.name, "call_id": part.call_id, "result": part, "ctx": told}
        await fire_all(self._author.run, hooks, given, take)
        return given["result"]


def _message(hook: Hook, returned: Any) -> str:
    if not isinstance(returned, str):
        raise _wrong(hook, f"returned {returned!r:.100}; it may return None, the message's text or Veto")
    text = clean(returned)
    if len(text.encode()) > INLINE_BYTES:
        raise _wrong(hook, f"returned a message of {len(text.encode()):,} bytes; it may have {INLINE_BYTES:,}")
    return text


def _result(hook: Hook, returned: Any, before: ToolResultPart) -> ToolResultPart:
    if isinstance(returned, str):
        return before.model_copy(update={"content": clean(returned)})
    if isinstance(returned, ToolResultPart):
        return before.model_copy(update={"content": clean(returned.content), "is_error": returned.is_error})
    raise _wrong(hook, f"returned {returned!r:.100}; it may return None, text or a ToolResultPart")


def _wrong(hook: Hook, why: str) -> HookError:
    return HookError(f"the hook {hook.name} ({hook.event}) {why}")
