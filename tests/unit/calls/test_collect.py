"""Collecting what is recorded, beside an attempt that was only taken for lost: it must not begin anything any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from perdure.calls.call import CloseCall, CollectCall, CompactCall, CompactReply, ModelCall, ModelReply, Reply, ToolCall
from perdure.calls.collect import CollectActivity
from perdure.calls.journal import JournalStage
from perdure.calls.journal_keys import build_step_key
from perdure.errors import StoreError, StoreMismatchError
from perdure.ports.store import Commit, Outcome
from perdure.testing import MemoryStore
from perdure.types.messages import Usage
from perdure.types.tool_calls import ActivityCall, Call, InlineCall
from perdure.types.wire import (
    CloseInput,
    CloseOutput,
    CollectInput,
    CollectOutput,
    CompactInput,
    CompactionResult,
    CompactOutput,
    ModelInput,
    ModelOutput,
    RunEnding,
    ToolInput,
    ToolOutput,
)

FACTS = {"agent": "till", "context_id": "run-1", "task_id": "turn-1", "scope": "scope", "iteration": 1}
MODEL = ModelInput(**FACTS, op=1)
TOOL = ToolInput(**FACTS, op=2, call_id="call_1", name="pay", arguments={"n": 1})


BEFORE, AT, AFTER = (f"2026-01-01T00:00:0{second}.000000+00:00" for second in (1, 2, 3))


async def collect(store: MemoryStore, *, closing: bool = True, attempt: int = 1, **task: object) -> CollectOutput:
    """Collect at ``AT``."""
    given = CollectInput.model_validate({**task, "closing": closing})
    call = CollectCall(input=given, owner=f"run/9/{attempt}", attempt=attempt, asked_at=AT)
    return await CollectActivity(store).call(call)


class Tool:
    """The rest of the stages around a tool call: counts."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, call: ToolCall) -> ToolOutput:
        self.calls += 1
        return ToolOutput(key=call.key, content="paid")


async def open_store() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    return store


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_call_that_had_not_begun_cannot_begin_any_more(idempotent: bool) -> None:
    store, tool = await open_store(), Tool()
    task = TOOL.model_copy(update={"idempotent": idempotent})
    assert (await collect(store, tool=task)).tool is None
    late = await JournalStage(store).tool(ToolCall(task, owner="run/1/1"), tool)
    assert tool.calls == 0
    assert late.content == "Cancelled: the run was stopped before pay had begun"


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_call_that_had_begun_has_one_outcome(idempotent: bool) -> None:
    """The attempt that was taken for lost comes to its end: what the model was told stays."""
    store = await open_store()
    call = ToolCall(TOOL.model_copy(update={"idempotent": idempotent}), owner="run/1/1")

    async def wake_up_late(call: ToolCall) -> ToolOutput:
        collected = (await collect(store, tool=call.input)).tool
        assert collected is not None
        assert collected.status == "unknown"
        return ToolOutput(key=call.key, content="paid")

    assert (await JournalStage(store).tool(call, wake_up_late)).status == "unknown"
    assert (await collect(store, tool=call.input)).tool == await JournalStage(store).tool(call, Tool())


async def test_it_may_be_tried_again_at_each_step() -> None:
    """The worker that collects is killed between its claim and its record: its next attempt does not take the call for
    one that had begun."""
    store = await open_store()

    class Killed(MemoryStore):
        claim = store.claim
        find_outcomes = store.find_outcomes

        async def commit(self, commit: Commit) -> bytes | None:
            raise KeyboardInterrupt

    killed = Killed()
    await killed.open()
    with pytest.raises(KeyboardInterrupt):
        await collect(killed, tool=TOOL)
    assert (await collect(store, tool=TOOL, attempt=2)).tool is None


async def test_a_run_that_goes_on_closes_nothing() -> None:
    store, tool = await open_store(), Tool()
    assert (await collect(store, closing=False, tool=TOOL)).tool is None
    assert (await JournalStage(store).tool(ToolCall(TOOL, owner="run/1/1"), tool)).content == "paid"
    recorded = (await collect(store, closing=False, tool=TOOL)).tool
    assert recorded is not None
    assert recorded.content == "paid"


