"""Interrupts at random moments of runs with parallel tools: no finished work is lost, nothing else is done."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from perdure import Agent, Message, Run, ToolContext, Turn, tool
from perdure.loop.transcript import list_open_calls
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider
from perdure.types.messages import ToolCallPart, ToolResultPart
from tests.support.checks import assert_closed, users
from tests.support.engine import Engine
from tests.support.scripts import replied
from tests.support.wait import eventually

pytestmark = pytest.mark.server

KINDS = ("quick", "brief", "hang", "plain", "inline", "slow_inline")
STOPPED = ("Cancelled: ", "Interrupted: ")
"""How the result of a call begins that was stopped, or never ran."""


@dataclass
class Desk:
    """Tools of every kind, and what they did. The ids of calls are those of one session each."""

    begun: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    stopped: list[tuple[str, float, float]] = field(default_factory=list)
    """Of each tool that runs until it is stopped: its run, when it began, and when it was told."""

    def tools(self) -> list[Any]:
        """Each returns its call's id when it is done, and notes that as the last thing that it does."""
        desk = self

        def done(ctx: ToolContext) -> str:
            desk.finished.add(_name(ctx.run_id, ctx.call_id))
            return ctx.call_id

        async def after(ctx: ToolContext, seconds: float) -> str:
            desk.begun.add(_name(ctx.run_id, ctx.call_id))
            await asyncio.sleep(seconds)
            return done(ctx)

        @tool
        async def quick(ctx: ToolContext) -> str:
            """Finish at once."""
            return await after(ctx, 0)

        @tool
        async def brief(ctx: ToolContext) -> str:
            """Finish soon."""
            return await after(ctx, 0.1)

        @tool
        async def hang(ctx: ToolContext) -> str:
            """Wait until stopped."""
            began = time.monotonic()
            try:
                return await after(ctx, 1000)
            finally:
                desk.stopped.append((ctx.run_id, began, time.monotonic()))

        @tool
        def plain(ctx: ToolContext) -> str:
            """Block a thread until told."""
            began = time.monotonic()
            desk.begun.add(_name(ctx.run_id, ctx.call_id))
            while not ctx.cancelled:
                time.sleep(0.01)
            desk.stopped.append((ctx.run_id, began, time.monotonic()))
            return "told"

        @tool(inline=True)
        async def inline(ctx: ToolContext) -> str:
            """Run in the model's activity."""
            return await after(ctx, 0)

        @tool(inline=True)
        async def slow_inline(ctx: ToolContext) -> str:
            """Run there for a while."""
            return await after(ctx, 0.15)

        return [quick, brief, hang, plain, inline, slow_inline]


def _name(run_id: str, call_id: str) -> str:
    return f"{run_id}/{call_id}"


