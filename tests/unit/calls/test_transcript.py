"""The transcript stage: one hash in, a conversation for the model, one hash out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.calls.call import ModelReply
from perdure.calls.journal import JournalStage
from perdure.calls.transcript import TranscriptStage
from perdure.errors import StoreMismatchError, TranscriptCorruptedError
from perdure.loop.finish import REMINDER_ID, build_response
from perdure.ports.store import Blob, Commit, Outcome, RunRow
from perdure.store import Chain
from perdure.testing.store import MemoryStore
from perdure.types.interface import Response
from perdure.types.messages import INLINE_BYTES, BlobRef, Message, ToolCallPart, Usage
from perdure.types.tool_calls import Call, RefusedCall
from perdure.types.wire import CloseOutput, FinalAnswer, ModelOutput, NewMessage, NewResult, RunEnding, ToolOutput
from tests.unit.calls.build import Inner, close_call, compose, model_call, reply, tool_call
from tests.unit.loop.build import model, opened


def stage(store: MemoryStore) -> TranscriptStage:
    """With a chain of its own: nothing is remembered from an earlier stage."""
    return TranscriptStage(Chain(store), store, store, store.store_id)


PARENT = "SELECT parent FROM nodes WHERE hash = :hash"


async def read_run(store: MemoryStore) -> RunRow:
    row = await store.get_run("run-1")
    assert row is not None
    return row


async def said(store: MemoryStore, head: str | None) -> list[tuple[str, str]]:
    """Role and text of the conversation as the store has it."""
    messages = await Chain(store).load(head)
    return [(m.role, m.text or ",".join(r.content for r in m.tool_results)) for m in messages]


async def call(store: MemoryStore, answer: Any, inner: Inner | None = None, **task: Any) -> ModelOutput:
    """One model call through journal and transcript, as a fresh worker makes it."""
    stages = [JournalStage(store), stage(store)]
    output: ModelOutput = await compose(stages, inner or Inner(answer))(model_call(**task))
    return output


async def end(store: MemoryStore, closing: RunEnding, **task: Any) -> CloseOutput:
    """The record of an ending, likewise."""
    given = close_call(closing=closing, **task)
    output: CloseOutput = await compose([JournalStage(store), stage(store)], Inner(None), "close")(given)
    return output


async def test_a_conversation_grows_by_one_node_a_call(store: MemoryStore) -> None:
    first = await call(store, reply("Hello.", system="Be good."))
    inner = Inner(reply("Bye.", system="Be good."))
    second = await call(store, None, inner, op=1, head=first.head, message="and?")
    assert [message.text for message in inner.calls[0].prefix] == ["Be good.", "hi", "Hello."]
    assert [message.text for message in inner.calls[0].new_messages] == ["and?"]
    assert await said(store, second.head) == [
        ("system", "Be good."),
        ("user", "hi"),
        ("assistant", "Hello."),
        ("user", "and?"),
        ("assistant", "Bye."),
    ]
    assert store.run_sql("SELECT count(*) FROM nodes") == [(2,)]
    assert second.store_id == store.store_id


async def test_a_prompt_that_changes_is_recorded_again(store: MemoryStore) -> None:
    first = await call(store, reply("Hello.", system="Be good."))
    second = await call(store, reply("Bye.", system="Be better."), op=1, head=first.head)
    roles = [role for role, _ in await said(store, second.head)]
    assert roles == ["system", "user", "assistant", "system", "user", "assistant"]


async def test_node_outcome_and_run_row_are_one_commit(store: MemoryStore) -> None:
    answer = await call(store, reply("Hello."))
    (commit,) = store.commits
    assert [node.hash for node in commit.nodes] == [answer.head]
    assert commit.outcome is not None
    assert commit.run is not None
    assert (commit.run.status, commit.run.head) == ("completed", answer.head)
    assert json.loads(commit.run.result or b"")["content"] == "Hello."


async def test_the_same_call_again_gives_the_same_node(store: MemoryStore) -> None:
    first = await stage(store).model(model_call(), Inner(reply("Hello.")))
    again = await stage(store).model(model_call(owner="run/1/2"), Inner(reply("Hello.")))
    assert first.output.head == again.output.head


async def test_results_are_read_from_the_journal_and_are_one_message(store: MemoryStore) -> None:
    key = tool_call().key
    await store.commit(
        Commit(outcome=Outcome(key, "tool", ToolOutput(key=key, content="42").model_dump_json().encode()))
    )
    new = (
        NewResult(call_id="c1", name="pay", key=key),
        NewResult(call_id="c2", name="nope", text="tool not found: nope", is_error=True),
        NewMessage(content="and hurry"),
        NewMessage(content="please", id="m2"),
    )
    inner = Inner("ok")
    answer = await call(store, None, inner, new=new)
    assert [m.role for m in inner.calls[0].new_messages] == ["tool", "user", "user"]
    assert [(r.call_id, r.content, r.is_error) for r in inner.calls[0].new_messages[0].tool_results] == [
        ("c1", "42", False),
        ("c2", "tool not found: nope", True),
    ]
    assert inner.calls[0].new_messages[2].id == "m2"
    assert (await said(store, answer.head))[0] == ("tool", "42,tool not found: nope")


async def test_a_large_result_and_a_large_message_are_read_from_their_blobs(store: MemoryStore) -> None:
    large, message = Blob.from_content("x" * (INLINE_BYTES + 1)), Blob.from_content("m" * (INLINE_BYTES + 1))
    key = tool_call().key
    body = ToolOutput(key=key, blob=large.ref).model_dump_json().encode()
    await store.commit(Commit(blobs=[large, message], outcome=Outcome(key, "tool", body)))
    inner = Inner("ok")
    new = (NewResult(call_id="c1", name="pay", key=key), NewMessage(content=message.ref))
    answer = await call(store, None, inner, new=new)
    result, user = inner.calls[0].new_messages
    assert len(result.tool_results[0].content) == len(user.text) == INLINE_BYTES + 1
    [(longest,)] = store.run_sql("SELECT max(length(body)) FROM nodes")
    assert longest < 1000
    assert len((await said(store, answer.head))[0][1]) == INLINE_BYTES + 1


async def test_a_large_answer_stays_out_of_history(store: MemoryStore) -> None:
    text = "x" * (INLINE_BYTES + 1)
    answer = await call(store, reply(text))
    assert answer.text == ""
    assert answer.finish is not None
    assert answer.finish.content == ""
    assert answer.blob is not None
    assert await Chain(store).resolve_blob(answer.blob) == text
    assert len(answer.model_dump_json()) < 2000


async def test_a_large_answer_that_is_not_what_the_model_said_stays_out_of_history_too(store: MemoryStore) -> None:
    """A hook, or an output validator, has put it in the place of a short text."""
    text = "x" * (INLINE_BYTES + 1)
    made = reply("short")
    made.output = made.output.model_copy(update={"finish": FinalAnswer(content=text)})
    output = await call(store, made)
    assert len(output.model_dump_json()) < 2000
    assert output.text == "short"
    assert output.answer_blob is not None
    assert await Chain(store).resolve_blob(output.answer_blob) == text
    state = opened()
    model(state, output)
    assert build_response(state).blob == output.answer_blob


async def test_large_arguments_stay_out_of_history(store: MemoryStore) -> None:
    small = Call(id="c1", name="pay", arguments={"a": 1}, disposition=RefusedCall(text="no"))
    large = Call(id="c2", name="pay", arguments={"a": "x" * (INLINE_BYTES + 1)}, disposition=RefusedCall(text="no"))
    answer = await call(store, reply("", small, large))
    assert [asked.arguments for asked in answer.calls] == [{"a": 1}, None]


# --- what is wrong with the store


async def test_another_store_is_not_written_to(store: MemoryStore) -> None:
    inner = Inner("answer")
    with pytest.raises(StoreMismatchError) as caught:
        await call(store, None, inner, store_id="another")
    assert "run run-1 is kept in store another" in str(caught.value)
    assert "PERDURE_STORE_URL" in str(caught.value)
    assert inner.calls == []
    assert store.commits == []


async def test_a_missing_node_costs_no_call(store: MemoryStore) -> None:
    inner = Inner("answer")
    with pytest.raises(TranscriptCorruptedError, match="missing"):
        await call(store, None, inner, head="f" * 64, store_id=store.store_id)
    assert inner.calls == []


async def test_an_altered_node_costs_no_call(store: MemoryStore) -> None:
    first = await call(store, reply("Hello."))
    store.run_sql("UPDATE nodes SET body = CAST(replace(body, 'Hello', 'Hallo') AS BLOB)")
    inner = Inner("answer")
    with pytest.raises(TranscriptCorruptedError, match="altered") as caught:
        await call(store, None, inner, op=1, head=first.head)
    assert (first.head or "") in str(caught.value)
    assert caught.value.hint
    assert inner.calls == []


async def test_a_result_that_is_not_in_the_journal(store: MemoryStore) -> None:
    new = (NewResult(call_id="c1", name="pay", key="k" * 64),)
    with pytest.raises(TranscriptCorruptedError, match=r"tool call c1 \(pay\) is not in the journal") as caught:
        await call(store, reply("x"), new=new)
    assert "backup" in str(caught.value)


@pytest.mark.parametrize("purpose", ["call", "close"])
async def test_a_message_whose_blob_is_missing_is_said_to_be_and_keeps_no_other_out(
    store: MemoryStore, purpose: str
) -> None:
    here = Blob.from_content("the text")
    await store.commit(Commit(blobs=[here]))
    new = (
        NewMessage(content="one"),
        NewMessage(content=BlobRef(hash="0" * 64, size=3), id="m2"),
        NewMessage(content=here.ref, store_id=store.store_id),
        NewMessage(content=here.ref, store_id="another"),
    )
    ended: ModelOutput | CloseOutput
    if purpose == "close":
        ended = await end(store, RunEnding(status="cancelled"), new=new)
    else:
        ended = await call(store, reply("x"), new=new)
    texts = [text for role, text in await said(store, ended.head) if role == "user"]
    assert (texts[0], texts[2]) == ("one", "the text")
    assert texts[1].startswith(f"[message m2 could not be read: blob {'0' * 64} (3 bytes) is missing from the store")
    assert f"is in store another, and the run is kept in store {store.store_id}" in texts[3]


async def test_a_run_ends_without_a_result_that_cannot_be_read(store: MemoryStore) -> None:
    new = (NewResult(call_id="c1", name="pay", key="k" * 64), NewMessage(content="and?"))
    closing = RunEnding(status="cancelled")
    ended = await end(store, closing, new=new)
    assert [text for _, text in await said(store, ended.head)] == [
        f"[the result could not be read: the result of tool call c1 (pay) is not in the journal (key {'k' * 64})]",
        "and?",
    ]
    assert (await read_run(store)).status == "cancelled"


# --- endings


async def test_an_ending_is_recorded_on_a_corrupt_chain_too(store: MemoryStore) -> None:
    """It says nothing to a model: the conversation is not needed, and a run must be able to end."""
    closing = RunEnding(status="failed", error_type="RunError", error="no")
    ended = await end(store, closing, head="f" * 64)
    row = await read_run(store)
    assert (row.status, row.head) == ("failed", ended.head)
    assert json.loads(row.result or b"") == {"error_type": "RunError", "error": "no", "head": row.head}


async def test_an_ending_with_nothing_new_keeps_the_head(store: MemoryStore) -> None:
    first = await call(store, reply("Hello."))
    ended = await end(store, RunEnding(status="cancelled"), op=1, new=(), head=first.head)
    assert ended.head == first.head
    assert store.run_sql("SELECT count(*) FROM nodes") == [(1,)]


async def test_a_resumed_conversation_goes_on_from_where_the_last_execution_ended(store: MemoryStore) -> None:
    first = await call(store, reply("Hello."))
    inner = Inner(reply("Bye."))
    second = await call(store, None, inner, scope="scope-2", resume=True, message="and?")
    assert [message.text for message in inner.calls[0].prefix] == ["hi", "Hello."]
    assert [role for role, _ in await said(store, second.head)] == ["user", "assistant"] * 2
    assert store.run_sql(PARENT, hash=second.head) == [(first.head,)]


async def test_a_resume_of_what_never_was_begins_anew(store: MemoryStore) -> None:
    begun = await call(store, reply("Hello."), resume=True)
    assert store.run_sql(PARENT, hash=begun.head) == [(None,)]


async def test_an_execution_that_fails_at_once_keeps_the_conversation_it_was_to_resume(store: MemoryStore) -> None:
    first = await call(store, reply("Hello."))
    closing = RunEnding(status="failed", error_type="RunError", error="no")
    ended = await end(store, closing, scope="scope-2", resume=True, message="and?")
    assert await said(store, ended.head) == [("user", "hi"), ("assistant", "Hello."), ("user", "and?")]
    assert first.head != ended.head == (await read_run(store)).head


async def test_calls_that_a_terminated_run_left_open_are_closed(store: MemoryStore) -> None:
    message = Message.assistant("", ToolCallPart(id="c1", name="pay"), ToolCallPart(id="c2", name="pay"))
    asked = ModelReply(ModelOutput(head="", store_id=""), message)
    await call(store, asked)
    inner = Inner(reply("Sorry."))
    await call(store, None, inner, scope="scope-2", resume=True, message="and?")
    results, user = inner.calls[0].new_messages
    assert [result.call_id for result in results.tool_results] == ["c1", "c2"]
    assert all(result.content.startswith("OutcomeUnknown") for result in results.tool_results)
    assert user.text == "and?"


async def test_an_ending_closes_what_a_terminated_run_left_open(store: MemoryStore) -> None:
    """Behind the message that it records they could not be closed any more, and no provider takes open calls."""
    message = Message.assistant("", ToolCallPart(id="c1", name="pay"))
    await call(store, ModelReply(ModelOutput(head="", store_id=""), message))
    closing = RunEnding(status="failed", error_type="RunError", error="no")
    ended = await end(store, closing, scope="scope-2", resume=True, message="and?")
    assert [role for role, _ in await said(store, ended.head)] == ["user", "assistant", "tool", "user"]


async def test_a_turn_that_goes_on_after_its_answer_is_running_again(store: MemoryStore) -> None:
    """Also where the message that extends it has no id."""
    await call(store, reply("Hello."))
    look = Call(id="c1", name="look", disposition=RefusedCall(text="no"))
    await call(store, reply("", look), op=1, new=(NewMessage(content="and?"),))
    turn = await store.get_turn("run-1", "scope-1-1")
    assert turn is not None
    assert turn.status == "running"


async def test_a_turn_is_kept_with_its_output_and_what_it_took(store: MemoryStore) -> None:
    spent = Usage(input_tokens=3)
    answer = reply("Hello.", usage=Usage(output_tokens=2), cost_usd=0.5)
    await call(store, answer, iteration=2, used=spent, cost_usd=1.0)
    turn = await store.get_turn("run-1", "scope-1-1")
    assert turn is not None
    kept = Response.model_validate_json(turn.result or b"")
    assert (kept.output, kept.calls, kept.iterations) == ("Hello.", 2, 2)
    assert (kept.usage, kept.cost_usd) == (Usage(input_tokens=3, output_tokens=2), 1.5)


async def test_a_turn_is_kept_with_the_messages_it_took(store: MemoryStore) -> None:
    new = (NewMessage(content="hi", id="m1", by="ana"), NewMessage(content="Go on.", id=REMINDER_ID))
    done = await call(store, reply("Hello."), new=new, mode="session")
    assert await store.find_message_turn("run-1", "m1") == "scope-1-1"
    assert await store.find_message_turn("run-1", REMINDER_ID) is None
    turn = await store.get_turn("run-1", "scope-1-1")
    assert turn is not None
    assert (turn.status, turn.head) == ("completed", done.head)
    assert json.loads(turn.result or b"")["content"] == "Hello."
    assert (await read_run(store)).status == "idle"
    assert (await Chain(store).load(done.head))[0].by == "ana"


async def test_how_a_run_ends_says_nothing_of_a_turn_that_had_ended_before(store: MemoryStore) -> None:
    closing = RunEnding(status="cancelled", turn="completed", response={"content": "Hello."})
    await end(store, closing)
    turn = await store.get_turn("run-1", "scope-1-1")
    assert turn is not None
    assert (turn.status, (await read_run(store)).status) == ("completed", "cancelled")


async def test_a_message_that_a_lost_attempt_recorded_is_not_said_twice(store: MemoryStore) -> None:
    """A resumed execution's first call was recorded, its worker lost, and the call interrupted before anybody knew."""
    m1, m2 = NewMessage(content="hi", id="m1"), NewMessage(content="Stop.", id="m2")
    await call(store, reply("Hello."), scope="scope-2", resume=True, new=(m1,))
    inner = Inner(reply("Yes?"))
    second = await call(store, None, inner, scope="scope-2", op=1000, resume=True, new=(m1, m2))
    assert [message.text for message in inner.calls[0].new_messages] == ["Stop."]
    assert [text for _, text in await said(store, second.head)] == ["hi", "Hello.", "Stop.", "Yes?"]
