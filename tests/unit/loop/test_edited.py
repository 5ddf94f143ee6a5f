"""Conversations that an author's code has edited."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.loop.transcript import adopt_edited_messages, find_conversation_problem, trim_messages
from perdure.types.messages import Message, OpaquePart, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from tests.support.transcripts import Own, transcripts

OWN = Own("openai", thinking=lambda _, n: {"signature": n}, call=lambda _, n: {"thought": n})


def user(text: str = "Go.") -> Message:
    return Message.user(text)


def calls(*ids: str) -> Message:
    return Message.assistant("", *(ToolCallPart(id=one, name="f") for one in ids))


def results(*ids: str) -> Message:
    return Message(role="tool", parts=tuple(ToolResultPart(call_id=one, name="f") for one in ids))


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "no message is left"),
        ([Message.assistant("Hi."), user()], "begins with a message of the assistant"),
        ([results("a"), user()], "begins with a message of the tool"),
        ([user(), Message.assistant("Hi.")], "ends with a reply"),
        ([user(), Message.system("Be brief."), user()], "message 1 is a system prompt"),
        ([user(), calls("a"), user()], "the call 'a' of message 1 has no result"),
        ([user(), calls("a", "b"), results("a"), user()], "the call 'b' of message 1 has no result"),
        ([user(), calls("a"), results("a", "a"), user()], "message 2 has a result without a call"),
        ([user(), results("a"), user()], "message 1 has a result without a call"),
        ([user(), Message(role="user")], "message 1 is empty"),
        ([user(), Message(role="user", parts=(ThinkingPart(text="Hm."),))], "is a user's and may consist of"),
    ],
)
def test_what_no_model_can_be_sent(messages: list[Message], why: str) -> None:
    assert why in (find_conversation_problem(messages) or "it is sound")


def test_replies_may_give_their_calls_the_same_ids() -> None:
    assert find_conversation_problem([user(), calls("a"), results("a"), calls("a"), results("a")]) is None


@given(messages=transcripts(OWN))
def test_what_a_run_comes_to_is_sound(messages: list[Message]) -> None:
    assert find_conversation_problem(messages) is None


@given(messages=transcripts(OWN), keep=st.integers(1, 8))
def test_a_trimmed_conversation_is_sound_and_ends_as_it_did(messages: list[Message], keep: int) -> None:
    short = trim_messages(messages, keep)
    assert find_conversation_problem(short) is None
    assert short[-keep:] == messages[-keep:]
    assert short[0] == messages[0]
    assert len(short) <= keep + 2


@given(messages=transcripts(OWN))
def test_what_was_not_changed_stays_as_its_provider_gave_it(messages: list[Message]) -> None:
    copies = [message.model_copy() for message in messages]
    assert adopt_edited_messages(messages, messages) == messages
    assert adopt_edited_messages(copies, messages) == messages


def test_a_changed_reply_loses_what_was_sealed_in_it() -> None:
    sealed = {"provider": "openai", "opaque": {"signature": "x"}}
    reply = Message(
        role="assistant",
        parts=(
            ThinkingPart(text="Hm.", **sealed),
            OpaquePart(provider="openai", data={"id": "r"}),
            TextPart(text="Hi.", **sealed),
            ToolCallPart(id="a", name="f", **sealed),
        ),
    )
    changed = reply.model_copy(update={"parts": (*reply.parts[:2], TextPart(text="Ho.", **sealed), reply.parts[3])})
    (taken,) = adopt_edited_messages([changed], [reply])
    assert taken.parts == (TextPart(text="Ho."), ToolCallPart(id="a", name="f"))


def test_text_that_cannot_be_stored_is_mended() -> None:
    (taken,) = adopt_edited_messages([user("a\ud800b")], [])
    assert taken.text == "a�b"
