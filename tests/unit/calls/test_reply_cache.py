"""The paid stage: a reply that code of the author's has not finished with is not asked for again."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, hook
from perdure.calls.call import CompactCall, CompactReply, ModelCall, ModelReply, NextRequest
from perdure.calls.journal import JournalStage
from perdure.calls.reply_cache import ReplyCacheStage, build_reply_namespace
from perdure.errors import StoreError
from perdure.hooks import HookSet
from perdure.ports.model import ModelRequest
from perdure.ports.store import Commit, MemoryWrite
from perdure.testing.store import MemoryStore
from perdure.types.messages import Message
from perdure.types.wire import CompactOutput, ModelInput, ModelOutput, NewMessage
from tests.unit.calls.build import Inner, compact_call, compose, model_call, request_call

seen = hook("on_finish")(lambda: None)


class Hooks:
    """Stands where hooks do: the first ``fails`` calls end there, behind the reply."""

    def __init__(self, agent: Agent, fails: int = 1) -> None:
        self.agent = agent
        self.fails = fails
        self.saw: list[Message | None] = []

    async def model(self, call: ModelCall | CompactCall, next: NextRequest) -> Any:
        new = call.input.new[0] if isinstance(call.input, ModelInput) else NewMessage(content=call.owner)
        assert isinstance(new, NewMessage)
        request = ModelRequest("m", [Message.user(str(new.content))])
        is_summary = isinstance(call, CompactCall)
        message = await next(request_call(call, self.agent, request, is_summary=is_summary))
        self.saw.append(message)
        reply: Any = (
            CompactReply(CompactOutput()) if is_summary else ModelReply(ModelOutput(text=message.text), message)
        )
        self.fails -= 1
        if self.fails >= 0:
            raise ValueError("no")
        return reply


def stages(store: Any, hooks: Hooks, inner: Inner) -> Any:
    return compose([JournalStage(store), hooks, ReplyCacheStage(store)], inner)


def agent(*hooks: Any, **more: Any) -> Agent:
    return Agent("a", "openai:gpt-5", hooks=hooks, **more)


@pytest.mark.parametrize("behind", ["before_subagent", "on_approval", "on_finish", "validator"])
async def test_an_attempt_behind_one_that_failed_is_given_its_reply(store: MemoryStore, behind: Any) -> None:
    asked = agent() if behind == "validator" else agent(hook(behind)(lambda: None))
    if behind == "validator":
        asked.output_validator(lambda _: None)
    hooks, inner = Hooks(asked), Inner("first", "second")
    call = stages(store, hooks, inner)
    with pytest.raises(ValueError, match="no"):
        await call(model_call())
    reply = await call(model_call(owner="run/1/2"))
    assert len(inner.calls) == 1
    assert [one.text for one in hooks.saw if one] == ["first", "first"]
    assert reply.text == "first"
    assert store.run_sql("SELECT namespace, key FROM memory") == []  # deleted with the outcome


async def test_a_run_that_is_gone_on_with_asks_the_same_under_another_key(store: MemoryStore) -> None:
    hooks, inner = Hooks(agent(seen)), Inner("first", "second")
    call = stages(store, hooks, inner)
    with pytest.raises(ValueError, match="no"):
        await call(model_call())
    assert (await call(model_call(op=7, scope="other"))).text == "first"
    assert len(inner.calls) == 1


async def test_another_question_is_paid_for_and_what_was_kept_is_dropped(store: MemoryStore) -> None:
    hooks, inner = Hooks(agent(seen)), Inner("first", "second")
    call = stages(store, hooks, inner)
    with pytest.raises(ValueError, match="no"):
        await call(model_call())
    assert len(store.run_sql("SELECT namespace, key FROM memory")) == 1
    assert (await call(model_call("another", op=7))).text == "second"
    assert store.run_sql("SELECT namespace, key FROM memory") == []


async def test_a_summary_asks_several_times_in_one_call(store: MemoryStore) -> None:
    """The key of the call does not tell them apart; here the owner is what is asked."""
    hooks = Hooks(agent(seen), fails=2)
    inner = Inner("first", "second", "third")
    call = stages(store, hooks, inner)
    for text in ("a half", "the other half"):
        with pytest.raises(ValueError, match="no"):
            await call(compact_call(owner=text))
    hooks.fails = 0
    await call(compact_call(owner="the other half"))
    assert [one.text for one in hooks.saw if one] == ["first", "second", "second"]


async def test_without_code_that_looks_at_replies_nothing_is_kept(store: MemoryStore) -> None:
    hooks, inner = Hooks(agent(hook("before_llm_call")(lambda: None)), fails=0), Inner("first")
    await stages(store, hooks, inner)(model_call())
    assert len(store.commits) == 1


@pytest.mark.parametrize("whose", ["agent", "worker"])
async def test_what_a_hook_may_have_to_take_out_is_not_stored_before_it_has(store: MemoryStore, whose: str) -> None:
    changes = hook("after_llm_call")(lambda: None)
    hooks, inner = Hooks(agent(seen, *([changes] if whose == "agent" else []))), Inner("first", "second")
    worker = HookSet([changes] if whose == "worker" else [])
    call = compose([JournalStage(store), hooks, ReplyCacheStage(store, worker)], inner)
    with pytest.raises(ValueError, match="no"):
        await call(model_call())
    assert (store.run_sql("SELECT namespace, key FROM memory"), len(inner.calls)) == ([], 1)


async def test_what_cannot_be_read_is_no_reply(store: MemoryStore) -> None:
    await store.commit(Commit(memory=[MemoryWrite(build_reply_namespace("run-1"), "x", b"{}")]))
    hooks, inner = Hooks(agent(seen), fails=0), Inner("first")
    assert (await stages(store, hooks, inner)(model_call())).text == "first"
    assert store.run_sql("SELECT namespace, key FROM memory") == []


async def test_a_store_that_is_down_behind_the_reply_does_not_fail_the_call(store: MemoryStore) -> None:
    class Down:
        recall_all = store.recall_all

        async def commit(self, commit: Commit) -> bytes | None:
            raise StoreError("the store is down")

    hooks, inner = Hooks(agent(seen), fails=0), Inner("first")
    call = compose([JournalStage(store), hooks, ReplyCacheStage(Down())], inner)
    assert (await call(model_call())).text == "first"
