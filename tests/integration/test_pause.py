"""A client pauses a run: what is in flight ends, nothing else begins, and nothing that comes meanwhile is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient
from temporalio.client import (
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    WorkflowExecutionDescription,
    WorkflowHandle,
)

from perdure import Agent, Approval, Client, Message, Run, RunContext, hook, tool
from perdure.errors import InvalidInputError, NoWorkerError, RunCancelledError, RunClosedError, RunNotFoundError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.events import RunEvent
from perdure.types.interface import Status
from tests.support.checks import assert_closed, results, users
from tests.support.children import find_child_id
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


def holder(gate: Gate, replies: Any = None, **options: Any) -> Agent:
    """Calls the tool ``hold``, which waits at the gate, then answers with what it was told."""

    @tool
    async def hold() -> str:
        """Wait."""
        await gate()
        return "held"

    replies = replies or (lambda r: told(r) if r.messages[-1].role == "tool" or len(users(r.messages)) > 1 else HOLD)
    return Agent("holder", ScriptedProvider(replies), tools=[hold, *options.pop("tools", [])], **options)


HOLD = call("hold")


def told(request: ModelRequest) -> str:
    return f"You said {' | '.join(users(request.messages))}."


def echo(request: ModelRequest) -> str:
    return f"You said {users(request.messages)[-1]}."


async def paused(run: Run) -> Status:
    async def status() -> Status | None:
        status = await run.status()
        return status if status.state == "paused" else None

    return await eventually(status, what="the pause")


async def run_events(run: Run) -> list[tuple[str, str | None, str | None]]:
    events = [event async for event in run.events(wait=False)]
    return [(event.state, event.by, event.reason) for event in events if isinstance(event, RunEvent)]


async def recorded_state(run: Run) -> tuple[str, str]:
    """What the store has of the run's state: in its row, and in the last of its run's events."""
    row = await (await run.client.store()).get_run(run.id)
    assert row is not None
    return row.status, (await run_events(run))[-1][0]


@pytest.mark.fault("Clients", "A client pauses the run.")
async def test_what_is_in_flight_ends_and_what_comes_waits_for_resume(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(holder(gate)) as client:
        run = await client.start("holder", "One.")
        await eventually(lambda: gate.entered)
        await run.pause(by="ana", reason="the prices are wrong")
        pausing = await run.status()
        assert (pausing.state, pausing.doing) == ("running", "tools")
        assert pausing.pause is not None
        assert (pausing.pause.by, pausing.pause.reason) == ("ana", "the prices are wrong")
        gate.open()
        status = await paused(run)
        assert status.reason == "paused by ana: the prices are wrong"
        assert results(await run.transcript()) == ["held"]  # also for a client that reads it meanwhile
        await run.inject("Two.")
        await eventually(lambda: _queued(run, 1))
        assert (await run.status()).state == "paused"
        await run.resume(by="bob")
        response = await run.result()
        assert response.content == "You said One. | Two.."
        assert_closed(response.messages)
        assert (await run.status()).pause is None
        assert await run_events(run) == [
            ("started", None, None),
            ("paused", "ana", "the prices are wrong"),
            ("resumed", "bob", None),
            ("completed", None, None),
        ]


async def _queued(run: Run, count: int) -> bool:
    return (await run.status()).queued == count


async def test_an_answer_that_is_given_meanwhile_ends_the_run(engine: Engine) -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        await gate()
        return "Done."

    async with engine.served(Agent("clerk", ScriptedProvider(reply))) as client:
        run = await client.start("clerk", "Go.")
        await eventually(lambda: gate.entered)
        await run.pause()
        gate.open()
        assert (await run.result()).content == "Done."
        assert [state for state, *_ in await run_events(run)] == ["started", "completed"]


async def test_a_session_that_is_idle_takes_its_messages_after_resume(engine: Engine) -> None:
    async with engine.served(Agent("clerk", ScriptedProvider(echo))) as client:
        turn = await client.send("clerk", "One", id=engine.task_queue, idle_timeout=0.2)
        assert (await turn.result()).content == "You said One."
        run = client.run(engine.task_queue)
        await run.pause(by="ana")
        await paused(run)
        second = await run.send("Two")
        third = await run.send("Three")
        assert second.task_id == third.task_id
        assert (await turn.status()).state == "completed"
        assert (await second.status()).state == "running"
        assert (await run.status()).state == "paused"
        await run.resume()
        assert (await second.result()).content == "You said Three."
        assert (await turn.status()).state == "completed"


async def test_a_session_does_not_close_of_idleness_while_it_is_paused(engine: Engine) -> None:
    async with engine.served(Agent("clerk", ScriptedProvider(echo))) as client:
        run = await client.start("clerk", mode="session", idle_timeout=0.3)
        await run.pause()
        await paused(run)
        other = await client.start("clerk", mode="session", idle_timeout=0.4)
        await other.result()  # by now the first would have closed too
        assert (await run.status()).state == "paused"
        await run.resume()
        await run.result()


async def test_a_call_that_is_approved_while_the_run_is_paused_begins_after_resume(engine: Engine) -> None:
    ran: list[str] = []

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    async with engine.served(Agent("clerk", ScriptedProvider([call("pay"), "Done."]), tools=[pay])) as client:
        run = await client.start("clerk", "Go.")
        await eventually(lambda: _pending(run, 1))
        await run.pause(by="ana")
        assert len((await paused(run)).approvals) == 1
        await run.approve(by="kim")
        assert [(one.state, one.by) for one in (await run.status()).decided] == [("approved", "kim")]
        assert ((await run.status()).state, ran) == ("paused", [])
        await run.resume()
        assert (await run.result()).content == "Done."
        assert ran == ["paid"]


async def _pending(run: Run, count: int) -> bool:
    return len((await run.status()).approvals) == count


async def test_a_call_that_is_approved_beside_others_does_not_join_them(engine: Engine) -> None:
    gate, ran = Gate(), []

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    async with engine.served(holder(gate, [[HOLD, call("pay")], "Done."], tools=[pay])) as client:
        run = await client.start("holder", "Go.")
        await eventually(lambda: gate.entered)
        await run.pause()
        await run.approve(by="kim")
        gate.open()
        assert [one.tool for one in (await paused(run)).calls] == ["pay"]
        assert not ran
        await run.resume()
        response = await run.result()
        assert (results(response.messages), ran) == (["held", "paid"], ["paid"])


async def test_reminders_wait_for_resume_also_while_calls_are_in_flight(engine: Engine) -> None:
    gate, reminded = Gate(), []

    @tool(needs_approval=Approval(remind=1))
    async def pay() -> str:
        """Pay."""
        return "paid"

    @hook("on_approval")
    def notify(ctx: RunContext, reminder: int) -> None:
        reminded.append((ctx.run_id, reminder))

    agent = holder(gate, [[HOLD, call("pay")]] * 2, tools=[pay], hooks=[notify])
    async with engine.served(agent) as client:
        run = await client.start("holder", "One.")
        await eventually(lambda: (run.id, 0) in reminded and gate.entered)
        await run.pause()
        other = await client.start("holder", "Two.")
        await eventually(lambda: (other.id, 2) in reminded)  # by now the first run had one due, too
        assert [number for run_id, number in reminded if run_id == run.id] == [0]
        await run.resume()
        await eventually(lambda: (run.id, 1) in reminded)


@pytest.mark.parametrize("mode", ["run", "session"])
async def test_an_interrupt_without_a_message_ends_the_turn_of_a_paused_run(engine: Engine, mode: Any) -> None:
    async with engine.served(Agent("clerk", ScriptedProvider(echo))) as client:
        run = await _paused_before_its_first_call(client, mode)
        await run.interrupt()
        assert (await run.turn().result()).finish_reason == "interrupted"
        if mode == "run":
            assert (await run.result()).finish_reason == "interrupted"
            return
        assert (await paused(run)).doing == "nothing"  # its session goes on with `resume` alone
        assert await recorded_state(run) == ("paused", "paused")
        turn = await run.send("Two")
        assert (await turn.status()).state == "running"
        await run.resume()
        assert (await turn.result()).content == "You said Two."


async def test_the_state_of_a_session_is_recorded_also_before_its_first_message(engine: Engine) -> None:
    async with engine.served(Agent("clerk", ScriptedProvider(echo))) as client:
        run = await client.start("clerk", mode="session")
        for _ in range(2):
            await run.pause()
            await paused(run)
            assert await recorded_state(run) == ("paused", "paused")
            await run.resume()
            await eventually(lambda: _is_waiting(run))
            assert await recorded_state(run) == ("idle", "idle")
            assert (await (await run.send("One")).result()).content == "You said One."
        await run.pause()
        await paused(run)
        await run.send("Two")
        await run.resume()
        await run.turn().result()
        assert [state for state, *_ in await run_events(run)][-3:] == ["paused", "resumed", "idle"]


async def _is_waiting(run: Run) -> bool:
    return (await run.status()).state == "idle"


async def _paused_before_its_first_call(client: Client, mode: Any) -> Run:
    run = await client.start("clerk", mode=mode)
    await run.pause()
    await paused(run)
    await run.send("One")
    return run


async def test_an_interrupt_with_a_message_does_not_resume(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(holder(gate)) as client:
        run = await client.start("holder", "One.")
        await eventually(lambda: gate.entered)
        await run.pause()
        await run.interrupt("Two.")
        await paused(run)
        assert gate.left  # what was in flight has stopped
        await run.resume()
        assert (await run.result()).content == "You said One. | Two.."


@pytest.mark.parametrize("at_work", [True, False])
async def test_a_paused_run_is_cancelled(engine: Engine, at_work: bool) -> None:
    gate = Gate()
    async with engine.served(holder(gate)) as client:
        run = await client.start("holder", "One.")
        await eventually(lambda: gate.entered)
        await run.pause()
        if not at_work:
            gate.open()
            await paused(run)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        assert_closed(await run.transcript())
        assert ((await run.status()).state, (await run.status()).pause) == ("cancelled", None)


async def test_a_session_that_is_closed_while_it_is_paused_ends(engine: Engine) -> None:
    async with engine.served(Agent("clerk", ScriptedProvider(echo))) as client:
        run = await client.start("clerk", "One", mode="session")
        await run.turn().result()
        await run.pause()
        await paused(run)
        await run.close()
        assert (await run.result()).content == "You said One."


@pytest.mark.parametrize("again", ["resume", "run.send", "client.send"])
async def test_a_first_message_outlives_a_pause_before_its_call_and_a_termination(engine: Engine, again: str) -> None:
    async with engine.served(Agent("echo", ScriptedProvider(told))) as client:
        mode: Any = "run" if again == "resume" else "session"
        earlier = [Message.user("earlier"), Message.assistant("Yes.")]
        run = await client.start("echo", "first", mode=mode, history=earlier)
        await run.handle.signal("pause", {"by": "tests"})  # at once: the client writes its audit row first
        await paused(run)
        await run.terminate()
        with pytest.raises(RunCancelledError):
            await run.result()
        if again == "resume":
            await run.resume()
            assert (await run.result()).content == "You said earlier | first."
        else:
            turn = await (run.send("second") if again == "run.send" else client.send("echo", "second", id=run.id))
            assert (await turn.result()).content.endswith("first | second.")
            await run.terminate()
            assert (await (await run.send("third")).result()).content.endswith("first | second | third.")
        assert [message.text for message in await run.transcript()].count("first") == 1


@pytest.mark.parametrize("sender", ["run.send", "client.send"])
async def test_a_first_message_outlives_a_termination_under_the_second(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, sender: str
) -> None:
    """The second is on its way to the open run when that is terminated: what it opens has both."""
    async with engine.served(Agent("echo", ScriptedProvider(told))) as client:
        run = await client.start("echo", "first", mode="session")
        await run.pause()
        await paused(run)

        def terminate_before(owner: Any, name: str) -> None:
            sent = getattr(owner, name)

            async def terminated(*arguments: Any, **options: Any) -> Any:
                monkeypatch.undo()
                await run.terminate()
                return await sent(*arguments, **options)

            monkeypatch.setattr(owner, name, terminated)

        terminate_before(client.temporal, "execute_update_with_start_workflow")
        terminate_before(WorkflowHandle, "start_update")
        turn = await (run.send("second") if sender == "run.send" else client.send("echo", "second", id=run.id))
        assert (await turn.result()).content == "You said first | second."


async def test_pausing_twice_keeps_the_first_and_resuming_twice_changes_nothing(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(holder(gate)) as client:
        run = await client.start("holder", "One.")
        await eventually(lambda: gate.entered)
        await run.pause(by="ana", reason="lunch")
        await run.pause(by="bob", reason="tea")
        gate.open()
        assert (await paused(run)).reason == "paused by ana: lunch"
        await run.resume(by="bob")
        await run.resume(by="kim")
        await run.result()
        said = [(state, by) for state, by, _ in await run_events(run)]
        assert said == [("started", None), ("paused", "ana"), ("resumed", "bob"), ("completed", None)]
        with pytest.raises(RunClosedError):
            await run.pause()
        with pytest.raises(RunNotFoundError):
            await client.run("nobody").pause()


async def test_a_pause_that_is_resumed_before_it_begins_leaves_nothing(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(holder(gate)) as client:
        run = await client.start("holder", "One.")
        await eventually(lambda: gate.entered)
        await run.pause()
        await run.resume()
        assert (await run.status()).pause is None
        gate.open()
        await run.result()
        assert [state for state, *_ in await run_events(run)] == ["started", "completed"]


async def test_a_pause_that_makes_no_sense_is_refused(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(holder(gate)) as client:
        run = await client.start("holder", "One.")
        await eventually(lambda: gate.entered)
        with pytest.raises(InvalidInputError, match="reason"):
            await run.pause(reason="x" * 1001)
        for bad in (7, "please", {"why": "x"}, {"by": 7}, {"reason": "x" * 1001}, [None] * 100):
            await run.handle.signal("pause", bad)
        status = await eventually(lambda: _refused(run, 6))
        assert status.pause is None
        assert all("pause" in line for line in status.refused)
        await run.handle.signal("pause")  # as any client may send it
        assert (await eventually(lambda: _pausing(run))).reason == "paused by a client"
        await run.handle.signal("resume", {"by": 7})
        gate.open()
        await run.result()


async def _refused(run: Run, count: int) -> Status | None:
    status = await run.status()
    return status if len(status.refused) == count else None


async def _pausing(run: Run) -> Status | None:
    status = await run.status()
    return status if status.pause is not None else None


async def test_a_limit_is_raised_while_the_run_is_paused(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(holder(gate, max_iterations=1, on_limit="pause")) as client:
        run = await client.start("holder", "One.")
        await eventually(lambda: gate.entered)
        await run.pause(by="ana")
        gate.open()
        assert (await paused(run)).at_limit is None
        await run.resume()
        assert (await paused(run)).at_limit is not None  # what it would have met without the pause
        await run.pause(by="ana")
        await run.resume(limits={"max_iterations": 3})
        assert (await run.result()).content == "You said One.."


@pytest.mark.fault(
    "Clients",
    "A client pauses the run.",
    "What is in flight ends. Messages and decisions are kept until `resume`, whatever becomes of "
    "workers and executions meanwhile.",
)
@pytest.mark.server
async def test_a_pause_outlives_its_workers_and_executions(engine: Engine) -> None:
    agent = Agent("clerk", ScriptedProvider(echo))
    async with engine.served(agent) as client:
        run = await client.start("clerk", "One", mode="session", max_history_events=15)
        await run.turn().result()
        await run.pause(by="ana", reason="a deploy")
        first = (await run.describe()).run_id
        await paused(run)
        for n in range(12):
            await run.inject(f"Message {n}")
        await eventually(lambda: _runs_elsewhere(run, first), what="the next execution")
        assert (await paused(run)).reason == "paused by ana: a deploy"
    async with engine.served(agent) as client:
        run = client.run(run.id)
        await eventually(lambda: _queued(run, 12))
        assert (await run.status()).state == "paused"
        (row,) = await client.list(agent="clerk", status="paused")
        assert row.id == run.id
        await run.resume(by="bob")
        assert (await run.turn().result()).content == "You said Message 11."
        assert [state for state, *_ in await run_events(run)].count("resumed") == 1


async def _runs_elsewhere(run: Run, run_id: str) -> bool:
    return (await run.describe()).run_id != run_id


def boss(**options: Any) -> Agent:
    replies: Any = [[call("call_holder", task="a")], lambda r: r.messages[-1].tool_results[0].content]
    return Agent("boss", ScriptedProvider(replies), subagents=["holder"], **options)


async def test_subagents_go_on_unless_they_are_paused_too(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(boss(), holder(gate)) as client:
        run = await client.start("boss", "Go.")
        await eventually(lambda: gate.entered)
        child = client.run(await find_child_id(client, run.id, 1))
        await run.pause(by="ana")
        assert (await child.status()).pause is None
        gate.open()
        assert (await child.result()).content == "You said a."
        await paused(run)
        await run.resume()
        assert (await run.result()).content == "You said a."


async def test_a_tree_is_paused_and_resumed(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(boss(), holder(gate)) as client:
        run = await client.start("boss", "Go.")
        await eventually(lambda: gate.entered)
        child = client.run(await find_child_id(client, run.id, 1))
        await run.pause(by="ana", reason="lunch", children=True)
        gate.open()
        assert (await paused(child)).reason == "paused by ana: lunch"
        assert (await run.status()).state == "running"  # its call is in flight
        await run.resume(children=True)
        assert (await run.result()).content == "You said a."


class _EndsBetweenTwoLooks(Interceptor):
    """Has the run ``id`` end as soon as its client has seen that it is open."""

    def __init__(self, id: str, end: Callable[[], Awaitable[None]]) -> None:
        self.id, self.end = id, end

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _LooksOnce(next, self)


class _LooksOnce(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, test: _EndsBetweenTwoLooks) -> None:
        super().__init__(next)
        self._test, self._looked = test, False

    async def describe_workflow(self, input: DescribeWorkflowInput) -> WorkflowExecutionDescription:
        description = await super().describe_workflow(input)
        if input.id == self._test.id and not self._looked:
            self._looked = True
            await self._test.end()
        return description


async def test_a_subagent_that_ends_while_its_tree_is_resumed_is_not_opened_again(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(boss(), holder(gate)) as client:
        run = await client.start("boss", "Go.")
        await eventually(lambda: gate.entered)
        child = client.run(await find_child_id(client, run.id, 1))
        await run.pause(children=True)
        gate.open()
        await paused(child)
        first = await child.describe()
        interceptor = _EndsBetweenTwoLooks(child.id, lambda: child.terminate("no"))
        temporal = TemporalClient((await engine.temporal()).service_client, interceptors=[interceptor])
        racing = Client(temporal, store_url=engine.store_url, task_queue=engine.task_queue)
        await racing.run(run.id).resume(children=True)
        await run.result()
        last = await child.describe()
        assert (last.run_id, (await child.status()).state) == (first.run_id, "terminated")
        await racing.close()


@pytest.mark.server
async def test_a_tree_without_a_worker_is_paused_as_far_as_it_is_known(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.client.run.ANSWER_TIMEOUT", timedelta(seconds=0.5))
    client = await engine.client()
    run = await client.start("holder", "Go.")
    with pytest.raises(NoWorkerError):
        await run.pause(by="ana", children=True)
    async with engine.served(holder(Gate())):
        assert (await paused(run)).reason == "paused by ana"
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(engine, monkeypatch)


async def test_the_command_line_pauses_and_resumes(engine: Engine, cli: Commands) -> None:
    gate = Gate()
    async with engine.served(holder(gate)) as client:
        run = await client.start("holder", "One.", id="order-7")
        await eventually(lambda: gate.entered)
        first = await cli("pause", "order-7", "--reason", "lunch", "--by", "ana")
        assert (first.code, first.out) == (0, "order-7 pauses as soon as what is in flight has ended\n")
        assert "then paused by ana: lunch" in (await cli("show", "order-7")).out
        gate.open()
        await paused(run)
        assert "paused by ana: lunch; `perdure resume order-7` lets it go on" in (await cli("show", "order-7")).out
        again = await cli("pause", "order-7", "-o", "json")
        assert again.json == {"id": "order-7", "status": "pausing", "was": "paused"}
        resumed = await cli("resume", "order-7", "--by", "bob")
        assert (resumed.code, resumed.out) == (0, "order-7 was paused by ana: lunch; it goes on\n")
        await run.result()
        events = (await cli("events", "order-7")).out
        assert "run paused by ana (lunch)" in events
        assert "run resumed by bob" in events
        assert (await cli("pause", "order-7")).code != 0
