"""What every transcript must fulfil, whatever happened to its run."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from perdure import Message


def assert_closed(messages: Sequence[Message]) -> None:
    """Every call has exactly one result, in the order of the calls, directly behind the message that asks for it."""
    for index, message in enumerate(messages):
        if message.role == "tool":
            asked = messages[index - 1] if index else None
            assert asked is not None, "a tool message opens the transcript"
            assert asked.role == "assistant", f"message {index}: results behind a {asked.role} message"
        if not message.tool_calls:
            continue
        follows = messages[index + 1] if index + 1 < len(messages) else None
        results = follows.tool_results if follows is not None else ()
        wanted = [call.id for call in message.tool_calls]
        assert [result.call_id for result in results] == wanted, f"message {index} asks for {wanted}: {results}"
    ids = [call.id for message in messages for call in message.tool_calls]
    assert len(ids) == len(set(ids)), "two calls of one id"


def results(messages: Sequence[Message]) -> list[str]:
    """The contents of all tool results, in order."""
    return [result.content for message in messages for result in message.tool_results]


def users(messages: Sequence[Message]) -> list[str]:
    """The texts of all user messages, in order."""
    return [message.text for message in messages if message.role == "user"]


def steers(printed: str) -> list[str]:
    """The characters in what was printed that a terminal acts on: all but line feeds, tabs and what is shown."""
    categories = ("Cc", "Cs", "Zl", "Zp")
    bidirectional = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
    return [
        char
        for char in printed
        if char not in "\n\t"
        and (unicodedata.category(char) in categories or unicodedata.bidirectional(char) in bidirectional)
    ]
