"""Tool calls of a reply: each gets an id of its own, and a clear refusal where it cannot run."""

from __future__ import annotations

from collections.abc import Sequence

from ..types.messages import Part, ToolCallPart


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


def unknown(name: str, known: Sequence[str]) -> str:
    """What the model is told of a tool that there is not."""
    there_is = f"there is: {', '.join(known)}" if known else "there are no tools"
    return f"tool not found: {name} ({there_is})"


def malformed(part: ToolCallPart) -> str:
    """What the model is told of arguments that are no JSON object."""
    raw = part.malformed or ""
    shown = raw if len(raw) <= 500 else raw[:500] + "…"
    return f"ArgumentsError: the arguments of {part.name} must be one JSON object, they were: {shown}"
