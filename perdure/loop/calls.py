"""Tool calls of a reply: each gets an id of its own, and a clear refusal where it cannot run."""

from __future__ import annotations

from collections.abc import Sequence

from ..types.messages import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, clean


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


def sound_part(part: Part) -> Part:
    """``part`` as it can be stored: text without lone surrogates, and arguments that are JSON.

    Whatever a provider lets through must not fail: the reply is paid for.
    """
    if isinstance(part, ToolCallPart):
        try:
            part.model_dump_json()
        except (ValueError, RecursionError) as error:
            shown = clean(f"{error}: {str(part.arguments)[:200]}")
            return part.model_copy(update={"arguments": {}, "malformed": part.malformed or shown})
        return part
    if isinstance(part, TextPart | ThinkingPart) and (sound := clean(part.text)) is not part.text:
        return part.model_copy(update={"text": sound})
    return part


def unknown(name: str, known: Sequence[str]) -> str:
    """What the model is told of a tool that there is not."""
    there_is = f"there is: {', '.join(known)}" if known else "there are no tools"
    return f"tool not found: {name} ({there_is})"


def malformed(part: ToolCallPart) -> str:
    """What the model is told of arguments that are no JSON object."""
    raw = part.malformed or ""
    shown = raw if len(raw) <= 500 else raw[:500] + "…"
    return f"ArgumentsError: the arguments of {part.name} must be one JSON object, they were: {shown}"


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
