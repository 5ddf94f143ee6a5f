"""Files in the chain: bytes in the store, references in the transcript."""

from __future__ import annotations

import asyncio
import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import File
from perdure.errors import TranscriptCorruptedError
from perdure.ports.store import Blob, Commit
from perdure.store.cache import CacheBudget
from perdure.store.chain import Chain
from perdure.testing.store import MemoryStore
from perdure.types.messages import FilePart, Message, OpaquePart, TextPart, ToolResultPart, iter_file_parts

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PNG_HASH = Blob.from_content(PNG).hash
WORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=9)
FILES = st.builds(
    FilePart,
    media_type=st.just("image/png"),
    name=st.none() | WORDS,
    data=st.binary(min_size=1, max_size=40).map(lambda body: base64.b64encode(body).decode()),
)
PARTS = st.one_of(
    FILES,
    st.builds(FilePart, media_type=st.just("image/png"), url=st.just("https://x.org/a.png")),
    st.builds(TextPart, text=WORDS, provider=st.just("google"), opaque=st.just({"thought": "x"})),
    st.builds(OpaquePart, provider=st.just("anthropic"), data=st.dictionaries(WORDS, WORDS, max_size=2)),
    st.builds(ToolResultPart, call_id=WORDS, name=WORDS, content=WORDS, files=st.lists(FILES, max_size=2).map(tuple)),
)
MESSAGES = st.builds(Message, role=st.sampled_from(["user", "tool"]), parts=st.lists(PARTS, max_size=3).map(tuple))


class CountingStore(MemoryStore):
    """Counts the blobs that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def read_blobs(self, hashes):
        self.read += hashes
        return await super().read_blobs(hashes)


async def said(store: MemoryStore, chain: Chain, *messages: Message) -> list[Message]:
    """``messages`` as the transcript has them."""
    node, blobs = chain.extend(None, messages)
    await store.commit(Commit(nodes=[node], blobs=blobs))
    chain.remember(node, messages)
    return await chain.load(node.hash)


@given(st.lists(MESSAGES, max_size=3))
def test_files_are_kept_as_bytes_and_loaded_as_references(given: list[Message]) -> None:
    async def check() -> None:
        store = MemoryStore()
        loaded = await said(store, Chain(store), *given)
        assert [[part.type for part in message.parts] for message in loaded] == [
            [part.type for part in message.parts] for message in given
        ]
        before, after = list(iter_file_parts(given)), list(iter_file_parts(loaded))
        assert all(part.data is None for part in after)
        found = await Chain(store).load_files(loaded)
        for one, other in zip(before, after, strict=True):
            assert (one.name, one.url, one.media_type) == (other.name, other.url, other.media_type)
            if one.data is not None:
                assert other.blob is not None
                assert found[other.blob.hash] == base64.b64decode(one.data)
                assert other.blob.size == len(found[other.blob.hash])

    asyncio.run(check())


async def test_a_file_is_read_once_and_a_load_reads_none() -> None:
    store = CountingStore()
    (message,) = await said(store, Chain(store), Message.user(["look", File(PNG)]))
    chain = Chain(store)
    assert store.read == []
    for _ in range(2):
        assert await chain.load_files([message]) == {PNG_HASH: PNG}
    assert store.read == [PNG_HASH]


async def test_a_file_that_is_about_to_be_written_is_not_read() -> None:
    store = CountingStore()
    message = Message(role="user", parts=(FilePart(media_type="image/png", blob=Blob.from_content(PNG).ref),))
    for budget in (10, 1000):
        chain = Chain(store, cache=CacheBudget(budget))
        assert await chain.load_files([message], {PNG_HASH: PNG}) == {PNG_HASH: PNG}
    assert await chain.load_files([message]) == {PNG_HASH: PNG}, "it was kept"
    assert store.read == []


async def test_a_message_of_references_is_the_same_object_again() -> None:
    store = MemoryStore()
    message = Message(role="user", parts=(FilePart(media_type="image/png", blob=Blob.from_content(PNG).ref),))
    (loaded,) = await said(store, Chain(store), message)
    assert loaded is message


@pytest.mark.parametrize("body", [None, b"other"])
async def test_a_missing_or_altered_file_is_named(body: bytes | None) -> None:
    store = MemoryStore()
    loaded = await said(store, Chain(store), Message.user([File(PNG)]))
    if body is None:
        store.run_sql("DELETE FROM blobs WHERE hash = :hash", hash=PNG_HASH)
    else:
        store.run_sql("UPDATE blobs SET body = :body WHERE hash = :hash", hash=PNG_HASH, body=body)
    with pytest.raises(TranscriptCorruptedError, match=PNG_HASH):
        await Chain(store).load_files(loaded)


async def test_what_a_provider_keeps_of_a_file_counts() -> None:
    """The encoding of a message has the file in it: a node with a large one is over a small budget."""
    store = MemoryStore()
    chain = Chain(store, cache=CacheBudget(100_000))
    message = Message(role="user", parts=(FilePart(media_type="image/png", blob=Blob.from_content(b"x" * 90_000).ref),))
    (loaded,) = await said(store, chain, message)
    assert loaded is not message
