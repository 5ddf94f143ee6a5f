"""What the activities tell authors' code: the typed context, memory from any thread, resources; and the override."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from perdure import Agent, RunContext, ToolContext, tool
from perdure.calls.agents import Agents
from perdure.calls.author_loop import AuthorLoop
from perdure.calls.call import ConversationCall, ModelReply
from perdure.calls.context_parts import MemoryFactory
from perdure.calls.model import ModelActivity
from perdure.calls.tool import ToolActivity
from perdure.errors import DefinitionError, InvalidInputError, StoreError, StoreMismatchError, TranscriptCorruptedError
from perdure.ports.store import Commit, MemoryWrite
from perdure.testing import MemoryStore, ScriptedProvider, call
from perdure.types.messages import Message
from perdure.types.tool_calls import RefusedCall
from perdure.types.wire import ModelInput, ToolOutput
from tests.support.wait import eventually
from tests.unit.calls.build import FACTS, iteration_stage, tool_call

SAID = [Message.user("Go.")]


class User(BaseModel):
    user_id: str
    lang: str = "en"


@pytest.fixture
def author() -> Iterator[AuthorLoop]:
    loop = AuthorLoop()
    loop.start()
    yield loop
    loop.stop()


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    await store.commit(Commit(memory=[MemoryWrite("none:n", "kept", b"1")]))
    return store


class Host:
    """Both activities over one agent, without stages."""

    def __init__(self, agent: Agent, author: AuthorLoop, store: MemoryStore, resources: Any = None) -> None:
        self.waits: list[str] = []
        memory = MemoryFactory(store, self.waits.append)
        agents = Agents([agent])
        self._tool = ToolActivity(agents, author, lambda: resources, memory=memory)
        self._model = ModelActivity(lambda agent: agent.provider, lambda *_: None)  # type: ignore[arg-type,return-value]
        self._iteration = iteration_stage(agent, author, resources=lambda: resources, memory=memory)

    async def tool(self, name: str, context: Any = None, **arguments: Any) -> tuple[ToolOutput, list[MemoryWrite]]:
        made = tool_call(name=name, arguments=arguments, context=context)
        return await self._tool.call(made), made.recording.memory_writes

    async def model(self, fresh: Any = SAID, **more: Any) -> tuple[ModelReply, list[MemoryWrite]]:
        made = ConversationCall(input=ModelInput(**{**FACTS, **more}), new_messages=fresh)
        return await self._iteration.model(made, self._model.call), made.recording.memory_writes


# --- memory


@tool
async def note(ctx: ToolContext, text: str) -> list[Any]:
    """Note it."""
    await ctx.memory.put("n", "noted", text)
    await ctx.memory.delete("n", "never")
    return [await ctx.memory.get("n", "kept"), await ctx.memory.get("n", "other"), await ctx.memory.list("n")]


@tool
def note_plainly(ctx: ToolContext, text: str) -> list[Any]:
    """Note it."""
    memory = ctx.memory.blocking
    memory.put("n", "noted", text)
    memory.delete("n", "never")
    return [memory.get("n", "kept"), memory.get("n", "other"), memory.list("n")]


@pytest.mark.parametrize("name", ["note", "note_plainly"])
async def test_tools_of_both_kinds_read_the_store_and_hand_over_what_they_write(
    author: AuthorLoop, store: MemoryStore, name: str
) -> None:
    host = Host(Agent("a", ScriptedProvider([]), tools=[note, note_plainly]), author, store)
    output, writes = await host.tool(name, text="x")
    assert output.content == '[1,null,{"kept":1,"noted":"x"}]'
    assert writes == [MemoryWrite("none:n", "noted", b'"x"'), MemoryWrite("none:n", "never", None)]
    assert await store.recall("none:n", "noted") is None  # the journal's to keep


async def test_instructions_read_and_write_too(author: AuthorLoop, store: MemoryStore) -> None:
    async def greet(ctx: RunContext) -> str:
        await ctx.memory.put("n", "seen", True)
        return f"{await ctx.memory.get('n', 'kept')} of {ctx.resources}"

    provider = ScriptedProvider(["Hello."])
    host = Host(Agent("a", provider, instructions=greet), author, store, resources="pool")
    reply, writes = await host.model()
    assert provider.requests[0].system == reply.system == "1 of pool"
    assert writes == [MemoryWrite("none:n", "seen", b"true")]


async def test_a_write_behind_the_end_of_a_tool_is_refused(author: AuthorLoop, store: MemoryStore) -> None:
    """It outlives its timeout: what it does then must neither be kept nor get into the transaction."""
    said: list[BaseException] = []
    ended, done = threading.Event(), threading.Event()

    @tool(timeout=0.05)
    def slow(ctx: ToolContext) -> None:
        """Take long."""
        ctx.memory.blocking.put("n", "early", 1)
        ended.wait(30)
        try:
            ctx.memory.blocking.put("n", "late", 1)
        except RuntimeError as error:
            said.append(error)
        done.set()

    output, writes = await Host(Agent("a", ScriptedProvider([]), tools=[slow]), author, store).tool("slow")
    ended.set()
    assert await asyncio.to_thread(done.wait, 30)
    assert (output.is_error, [write.key for write in writes]) == (True, ["early"])
    assert "has ended" in str(said[0])


async def test_a_store_that_is_away_is_waited_for(author: AuthorLoop, store: MemoryStore) -> None:
    """That memory cannot be read for a moment is no failure of the tool's, and the model cannot mend it."""
    host = Host(Agent("a", ScriptedProvider([]), tools=[note]), author, store)
    store.failure = StoreMismatchError("another store")
    running = asyncio.ensure_future(host.tool("note", text="x"))
    await eventually(lambda: host.waits)
    assert host.waits[0] == "StoreMismatchError: another store"
    memory = MemoryFactory(store)([], None)
    assert not memory.waits
    reading = asyncio.ensure_future(memory.get("n", "kept"))
    await eventually(lambda: memory.waits)
    store.failure = None
    assert (await reading, memory.waits) == (1, False)
    output, _ = await running
    assert not output.is_error
    assert host.waits[-1] == ""


