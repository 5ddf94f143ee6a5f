"""Streams of calls, runs and turns: their text, and their output, while the model writes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Client, background, tool
from perdure.client.inbox import PendingCall
from perdure.client.tasks import background_task
from perdure.errors import (
    ApprovalPendingError,
    AuthenticationError,
    DefinitionError,
    NoWorkerError,
    ParseError,
    RunNotFoundError,
)
from perdure.local_engine import engine as local_engine
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ToolCallDelta
from perdure.testing import ScriptedProvider, call, fail, finish, scripted
from perdure.types.messages import TextPart
from tests.support.engine import Engine
from tests.support.following import Slow
from tests.support.scripts import Gate
from tests.support.wait import eventually


@pytest.fixture
def here(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """``Agent.stream`` goes to the tests' server, queue and store."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", engine.address)
    monkeypatch.setenv("PERDURE_STORE_URL", str(engine.store_url))
    monkeypatch.setenv("PERDURE_TASK_QUEUE", engine.task_queue)
    return engine


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def text_of(pieces: AsyncIterator[str]) -> str:
    async with asyncio.timeout(60):
        return "".join([piece async for piece in pieces])


@pytest.mark.server
async def test_pieces_come_before_the_reply_is_whole(here: Engine) -> None:
    model = Slow("One ", "two.")
    pieces = Agent("slow", model).stream("Go.")
    assert await anext(pieces) == "One "
    model.gate.open()
    assert await text_of(pieces) == "two."


async def test_replies_begin_on_lines_of_their_own() -> None:
    agent = Agent("busy", "openai:any", tools=[look])
    replies: list[Any] = [["I look.", call("look")], [call("look")], "Seen."]
    async with scripted(agent, replies):
        assert await text_of(agent.stream("Go.")) == "I look.\nSeen."


async def test_what_is_left_is_cancelled(engine: Engine) -> None:
    async with engine.served(Agent("slow", Slow("One ", "two."))) as client:
        agent = Agent("slow", "openai:any")
        async for _ in agent.stream("Go.", client=client):
            break

        async def statuses() -> bool:
            return [run.status for run in await client.list(agent=agent.name)] == ["cancelled"]

        await eventually(statuses)


@pytest.mark.server
async def test_what_is_left_in_a_program_of_its_own_is_cancelled_before_its_worker_goes(here: Engine) -> None:
    agent = Agent(here.task_queue, Slow("One ", "two."))
    pieces = agent.stream("Go.")
    assert await anext(pieces) == "One "
    await pieces.aclose()
    client = await here.client()

    async def cancelled() -> bool:  # no worker is there to cancel it any more; Temporal's list may be a moment old
        return [run.status for run in await client.list(agent=agent.name)] == ["cancelled"]

    await eventually(cancelled)


async def test_what_has_an_id_goes_on(engine: Engine) -> None:
    model = Slow("One ", "two.")
    async with engine.served(Agent("slow", model)) as client:
        agent, named = Agent("slow", "openai:any"), "named"
        pieces = agent.stream("Go.", id=named, client=client)
        assert await anext(pieces) == "One "
        await pieces.aclose()
        model.gate.open()
        assert (await client.run(named).result()).content == "One two."
        assert await text_of(agent.stream("Go.", id=named, client=client)) == "One two."


async def test_the_runs_error_comes_behind_its_text(engine: Engine) -> None:
    replies: list[Any] = [["I look.", call("look")], fail(AuthenticationError("no key"))]
    agent = Agent("busy", ScriptedProvider(replies), tools=[look])
    async with engine.served(agent) as client:
        pieces = agent.stream("Go.", client=client)
        assert await anext(pieces) == "I look."
        with pytest.raises(AuthenticationError, match="no key"):
            await anext(pieces)


