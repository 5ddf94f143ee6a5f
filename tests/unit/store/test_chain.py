"""The chain: hashes, what is stored, what is loaded, and what stays in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidInputError, TranscriptCorruptedError
from perdure.ports.store import Blob, Commit, Node
from perdure.store.cache import CacheBudget
from perdure.store.chain import Chain, hash_node
from perdure.testing.store import MemoryStore
from perdure.types.messages import (
    INLINE_BYTES,
    BlobRef,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    encode_canonical,
)

texts = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
    st.sampled_from(["x" * INLINE_BYTES, "x" * (INLINE_BYTES + 1), "\N{SNOWMAN}" * (INLINE_BYTES // 3 + 1)]),
)
parts = st.one_of(
    st.builds(TextPart, text=texts),
    st.builds(ThinkingPart, text=texts),
    st.builds(ToolCallPart, id=texts, name=texts, arguments=st.dictionaries(texts, st.integers(), max_size=2)),
    st.builds(ToolResultPart, call_id=texts, name=texts, content=texts, is_error=st.booleans()),
)
messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool"]),
    parts=st.lists(parts, max_size=3).map(tuple),
    id=st.none() | texts,
)


class CountingStore(MemoryStore):
    """Counts the queries, and what they gave."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[int] = []

    async def read_nodes(self, head, *, until=()):
        found = await super().read_nodes(head, until=until)
        self.queries.append(len(found))
        return found


async def say(store: MemoryStore, chain: Chain, head: str | None, *said: Message, remember: bool = False) -> Node:
    node, blobs = chain.extend(head, said)
    await store.commit(Commit(nodes=[node], blobs=blobs))
    if remember:
        chain.remember(node, said)
    return node


async def talk(store: MemoryStore, count: int) -> list[Node]:
    chain, nodes = Chain(store), []
    for i in range(count):
        nodes.append(await say(store, chain, nodes[-1].hash if nodes else None, Message.user(str(i))))
    return nodes


@given(st.lists(st.lists(messages, max_size=3), max_size=5), st.booleans(), st.integers(0, 5))
def test_what_was_extended_is_loaded(turns: list[list[Message]], remember: bool, cached: int):
    async def check() -> None:
        store = MemoryStore()
        chain, head = Chain(store), None
        for i, turn in enumerate(turns):
            head = (await say(store, chain, head, *turn, remember=remember)).hash
            if i == cached:
                await chain.load(head)
        said = [message for turn in turns for message in turn]
        assert list(await chain.load(head)) == said
        assert list(await Chain(store).load(head)) == said
        assert list(await Chain(store, cache=CacheBudget(4000)).load(head)) == said

    asyncio.run(check())


links = st.tuples(st.none() | st.text(max_size=8), st.binary(max_size=8))


@given(links, links)
def test_the_hash_covers_parent_and_body(one: tuple[str | None, bytes], other: tuple[str | None, bytes]):
    assert (hash_node(*one) == hash_node(*other)) == (one == other)


def test_the_hash_is_what_it_was():
    """Transcripts that are stored already depend on it."""
    root = hash_node(None, b"[]")
    assert root == "fe71c827dfcb692dc057faf8858529eb02e0d802da0a144aa1a1aa0750664f83"
    assert hash_node(root, b"[]") == "467af95441c948b43affd336448daa803b0e7ff99efe7ad626a34c0ab4fe5659"


async def test_large_texts_are_blobs_and_small_ones_are_not():
    chain = Chain(MemoryStore())
    small, large = "x" * INLINE_BYTES, "x" * (INLINE_BYTES + 1)
    result = ToolResultPart(call_id="1", name="t", content=large)
    node, blobs = chain.extend(None, [Message.user(small), Message(role="tool", parts=(result,))])
    assert [blob.body.decode() for blob in blobs] == [large]
    assert blobs[0].hash == Blob.from_content(large.encode()).hash
    assert len(node.body) < len(small) + 500
    assert result.content == large


async def test_a_remembered_node_gives_the_same_objects_and_needs_no_query():
    store = CountingStore()
    chain = Chain(store)
    said = Message.user("x" * 100_000)
    said.remember_wire("openai", b"encoded")
    head = await say(store, chain, None, said, remember=True)
    (loaded,) = await chain.load(head.hash)
    assert loaded is said
    assert loaded.wire("openai") == b"encoded"
    assert store.queries == []


async def test_a_message_with_a_reference_is_resolved_by_the_next_load():
    store = MemoryStore()
    chain = Chain(store)
    blob = Blob.from_content("kept apart")
    ref = blob.ref
    referring = Message(role="user", parts=(TextPart(blob=ref),))
    await store.commit(Commit(blobs=[blob]))
    node = await say(store, chain, None, referring, remember=True)
    assert list(await chain.load(node.hash)) == [Message.user("kept apart")]
    assert await chain.resolve_blob(ref) == "kept apart"


async def test_loads_only_what_is_missing():
    store = CountingStore()
    nodes = await talk(store, 50)
    chain = Chain(store)
    await chain.load(nodes[29].hash)
    before = await chain.load(nodes[29].hash)
    after = await chain.load(nodes[-1].hash)
    assert store.queries == [30, 20]
    assert all(new is old for new, old in zip(after, before, strict=False))
    fork = await say(store, chain, nodes[10].hash, Message.user("fork"))
    assert len(await chain.load(fork.hash)) == 12


async def test_loads_at_once_agree():
    store = MemoryStore()
    nodes = await talk(store, 300)
    chain = Chain(store)
    loads = await asyncio.gather(*[chain.load(nodes[i].hash) for i in (299, 299, 150, 299)])
    assert list(loads[0]) == list(loads[1]) == [Message.user(str(i)) for i in range(300)]
    assert loads[2] == loads[0][:151]


