"""Pages of a transcript: the same as a slice of it, and read without the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Message
from perdure.client.pages import TranscriptPages
from perdure.errors import TranscriptCorruptedError
from perdure.ports.store import Commit, Node
from perdure.store.chain import Chain, hash_node
from perdure.testing import MemoryStore
from perdure.types.messages import Replaced, TextPart


class CountedStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.nodes_read = 0

    async def read_nodes(self, head: str, *, until: Sequence[str] = ()) -> list[Node]:
        nodes = await super().read_nodes(head, until=until)
        self.nodes_read += len(nodes)
        return nodes


def say(text: str, replaces: Replaced | None = None) -> Message:
    return Message(role="user", parts=(TextPart(text=text),), replaces=replaces)


async def extend(store: MemoryStore, head: str | None, messages: Sequence[Message]) -> str:
    node, blobs = Chain(store).extend(head, messages)
    await store.commit(Commit(nodes=[node], blobs=blobs))
    return node.hash


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.data())
async def test_a_page_is_a_slice_also_of_a_transcript_that_grows_or_goes_back(
    counts: list[int], data: st.DataObject
) -> None:
    store, pages = CountedStore(), TranscriptPages()
    known: list[tuple[str, list[Message]]] = []
    for number, count in enumerate(counts):
        head, before = data.draw(st.sampled_from([(None, []), *known[-3:]])) if number else (None, [])
        new = [say(f"{number}.{index}") for index in range(count)]
        known.append((await extend(store, head, new), [*before, *new]))
        head, messages = known[-1]
        after, limit = data.draw(st.integers(-1, 10)), data.draw(st.integers(1, 10))
        for full in (False, True):
            page = await pages.read(store, "run", head, after=after, limit=limit, full=full)
            assert page == (messages[after + 1 : after + 1 + limit], len(messages))


async def test_a_page_reads_its_own_nodes_alone() -> None:
    store, pages = CountedStore(), TranscriptPages()
    head: str | None = None
    for number in range(100):
        head = await extend(store, head, [say(f"{number}")])
    assert await pages.read(store, "run", None, after=-1, limit=5) == ([], 0)
    await pages.read(store, "run", head, after=-1, limit=5)
    store.nodes_read = 0
    page, total = await pages.read(store, "run", head, after=49, limit=5)
    assert ([message.text for message in page], total) == (["50", "51", "52", "53", "54"], 100)
    assert store.nodes_read == 5
    head = await extend(store, head, [say("100")])
    store.nodes_read = 0
    assert (await pages.read(store, "run", head, after=-1, limit=5))[1] == 101
    assert store.nodes_read == 6, "those of the page, and the new one"


async def test_replaced_messages_are_in_a_full_page() -> None:
    store, pages = CountedStore(), TranscriptPages()
    old = await extend(store, None, [say("a"), say("b"), say("c")])
    summary = say("a and b", Replaced(head=old, messages=3, kept=1))
    head = await extend(store, None, [summary, say("c"), say("d")])
    page, total = await pages.read(store, "run", head, after=0, limit=2)
    assert ([message.text for message in page], total) == (["c", "d"], 3)
    page, total = await pages.read(store, "run", head, after=0, limit=3, full=True)
    assert ([message.text for message in page], total) == (["b", "a and b", "c"], 5)


async def test_a_damaged_node_is_named() -> None:
    store, pages = CountedStore(), TranscriptPages()
    head = await extend(store, None, [say("a")])
    store.run_sql("UPDATE nodes SET body = :body", body=b"[}")
    with pytest.raises(TranscriptCorruptedError):
        await pages.read(store, "run", head, after=-1, limit=5)
    body = b"nonsense"
    wrong = hash_node(None, body)
    await store.commit(Commit(nodes=[Node(wrong, None, body)]))
    with pytest.raises(TranscriptCorruptedError):
        await pages.read(store, "run", wrong, after=-1, limit=5)