@pytest.mark.parametrize(("again", "said"), [("Half, whole.", "Half, whole."), ("No.", "Half\nNo.")])
async def test_a_reply_that_is_cut_off_is_written_on(engine: Engine, again: str, said: str) -> None:
    gate = Gate()

    class Cut:
        asked = 0

        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
            self.asked += 1
            if self.asked == 1:
                yield TextDelta("Half")
                await gate()
                return
            yield TextDelta(again)
            yield Completed((TextPart(text=again),), model=request.model)

    agent = Agent("cut", Cut())
    async with engine.served(agent) as client:
        pieces = agent.stream("Go.", client=client)
        first = await anext(pieces)
        gate.open()
        assert first + await text_of(pieces) == said


async def test_the_reply_to_an_interruption_begins_a_new_line(engine: Engine) -> None:
    replies = itertools.count()

    class Interrupted:
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
            if next(replies):
                yield Completed((TextPart(text="Stopped."),), model=request.model)
                return
            yield TextDelta("I am writ")
            await asyncio.Event().wait()

    async with engine.served(Agent("writer", Interrupted())) as client:
        turn = await client.send("writer", "Go.", id="writer-1")
        pieces = turn.stream()
        first = await anext(pieces)
        await turn.interrupt("Stop.")
        assert first + await text_of(pieces) == "I am writ\nStopped."


@pytest.mark.server
async def test_nobody_serves_it(here: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "NO_WORKER_SECONDS", 0.5)
    client = await here.client()
    with pytest.raises(NoWorkerError, match=r"--task-queue .*The run was cancelled"):
        await text_of(Agent("nobody", "openai:any").stream("Go.", client=client))


# --- on every handle


class Outline(BaseModel):
    title: str = ""
    points: list[str] = []


class Writes:
    """Writes an output in three pieces; the gates hold it after each but the last."""

    def __init__(self, *first: Any) -> None:
        self.gates = [Gate(), Gate()]
        self._first = list(first)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        if self._first:
            yield Completed((self._first.pop(0),), model=request.model)
            return
        for number, piece in enumerate(('{"title": "Al', 'ps", "points": [', '"Eiger"]}')):
            yield ToolCallDelta(0, "" if number else "c1", "" if number else "__finish__", piece)
            if number < len(self.gates):
                await self.gates[number]()
        yield Completed((finish(title="Alps", points=["Eiger"]),), model=request.model)


GROWN = [Outline(title="Al"), Outline(title="Alps"), Outline(title="Alps", points=["Eiger"])]


async def values_of(stream: AsyncIterator[Any], model: Writes) -> list[Any]:
    """Its values; each gate of the model is opened when the value before it was seen."""
    values: list[Any] = []
    async with asyncio.timeout(60):
        async for value in stream:
            if len(values) < len(model.gates):
                model.gates[len(values)].open()
            values.append(value)
    return values


async def keep_in(seen: list[Any], stream: AsyncIterator[Any]) -> None:
    async for item in stream:
        seen.append(item)  # noqa: PERF401  # what came before an error counts


async def test_a_turn_and_its_run_are_streamed_to_their_end(engine: Engine) -> None:
    async with engine.served(
        Agent("talker", ScriptedProvider([["I look.", call("look")], "Seen.", "Bye."]), tools=[look])
    ) as client:
        first = await client.send("talker", "Go.", id="streams-1")
        assert await text_of(first.stream()) == "I look.\nSeen."
        second = await client.send("talker", "And?", id="streams-1")
        assert await text_of(second.stream()) == "Bye."
        assert await text_of(first.stream()) == "I look.\nSeen.", "a turn that is over is read again"
        await second.run.close()
        assert await text_of(second.run.stream()) == "I look.\nSeen.\nBye."