async def test_a_read_that_no_waiting_mends_is_the_tools_error(author: AuthorLoop, store: MemoryStore) -> None:
    host = Host(Agent("a", ScriptedProvider([]), tools=[note]), author, store)
    store.failure = TranscriptCorruptedError("altered")
    output, _ = await host.tool("note", text="x")
    assert output.is_error
    assert (output.content or "").startswith("TranscriptCorruptedError: altered")


async def test_a_tool_that_is_given_up_while_it_reads_leaves_nothing_behind(
    author: AuthorLoop, store: MemoryStore
) -> None:
    @tool(timeout=0.05)
    async def read(ctx: ToolContext) -> Any:
        """Read."""
        return await ctx.memory.get("n", "kept")

    store.failure = StoreError("locked")
    before = asyncio.all_tasks()
    output, _ = await Host(Agent("a", ScriptedProvider([]), tools=[read]), author, store).tool("read")
    assert "TimeoutError: read did not finish within 0.05 s" in (output.content or "")
    await eventually(lambda: asyncio.all_tasks() == before)


# --- context


@tool
async def who(ctx: ToolContext[User]) -> str:
    """Who is it?"""
    return f"{type(ctx.context).__name__} {ctx.context.user_id} {ctx.resources}"


@tool
def where() -> str:
    """Where?"""
    return "here"


@tool
def now() -> str:
    """When?"""
    return "today"


async def test_tools_and_instructions_get_the_validated_object(author: AuthorLoop, store: MemoryStore) -> None:
    def instructions(ctx: RunContext[User]) -> str:
        return f"Speak {ctx.context.lang} with {ctx.context.user_id}."

    provider = ScriptedProvider(["Hello."])
    agent = Agent("a", provider, instructions=instructions, context=User, tools=[who])
    host = Host(agent, author, store, resources="pool")
    assert (await host.tool("who", context={"user_id": "7"}))[0].content == "User 7 pool"
    assert (await host.model(context={"user_id": "7"}))[0].system == "Speak en with 7."


