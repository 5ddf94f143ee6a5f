"""An activity ends without a result, in the pause before its next attempt, and the run stops: what it had recorded is
collected. The fault is an error right behind the record; tests/acceptance/test_collect.py kills workers.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from perdure import Agent, Compaction, Run, tool
from perdure.errors import AuthenticationError, RateLimitError, RunCancelledError
from perdure.ports.test_seams import Point
from perdure.testing import ScriptedProvider, at, call
from tests.support import faults
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

pytestmark = pytest.mark.server


class Till:
    """Tools that count payments by number, and what the model does with them."""

    def __init__(self, *first: Any) -> None:
        self.paid: Counter[str] = Counter()
        self.requests = 0
        self._first = list(first)
        till = self

        @tool(inline=True)
        async def pay(n: str) -> str:
            """Pay, within the model's activity."""
            till.paid[n] += 1
            return f"paid {n}"

        @tool
        async def charge(n: str) -> str:
            """Pay, in an activity of its own."""
            till.paid[n] += 1
            return f"paid {n}"

        self.agent = Agent("till", ScriptedProvider(self._reply), tools=[pay, charge])

    async def _reply(self, request: Any) -> Any:
        self.requests += 1
        return self._first if len(users(request.messages)) == 1 and request.messages[-1].role == "user" else "Done."


def fail_at(point: Point, error: Exception, *, count: int = 1) -> Any:
    """Raise ``error`` when ``point`` is reached for that time."""
    times = itertools.count(1)

    def fail() -> None:
        if next(times) == count:
            raise error

    return at(point, fail)


def lost() -> Exception:
    """An error after which the next attempt is an hour away."""
    return RateLimitError("too many", retry_after=3600)


async def _is_between_attempts(run: Run) -> bool:
    pending = (await run.handle.describe()).raw_description.pending_activities
    return any(activity.attempt == 2 for activity in pending)


@asynccontextmanager
async def between_attempts(
    engine: Engine, till: Till, point: Point, count: int = 1, **start: Any
) -> AsyncIterator[Run]:
    """A session whose activity waits an hour for its second attempt: the first has ended behind ``point``."""
    async with engine.served(till.agent) as client:
        with fail_at(point, lost(), count=count):
            run = await client.start("till", "Go.", mode="session", **start)
            await eventually(partial(_is_between_attempts, run))
        yield run


async def collected(run: Run) -> int:
    """How many activities have collected."""
    history = await run.handle.fetch_history()
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    return sum(each.activity_type.name == "perdure.collect" for each in scheduled)


PAYS = [call("pay", n="1"), call("pay", n="2")]
CHARGES = [call("charge", n="1")]


@pytest.mark.fault(
    "Workers",
    "A worker is lost in a model call or a tool, and a client interrupts, cancels or closes the run "
    "before another worker takes it.",
)
@pytest.mark.parametrize(
    ("replied", "point", "count", "told", "paid"),
    [
        (PAYS, "model.recorded", 1, ["Interrupted", "Interrupted"], {}),
        (PAYS, "tool.claimed", 1, ["OutcomeUnknown: pay", "Interrupted"], {}),
        (PAYS, "tool.recorded", 1, ["paid 1", "Interrupted"], {"1": 1}),
        (PAYS, "tool.acted", 2, ["paid 1", "OutcomeUnknown: pay"], {"1": 1, "2": 1}),
        (PAYS, "tool.recorded", 2, ["paid 1", "paid 2"], {"1": 1, "2": 1}),
        (CHARGES, "tool.claimed", 1, ["OutcomeUnknown: charge"], {}),
        (CHARGES, "tool.recorded", 1, ["paid 1"], {"1": 1}),
    ],
)
async def test_an_interrupt_keeps_what_is_recorded(
    engine: Engine, replied: list[Any], point: Point, count: int, told: list[str], paid: dict[str, int]
) -> None:
    till = Till(*replied)
    async with between_attempts(engine, till, point, count) as run:
        await run.interrupt("What have you paid?")
        response = await run.turn().result()
        status = await run.status()
        assert await collected(run) == 1
    assert response.content == "Done."
    assert users(response.messages) == ["Go.", "What have you paid?"]
    assert_closed(response.messages)
    said = results(response.messages)
    assert [text[: len(begin)] for text, begin in zip(said, told, strict=True)] == told
    assert till.paid == paid
    assert (till.requests, status.iteration) == (2, 2)
    replies = [message.usage for message in response.messages if message.role == "assistant"]
    assert status.usage == sum(filter(None, replies[1:]), replies[0])