async def test_a_stream_raises_what_the_result_raises_behind_its_text(engine: Engine) -> None:
    replies: list[Any] = [["I look.", call("look")], fail(AuthenticationError("no key"))]
    agent = Agent("busy", ScriptedProvider(replies), tools=[look], output=Outline)
    async with engine.served(agent) as client:
        turn = (await client.start("busy", "Go.")).turn()
        for stream, pieces in (
            (turn.stream(), ["I look."]),
            (turn.run.stream(), ["I look."]),
            (turn.stream_output(), []),
            (turn.run.stream_output(), []),
        ):
            seen: list[Any] = []
            with pytest.raises(AuthenticationError, match="no key"):
                await keep_in(seen, stream)
            assert seen == pieces
        unknown = client.run("streams-none")
        with pytest.raises(RunNotFoundError):
            await text_of(unknown.turn("t").stream())
        with pytest.raises(RunNotFoundError):
            await text_of(unknown.stream_output())


@pytest.mark.parametrize("handle", ["run", "turn", "agent"])
async def test_an_output_grows_while_the_model_writes_it(engine: Engine, handle: str) -> None:
    model = Writes()
    agent = Agent("outliner", model, output=Outline)
    async with engine.served(agent) as client:
        if handle == "agent":
            assert await values_of(agent.stream_output("Go.", client=client), model) == GROWN
            return
        run = await client.start(agent, "Go.")
        stream = run.stream_output() if handle == "run" else run.turn().stream_output()
        assert await values_of(stream, model) == GROWN


async def test_a_client_without_the_agent_gets_plain_json_or_the_type_that_it_names(engine: Engine) -> None:
    model = Writes()
    async with engine.served(Agent("outliner", model, output=Outline)) as client:
        turn = (await client.start("outliner", "Go.")).turn()
        plain = [{"title": "Al"}, {"title": "Alps", "points": []}, {"title": "Alps", "points": ["Eiger"]}]
        assert await values_of(turn.stream_output(), model) == plain
        typed = client.run(turn.run.id, output=Outline)
        assert [value async for value in typed.turn().stream_output()] == GROWN[-1:]
        assert (await typed.result()).output == GROWN[-1]
        with pytest.raises(ParseError, match=rf"does not fit the type list of run '{typed.id}'"):
            await anext(client.run(typed.id, output=list[int]).stream_output())
        with pytest.raises(DefinitionError, match=rf"run '{typed.id}': output=.* is a value"):
            client.run(typed.id, output=Outline())
        with pytest.raises(DefinitionError, match=r"agent 'outliner': output=.* is a value"):
            await client.start("outliner", "Go.", id="never-started", output=Outline())
        with pytest.raises(RunNotFoundError):
            await client.run("never-started").status()


async def test_text_of_an_agent_that_the_client_has_not_grows_all_the_same(engine: Engine) -> None:
    model = Slow("One ", "two.")
    async with engine.served(Agent("slow", model)) as client:
        values = client.run((await client.start("slow", "Go.")).id).stream_output()
        async with asyncio.timeout(60):
            assert await anext(values) == "One "
            model.gate.open()
            assert [value async for value in values][-1] == "One two."


async def test_an_answer_that_is_rejected_is_followed_by_another(engine: Engine) -> None:
    model = Writes(finish(title=["no text"]))
    async with engine.served(Agent("outliner", model, output=Outline)) as client:
        run = await client.start("outliner", "Go.", output=Outline)
        assert (await values_of(run.stream_output(), model))[-1] == GROWN[-1]


async def test_a_validator_has_the_last_word(engine: Engine) -> None:
    model = Writes()
    agent = Agent("outliner", model, output=Outline)

    @agent.output_validator
    def shout(output: Outline) -> Outline:
        return output.model_copy(update={"title": output.title.upper()})

    async with engine.served(agent) as client:
        seen = await values_of((await client.start(agent, "Go.")).stream_output(), model)
    assert seen[:2] == GROWN[:2]
    assert seen[-1] == Outline(title="ALPS", points=["Eiger"])