class Model:
    """Asks for random tools after a while, at most three times for one message, then answers the last message."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    async def __call__(self, request: ModelRequest) -> Any:
        n, dice = replied(request), self._dice
        heard = [message.role for message in request.messages]
        since = heard[::-1].index("user")
        await asyncio.sleep(dice.uniform(0, 0.3))
        if since > 5 or dice.random() < 0.2:
            return f"Answer to {users(request.messages)[-1]}"
        kinds = dice.sample(KINDS, dice.randint(1, 4))
        return [ToolCallPart(id=f"call_{n}_{at}", name=kind, arguments={}) for at, kind in enumerate(kinds)]


async def converse(run: Run, dice: random.Random, moments: int) -> tuple[list[str], list[float]]:
    """Messages, turns and interrupts at random moments. What was said, in order, and when it was interrupted."""
    said, asked = ["Go."], []
    for n in range(moments):
        await asyncio.sleep(dice.uniform(0, 0.7))
        text = f"message {n}"
        match dice.choice(["interrupt", "interrupt", "stop", "inject", "send"]):
            case "interrupt":
                asked.append(time.monotonic())
                await run.interrupt(text)
            case "stop":
                asked.append(time.monotonic())
                await run.interrupt()
                continue
            case "inject":
                await run.inject(text)
            case "send":
                await run.send(text)
        said.append(text)
    return said, asked


@pytest.mark.parametrize(("sessions", "moments"), [(2, 8), pytest.param(4, 12, marks=pytest.mark.slow)])
async def test_interrupts_at_random_moments(engine: Engine, sessions: int, moments: int) -> None:
    seed = int(os.environ.get("TEST_SEED", random.randrange(10**6)))
    print(f"seed {seed}")
    desk, dice = Desk(), random.Random(seed)
    agent = Agent("desk", ScriptedProvider(Model(random.Random(seed + 1))), tools=desk.tools(), max_iterations=1000)
    async with engine.served(agent) as client:
        runs = [
            await client.start("desk", "Go.", mode="session", max_history_events=None if n % 2 else 60)
            for n in range(sessions)
        ]
        told = await asyncio.gather(*(converse(run, random.Random(dice.random()), moments) for run in runs))
        for run, (said, asked) in zip(runs, told, strict=True):
            asked.append(time.monotonic())
            await run.interrupt()
            await eventually(lambda run=run: _waits(run), what="a session that waits")
            _check(run, await run.transcript(), said, desk)
            asked += await _answered(await run.send("And now?"))
            _check(run, await run.transcript(), [*said, "And now?"], desk)
    interrupted = {run.id: asked for run, (_, asked) in zip(runs, told, strict=True)}
    late = sorted(_latency(interrupted[run_id], began, stop) for run_id, began, stop in desk.stopped)
    print(
        f"{sum(map(len, interrupted.values()))} interrupts, {len(desk.begun)} tools begun, "
        f"{len(desk.finished)} finished; "
        f"from signal to stop: {', '.join(f'{one:.2f}' for one in late)} s; load {os.getloadavg()[0]:.1f}"
    )
    assert desk.finished < desk.begun


def _latency(asked: list[float], began: float, stop: float) -> float:
    """From the signal that stopped a tool: the first one since it began, or one that was on its way then."""
    before = [moment for moment in asked if moment <= stop]
    return stop - next((moment for moment in before if moment >= began), before[-1])


async def _waits(run: Run) -> bool:
    return (await run.status()).state == "idle"


async def _answered(turn: Turn) -> list[float]:
    """The turn ends: by its answer, or, where it hangs in a tool, because it is stopped. Returns when it was."""
    answer, asked = asyncio.ensure_future(turn.result()), []
    while not (await asyncio.wait([answer], timeout=1.0))[0]:
        asked.append(time.monotonic())
        await turn.interrupt()
    assert (await answer).finish_reason in ("stop", "interrupted")
    await eventually(lambda: _waits(turn.run))
    return asked


def _check(run: Run, messages: Sequence[Message], said: list[str], desk: Desk) -> None:
    assert_closed(messages)
    assert list_open_calls(messages) == []
    assert users(messages) == said, "lost, doubled or out of order"
    roles = [message.role for message in messages]
    assert all(before == "assistant" for before, role in pairwise(roles) if role == "tool")
    asked = {_name(run.id, call.id): call.name for message in messages for call in message.tool_calls}
    results = {_name(run.id, part.call_id): part for message in messages for part in message.tool_results}
    assert asked.keys() == results.keys()
    for name, result in results.items():
        _check_result(name, result, desk)
    begun = {name for name in desk.begun if name.startswith(f"{run.id}/")}
    assert begun <= asked.keys(), "a tool ran, and the transcript does not know"


def _check_result(name: str, result: ToolResultPart, desk: Desk) -> None:
    """Finished tools have their own result; the others one that says that they were stopped, or did not run."""
    if result.name == "plain":  # never finishes by itself
        assert result.is_error
        assert result.content.startswith(STOPPED), result
    elif name in desk.finished:
        assert (result.content, result.is_error) == (result.call_id, False)
    else:
        assert result.is_error
        assert result.content.startswith(STOPPED), result
