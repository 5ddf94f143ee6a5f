"""The prepare stage: what fails before a tool acts leaves no claim, so that a retry runs it."""

from __future__ import annotations

import pytest

from perdure import Agent
from perdure.calls.agents import Agents
from perdure.calls.call import NextTool
from perdure.calls.journal import JournalStage
from perdure.calls.prepare import PrepareStage
from perdure.errors import AgentNotFoundError, StoreMismatchError, TranscriptCorruptedError
from perdure.ports.store import Commit
from perdure.store import Chain
from perdure.testing.store import MemoryStore
from perdure.types.messages import Message, ToolCallPart
from tests.unit.calls.build import Inner, compose, model_call, reply, tool_call


def worker(store: MemoryStore, agents: Agents, inner: Inner) -> NextTool:
    return compose([PrepareStage(Chain(store), store.store_id, agents.get), JournalStage(store)], inner, "tool")


async def test_an_agent_that_comes_with_the_deploy_runs_the_tool(store: MemoryStore) -> None:
    inner = Inner("42")
    agents = Agents()
    with pytest.raises(AgentNotFoundError, match="no agent 'a'"):
        await worker(store, agents, inner)(tool_call())
    assert store.run_sql("SELECT count(*) FROM journal") == [(0,)]
    agents.add(Agent("a", "openai:gpt-5"))
    output = await worker(store, agents, inner)(tool_call(owner="run/2/2"))
    assert (output.content, output.status) == ("42", "done")


async def test_another_store_is_not_claimed_in(store: MemoryStore) -> None:
    inner = Inner("42")
    with pytest.raises(StoreMismatchError):
        await worker(store, Agents([Agent("a", "openai:gpt-5")]), inner)(tool_call(store_id="another"))
    assert store.run_sql("SELECT count(*) FROM journal") == [(0,)]
    assert inner.calls == []


async def test_large_arguments_come_from_the_transcript(store: MemoryStore) -> None:
    chain = Chain(store)
    asked = ToolCallPart(id="c1", name="pay", arguments={"amount": "x" * 40_000})
    node, blobs = chain.extend(None, [Message.user("hi"), Message(role="assistant", parts=(asked,))])
    await store.commit(Commit(nodes=[node], blobs=blobs))
    inner = Inner("42")
    agents = Agents([Agent("a", "openai:gpt-5")])
    await worker(store, agents, inner)(tool_call(arguments=None, head=node.hash))
    assert inner.calls[0].arguments == asked.arguments
    with pytest.raises(TranscriptCorruptedError, match="c7 is not in the transcript"):
        await worker(store, agents, inner)(tool_call(arguments=None, head=node.hash, call_id="c7", op=9))
    assert store.run_sql("SELECT count(*) FROM journal") == [(1,)]


async def test_a_model_call_is_passed_on(store: MemoryStore) -> None:
    answer = reply("x")
    stage = PrepareStage(Chain(store), store.store_id, Agents().get)
    assert await stage.step(model_call(), Inner(answer)) is answer
