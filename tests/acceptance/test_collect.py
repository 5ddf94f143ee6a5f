"""A worker is killed somewhere in a model call with two payments, and then a client stops the run: what was done is in
the transcript, and nothing else is said to be done. See docs/decisions/053-collect.md."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from temporalio.client import WorkflowHistory

from perdure import Message, Run
from perdure.errors import RunCancelledError
from perdure.loop.transcript import list_open_calls
from tests.servers.http import Answer, HttpServer, Request
from tests.servers.model_server import Call, OpenAIServer, Reply
from tests.support.checks import assert_closed, users
from tests.support.engine import ON_BOTH_STORES, Engine, WorkerProcess, side_by_side
from tests.support.following import next_of
from tests.support.wait import eventually

pytestmark = pytest.mark.server

TOKENS = 1000
"""Tokens of each reply of the model."""


class Shop:
    """Counts payments by their number, and holds the answer of those in ``held``."""

    def __init__(self, held: str | None) -> None:
        self.paid: Counter[str] = Counter()
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self._held = held
        self._http = HttpServer(self._handle)

    async def __aenter__(self) -> Shop:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__(*exc)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.port}"

    async def _handle(self, request: Request, answer: Answer) -> None:
        number = request.path.strip("/")
        self.paid[number] += 1
        if number == self._held and not self.reached.is_set():
            self.reached.set()
            await answer.wait(self.released)
        await answer.json(200, {})


class Model:
    """Asks for the payments ``1`` and ``2`` in one reply; then it answers."""

    def __init__(self, tool: str = "pay", *, held: bool = False) -> None:
        self.tool = tool
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.asked: list[list[dict[str, Any]]] = []
        """The messages of each request."""
        self._held = held

    async def __call__(self, request: dict[str, Any]) -> Reply:
        messages = request["messages"]
        self.asked.append(messages)
        if self._held and not self.reached.is_set():
            self.reached.set()
            await self.released.wait()
        usage = {"prompt_tokens": TOKENS - 1, "completion_tokens": 1, "total_tokens": TOKENS}
        if len(users_of(messages)) > 1 or any(message["role"] == "tool" for message in messages):
            return Reply(text="Done.", usage=usage)
        return Reply(calls=[Call(self.tool, {"n": n}, id=f"call_{n}") for n in ("1", "2")], usage=usage)


def users_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message for message in messages if message["role"] == "user"]


@dataclass
class Scene:
    """A run whose worker is dead."""

    engine: Engine
    run: Run
    model: Model
    shop: Shop
    settings: dict[str, str] = field(default_factory=dict)

    async def next_worker(self) -> WorkerProcess:
        return await self.engine.process("paying", **self.settings)

    async def history(self) -> WorkflowHistory:
        return await self.run.handle.fetch_history()

    async def collected(self) -> int:
        """How many activities of the history have collected."""
        scheduled = [event.activity_task_scheduled_event_attributes for event in (await self.history()).events]
        return sum(each.activity_type.name == "perdure.collect" for each in scheduled)


KILLED = {
    "reply": {},
    "between": {"TEST_KILL_AT": "model.recorded"},
    "first": {},
    "second": {},
    "answer": {"TEST_KILL_AT": "tool.recorded", "TEST_KILL_COUNT": "2"},
}
"""Where the worker is killed: in the model's reply, between it and the first call, in the first or second call, before
the activity answers."""
STOPS = ("interrupt", "interrupt with a message", "cancel", "close")
BACK = ("at once", "after the activity's next attempt is due")


async def killed_scene(stack: AsyncExitStack, engine: Engine, where: str, tool: str = "pay") -> Scene:
    """Kill a worker there."""
    model = Model(tool, held=where == "reply")
    shop = await stack.enter_async_context(Shop({"first": "1", "second": "2"}.get(where)))
    server = await stack.enter_async_context(OpenAIServer(model))
    settings = {"TEST_MODEL_URL": server.base_url, "TEST_SHOP_URL": shop.url}
    doomed = await engine.process("paying", **settings, **KILLED[where])
    client = await engine.client()
    run = await client.start("paying", "Go.", mode="session")
    if KILLED[where]:
        assert await doomed.gone() == -signal.SIGKILL
    else:
        await (model if where == "reply" else shop).reached.wait()
        await doomed.kill()
    return Scene(engine, run, model, shop, settings)


async def stop(run: Run, how: str) -> None:
    match how:
        case "interrupt":
            await run.interrupt()
        case "interrupt with a message":
            await run.interrupt("What have you paid?")
        case "cancel":
            await run.cancel()
        case "close":
            await run.close()


async def _second_attempt_is_due(run: Run) -> bool:
    pending = (await run.handle.describe()).raw_description.pending_activities
    return any(activity.attempt > 1 for activity in pending)


async def _cell(engine: Engine, *, where: str, how: str, back: str) -> None:
    async with AsyncExitStack() as stack:
        scene = await killed_scene(stack, engine, where)
        run = scene.run
        if back != "at once":
            await eventually(partial(_second_attempt_is_due, run), what="the loss of the worker was noticed")
            await stop(run, how)
            await scene.next_worker()
        else:
            await stop(run, how)
            await scene.next_worker()
        await _wait_stopped(run, how)
        messages = await run.transcript()
        _check_acts(messages, scene.shop.paid)
        status = await run.status()
        replies = [message for message in messages if message.role == "assistant"]
        assert status.iteration == len(replies)
        assert status.usage.total_tokens == TOKENS * len(replies)
        if where != "reply":
            assert [call.arguments["n"] for call in replies[0].tool_calls] == ["1", "2"]
        if how == "interrupt with a message":
            assert users(messages)[-1] == "What have you paid?"
            assert replies[-1].text == "Done."


async def _wait_stopped(run: Run, how: str) -> None:
    if how in ("cancel", "close"):
        try:
            await asyncio.wait_for(run.result(), 60)
        except RunCancelledError:
            assert how == "cancel"
        else:
            assert how == "close"
        return
    response = await asyncio.wait_for(run.turn().result(), 60)
    assert response.finish_reason == ("interrupted" if how == "interrupt" else "stop")
    await eventually(partial(_waits, run), what="the end of the turn is recorded")


async def _waits(run: Run) -> bool:
    status = await run.status()
    return status.state == "idle" and not status.calls and not list_open_calls(await run.transcript())


def _check_acts(messages: list[Message], paid: Counter[str]) -> None:
    """What was paid has a result that says so, or that it may have happened; all else says that it did not."""
    assert_closed(messages)
    results = {part.call_id: part.content for message in messages for part in message.tool_results}
    done = {key.removeprefix("call_") for key, text in results.items() if text.startswith(("paid", "OutcomeUnknown"))}
    others = [text for key, text in results.items() if key.removeprefix("call_") not in done]
    assert all(text.startswith(("Interrupted", "Cancelled")) for text in others), others
    # Stopped in the next worker, by the interrupt: the model is told that it ran, and it may have been counted.
    stopped = {key.removeprefix("call_") for key, text in results.items() if "was cancelled while it ran" in text}
    assert {n: paid[n] for n in paid if n not in stopped} == dict.fromkeys(done, 1), results
    assert all(paid[n] <= 1 for n in stopped), results


FEW = [
    ("second", "interrupt with a message", BACK[0]),
    ("between", "interrupt", BACK[0]),
    ("answer", "cancel", BACK[0]),
    ("first", "cancel", BACK[1]),
    ("reply", "interrupt with a message", BACK[0]),
    ("second", "close", BACK[0]),
]


def _cells(cells: Any) -> dict[str, Any]:
    return {
        f"{where}, {how}, worker back {back}": partial(_cell, where=where, how=how, back=back)
        for where, how, back in cells
    }


@pytest.mark.fault(
    "Workers",
    "A worker is lost in a model call or a tool, and a client interrupts, cancels or closes the run "
    "before another worker takes it.",
    "What was recorded is [collected](decisions/053-collect.md): the reply, its usage, each result. "
    "A call that had begun says `OutcomeUnknown`; what had not begun never begins.",
)
async def test_what_was_done_before_a_kill_is_kept_through_a_stop(engine: Engine) -> None:
    await side_by_side(engine, _cells(FEW))


@pytest.mark.fault(
    "Workers",
    "A worker is lost in a model call or a tool, and a client interrupts, cancels or closes the run "
    "before another worker takes it.",
)
@pytest.mark.slow
@ON_BOTH_STORES
@pytest.mark.parametrize("where", KILLED)
async def test_each_kill_and_each_stop(engine: Engine, where: str) -> None:
    await side_by_side(engine, _cells(itertools.product([where], STOPS, BACK)))


# --- what costs no further activity


@pytest.mark.slow
async def test_a_stop_that_the_activity_answers_itself_costs_no_further_activity(engine: Engine) -> None:
    async with AsyncExitStack() as stack:
        model, shop = Model(held=True), await stack.enter_async_context(Shop("1"))
        server = await stack.enter_async_context(OpenAIServer(model))
        settings = {"TEST_MODEL_URL": server.base_url, "TEST_SHOP_URL": shop.url}
        scene = Scene(engine, await _start(engine, settings), model, shop, settings)
        await model.reached.wait()
        await scene.run.interrupt("What have you paid?")  # in the reply
        assert (await asyncio.wait_for(scene.run.turn().result(), 60)).content == "Done."
        assert await scene.collected() == 0


async def _start(engine: Engine, settings: dict[str, str]) -> Run:
    await engine.process("paying", **settings)
    return await (await engine.client()).start("paying", "Go.", mode="session")


# --- a worker that was only taken for lost


@pytest.mark.slow
async def test_a_worker_that_wakes_up_after_the_run_went_on_begins_nothing(engine: Engine) -> None:
    """It stood still while the model replied: its reply comes too late to be recorded, and with it the payments."""
    async with AsyncExitStack() as stack:
        model, shop = Model(held=True), await stack.enter_async_context(Shop(None))
        server = await stack.enter_async_context(OpenAIServer(model))
        settings = {"TEST_MODEL_URL": server.base_url, "TEST_SHOP_URL": shop.url}
        lost = await engine.process("paying", **settings)
        run = await (await engine.client()).start("paying", "Go.", mode="session")
        await model.reached.wait()
        await next_of(run.events(), "model.started")  # it is not stopped while it holds the lock of the store's file
        lost.process.send_signal(signal.SIGSTOP)
        await run.interrupt("What have you paid?")
        await engine.process("paying", **settings)
        assert (await asyncio.wait_for(run.turn().result(), 60)).content == "Done."
        model.released.set()
        await eventually(lambda: server.stats.completed == 2, what="the late reply is sent")
        lost.process.send_signal(signal.SIGCONT)
        assert await lost.stop() == 0  # with all that it had begun
        messages = await run.transcript()
    assert not shop.paid
    assert [message.role for message in messages if message.role != "system"] == ["user", "user", "assistant"]
