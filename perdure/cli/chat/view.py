"""What a person sees of a conversation on the terminal: its last turns, what was called, the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..answers import text_of
from ..conversation import arguments, conversation, printable, styled

if TYPE_CHECKING:
    from ...types.interface import Response
    from ...types.messages import Message
    from ..show import Shown

_TURNS = 3
"""Messages of the user, and what follows them, that are shown of a conversation that goes on."""
_ENDS = {
    "interrupted": "interrupted",
    "limit": "it has reached a limit",
    "length": "cut off: the reply has reached its limit of tokens",
    "refusal": "the model has declined",
    "veto": "a hook has answered in the model's place",
    "content_filter": "the provider's filter has stopped the reply",
}


def past(shown: Shown, *, colour: bool) -> Iterator[str]:
    """The last turns, as ``perdure show`` has them."""
    messages = shown.messages or []
    start = _last_turns(messages)
    if start:
        yield styled(f"… {start} earlier messages: perdure show {shown.status.context_id}", "dim", on=colour)
    before = sum(message.role == "assistant" for message in messages[:start])
    yield from conversation(messages[start:], colour=colour, since=before)
    if shown.note:
        yield styled(shown.note, "yellow", on=colour)
    if shown.error:
        failed = f"its last turn failed: {type(shown.error).__name__}: {shown.error}"
        yield from (styled(line, "red", on=colour) for line in failed.splitlines())


def _last_turns(messages: Sequence[Message]) -> int:
    asked = [number for number, message in enumerate(messages) if message.role == "user"]
    return asked[-_TURNS] if len(asked) > _TURNS else 0


def answer(response: Response, news: Sequence[Message], *, colour: bool) -> Iterator[str]:
    """What was called since the last answer, and the answer."""
    for message in news:
        for call in message.tool_calls:
            said = call.malformed if call.malformed is not None else arguments(call.arguments)
            yield styled(f"→ {printable(call.name)}({printable(said)})", "blue", on=colour)
    lines = [printable(line).rstrip() for line in text_of(response).strip().splitlines()]
    yield from lines
    if response.finish_reason in _ENDS:
        yield from end(response, colour=colour)
    elif not lines:
        yield styled("(an empty reply)", "dim", on=colour)


def end(response: Response, *, colour: bool) -> list[str]:
    """Why the turn ended, where that is not the ordinary course."""
    why = _ENDS.get(response.finish_reason)
    return [] if why is None else [styled(f"({why})", "yellow", on=colour)]
