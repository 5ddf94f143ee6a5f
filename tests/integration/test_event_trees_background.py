"""Subagents in background are in their parent's stream, in ``perdure events`` and in the tree of ``perdure show``."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from perdure import Agent, Run, background
from perdure.cli.show import format_run_details, read_run_details, serialize_run_details
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.events import Event, ToolStarted
from perdure.types.messages import Usage
from tests.support.children import find_child_id
from tests.support.cli import Cli
from tests.support.engine import Engine
from tests.support.following import all_of, assert_whole, next_of, run_end, shown
from tests.support.scripts import Gate, replied


def told(request: ModelRequest) -> str:
    """What the calls came to."""
    return " | ".join(part.content for part in request.messages[-1].tool_results)


def start(task: str) -> Any:
    return call("start_agent", agent_name="worker", message=task)


def replies(request: ModelRequest) -> Any:
    """Starts one, asks another agent meanwhile, and collects in the end."""
    said: list[Any] = [start("dig"), call("call_critic", task="Is it so?"), call("collect_agent", handle="b1"), told]
    reply = said[replied(request)]
    return reply(request) if callable(reply) else reply


def crew(gate: Gate) -> list[Agent]:
    """A boss whose worker in background waits for the gate, and asks a critic of its own then."""

    async def works(request: ModelRequest) -> Any:
        await gate()
        return told(request) if request.messages[-1].role == "tool" else call("call_critic", task="Well?")

    critic = Agent("critic", ScriptedProvider(lambda _: "It is."))
    worker = Agent("worker", ScriptedProvider(works), subagents=[critic])
    return [
        Agent("boss", ScriptedProvider(replies), tools=background([worker]), subagents=[critic]),
        worker,
        critic,
    ]


async def reconnecting(run: Run, until: asyncio.Event) -> list[Event]:
    """Goes away after every event, and comes back behind it; up to the end of the run."""
    seen: list[Event] = []
    while not (seen and seen[-1].type == "run" and not seen[-1].path and shown(seen[-1:]) == ["run completed"]):
        async with aclosing(run.events(after=seen[-1].seq if seen else 0)) as events:
            seen.append(await anext(events))
        if seen[-1].type == "tool.completed" and not seen[-1].path:
            until.set()
    return seen


def whole_replies(events: list[Event]) -> list[Event]:
    return [event for event in events if event.type != "model.delta"]


async def test_what_a_subagent_in_background_does_is_in_its_parents_stream(engine: Engine) -> None:
    gate, parent_went_on = Gate(), asyncio.Event()
    boss, *others = crew(gate)
    async with engine.served(boss, *others) as client:
        run = await client.start(boss, "Go.")
        follower = asyncio.ensure_future(reconnecting(run, parent_went_on))
        live = asyncio.ensure_future(all_of(run.events()))
        await parent_went_on.wait()
        gate.open()
        response = await run.result()
        seen, again = await asyncio.gather(live, follower)
        late = await all_of(run.events(wait=False))
        own = await all_of(run.events(wait=False, children=False))
        of_turn = await all_of(run.turn().events(wait=False))
        worker = await all_of(client.run(await find_child_id(client, run.id, 1)).events())
    assert response.content == "It is."
    for events in (seen, again, late):
        assert_whole(events)
    assert whole_replies(again) == late
    assert whole_replies(seen) == late
    assert own == [event for event in late if not event.path]
    last = run_end(own).seq
    assert [event for event in of_turn if event.seq < last] == [
        event for event in late if event.seq < last and (event.path or event.task_id == of_turn[0].task_id)
    ]
    begun = {event.child_context_id: event for event in late if isinstance(event, ToolStarted)}
    assert {name: event.background for name, event in begun.items() if name} == {
        await find_child_id(client, run.id, 1): True,
        await find_child_id(client, run.id, 3): False,
        await find_child_id(client, run.id, 1, 1): False,
    }
    of_worker = [event for event in late if event.context_id == await find_child_id(client, run.id, 1)]
    (path,) = {tuple((step.agent, step.call_id, step.task_id) for step in event.path) for event in of_worker}
    starting = begun[await find_child_id(client, run.id, 1)]
    assert path == (("worker", starting.call_id, starting.task_id),)
    assert {len(event.path) for event in late if event.context_id == await find_child_id(client, run.id, 1, 1)} == {2}
    *there, end = worker  # which is recorded as that run itself is followed
    assert (end.type, end.path) == ("run", ())
    assert [event.seq for event in there] == [
        event.seq for event in late if event.context_id.startswith(await find_child_id(client, run.id, 1))
    ]


async def test_a_session_that_is_between_turns_is_told_of_one_that_goes_on(engine: Engine) -> None:
    """It belongs to the turn that started it, whichever there was since."""
    gate = Gate()
    _, worker, critic = crew(gate)
    said: list[Any] = [start("dig"), "Started.", "Hello.", call("collect_agent", handle="b1"), told]
    boss = Agent("boss", ScriptedProvider(said), tools=background([worker]))
    async with engine.served(boss, worker, critic) as client:
        first = await client.send("boss", "Go.", id=f"talk-{engine.task_queue}")
        assert (await first.result()).content == "Started."
        second = await first.run.send("Hi.")
        assert (await second.result()).content == "Hello."
        gate.open()
        async with aclosing(first.run.events()) as events:
            while (await next_of(events, "turn")).context_id != await find_child_id(client, first.run.id, 1):
                pass
        third = await first.run.send("And?")
        assert (await third.result()).content == "It is."
        below = [
            [event for event in await all_of(turn.events(wait=False)) if event.path] for turn in (first, second, third)
        ]
        whole = await all_of(first.run.events(wait=False))
        await first.run.close()
        await first.run.result()
    assert_whole(whole)
    assert below[0] == [event for event in whole if event.path]
    assert below[1:] == [[], []]


async def test_show_says_which_are_in_background(engine: Engine) -> None:
    gate = Gate()
    boss, *others = crew(gate)
    async with engine.served(boss, *others) as client:
        run = await client.start(boss, "Go.")
        async with aclosing(run.events()) as events:
            while (await next_of(events, "tool.completed")).path:
                pass
        while_it_runs = await read_run_details(run)
        gate.open()
        await run.result()
        await client.run(await find_child_id(client, run.id, 1)).result()  # it tells its parent before it ends
        at_its_end = await read_run_details(run)
    worker_id, critic_id, low_id = [await find_child_id(client, run.id, *ops) for ops in ((1,), (3,), (1, 1))]
    (row,) = [one for one in while_it_runs.children if one.status.context_id == worker_id]
    assert (row.depth, row.background, row.status.state) == (1, True, "running")
    assert any(
        line.startswith(f"  {worker_id}  running  agent worker in background")
        for line in format_run_details(while_it_runs)
    )
    while_it_runs.children = [replace(row, usage=Usage(input_tokens=9), cost_usd=0.5)]
    assert any(" · 9 tokens · $0.50" in line for line in format_run_details(while_it_runs))
    (plain_row,) = serialize_run_details(while_it_runs)["children"]
    assert (plain_row["tokens"], plain_row["cost_usd"]) == (9, 0.5), "its status has what has ended"
    plain = [
        (one["depth"], one["id"], one["agent"], one["background"])
        for one in serialize_run_details(at_its_end)["children"]
    ]
    assert plain == [
        (1, worker_id, "worker", True),
        (2, low_id, "critic", False),
        (1, critic_id, "critic", False),
    ]
    said = [line.split(" · ")[0] for line in format_run_details(at_its_end) if line.strip().startswith(f"{run.id}/")]
    assert said == [
        f"  {worker_id}  completed  agent worker in background",
        f"    {low_id}  completed  agent critic",
        f"  {critic_id}  completed  agent critic",
    ]


@pytest.mark.server
async def test_events_on_the_command_line_with_and_without_children(engine: Engine) -> None:
    gate = Gate()
    gate.open()
    boss, *others = crew(gate)
    async with engine.served(boss, *others) as client:
        run = await client.start(boss, "Go.")
        await run.result()
        await client.run(await find_child_id(client, run.id, 1)).result()  # it tells its parent before it ends
        env = {"TEMPORAL_ADDRESS": engine.address, "PERDURE_STORE_URL": str(engine.store_url)}
        cli = Cli(engine.folder, {**env, "PERDURE_HOME": str(engine.folder / "home")})
        everything = (await cli("events", run.id, "--json")).json
        own = (await cli("events", run.id, "--no-children", "--json")).json
        lined = await cli("events", run.id)
        lined_own = await cli("events", run.id, "--no-children")
        tree = await cli("show", run.id)
        await cli.close()
    assert own == [event for event in everything if "path" not in event]
    assert {event["context_id"] for event in own} == {run.id}
    below = {event["context_id"]: [step["agent"] for step in event["path"]] for event in everything if "path" in event}
    assert below == {
        await find_child_id(client, run.id, 1): ["worker"],
        await find_child_id(client, run.id, 1, 1): ["worker", "critic"],
        await find_child_id(client, run.id, 3): ["critic"],
    }
    for marked in ("[worker/1] → call_critic", "[worker/1 critic/1] It is.", "[critic/3] It is."):
        assert any(line.startswith(marked) for line in lined.out.splitlines()), (marked, lined.out)
    assert not any(line.startswith("[") for line in lined_own.out.splitlines())
    assert "run completed" in lined_own.out
    worker_id = await find_child_id(client, run.id, 1)
    assert f"{worker_id}  completed  agent worker in background" in tree.out
