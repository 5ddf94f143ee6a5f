"""A transcript goes out and comes back whole, as far as the format can hold it."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import InvalidInputError
from perdure.providers.anthropic_messages import decode, decode_system
from perdure.types.messages import Message, ToolResultPart


def test_content_may_be_text() -> None:
    assert decode([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so?"}]) == [
        Message.user("hi"),
        Message.assistant("so?"),
    ]
    wire = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]}]
    assert decode(wire) == [Message(role="tool", parts=(ToolResultPart(call_id="c", name="", content="1"),))]
    assert decode_system(None) is None
    assert decode_system("x") == "x"
    assert decode_system([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "a\n\nb"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "robot", "content": "x"},
        {"role": "user", "content": 7},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": [{"type": "search_result"}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "x"}}]},
    ],
)
def test_what_is_no_message(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        decode([message])
