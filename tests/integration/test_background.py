"""Subagents in background: they work while their parent goes on, and end with it at the latest."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError

from perdure import Agent, Client, Limits, Run, Veto, ask, background, deny, hook, tool
from perdure.client.inbox import list_pending_calls_of_run
from perdure.errors import InvalidInputError, RunCancelledError
from perdure.loop import background as probes
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.events import ToolStarted
from perdure.types.interface import WORKFLOW_TYPE
from perdure.workflows.host import Host
from tests.support.checks import assert_closed, results, users
from tests.support.children import find_child_id
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually


def echo(request: ModelRequest) -> str:
    return f"heard {', '.join(users(request.messages))}"


def told(request: ModelRequest) -> str:
    """What the last calls came to."""
    return " | ".join(part.content for part in request.messages[-1].tool_results)


def start(message: str = "x", name: str = "worker") -> Any:
    return call("start_agent", agent_name=name, message=message)


def collect(handle: str, **options: Any) -> Any:
    return call("collect_agent", handle=handle, **options)


def tell(handle: str, message: str) -> Any:
    return call("tell_agent", handle=handle, message=message)


def held(gate: Gate, text: Any = echo) -> ScriptedProvider:
    """Answers when the gate is open."""

    async def reply(request: ModelRequest) -> Any:
        await gate()
        return text(request) if callable(text) else text

    return ScriptedProvider(reply)


def boss(*replies: Any, workers: Any = ("worker",), at_once: int = 10, **options: Any) -> Agent:
    """Its n-th reply is the n-th of ``replies``."""

    def reply(request: ModelRequest) -> Any:
        said = replies[min(replied(request), len(replies) - 1)]
        return said(request) if callable(said) else said

    tools = [*options.pop("tools", ()), *background(list(workers), at_once=at_once)]
    return Agent("boss", ScriptedProvider(reply), tools=tools, **options)


def worker(provider: Any = echo, **options: Any) -> Agent:
    given = provider if isinstance(provider, ScriptedProvider) else ScriptedProvider(provider)
    return Agent("worker", given, description="Works.", **options)


async def states(run: Run) -> dict[str, str]:
    return {one.handle: one.state for one in (await run.status()).background}


async def now(client: Client, name: str) -> WorkflowExecutionStatus | None:
    return (await client.run(name).handle.describe()).status


async def ended_as(client: Client, name: str) -> WorkflowExecutionStatus | None:
    """How a run ended. It tells its parent before it does: the parent may be the first at its end."""
    await eventually(lambda: _ended(client, name), what=f"the end of {name}")
    return await now(client, name)


async def test_two_work_while_their_parent_goes_on(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def look() -> str:
        """Look."""
        gate.open()
        return "seen"

    agents = [worker(held(gate)), Agent("other", ScriptedProvider(echo))]
    replies = [
        [start("a"), start("b", "other")],
        collect("b1", wait=False),
        [call("look"), collect("b2"), collect("b1"), collect("b3")],
        collect("b2"),
        told,
    ]
    parent = boss(*replies, workers=[agents[0], "other"], tools=[look])
    async with engine.served(parent, agents[1]) as client:
        run = await client.start(parent, "Go.")
        response = await run.result()
        children = [child.id for child in await run.children()]
        events = [event async for event in run.events()]
        assert [child async for child in _ends(client, children)] == [WorkflowExecutionStatus.COMPLETED] * 2
    assert results(response.messages) == [
        "started as b1",
        "started as b2",
        "b1 (worker) is still running",
        "seen",
        "heard b",
        "heard a",
        "no agent 'b3' (there is: b1, b2)",
        "heard b",
    ]
    assert response.content == "heard b"
    assert_closed(response.messages)
    assert children == [await find_child_id(client, run.id, 1), await find_child_id(client, run.id, 2)]
    begun = [event for event in events if isinstance(event, ToolStarted) and event.child_context_id]
    assert [(event.child_context_id, event.background) for event in begun] == [(name, True) for name in children]


async def _ends(client: Client, names: list[str]) -> Any:
    for name in names:
        yield await ended_as(client, name)


@pytest.mark.server
async def test_one_is_spoken_to_and_collected_after_continue_as_new(engine: Engine) -> None:
    gate = Gate()
    parent = boss([start("a"), start("b")], tell("b1", "and c"), [collect("b1"), collect("b2")], told)
    async with engine.served(parent, worker(held(gate))) as client:
        run = await client.start(parent, "Go.", max_history_events=15)
        await eventually(lambda: _waits_for(run, 2), what="both are collected")
        await eventually(lambda: _has_continued(run), what="it has continued as new")
        assert await states(run) == {"b1": "running", "b2": "running"}
        calls = (await run.status()).calls
        assert [(one.tool, one.context_id) for one in calls] == [
            ("collect_agent", await find_child_id(client, run.id, 1)),
            ("collect_agent", await find_child_id(client, run.id, 2)),
        ]
        gate.open()
        response = await run.result()
        child = await client.run(await find_child_id(client, run.id, 1)).result()
    assert response.content == "heard a, and c | heard b"
    assert users(child.messages) == ["a", "and c"]
    own = sum(message.usage.total_tokens for message in response.messages if message.usage)
    assert response.usage.total_tokens > own + child.usage.total_tokens, "what they have used counts"


async def _waits_for(run: Run, count: int) -> bool:
    status = await run.status()
    return [one.tool for one in status.calls] == ["collect_agent"] * count


@pytest.mark.server
async def test_one_that_continues_as_new_itself(engine: Engine) -> None:
    @tool
    async def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    busy = worker(lambda r: call("look", n=replied(r)) if replied(r) < 8 else told(r), tools=[look])
    parent = boss([start("a"), start("b")], collect("b1"), collect("b2"), told)
    async with engine.served(parent, busy) as client:
        run = await client.start(parent, "Go.", max_history_events=20)
        response = await run.result()
        first = (await client.run(await find_child_id(client, run.id, 1)).handle.fetch_history()).events[0]
    assert results(response.messages)[2:] == ["seen 7", "seen 7"]
    assert first.workflow_execution_started_event_attributes.continued_execution_run_id


async def test_hooks_see_what_they_are_told_and_what_they_answer(engine: Engine) -> None:
    asked: list[tuple[str, str]] = []

    @hook("before_subagent")
    def before(agent: str, message: str) -> Any:
        asked.append((agent, message))
        return Veto("no secrets") if "secret" in message else message.upper()

    @hook("after_subagent")
    def after(name: str, result: Any) -> str:
        return f"{name}: {result.content}!"

    gate = Gate()
    parent = boss(
        [start("a"), start("secret")],
        [tell("b1", "more"), tell("b1", "secret")],
        collect("b1"),
        told,
        hooks=[before, after],
    )
    async with engine.served(parent, worker(held(gate))) as client:
        run = await client.start(parent, "Go.")
        await eventually(lambda: _waits_for(run, 1))
        gate.open()
        response = await run.result()
    assert asked == [("worker", "a"), ("worker", "secret"), ("b1", "more"), ("b1", "secret")]
    assert results(response.messages) == [
        "started as b1",
        "Vetoed: no secrets",
        "delivered",
        "Vetoed: no secrets",
        "collect_agent: heard A, MORE!",
    ]


async def test_rules_hold_for_calls_about_them(engine: Engine) -> None:
    rules = [deny("tell_agent"), ask("collect_agent")]
    parent = boss(start("a"), [tell("b1", "x"), collect("b1")], told, approvals=rules)
    async with engine.served(parent, worker()) as client:
        run = await client.start(parent, "Go.")

        async def asked() -> list[Any]:
            return await list_pending_calls_of_run(run)

        (one,) = await eventually(asked)
        assert one.tool == "collect_agent"
        with pytest.raises(InvalidInputError, match="cannot be changed"):
            await one.approve(by="ana", arguments={"handle": "b2"})
        await one.approve(by="ana")
        response = await run.result()
    assert results(response.messages)[1].startswith("Denied")
    assert results(response.messages)[2] == "heard a"


@pytest.mark.parametrize("cans", [False, True])
async def test_they_end_with_their_parent(engine: Engine, cans: bool) -> None:
    gate = Gate()
    parent = boss([start("a"), start("b")], collect("b1", wait=False), "Enough.")
    async with engine.served(parent, worker(held(gate))) as client:
        run = await client.start(parent, "Go.", **({"max_history_events": 15} if cans else {}))
        response = await run.result()
        assert response.content == "Enough."
        for name in (await find_child_id(client, run.id, 1), await find_child_id(client, run.id, 2)):
            assert await ended_as(client, name) == WorkflowExecutionStatus.CANCELED
            assert_closed(await client.run(name).transcript())
        row = await (await client.store()).get_run(run.id)
        assert row is not None
        assert row.status == "completed"


async def test_one_that_takes_no_more_signals_is_stopped_all_the_same(engine: Engine, monkeypatch: Any) -> None:
    """Temporal lets a run have so many. That a look at one fails does not say that it has ended."""
    send = Host.signal_external

    async def full(self: Host, id: str, signal: str, arguments: Any) -> None:
        if signal == "probe":
            raise ApplicationError("it has as many signals as it may", type="SignalCountLimitExceeded")
        await send(self, id, signal, arguments)

    monkeypatch.setattr(Host, "signal_external", full)
    gate = Gate()
    parent = boss(start("a"), collect("b1", wait=False), collect("b1", wait=False), "Enough.")
    async with engine.served(parent, worker(held(gate))) as client:
        run = await client.start(parent, "Go.", max_history_events=15)
        assert (await run.result()).content == "Enough."
        assert await _has_continued(run)
        assert await ended_as(client, await find_child_id(client, run.id, 1)) == WorkflowExecutionStatus.CANCELED


async def test_a_cancelled_parent_takes_them_with_it(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def hang() -> str:
        """Wait."""
        await gate()
        return "hung"

    helper = worker(lambda r: call("hang") if replied(r) == 0 else "Late.", tools=[hang])
    parent = boss([start("a"), start("b")], collect("b1"), "Never.")
    async with engine.served(parent, helper) as client:
        run = await client.start(parent, "Go.")
        await eventually(lambda: gate.entered == 2)
        await eventually(lambda: _waits_for(run, 1))
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        for name in (run.id, await find_child_id(client, run.id, 1), await find_child_id(client, run.id, 2)):
            assert await ended_as(client, name) == WorkflowExecutionStatus.CANCELED
            assert_closed(await client.run(name).transcript())
        closing = (await run.transcript())[-1]
    assert closing.tool_results[0].is_error
    assert "Cancelled" in closing.tool_results[0].content


async def test_failures_are_results(engine: Engine) -> None:
    failing = Agent("failing", ScriptedProvider(lambda _: call("nothing")), max_iterations=2, on_limit="error")
    parent = boss([start("a", "failing"), start("b", "failing")], collect("b1"), told, workers=["failing"])
    async with engine.served(parent, failing) as client:
        response = await (await client.start(parent, "Go.")).result()
    (result,) = response.messages[-2].tool_results
    assert result.is_error
    assert result.content == "MaxIterationsError: agent failing did not finish within 2 iterations"


@pytest.mark.server
@pytest.mark.parametrize("cans", [False, True])
async def test_one_that_was_terminated_is_lost(engine: Engine, monkeypatch: Any, cans: bool) -> None:
    """The execution that started it is told so by Temporal; a later one finds out, also when nothing is reported."""
    monkeypatch.setattr(probes, "FIRST_CHILD_PROBE", 0.2)
    gate = Gate()
    parent = boss(start("a"), collect("b1"), tell("b1", "Are you there?"), collect("b1"), told)
    async with engine.served(parent, worker(held(gate))) as client:
        run = await client.start(parent, "Go.", **({"max_history_events": 12} if cans else {}))
        await eventually(lambda: _waits_for(run, 1))
        if cans:
            await eventually(lambda: _has_continued(run))
        await eventually(lambda: gate.entered == 1)
        await client.run(await find_child_id(client, run.id, 1)).handle.terminate()
        response = await run.result()
        assert await states(run) == {}, "a closed run has no table"
    lost, refused, again = results(response.messages)[1:]
    assert lost.startswith("the agent was lost: ")
    assert refused == "not delivered: b1 (worker) has ended: collect its answer"
    assert again == lost


async def test_one_that_somebody_cancels_is_a_result(engine: Engine) -> None:
    gate = Gate()
    parent = boss(start("a"), collect("b1"), told)
    async with engine.served(parent, worker(held(gate))) as client:
        run = await client.start(parent, "Go.")
        await eventually(lambda: gate.entered == 1)
        await client.run(await find_child_id(client, run.id, 1)).cancel()
        response = await run.result()
    assert response.content == "RunCancelledError: the subagent was cancelled"


async def test_an_interrupt_ends_the_wait_and_not_the_work(engine: Engine) -> None:
    gate = Gate()
    parent = boss(start("a"), collect("b1"), lambda r: f"Heard {users(r.messages)[-1]}", collect("b1"), told)
    async with engine.served(parent, worker(held(gate))) as client:
        turn = await client.send(parent, "Go.", id=f"chat-{engine.task_queue}")
        run = turn.run
        await eventually(lambda: _waits_for(run, 1))
        await run.interrupt("Leave it.")
        response = await turn.result()
        assert response.content == "Heard Leave it."
        assert results(response.messages)[-1].startswith("Interrupted")
        assert await states(run) == {"b1": "running"}, "a session keeps it between its turns"
        gate.open()
        await eventually(lambda: _is(run, {"b1": "completed"}))
        again = await (await client.send(parent, "And now?", id=run.id)).result()
        assert again.content == "heard a"
        assert (await run.status()).background[0].collected
        await run.close()
        await run.handle.result()


async def _is(run: Run, wanted: dict[str, str]) -> bool:
    return await states(run) == wanted


async def test_a_session_ends_with_those_that_still_run(engine: Engine) -> None:
    gate = Gate()
    parent = boss(start("a"), "Started.")
    async with engine.served(parent, worker(held(gate))) as client:
        turn = await client.send(parent, "Go.", id=f"chat-{engine.task_queue}")
        await turn.result()
        await eventually(lambda: gate.entered == 1)
        assert await now(client, await find_child_id(client, turn.run.id, 1)) == WorkflowExecutionStatus.RUNNING
        await turn.run.close()
        await turn.run.handle.result()
        assert await ended_as(client, await find_child_id(client, turn.run.id, 1)) == WorkflowExecutionStatus.CANCELED


async def test_one_that_cannot_begin_is_told_nothing(engine: Engine) -> None:
    """A run has its id already, and the reply that starts it speaks to it too."""
    gate, name = Gate(), f"taken-{engine.task_queue}"
    parent = boss([start("a"), tell("b1", "more")], told)
    async with engine.served(parent, worker(held(gate))) as client:
        session = await client.start(parent, id=name, mode="session")
        taken = await find_child_id(client, name, 1)
        first = {"agent": "worker", "message": "x"}
        other = await client.temporal.start_workflow(WORKFLOW_TYPE, first, id=taken, task_queue=client.task_queue)
        response = await (await session.send("Go.")).result()
        gate.open()
        assert (await other.result())["content"] == "heard x"
    first, second = results(response.messages)
    assert first.startswith("not started: WorkflowAlreadyStartedError: ")
    assert second == "no agent 'b1' (this run has not started an agent in background)"


@pytest.mark.server
async def test_one_that_is_paused_for_long_continues_as_new(engine: Engine, monkeypatch: Any) -> None:
    """It looks for its parent all the while, and Temporal ends a run whose history becomes too long."""
    # Often; but a run that does nothing else has no time to say that it is paused.
    monkeypatch.setattr(probes, "FIRST_PARENT_PROBE", 0.25)
    monkeypatch.setattr(probes, "MAX_PARENT_PROBE", 0.25)

    @tool
    async def more() -> str:
        """More."""
        return "more"

    helper = worker(lambda _: call("more"), tools=[more], max_iterations=1, on_limit="pause")
    parent = boss(start("a"), collect("b1"), "Done.")
    async with engine.served(parent, helper) as client:
        run = await client.start(parent, "Go.", max_history_events=30)
        await eventually(lambda: _waits_for(run, 1))
        child = client.run(await find_child_id(client, run.id, 1))
        await eventually(lambda: _has_continued(child))
        await eventually(lambda: _paused(child))
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        assert_closed(await child.transcript())


async def _has_continued(run: Run) -> bool:
    found = await run.handle.describe()
    return found.raw_description.workflow_execution_info.first_run_id != found.run_id


async def _paused(run: Run) -> bool:
    return (await run.status()).state == "paused"


async def test_so_many_at_once(engine: Engine) -> None:
    gate = Gate()
    parent = boss([start("a"), start("b"), start("c")], told, workers=["worker"], at_once=2)
    async with engine.served(parent, worker(held(gate))) as client:
        response = await (await client.start(parent, "Go.")).result()
    assert results(response.messages)[:2] == ["started as b1", "started as b2"]
    assert results(response.messages)[2].startswith("not started: 2 agents run in background, which is the limit")


async def test_a_budget_is_shared_with_those_in_background(engine: Engine) -> None:
    """Each would go on without an end. What is set aside for them no other run uses; what is left over comes back."""

    @tool
    async def more() -> str:
        """More."""
        return "word " * 50

    endless = worker(lambda r: call("more") if r.tools else "Stopped.", tools=[more], max_iterations=500)

    def replies(request: ModelRequest) -> Any:
        if not request.tools:
            return "Over."
        match replied(request):
            case 0:
                return [start("a"), start("b")]
            case 1:
                return [collect("b1"), collect("b2")]
            case later if later % 2:
                return collect(f"b{later // 2 + 2}")  # with nothing set aside for it at the end
        return start("again")

    tools = background([endless], at_once=2)
    parent = Agent("boss", ScriptedProvider(replies), tools=tools, limits=Limits(tokens=20_000))
    async with engine.served(parent) as client:
        run = await client.start(parent, "Go.")
        response = await run.result()
        children = [await client.run(await find_child_id(client, run.id, n)).result() for n in (1, 2)]
    largest = max(message.usage.total_tokens for one in children for message in one.messages if message.usage)
    for child in children:
        assert child.finish_reason == "limit"
        assert 20_000 / 3 * 0.9 <= child.usage.total_tokens <= 20_000 / 3 + 2 * largest
    assert 18_000 <= response.usage.total_tokens <= 20_000 + 4 * largest


async def test_what_waits_in_them_is_in_the_inbox(engine: Engine) -> None:
    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    parent = boss(start("a"), collect("b1"), told)
    helper = worker(lambda r: call("pay", amount=3) if replied(r) == 0 else told(r), tools=[pay])
    async with engine.served(parent, helper) as client:
        run = await client.start(parent, "Go.")

        async def asked() -> list[Any]:
            return await list_pending_calls_of_run(run)

        (one,) = await eventually(asked)
        assert (one.run_id, one.tool) == (await find_child_id(client, run.id, 1), "pay")
        await one.approve(by="ana")
        assert (await run.result()).content == "paid 3"


@pytest.mark.server  # reads the whole history
async def test_long_texts_go_by_the_store(engine: Engine) -> None:
    text, gate = "ж" * 100_000, Gate()
    parent = boss(start(text), [tell("b1", text + "!")], collect("b1"), "Done.")
    async with engine.served(parent, worker(held(gate))) as client:
        run = await client.start(parent, "Go.")
        await eventually(lambda: _waits_for(run, 1))
        gate.open()
        response = await run.result()
        history = (await run.handle.fetch_history()).to_json()
    assert results(response.messages)[-1] == f"heard {text}, {text}!"
    assert len(history) < 80_000


@pytest.mark.server
async def test_one_whose_parent_was_terminated_ends_too(engine: Engine, monkeypatch: Any) -> None:
    monkeypatch.setattr(probes, "FIRST_PARENT_PROBE", 0.01)
    monkeypatch.setattr(probes, "MAX_PARENT_PROBE", 0.01)
    gate = Gate()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate()
        return "waited"

    helper = worker(lambda r: call("wait") if replied(r) == 0 else "Late.", tools=[wait])
    parent = boss(start("a"), collect("b1"), told)
    async with engine.served(parent, helper) as client:
        run = await client.start(parent, "Go.")
        await eventually(lambda: gate.entered == 1)
        await run.handle.terminate()
        assert await now(client, await find_child_id(client, run.id, 1)) == WorkflowExecutionStatus.RUNNING
        gate.open()
        child = client.run(await find_child_id(client, run.id, 1))
        await eventually(lambda: _ended(client, child.id))
        status = await child.status()
        assert status.state == "failed"
        assert status.reason is not None
        assert status.reason.startswith("RunClosedError: run ")
        assert_closed(await child.transcript())


async def _ended(client: Client, name: str) -> bool:
    return await now(client, name) != WorkflowExecutionStatus.RUNNING


async def test_nobody_else_says_how_one_ended(engine: Engine) -> None:
    gate = Gate()
    parent = boss(start("a"), collect("b1"), told)
    async with engine.served(parent, worker(held(gate))) as client:
        run = await client.start(parent, "Go.")
        await eventually(lambda: _waits_for(run, 1))
        wrong = {
            "context_id": await find_child_id(client, run.id, 1),
            "scope": "guessed",
            "state": "completed",
            "content": "Trust me.",
        }
        for said in (wrong, "no", {**wrong, "context_id": "other"}):
            await run.handle.signal("child_ended", said)
        await eventually(lambda: _refused(run, 3))
        gate.open()
        assert (await run.result()).content == "heard a"


async def _refused(run: Run, count: int) -> bool:
    return len((await run.status()).refused) == count