async def test_a_small_cache_forgets_the_root_first():
    store = CountingStore()
    nodes = await talk(store, 20)
    chain = Chain(store, cache=CacheBudget(25_000))
    for _ in range(2):
        assert len(await chain.load(nodes[-1].hash)) == 20
    assert store.queries[0] == 20
    assert 0 < store.queries[1] < 20


async def test_nodes_of_so_many_conversations_are_kept_and_no_more():
    store = CountingStore()
    chain = Chain(store, max_heads=3)
    one = [(await say(store, chain, None, Message.user(f"hello {n}"), remember=True)) for n in range(4)]
    two = [(await say(store, chain, node.hash, Message.user("again"), remember=True)) for node in one[1:]]
    for node in two:
        assert len(await chain.load(node.hash)) == 2
    assert store.queries == [], "each conversation has one end, however long it is"
    assert len(await chain.load(one[0].hash)) == 1
    assert len(await chain.load(two[-1].hash)) == 2
    assert store.queries == [1], "the first had left, and for it the next one that was not used longest leaves"
    assert len(await chain.load(two[0].hash)) == 2
    assert store.queries == [1, 2]


async def test_a_fork_is_whole_when_the_conversation_it_shares_nodes_with_leaves():
    store = CountingStore()
    nodes = await talk(store, 5)
    chain = Chain(store, max_heads=2)
    fork = await say(store, chain, nodes[2].hash, Message.user("fork"))
    await chain.load(nodes[-1].hash)
    await chain.load(fork.hash)
    await say(store, chain, None, Message.user("another"), remember=True)
    assert [message.text for message in await chain.load(fork.hash)] == ["0", "1", "2", "fork"]


async def test_no_head_no_messages():
    assert list(await Chain(MemoryStore()).load(None)) == []


async def test_an_altered_node_is_named():
    store = MemoryStore()
    nodes = await talk(store, 3)
    altered = replace(nodes[1], body=encode_canonical([Message.user("something else")]))
    store.run_sql("UPDATE nodes SET body = :body WHERE hash = :hash", hash=altered.hash, body=altered.body)
    with pytest.raises(TranscriptCorruptedError, match=nodes[1].hash) as caught:
        await Chain(store).load(nodes[2].hash)
    assert caught.value.hint


async def test_another_parent_is_found_out():
    store = MemoryStore()
    nodes = await talk(store, 3)
    change = "UPDATE nodes SET parent = :parent WHERE hash = :hash"
    store.run_sql(change, hash=nodes[2].hash, parent=nodes[0].hash)
    with pytest.raises(TranscriptCorruptedError, match=nodes[2].hash):
        await Chain(store).load(nodes[2].hash)


async def test_a_missing_node_is_named():
    store = MemoryStore()
    nodes = await talk(store, 3)
    store.run_sql("DELETE FROM nodes WHERE hash = :hash", hash=nodes[0].hash)
    with pytest.raises(TranscriptCorruptedError, match=nodes[0].hash):
        await Chain(store).load(nodes[2].hash)


@pytest.mark.parametrize("body", [None, b"other"])
async def test_a_missing_or_altered_blob_is_named(body: bytes | None):
    store = MemoryStore()
    chain = Chain(store)
    node = await say(store, chain, None, Message.user("x" * 100_000))
    [(name,)] = store.run_sql("SELECT hash FROM blobs")
    if body is None:
        store.run_sql("DELETE FROM blobs WHERE hash = :hash", hash=name)
    else:
        store.run_sql("UPDATE blobs SET body = :body WHERE hash = :hash", hash=name, body=body)
    with pytest.raises(TranscriptCorruptedError, match=name):
        await chain.load(node.hash)
    with pytest.raises(TranscriptCorruptedError, match=name):
        await chain.resolve_blob(BlobRef(hash=name, size=100_000))


async def test_a_blob_that_is_no_text():
    store = MemoryStore()
    await store.commit(Commit(blobs=[Blob.from_content(b"\xff")]))
    with pytest.raises(TranscriptCorruptedError, match="UTF-8"):
        await Chain(store).resolve_blob(BlobRef(hash=Blob.from_content(b"\xff").hash, size=1))


async def test_a_form_of_a_newer_version():
    store = MemoryStore()
    body = b'[{"parts":[{"type":"hologram"}],"role":"user"}]'
    node = Node(hash_node(None, body), None, body)
    await store.commit(Commit(nodes=[node]))
    with pytest.raises(TranscriptCorruptedError, match="intact") as caught:
        await Chain(store).load(node.hash)
    assert "newer" in (caught.value.hint or "")


async def test_a_failure_leaves_nothing_in_the_cache():
    store = MemoryStore()
    nodes = await talk(store, 3)
    store.run_sql("DELETE FROM nodes WHERE hash = :hash", hash=nodes[0].hash)
    chain = Chain(store)
    with pytest.raises(TranscriptCorruptedError):
        await chain.load(nodes[2].hash)
    await store.commit(Commit(nodes=[nodes[0]]))
    assert len(await chain.load(nodes[2].hash)) == 3


@pytest.mark.parametrize("levels", [198, 254, 300])
def test_a_node_that_could_not_be_read_back_is_not_made(levels: int) -> None:
    arguments: Any = 1
    for _ in range(levels):
        arguments = {"x": arguments}
    message = Message.assistant("", ToolCallPart(id="c1", name="pay", arguments=arguments))
    with pytest.raises(InvalidInputError, match="could not be read back: JSON: ") as refused:
        Chain(MemoryStore()).extend(None, [message])
    assert "pay" not in str(refused.value)
