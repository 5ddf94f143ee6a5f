"""What hooks return, read: each function gives what is meant, or raises for what the hook may not return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import HookError
from ..loop.calls import sound_parts
from ..ports import ModelRequest
from ..types.messages import Message, Part, TextPart, ToolCallPart, clean
from ..types.plain import as_plain
from .hook import Hook, Veto


def request_from(hook: Hook, returned: Any, request: ModelRequest) -> ModelRequest | Veto:
    """What is asked after a ``before_llm_call`` hook. Raises ``HookError``."""
    match returned:
        case None:
            return request
        case Veto():
            return returned
        case ModelRequest():
            if returned.model != request.model:
                raise _wrong(hook, f"changed the model to {returned.model!r}; on_iteration can: step.model = …")
            return replace(returned, messages=_messages(hook, returned.messages))
        case list() | tuple():
            return replace(request, messages=_messages(hook, returned))
        case _:
            raise _may_return(hook, returned, "a ModelRequest (replace(request, …)), a list of messages or Veto")


def reply_from(hook: Hook, returned: Any, reply: Message) -> Message:
    """What the model has said after an ``after_llm_call`` hook; it was paid all the same. Raises ``HookError``."""
    match returned:
        case None:
            return reply
        case str():
            return reply.model_copy(update={"parts": with_text(reply.parts, returned)})
        case Message(role="assistant"):
            kept = {"usage": reply.usage, "cost_usd": reply.cost_usd, "model": returned.model or reply.model}
            kept["finish_reason"] = returned.finish_reason or reply.finish_reason
            parts = sound_parts(returned.parts)
            if any(part.type in ("tool_result", "file") for part in parts):
                raise _wrong(hook, "returned a reply with tool results or files in it, which no model gives")
            return returned.model_copy(update={**kept, "withheld": reply.withheld, "parts": parts})
        case _:
            raise _may_return(hook, returned, "an assistant message or text")


def message_from(hook: Hook, returned: Any, message: Message) -> Message:
    """What a user has said after an ``on_user_message`` hook: from the same sender. Raises ``HookError``."""
    match returned:
        case None:
            return message
        case Veto(reason=reason):
            return withheld(message, reason)
        case str():
            return _user(message, with_text(message.parts, returned))
        case Message(role="user"):
            if not all(part.type in ("text", "file") for part in returned.parts) or not returned.parts:
                raise _wrong(hook, "returned a user's message that does not consist of texts and files")
            return _user(message, sound_parts(returned.parts))
        case _:
            raise _may_return(hook, returned, "a user's message, text or Veto")


def text_from(hook: Hook, returned: Any, text: str) -> str:
    """The answer after an ``on_finish`` hook. Raises ``HookError``."""
    if returned is None:
        return text
    if not isinstance(returned, str):
        raise _may_return(hook, returned, "the answer's text")
    return clean(returned)


def arguments_from(hook: Hook, returned: Any, arguments: dict[str, Any]) -> dict[str, Any] | Veto:
    """A call's arguments after a ``before_tool_call`` hook, which may have changed ``arguments`` in place. Raises
    ``HookError``."""
    if isinstance(returned, Veto):
        return returned
    if returned is None or isinstance(returned, dict):
        try:
            plain: dict[str, Any] = as_plain(arguments if returned is None else returned)
        except ValueError as error:
            raise _wrong(hook, f"gave arguments that are not plain JSON: {error}") from None
        return arguments if returned is None and plain == arguments else plain
    raise _may_return(hook, returned, "a dictionary of arguments or Veto")


def with_text(parts: Sequence[Part], text: str) -> tuple[Part, ...]:
    """``parts`` with ``text`` in the place of all their text: before the calls where they had none."""
    place = next((n for n, part in enumerate(parts) if isinstance(part, TextPart | ToolCallPart)), len(parts))
    others = [[part for part in some if not isinstance(part, TextPart)] for some in (parts[:place], parts[place:])]
    return (*others[0], *((TextPart(text=clean(text)),) if text else ()), *others[1])


def withheld(message: Message, reason: str) -> Message:
    """``message`` without what it said."""
    return _user(message, (TextPart(text=clean(f"[withheld: {reason}]")),))


def _user(message: Message, parts: tuple[Part, ...]) -> Message:
    return message.model_copy(update={"parts": parts or (TextPart(text="[withheld]"),)})


def _messages(hook: Hook, messages: Any) -> tuple[Message, ...]:
    given = tuple(messages)
    if not given or not all(isinstance(one, Message) for one in given):
        raise _wrong(hook, "returned no messages, or something else among them")
    if any(one.role == "system" for one in given):
        raise _wrong(hook, "returned a system message; change request.system: replace(request, system=…)")
    return tuple(map(_sound, given))


def _sound(message: Message) -> Message:
    parts = sound_parts(message.parts)
    return message if parts == message.parts else message.model_copy(update={"parts": parts})


def _may_return(hook: Hook, returned: Any, what: str) -> HookError:
    return _wrong(hook, f"returned {returned!r:.100}; it may return None, {what}")


def _wrong(hook: Hook, why: str) -> HookError:
    return HookError(f"the hook {hook.name} ({hook.event}) {why}")
