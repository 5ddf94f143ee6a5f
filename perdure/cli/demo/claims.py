"""What the demo claims, each with whether it was true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .story import INJECTED

if TYPE_CHECKING:
    from ...types.interface import Response
    from ...types.messages import Message
    from .sight import Tries
    from .story import Facts


@dataclass(frozen=True)
class Claim:
    """A sentence, and whether it holds."""

    text: str
    holds: bool


def claims(response: Response, facts: Facts, tries: Tries, asked: int | None) -> list[Claim]:
    """All of them. ``asked``: the small model's own count; with a real one Temporal's count of attempts stands in."""
    messages = list(response.messages)
    replies = [message for message in messages if message.role == "assistant"]
    kept = sum(message.role == "assistant" for message in facts.before)
    return [
        Claim(
            f"the worker was killed in the middle of the run, after {_count(kept, 'reply')} of {len(replies)}, "
            f"and the run stayed open",
            0 < kept < len(replies) and facts.alive_after_kill,
        ),
        Claim(
            f"nothing was repeated: the {_count(len(facts.before), 'message')} from before the kill stand unchanged "
            f"in the transcript",
            len(facts.before) > 0 and messages[: len(facts.before)] == list(facts.before),
        ),
        _paid(len(replies), tries.model if asked is None else asked, facts, by_model=asked is not None),
        _tools(messages, tries),
        Claim("the injected message is in the conversation once", _said(messages, INJECTED) == 1),
        Claim("there is an answer", bool(response.content.strip())),
    ]


def _paid(replies: int, paid: int, facts: Facts, *, by_model: bool) -> Claim:
    counted = "the model counted" if by_model else "Temporal counted"
    text = f"{counted} {_count(paid, 'paid call')} for {_count(replies, 'reply')} in the transcript"
    if paid == replies + 1:
        text += ": the one more is the call that the kill cut short"
    # What was in flight when the worker died may be asked for once more, and nothing else.
    return Claim(text, replies <= paid <= replies + (1 if facts.cut else 0))


def _tools(messages: list[Message], tries: Tries) -> Claim:
    asked = [call.id for message in messages for call in message.tool_calls]
    results = [result.call_id for message in messages for result in message.tool_results]
    text = f"{_count(len(asked), 'tool call')}, each with one result"
    text += f"; run again after the crash: {', '.join(tries.again)}" if tries.again else ", and each ran once"
    return Claim(text, sorted(asked) == sorted(results) and tries.tools == len(asked) + len(tries.again))


def _said(messages: list[Message], text: str) -> int:
    return sum(message.role == "user" and message.text == text for message in messages)


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("ply") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
