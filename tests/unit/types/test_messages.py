"""What a message remembers of its encoding."""

from __future__ import annotations

from perdure.types.messages import Message, TextPart


def test_a_message_remembers_its_encoding_by_format() -> None:
    message = Message.user("hi")
    message.remember_wire("a", b"1")
    assert (message.wire("a"), message.wire("b")) == (b"1", None)


def test_a_changed_copy_is_not_sent_as_the_original() -> None:
    message = Message.user("hi")
    message.remember_wire("a", b"1")
    copy = message.model_copy(update={"parts": (TextPart(text="ho"),)})
    copy.remember_wire("b", b"2")
    assert copy.wire("a") is None
    assert (message.wire("a"), message.wire("b")) == (b"1", None)