async def test_an_agent_without_a_type_gets_the_plain_data(author: AuthorLoop, store: MemoryStore) -> None:
    @tool
    def raw(ctx: ToolContext) -> Any:
        """Show it."""
        return ctx.context

    host = Host(Agent("a", ScriptedProvider([]), tools=[raw]), author, store)
    assert (await host.tool("raw", context={"a": [1]}))[0].content == '{"a":[1]}'
    assert (await host.tool("raw"))[0].content == "null"


async def test_a_context_that_does_not_fit_fails_before_the_model_is_paid(
    author: AuthorLoop, store: MemoryStore
) -> None:
    provider = ScriptedProvider(["never asked"])
    host = Host(Agent("a", provider, context=User, tools=[who, where]), author, store)
    for context in (None, {}, {"user_id": 7}):
        with pytest.raises(InvalidInputError, match=r"does not fit agent 'a': user_id: "):
            await host.model(context=context)
    assert not InvalidInputError.retryable
    assert provider.requests == []
    # The code may change under a run: its tools say so, and the next model call ends it.
    failed, _ = await host.tool("who", context={"user_id": 7})
    assert failed.is_error
    assert "InvalidInputError: the context does not fit" in (failed.content or "")
    assert (await host.tool("where", context={"user_id": 7}))[0].content == "here"


async def test_validators_of_the_context_run_on_the_authors_side(author: AuthorLoop, store: MemoryStore) -> None:
    ran: list[threading.Thread] = []

    class Checked(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def look(cls, n: int) -> int:
            ran.append(threading.current_thread())
            return n

    @tool
    async def look(ctx: ToolContext[Checked]) -> int:
        """Look."""
        return ctx.context.n

    host = Host(Agent("a", ScriptedProvider(["hi"]), context=Checked, tools=[look]), author, store)
    await host.model(context={"n": 1})
    assert (await host.tool("look", context={"n": 1}))[0].content == "1"
    assert len(ran) == 2
    assert threading.main_thread() not in ran


# --- nothing to answer; override


@pytest.mark.parametrize("fresh", [[], [Message.system("You are kind.")]])
async def test_without_any_message_there_is_nothing_to_answer(
    author: AuthorLoop, store: MemoryStore, fresh: list[Message]
) -> None:
    provider = ScriptedProvider(["never asked"])
    host = Host(Agent("a", provider, instructions="Be kind."), author, store)
    with pytest.raises(InvalidInputError, match="nothing to answer") as caught:
        await host.model(fresh)
    assert caught.value.hint
    assert provider.requests == []


async def test_an_override_holds_for_the_request_the_plan_and_the_limits(
    author: AuthorLoop, store: MemoryStore
) -> None:
    provider = ScriptedProvider([[call("now"), call("where")], "<finish>Done.</finish>"])
    agent = Agent("a", provider, tools=[now, where], settings={"temperature": 1})
    host = Host(agent, author, store)
    change = {"tools": ["where"], "settings": {"temperature": 0}, "finish": "tag", "max_iterations": 2}
    reply, _ = await host.model(overrides=change)
    asked = provider.requests[0]
    assert ([spec.name for spec in asked.tools], asked.settings) == (["where"], {"temperature": 0})
    assert "<finish>" in (asked.system or "")
    refused, planned = reply.output.calls
    assert isinstance(refused.disposition, RefusedCall)
    assert refused.disposition.text.startswith("tool not found: now")
    assert planned.disposition.kind == "activity"
    limits = reply.output.limits
    assert (limits.max_iterations, limits.on_limit, limits.protocol) == (2, "finish", "tag")
    assert (await host.model(overrides=change))[0].output.finish is not None
    assert agent.settings == {"temperature": 1}


async def test_an_override_that_does_not_fit_fails_before_the_model_is_paid(
    author: AuthorLoop, store: MemoryStore
) -> None:
    provider = ScriptedProvider(["never asked"])
    host = Host(Agent("a", provider, tools=[now]), author, store)
    with pytest.raises(DefinitionError, match="the override of agent 'a': tools names 'where'"):
        await host.model(overrides={"tools": ["where"]})
    assert provider.requests == []
