"""A conversation whose beginning was replaced, read as it was said."""

from __future__ import annotations

from perdure.loop.transcript import SUMMARY_ID
from perdure.ports.store import Commit
from perdure.store import Chain
from perdure.store.transcripts import load_full_conversation
from perdure.testing import MemoryStore
from perdure.types.messages import Message, Replaced


class Past:
    """Writes a conversation, form by form."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.chain = Chain(self.store)
        self.head: str | None = None

    async def say(self, *messages: Message) -> str:
        node, blobs = self.chain.extend(self.head, messages)
        await self.store.commit(Commit(nodes=[node], blobs=blobs))
        self.head = node.hash
        return node.hash

    async def replace(self, kept: int, *messages: Message, marker: Message) -> None:
        """Begin anew: ``marker`` in the place of what is there but the ``kept`` last, and ``messages``."""
        assert self.head is not None
        before = await self.chain.load(self.head)
        replaced = Replaced(head=self.head, messages=len(before), kept=kept)
        self.head = None
        tail = before[-kept:] if kept else []
        await self.say(marker.model_copy(update={"replaces": replaced}), *tail, *messages)

    async def texts(self) -> list[str]:
        return [message.text for message in await load_full_conversation(self.store, self.head)]


def said(*texts: str) -> list[Message]:
    return [Message.user(text) if place % 2 == 0 else Message.assistant(text) for place, text in enumerate(texts)]


def summary(text: str) -> Message:
    return Message.user(text, id=SUMMARY_ID)


async def test_a_conversation_that_nothing_replaced() -> None:
    past = Past()
    assert await past.texts() == []
    await past.say(*said("a", "b"))
    await past.say(*said("c"))
    assert await past.texts() == ["a", "b", "c"]


async def test_a_summary_stands_before_what_it_left_alone() -> None:
    past = Past()
    await past.say(*said("a", "b", "go on", "d"))
    await past.replace(2, marker=summary("S1"))
    await past.say(*said("go on", "e", "go on", "f"))
    assert [m.text for m in await past.chain.load(past.head)] == ["S1", "go on", "d", "go on", "e", "go on", "f"]
    assert await past.texts() == ["a", "b", "S1", "go on", "d", "go on", "e", "go on", "f"]
    await past.replace(3, marker=summary("S2"))
    await past.say(*said("g"))
    everything = ["a", "b", "S1", "go on", "d", "go on", "S2", "e", "go on", "f", "g"]
    assert await past.texts() == everything
    await past.replace(0, marker=summary("S3"))
    await past.say(*said("h"))
    assert await past.texts() == [*everything, "S3", "h"]


async def test_what_is_said_in_one_step_with_the_summary_stands_behind_what_it_left_alone() -> None:
    past = Past()
    await past.say(*said("a", "b", "c", "d"))
    await past.replace(2, *said("e", "f"), marker=summary("S"))
    assert await past.texts() == ["a", "b", "S", "c", "d", "e", "f"]


async def test_an_edited_conversation_adds_what_is_new_in_it() -> None:
    """An edit marks its first message, and the whole conversation is in its first node."""
    past = Past()
    await past.say(*said("a", "b", "c"))
    edited = said("a", "B", "c", "d")
    await past.replace(0, *edited[1:], marker=edited[0])
    await past.say(*said("c", "e"))
    assert await past.texts() == ["a", "b", "c", "B", "d", "c", "e"]
    first, *others = await past.chain.load(past.head)
    await past.replace(0, *others, *said("f"), marker=first)
    assert await past.texts() == ["a", "b", "c", "B", "d", "c", "e", "f"]


async def test_an_edit_behind_a_summary_keeps_it_once() -> None:
    past = Past()
    await past.say(*said("a", "b", "c", "d"))
    await past.replace(2, marker=summary("S"))
    first, *others = await past.chain.load(past.head)
    await past.replace(0, *others[:1], *said("D", "e"), marker=first)
    assert await past.texts() == ["a", "b", "S", "c", "d", "D", "e"]