async def test_an_output_of_text_and_a_turn_without_one(engine: Engine) -> None:
    talker = Agent("talker", ScriptedProvider([["I look.", call("look")], "Seen."]), tools=[look])
    stopped = Agent(
        "stopped", ScriptedProvider([call("look")]), tools=[look], output=Outline, max_iterations=1, on_limit="return"
    )
    async with engine.served(talker, stopped) as client:
        assert [value async for value in talker.stream_output("Go.", client=client)] == ["Seen."]
        assert [value async for value in stopped.stream_output("Go.", client=client)] == [None]


# --- beside a stream: who decides, and who serves


class Paced:
    """Starts the helper in background, then writes a piece as each gate opens."""

    def __init__(self, pieces: int) -> None:
        self.gates = [Gate() for _ in range(pieces)]
        self._calls = [call("start_agent", agent_name="helper", message="Clean up.")]

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        if self._calls:
            yield Completed((self._calls.pop(),), model=request.model)
            return
        for number, gate in enumerate(self.gates):
            await gate()
            yield TextDelta(str(number))
        yield Completed((TextPart(text="".join(map(str, range(len(self.gates))))),), model=request.model)


@tool(needs_approval=True)
async def wipe(path: str) -> str:
    """Wipe."""
    return f"wiped {path}"


async def test_a_decision_that_takes_long_is_asked_for_once_while_text_arrives(engine: Engine) -> None:
    model, deciding = Paced(4), Gate()
    helper = Agent("helper", ScriptedProvider([call("wipe", path="/"), "Clean."]), tools=[wipe])
    boss = Agent("boss", model, tools=background([helper]))
    asked, seen = list[str](), list[str]()

    async def decide(pending_call: PendingCall) -> bool:
        asked.append(pending_call.tool)
        await deciding()
        return True

    async with engine.served(boss, helper) as client:
        reading = asyncio.ensure_future(keep_in(seen, boss.stream("Go.", client=client, on_approval=decide)))
        await eventually(lambda: deciding.entered)
        for number, gate in enumerate(model.gates[:-1]):
            gate.open()
            await eventually(lambda number=number: len("".join(seen)) > number)
        deciding.open()
        await eventually(lambda: deciding.left)
        model.gates[-1].open()
        await reading
    assert ("".join(seen), asked, deciding.entered) == ("0123", ["wipe"], 1)


@pytest.mark.parametrize("mode", ["raise", "function"])
async def test_an_error_of_a_decision_comes_behind_the_text_that_a_slow_reader_has_not_read(
    engine: Engine, mode: str
) -> None:
    replies: list[Any] = [["I look.", call("look")], ["I wipe.", call("wipe", path="/")]]
    agent = Agent("wiper", ScriptedProvider(replies), tools=[look, wipe])
    has_failed = asyncio.Event()

    def decide(pending_call: PendingCall) -> bool:
        has_failed.set()
        raise LookupError(f"no rule for {pending_call.tool}")

    async with engine.served(agent) as client:
        on_approval: Any = "raise" if mode == "raise" else decide
        pieces = agent.stream("Go.", id="wiper-1", client=client, on_approval=on_approval)
        seen = [await anext(pieces)]

        async def is_asked() -> bool:
            return bool((await client.run("wiper-1").status()).approvals) and (mode == "raise" or has_failed.is_set())

        await eventually(is_asked)
        with pytest.raises(ApprovalPendingError if mode == "raise" else LookupError, match="wipe"):
            await keep_in(seen, pieces)
        assert seen == ["I look.", "\nI wipe."]


async def test_an_error_of_a_decision_is_raised_also_where_the_stream_comes_to_its_end(engine: Engine) -> None:
    model = Paced(2)
    helper = Agent("helper", ScriptedProvider([call("wipe", path="/"), "Clean."]), tools=[wipe])
    boss = Agent("boss", model, tools=background([helper]))

    def decide(pending_call: PendingCall) -> bool:
        for gate in model.gates:
            gate.open()
        raise LookupError(f"no rule for {pending_call.tool}")

    async with engine.served(boss, helper) as client:
        with pytest.raises(LookupError, match="no rule for wipe"):
            await text_of(boss.stream("Go.", client=client, on_approval=decide))


