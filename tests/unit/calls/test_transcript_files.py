"""Files on their way to the model: from messages and tool results, as references and bytes."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from perdure.calls.journal import JournalStage
from perdure.calls.transcript import TranscriptStage
from perdure.errors import TranscriptCorruptedError
from perdure.ports.store import Blob, Commit
from perdure.store import Chain
from perdure.testing.store import MemoryStore
from perdure.types.messages import INLINE_BYTES, BlobRef, FilePart, Message, TextPart, iter_file_parts
from perdure.types.wire import ModelOutput, NewMessage, NewResult, RunEnding, ToolOutput
from tests.unit.calls.build import Inner, close_call, compose, model_call, reply, tool_call

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
DATA = FilePart(media_type="image/png", name="cat.png", data=base64.b64encode(PNG).decode())
KEPT = FilePart(media_type="image/png", name="cat.png", blob=Blob.from_content(PNG).ref)


async def call(store: MemoryStore, inner: Inner, **task: Any) -> ModelOutput:
    """One model call through journal and transcript, as a fresh worker makes it."""
    stages = [JournalStage(store), TranscriptStage(Chain(store), store, store, store.store_id)]
    output: ModelOutput = await compose(stages, inner)(model_call(**task))
    return output


def message(*parts: TextPart | FilePart, **more: Any) -> NewMessage:
    return NewMessage(content=parts, id="m1", **more)


async def test_bytes_in_a_message_become_a_blob_of_the_same_commit(store: MemoryStore) -> None:
    inner = Inner(reply("A cat."))
    answer = await call(store, inner, new=(message(TextPart(text="What is it?"), DATA),))
    (said,) = inner.calls[0].new_messages
    assert said.parts == (TextPart(text="What is it?"), KEPT)
    assert inner.calls[0].files == {Blob.from_content(PNG).hash: PNG}
    assert (await Chain(store).load(answer.head))[0] == said
    assert [Blob.from_content(PNG)] == list(store.commits[0].blobs)


async def test_files_of_earlier_messages_are_given_too(store: MemoryStore) -> None:
    first = await call(store, Inner(reply("A cat.")), new=(message(DATA),))
    inner = Inner(reply("Grey."))
    await call(store, inner, op=1, head=first.head, new=(NewMessage(content="Which colour?"),))
    assert inner.calls[0].files == {Blob.from_content(PNG).hash: PNG}


async def test_what_its_sender_put_into_the_store_is_found(store: MemoryStore) -> None:
    long = "x" * (INLINE_BYTES + 1)
    await store.commit(Commit(blobs=[Blob.from_content(PNG), Blob.from_content(long)]))
    inner = Inner(reply("A cat."))
    lied = KEPT.model_copy(update={"blob": BlobRef(hash=Blob.from_content(PNG).hash, size=7)})
    await call(store, inner, new=(message(TextPart(blob=Blob.from_content(long).ref), lied),))
    assert inner.calls[0].new_messages[0].parts == (TextPart(text=long), KEPT)


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_file_that_is_not_there_is_said_to_be_missing(store: MemoryStore, *, elsewhere: bool) -> None:
    inner = Inner(reply("Which cat?"))
    where = {"store_id": "another"} if elsewhere else {}
    await call(store, inner, new=(message(TextPart(text="What is it?"), KEPT, **where),))
    text, missing = inner.calls[0].new_messages[0].parts
    assert text == TextPart(text="What is it?")
    assert missing.text.startswith("[file cat.png of message m1 could not be read: ")
    assert ("in store another" in missing.text) == elsewhere


async def test_no_model_is_called_without_a_file_of_the_transcript(store: MemoryStore) -> None:
    first = await call(store, Inner(reply("A cat.")), new=(message(DATA),))
    store.run_sql("DELETE FROM blobs WHERE hash = :hash", hash=Blob.from_content(PNG).hash)
    with pytest.raises(TranscriptCorruptedError, match=Blob.from_content(PNG).hash):
        await call(store, Inner(reply("Grey.")), op=1, head=first.head)


async def test_an_ending_records_files_and_needs_none(store: MemoryStore) -> None:
    first = await call(store, Inner(reply("A cat.")), new=(message(DATA),))
    store.run_sql("DELETE FROM blobs")
    other = FilePart(media_type="text/plain", data="eHg=")
    given = close_call(op=1, head=first.head, new=(message(other),), closing=RunEnding(status="cancelled"))
    stages = [JournalStage(store), TranscriptStage(Chain(store), store, store, store.store_id)]
    ended = await compose(stages, Inner(None), "close")(given)
    (last,) = (await Chain(store).load(ended.head))[-1].parts
    assert last == FilePart(media_type="text/plain", blob=Blob.from_content(b"xx").ref)
    assert store.run_sql("SELECT hash, body FROM blobs") == [(Blob.from_content(b"xx").hash, b"xx")]


async def test_files_of_a_tool_result_are_one_commit_with_its_outcome(store: MemoryStore) -> None:
    async def draw(call: Any) -> ToolOutput:
        call.recording.blobs.append(Blob.from_content(PNG))
        return ToolOutput(key=call.key, content="Here:", files=(KEPT,))

    run = compose([JournalStage(store)], draw, "tool")
    done = await run(tool_call())
    assert await run(tool_call(owner="run/2/2")) == done
    assert [Blob.from_content(PNG)] == list(store.commits[0].blobs)
    inner = Inner(reply("A cat."))
    await call(store, inner, op=2, new=(NewResult(call_id="c1", name="draw", key=done.key),))
    assert [result.files for result in inner.calls[0].new_messages[0].tool_results] == [(KEPT,)]
    assert inner.calls[0].files == {Blob.from_content(PNG).hash: PNG}


def test_an_outcome_without_files_is_the_bytes_that_it_was() -> None:
    plain = ToolOutput(key="k", content="x").model_dump_json(exclude_none=True)
    assert plain == '{"key":"k","content":"x","is_error":false,"status":"done"}'
    assert ToolOutput.model_validate_json(plain).files == ()
    assert list(iter_file_parts([Message.user("x")])) == []
