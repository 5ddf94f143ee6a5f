"""What is new in a chat whose conversation was summed up, or edited, since the last answer that was shown."""

from __future__ import annotations

from typing import Any, cast

import pytest

from perdure import Message
from perdure.cli.chat.conversation import ChatSession
from perdure.loop.compaction import SUMMARY_ID
from perdure.types.interface import Response
from perdure.types.messages import Replaced


class _Runs:
    """A client, as far as making a talk needs one."""

    def run(self, id: str) -> None:
        return None


def said(*texts: str) -> tuple[Message, ...]:
    return tuple(Message.assistant(text) for text in texts)


def summary(messages: int, kept: int, head: str = "h") -> Message:
    replaced = Replaced(head=head, messages=messages, kept=kept)
    return Message.user("Summed up.", id=SUMMARY_ID).model_copy(update={"replaces": replaced})


def news(talk: ChatSession, *messages: Message) -> list[str]:
    return [message.text for message in talk.take_new_messages(Response(messages=messages))]


@pytest.mark.parametrize(
    ("messages", "kept", "expected"),
    [
        (4, 2, ["e", "f"]),  # all that stands behind the summary again was shown
        (5, 2, ["d", "e", "f"]),  # one message came before it was summed up
        (9, 2, ["c", "d", "e", "f"]),  # so did more than are left
        (3, 2, ["c", "d", "e", "f"]),  # it was summed up twice: nobody can tell what was shown
    ],
)
def test_what_was_shown_is_not_shown_again(messages: int, kept: int, expected: list[str]) -> None:
    talk = ChatSession(cast(Any, _Runs()), "agent", "id", {})
    assert news(talk, *said("a", "b", "c", "d")) == ["a", "b", "c", "d"]
    present = (summary(messages, kept), *said("c", "d", "e", "f"))
    assert news(talk, *present) == expected
    assert news(talk, *present, *said("g")) == ["g"]
    assert news(talk, Message.system("Be good."), summary(6, 1, "h2"), *said("g", "h")) == ["h"]


def test_what_a_step_policy_has_edited_is_not_said_again() -> None:
    talk = ChatSession(cast(Any, _Runs()), "agent", "id", {})
    opening = Message.user("Go.", id="1")
    news(talk, opening, *said("a", "b", "c"))
    edited = opening.model_copy(update={"replaces": Replaced(head="h", messages=4, kept=0)})
    trimmed = (edited, *said("c"), Message.user("On.", id="2"))
    assert news(talk, *trimmed, *said("d")) == ["On.", "d"]
    assert news(talk, *trimmed, *said("d", "e")) == ["e"]
    nothing_left = edited.model_copy(update={"replaces": Replaced(head="h2", messages=5, kept=0)})
    assert news(talk, nothing_left, *said("f")) == ["f"]