async def test_a_cancellation_keeps_what_is_recorded(engine: Engine) -> None:
    till = Till(*PAYS)
    async with between_attempts(engine, till, "tool.recorded") as run:
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        messages = await run.transcript()
        assert await collected(run) == 1
    assert_closed(messages)
    assert results(messages)[0] == "paid 1"
    assert results(messages)[1].startswith("Cancelled")
    assert till.paid == {"1": 1}


async def test_an_answer_that_is_recorded_ends_the_turn(engine: Engine) -> None:
    till = Till("All is paid.")
    async with between_attempts(engine, till, "model.recorded") as run:
        turn = run.turn()
        await run.interrupt()
        response = await turn.result()
    assert (response.content, response.finish_reason) == ("All is paid.", "stop")


@pytest.mark.fault(
    "Models and tools",
    "A run fails, or pauses, after something was paid or done in the same step.",
    "The run keeps that, also if messages, an interrupt or a cancellation come before it is resumed.",
)
async def test_a_failure_keeps_what_is_recorded(engine: Engine) -> None:
    """The worker itself gives up behind a payment: the run fails, and its transcript has the payment."""
    till = Till(*PAYS)
    async with engine.served(till.agent) as client:
        with fail_at("tool.recorded", AuthenticationError("no longer")):
            run = await client.start("till", "Go.")
            with pytest.raises(AuthenticationError, match="no longer"):
                await run.result()
        messages = await run.transcript()
    assert_closed(messages)
    assert results(messages)[0] == "paid 1"
    assert till.paid == {"1": 1}


async def test_nothing_is_collected_where_nothing_is_recorded(engine: Engine) -> None:
    """A provider that is down for an hour: the run cannot know, and asks the journal, which has nothing."""

    async def reply(request: Any) -> str:
        if len(users(request.messages)) == 1:
            raise lost()
        return "Done."

    async with engine.served(Agent("till", ScriptedProvider(reply))) as client:
        run = await client.start("till", "Go.", mode="session")
        await eventually(partial(_is_between_attempts, run))
        await run.interrupt("Still there?")
        response = await run.turn().result()
        assert await collected(run) == 1
    assert [message.role for message in response.messages] == ["user", "user", "assistant"]


# --- while it is collected


async def test_a_store_that_is_away_is_waited_for(engine: Engine) -> None:
    """Through an interrupt, another one and a cancellation: none of them forgets the payment."""
    till = Till(*PAYS)
    async with between_attempts(engine, till, "tool.recorded") as run:
        with faults.locked(engine.store_path, readers_too=False):
            await run.handle.signal("interrupt")
            await eventually(partial(_has_collected, run, 1))
            await run.handle.signal("interrupt", {"content": "What have you paid?", "id": "m1"})
            await run.handle.cancel()
            await eventually(partial(_is_cancel_requested, run))
            assert await collected(run) == 1
        with pytest.raises(RunCancelledError):
            await run.result()
        messages = await run.transcript()
    assert_closed(messages)
    assert results(messages)[0] == "paid 1"
    assert till.paid == {"1": 1}


async def _is_cancel_requested(run: Run) -> bool:
    history = await run.handle.fetch_history()
    return any(event.HasField("workflow_execution_cancel_requested_event_attributes") for event in history.events)


@contextmanager
def damaged_reply(engine: Engine) -> Iterator[None]:
    """The recorded replies of the model cannot be read."""
    damage = "UPDATE journal SET outcome = {} || substr(outcome, 2) WHERE kind = 'model'"
    faults.sql(engine.store_path, damage.format("x'78'"))
    yield
    faults.sql(engine.store_path, damage.format("x'7b'"))