@pytest.mark.parametrize("consumer", ["call", "stream"])
async def test_an_error_of_a_decision_cancels_a_run_whose_id_the_caller_does_not_know(
    engine: Engine, consumer: str
) -> None:
    agent = Agent("wiper", ScriptedProvider([call("wipe", path="/")]), tools=[wipe])
    asked = list[PendingCall]()

    def decide(pending_call: PendingCall) -> bool:
        asked.append(pending_call)
        raise LookupError(f"no rule for {pending_call.tool}")

    async with engine.served(agent) as client:
        options: Any = {"client": client, "on_approval": decide}
        with pytest.raises(LookupError, match="no rule for wipe"):
            await (agent.call("Go.", **options) if consumer == "call" else text_of(agent.stream("Go.", **options)))
        assert (await client.run(asked[0].run_id).status()).state == "cancelled"


class Failing:
    """Stands for ``local()``, with a worker that fails when the test says so."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._fails, self._has_failed = asyncio.Event(), asyncio.Event()

    async def fail(self) -> None:
        """Fail, and return when those who wait could have been told."""
        self._fails.set()
        await self._has_failed.wait()
        for _ in range(10):
            await asyncio.sleep(0)

    @asynccontextmanager
    async def __call__(self, agents: Any, **_: Any) -> AsyncIterator[Client]:
        block = asyncio.current_task()
        assert block is not None

        async def cancel_block() -> None:
            await self._fails.wait()
            block.cancel()

        async with background_task(cancel_block()):
            try:
                yield self._client
            except asyncio.CancelledError:
                block.uncancel()
                self._has_failed.set()
                raise ConnectionError("the worker has lost its server") from None


@pytest.mark.parametrize("consumer", ["call", "waiting", "busy"])
async def test_the_error_of_a_worker_that_fails_reaches_who_calls_or_streams(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, consumer: str
) -> None:
    model = Slow("One ", "two.")
    agent = Agent("slow", model)

    async def consume(failing: Failing) -> None:
        pieces = agent.stream("Go.")
        if consumer == "call":
            waiting: Any = asyncio.ensure_future(agent.call("Go."))
            await eventually(lambda: model.gate.entered)
        else:  # each piece may be asked for by another task
            assert await asyncio.create_task(anext(pieces)) == "One "  # type: ignore[arg-type]  # it is a coroutine
            waiting = asyncio.ensure_future(anext(pieces)) if consumer == "waiting" else None
            await asyncio.sleep(0)
        await failing.fail()
        await (waiting or anext(pieces))

    async with engine.served(agent) as client:
        failing = Failing(client)
        monkeypatch.setattr(local_engine, "local", lambda *_, **options: failing(*_, **options))
        consuming = asyncio.ensure_future(consume(failing))
        await eventually(consuming.done)
        with pytest.raises(ConnectionError, match="the worker has lost its server"):
            await consuming
        assert not consuming.cancelling(), "it was not cancelled either"
        (run,) = await client.list(agent="slow")
        assert run.status in ("cancelled", "terminated"), "it has no id by which the caller could return"


@pytest.mark.server
async def test_a_stream_goes_on_when_its_worker_is_killed(engine: Engine, tmp_path: Path) -> None:
    """The next worker writes the same again, then the rest: nothing twice, nothing lost."""
    go = tmp_path / "go"
    worker = await engine.process("streaming", TEST_GO=str(go))
    client = await engine.client()
    text = (await client.start("slow", "Go.")).turn().stream()
    output = (await client.start("outliner", "Go.")).stream_output()
    async with asyncio.timeout(60):
        assert await anext(text) == "Half "
        assert await anext(output) == {"title": "Ha"}
    await worker.kill()
    await engine.process("streaming", TEST_GO=str(go))
    go.touch()
    assert await text_of(text) == "whole."
    async with asyncio.timeout(60):
        assert [value async for value in output][-1] == {"title": "Half", "points": ["whole"]}