async def test_a_reply_is_returned_with_the_outcomes_of_its_inline_calls() -> None:
    store = await open_store()
    inline = ActivityCall(timeout=10, inline=True)
    calls = tuple(Call(id=f"call_{n}", name="pay", arguments={"n": n}, disposition=inline) for n in (1, 2, 3))
    output = ModelOutput(head="head", text="Paying.", calls=calls)
    body = output.model_dump_json(exclude_none=True).encode()
    await store.commit(Commit(outcome=Outcome(build_step_key(MODEL), "model", body)))
    await JournalStage(store).tool(ToolCall(TOOL, owner="run/1/1/call_1"), Tool())
    second_task = TOOL.model_copy(update={"op": 3, "call_id": "call_2", "arguments": {"n": 2}})
    await store.claim(ToolCall(second_task).key, "lost")
    collected = (await collect(store, model=MODEL)).model
    assert collected is not None
    assert (collected.text, collected.head) == ("Paying.", "head")
    first, second, third = [call.disposition for call in collected.calls]
    assert isinstance(first, InlineCall)
    assert first.content == "paid"
    assert isinstance(second, InlineCall)
    assert str(second.content).startswith("OutcomeUnknown: pay")
    assert third == inline
    assert (await collect(store, model=MODEL)).model == collected


class Model:
    """The rest of the stages around a model call."""

    def __init__(self, text: str, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        self._text, self._meanwhile = text, meanwhile

    async def __call__(self, call: ModelCall) -> ModelReply:
        if self._meanwhile is not None:
            await self._meanwhile()
        return ModelReply(ModelOutput(text=self._text), message=None)


async def test_a_model_call_that_was_given_up_cannot_record_its_reply() -> None:
    """Its inline calls, which no run waits for, would begin then."""
    store = await open_store()
    late, model = (
        ModelCall(MODEL, owner="run/1/1", asked_at=BEFORE),
        Model("Late.", partial(collect, store, model=MODEL)),
    )
    with pytest.raises(StoreError, match="given up"):
        await JournalStage(store).step(late, model)
    with pytest.raises(StoreError, match="given up"):
        await JournalStage(store).step(late, Model("Later."))
    assert (await collect(store, model=MODEL, attempt=2)).model is None


COMPACTED = CompactionResult(replaces="head", messages_before=9, messages_after=2, tokens_before=90, tokens_after=9)
OTHER_STEPS: dict[str, tuple[Any, Any, Any]] = {
    "compact": (
        CompactCall,
        CompactInput(**FACTS, op=4, head="head"),
        CompactReply(CompactOutput(head="rewritten", compacted=COMPACTED, usage=Usage(input_tokens=90))),
    ),
    "close": (
        CloseCall,
        CloseInput(**FACTS, op=5, closing=RunEnding(status="failed", error_type="StoreError", error="no")),
        Reply(CloseOutput(head="end", tenant="acme")),
    ),
}


@pytest.mark.parametrize("closing", [True, False])
@pytest.mark.parametrize("kind", OTHER_STEPS)
async def test_a_recorded_summary_and_a_recorded_ending_are_returned(kind: str, closing: bool) -> None:
    """Their worker is killed behind the record, and there is no other attempt."""
    store = await open_store()
    make, task, reply = OTHER_STEPS[kind]
    await JournalStage(store).step(make(task, owner="run/1/1", asked_at=BEFORE), _Replies(reply))
    for attempt in (1, 2):
        collected = await collect(store, closing=closing, attempt=attempt, **{kind: task})
        assert collected == CollectOutput.model_validate({kind: reply.output})


@pytest.mark.parametrize("kind", OTHER_STEPS)
async def test_a_summary_and_an_ending_that_were_given_up_are_not_recorded_any_more(kind: str) -> None:
    store = await open_store()
    make, task, reply = OTHER_STEPS[kind]
    late = make(task, owner="run/1/1", asked_at=BEFORE)
    assert await collect(store, closing=False, **{kind: task}) == CollectOutput(), "a run that goes on closes nothing"
    with pytest.raises(StoreError, match="given up"):
        await JournalStage(store).step(late, _Replies(reply, partial(collect, store, **{kind: task})))
    with pytest.raises(StoreError, match="given up"):
        await JournalStage(store).step(late, _Replies(reply))
    assert await collect(store, attempt=2, **{kind: task}) == CollectOutput()


class _Replies:
    """The rest of the stages around a call that replies with ``reply``."""

    def __init__(self, reply: Reply[Any], meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        self._reply, self._meanwhile = reply, meanwhile

    async def __call__(self, call: object) -> Reply[Any]:
        if self._meanwhile is not None:
            await self._meanwhile()
        return self._reply


async def test_a_model_call_that_is_made_again_after_it_was_given_up_is_recorded() -> None:
    """After a Temporal reset."""
    store = await open_store()
    await collect(store, model=MODEL)
    again = ModelCall(MODEL, owner="reset/1/1", asked_at=AFTER)
    for text in ("Again.", "Never."):
        assert (await JournalStage(store).step(again, Model(text))).text == "Again."


async def test_another_store_is_refused() -> None:
    store = await open_store()
    with pytest.raises(StoreMismatchError):
        await collect(store, tool=TOOL.model_copy(update={"store_id": "another"}))