@pytest.mark.fault("Models and tools", "A run fails, or pauses, after something was paid or done in the same step.")
@pytest.mark.parametrize("stopped", ["not", "by an interrupt", "by a cancellation"])
async def test_what_cannot_be_read_pauses_the_run(engine: Engine, stopped: str) -> None:
    """The run waits for the repair, whatever comes; the interrupt is taken back. Its message changes what the next
    model call is asked, and still the payment is not made again."""
    till = Till(*PAYS)
    async with between_attempts(engine, till, "tool.recorded") as run:
        turn = run.turn()
        with damaged_reply(engine):
            await run.interrupt("What have you paid?")
            await eventually(partial(is_paused, run))
            assert "could not be read: TranscriptCorruptedError" in ((await run.status()).reason or "")
            if stopped == "by an interrupt":
                await run.interrupt("And now?")
                await eventually(partial(_has_collected, run, 2))
                await eventually(partial(is_paused, run))
        match stopped:
            case "not":
                await run.resume()
            case "by an interrupt":
                await run.interrupt("Well?")
            case _:
                await run.cancel()
        with suppress(RunCancelledError):
            await turn.result()
        messages = await run.transcript()
    assert_closed(messages)
    assert results(messages)[0] == "paid 1"
    assert (results(messages)[1] == "paid 2") == (stopped == "not")
    assert till.paid == ({"1": 1, "2": 1} if stopped == "not" else {"1": 1})
    said = ["Go.", "What have you paid?", *(["And now?", "Well?"] if stopped == "by an interrupt" else [])]
    assert users(messages) == said


async def test_what_is_to_be_collected_is_carried_over(engine: Engine) -> None:
    """The paused run continues as new, and collects in its next execution."""
    till = Till(*PAYS)
    async with between_attempts(engine, till, "tool.recorded", max_history_events=11) as run:
        first = (await run.handle.describe()).run_id
        with damaged_reply(engine):
            await run.interrupt("What have you paid?")
            await eventually(partial(is_paused, run))
            await eventually(partial(_is_continued, run, first))
        await run.resume()
        response = await run.turn().result()
    assert results(response.messages) == ["paid 1", "paid 2"]
    assert till.paid == {"1": 1, "2": 1}


async def _is_continued(run: Run, first: str) -> bool:
    return (await run.handle.describe()).run_id != first


async def _has_collected(run: Run, count: int) -> bool:
    return await collected(run) == count


async def is_paused(run: Run) -> bool:
    """Whether the run waits for an operator."""
    return (await run.status()).state == "paused"


# --- subagents


async def test_a_subagent_that_is_interrupted_by_its_parent_keeps_what_is_recorded(engine: Engine) -> None:
    till = Till(*PAYS)
    parent = Agent("parent", ScriptedProvider(_delegate), tools=[till.agent.as_tool()])
    async with engine.served(parent, till.agent) as client:
        with fail_at("tool.recorded", lost()):
            run = await client.start("parent", "Go.", mode="session")
            child = await eventually(partial(_find_child, run))
            await eventually(partial(_is_between_attempts, child))
        await run.interrupt("What have you paid?")
        assert (await run.turn().result()).content == "Done."
        messages = await child.transcript()
        assert await collected(child) == 1
    assert_closed(messages)
    assert results(messages)[0] == "paid 1"
    assert till.paid == {"1": 1}


async def _delegate(request: Any) -> Any:
    is_first = len(users(request.messages)) == 1 and request.messages[-1].role == "user"
    return call("call_till", task="Go.") if is_first else "Done."


async def _find_child(run: Run) -> Run | None:
    calls = (await run.status()).calls
    return run.client.run(calls[0].context_id) if calls else None


async def test_a_first_message_that_was_collected_before_a_summary_is_said_once(engine: Engine) -> None:
    """The run is terminated in the call after the summary, whose row says nothing of the message."""
    gate = Gate()

    async def reply(request: Any) -> Any:
        if users(request.messages)[-1] == "So?":
            await gate()
        return "Yes."

    agent = Agent("till", ScriptedProvider(reply), compaction=Compaction.summarise(at=100, keep_last=1))
    async with engine.served(agent) as client:
        with fail_at("model.recorded", lost()):
            run = await client.start("till", "Well? " * 400, mode="session")
            await eventually(partial(_is_between_attempts, run))
        await run.interrupt()
        await run.turn().result()
        assert await collected(run) == 1
        await run.send("So?")
        await eventually(lambda: gate.entered, what="the call after the summary")
        await run.terminate()
        turn = await run.send("And now?")
        gate.open()
        await turn.result()
        said = users(await run.transcript(full=True))
    assert said.count("Well? " * 400) == 1
