"""Tool calls of a reply: each gets an id of its own, and a clear refusal where it cannot run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..types.messages import Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, clean
from ..types.plain import flaw, parse_json


def with_ids(parts: Sequence[Part], op: int) -> tuple[Part, ...]:
    """``parts`` with every tool call under an id that no other call of the reply has.

    Some servers leave ids out or repeat them; a result must name its call all the same.
    """
    taken = {part.id for part in parts if isinstance(part, ToolCallPart)}
    given: set[str] = set()
    fixed: list[Part] = []
    for index, part in enumerate(parts):
        if isinstance(part, ToolCallPart) and (not part.id or part.id in given):
            part = part.model_copy(update={"id": _free(f"{part.id or 'call'}_{op}_{index}", taken)})
        if isinstance(part, ToolCallPart):
            given.add(part.id)
            taken.add(part.id)
        fixed.append(part)
    return tuple(fixed)


def _free(wanted: str, taken: set[str]) -> str:
    while wanted in taken:
        wanted += "x"
    return wanted


def sound_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """``parts`` as they can be stored and read back: text without lone surrogates, and plain JSON.

    Whatever a provider lets through must not fail: the reply is paid for. Arguments that are not plain JSON make a
    malformed call; what is for the provider alone is left out.
    """
    return tuple(sound for part in parts if (sound := _sound_part(part)) is not None)


def _sound_part(part: Part) -> Part | None:
    if isinstance(part, OpaquePart):
        return None if flaw(part.data) else part
    update: dict[str, Any] = {}
    if isinstance(part, ToolCallPart):
        if why := flaw(part.arguments):
            update |= {"arguments": {}, "malformed": part.malformed or _written(part.arguments) or why}
        if (named := (clean(part.id), clean(part.name))) != (part.id, part.name):
            update |= {"id": named[0], "name": named[1]}
    elif isinstance(part, TextPart | ThinkingPart) and (sound := clean(part.text)) is not part.text:
        update["text"] = sound
    if isinstance(part, TextPart | ThinkingPart | ToolCallPart) and part.opaque is not None and flaw(part.opaque):
        update |= {"provider": None, "opaque": None}
    return part.model_copy(update=update) if update else part


def _written(arguments: dict[str, Any]) -> str:
    """The JSON of ``arguments``, which is not plain; empty where there is none."""
    try:
        return clean(json.dumps(arguments, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return ""


def unknown(name: str, known: Sequence[str]) -> str:
    """What the model is told of a tool that there is not."""
    there_is = f"there is: {', '.join(known)}" if known else "there are no tools"
    return f"tool not found: {name} ({there_is})"


def malformed(part: ToolCallPart) -> str:
    """What the model is told of arguments that are no JSON object."""
    raw = part.malformed or ""
    shown = raw if len(raw) <= 500 else raw[:500] + "…"
    try:
        why = "" if isinstance(parse_json(raw), dict) else " (this is another JSON value)"
    except ValueError as error:
        why = f" ({error})"
    return f"ArgumentsError: the arguments of {part.name} must be one JSON object{why}, they were: {shown}"


def open_calls(messages: Sequence[Message]) -> list[ToolCallPart]:
    """The calls of a transcript that have no result, in order. Providers refuse a transcript that has any."""
    waiting: dict[str, ToolCallPart] = {}
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                waiting[part.id] = part
            elif isinstance(part, ToolResultPart):
                waiting.pop(part.call_id, None)
    return list(waiting.values())


def closed_calls(prefix: Sequence[Message], fresh: Sequence[Message]) -> list[Message]:
    """What closes the calls at the end of ``prefix`` that ``fresh`` has no results for.

    Only a run that was terminated, or ran out of time, leaves any: nobody could close its transcript.
    """
    if not prefix or not prefix[-1].tool_calls:
        return []
    given = {result.call_id for message in fresh for result in message.tool_results}
    missing = [part for part in prefix[-1].tool_calls if part.id not in given]
    text = "OutcomeUnknown: the run was ended before this call reported back. It may have happened or not."
    parts = tuple(ToolResultPart(call_id=part.id, name=part.name, content=text, is_error=True) for part in missing)
    return [Message(role="tool", parts=parts)] if parts else []
