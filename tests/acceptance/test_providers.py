"""What a provider that fails does to a run, in all four wire formats.

How many attempts there were is read from the run's events, and counted by the servers; that Temporal keeps to it, from
what a real server recorded.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, RetryState
from temporalio.api.history.v1 import HistoryEvent

from perdure import Agent, Limits, Run, register_provider, tool
from perdure.errors import AuthenticationError
from perdure.providers import Anthropic, Google, OpenAIChat, OpenAIResponses, registry
from tests.support.apis import FORMATS, KEY, Says, StrictApi, strict_api
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine
from tests.support.following import holding, opening
from tests.support.scripts import Gate

LONG = " ".join(f"word{n}" for n in range(1500))
PROVIDERS: dict[str, Any] = {
    "openai": OpenAIChat,
    "openai-responses": OpenAIResponses,
    "anthropic": Anthropic,
    "google": Google,
}


@tool
def note(text: str) -> str:
    """Keep a note."""
    return f"{len(text)} characters"


@pytest.fixture(params=FORMATS)
async def api(request: Any) -> AsyncIterator[StrictApi]:
    async with strict_api(request.param) as made:
        yield made


@dataclass(frozen=True, slots=True)
class Call:
    """A model call, as Temporal recorded it."""

    attempt: int
    """Number of the last one."""
    waited: timedelta
    """From the time it was scheduled until its last attempt began."""
    told: timedelta
    """How long the failure before told Temporal to wait."""
    retry_state: int
    """Why it was not tried again, if it failed."""


async def model_calls(run: Run) -> list[Call]:
    """The model calls of a run that has ended."""
    history = await run.handle.fetch_history()
    events: dict[int, HistoryEvent] = {event.event_id: event for event in history.events}
    calls = []
    for event in history.events:
        ended: Any
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
            ended = event.activity_task_failed_event_attributes
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            ended = event.activity_task_completed_event_attributes
        else:
            continue
        scheduled, started = events[ended.scheduled_event_id], events[ended.started_event_id]
        task = scheduled.activity_task_scheduled_event_attributes
        if task.activity_type.name != "perdure.model":
            continue
        last = started.activity_task_started_event_attributes
        calls.append(
            Call(
                attempt=last.attempt,
                waited=started.event_time.ToDatetime() - scheduled.event_time.ToDatetime(),
                told=last.last_failure.application_failure_info.next_retry_delay.ToTimedelta(),
                retry_state=getattr(ended, "retry_state", 0),
            )
        )
    return calls


async def test_429_with_retry_after_is_asked_again_then_and_costs_no_extra_attempt(
    engine: Engine, api: StrictApi
) -> None:
    api.replies = [Says("Slow down.", status=429, retry_after=1), Says("Hello.")]
    async with engine.served(Agent("a", api.model, limits=Limits(attempts=1))) as client:
        run = await client.start("a", "Hi.")
        assert (await run.result()).content == "Hello."
        errors = [event async for event in run.events() if event.type == "error"]
    assert api.asked == 2
    assert [(error.error_type, error.retry_in, error.final) for error in errors] == [("RateLimitError", 1.0, False)]


@pytest.mark.server
async def test_temporal_waits_as_long_as_a_429_says_and_tries_no_401_again(engine: Engine) -> None:
    async with strict_api("openai") as api:
        api.replies = [Says("Slow down.", status=429, retry_after=2), Says("Hello."), Says("Who?", status=401)]
        async with engine.served(Agent("a", api.model, limits=Limits(attempts=1))) as client:
            run = await client.start("a", "Hi.")
            assert (await run.result()).content == "Hello."
            (limited,) = await model_calls(run)
            run = await client.start("a", "Hi.")
            with pytest.raises(AuthenticationError):
                await run.result()
            (refused,) = await model_calls(run)
    assert (limited.attempt, limited.told) == (2, timedelta(seconds=2))
    assert limited.waited >= timedelta(seconds=2), "what Temporal would have waited by itself is 1 s"
    assert (refused.attempt, refused.retry_state) == (1, RetryState.RETRY_STATE_NON_RETRYABLE_FAILURE)


@pytest.mark.parametrize("format", FORMATS)
async def test_401_fails_at_once_and_names_the_variable_to_set(
    engine: Engine, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(strict_api(format, api_key=None, api_key_env="SOME_API_KEY"))
        async with engine.served(Agent("a", api.model)) as client:
            said = []
            for value in (None, "sk-wrong-0123456789"):
                if value is not None:
                    monkeypatch.setenv("SOME_API_KEY", value)
                run = await client.start("a", "Hi.")
                with pytest.raises(AuthenticationError) as caught:
                    await run.result()
                errors = [event async for event in run.events() if event.type == "error"]
                assert [(error.error_type, error.final) for error in errors] == [("AuthenticationError", True)]
                said.append(str(caught.value))
            assert api.asked == 1, "without a key nothing is asked"
            assert "SOME_API_KEY is not set" in said[0]
            assert "Check SOME_API_KEY" in said[1]
            assert "sk-wrong" not in said[1]
            monkeypatch.setenv("SOME_API_KEY", KEY)
            api.replies = [Says("Hello.")]
            assert (await (await client.start("a", "Hi.")).result()).content == "Hello.", (
                "the key is read with each call"
            )


CUT = {
    "text": Says(LONG, cut_after=6000, delay=0.02),
    "arguments": Says("I note it, one word after the other.", [("note", {"text": LONG})], cut_after=6000, delay=0.02),
}


@pytest.mark.parametrize("what", CUT)
async def test_a_cut_stream_is_retried_and_its_deltas_are_retracted(engine: Engine, api: StrictApi, what: str) -> None:
    api.replies = [CUT[what], Says("", [("note", {"text": "Bread."})]), Says("Noted.")]
    gate = Gate()
    agent = Agent("a", api.model, tools=[note], hooks=[holding("before_llm_call", gate, after=1)])
    async with engine.served(agent) as client:
        run = await client.start("a", "Note bread.")
        events = await opening(run.events(), gate, lambda seen: seen[-1].type == "model.retracted")
        response = await run.result()
        done = [event async for event in run.events() if event.type == "model.completed"]
    assert [event.attempt for event in done] == [2, 1]
    assert api.asked == 3
    assert response.content == "Noted."
    assert results(response.messages) == ["6 characters"], "nothing of the cut reply was done, or is there"
    assert len(response.messages) == 4
    assert_closed(response.messages)
    (retracted,) = (event for event in events if event.type == "model.retracted")
    taken_back = {n for begin, end in retracted.retracts for n in range(begin, end + 1)}
    seen = [event for event in events if event.type == "model.delta" and event.seq < retracted.seq]
    assert seen
    assert {event.seq for event in seen} == taken_back
    if what == "arguments" and api.format != "google":  # whose calls come in one piece
        assert "tool_call" in {event.kind for event in seen}
    (error,) = (event for event in events if event.type == "error")
    assert (error.error_type, error.final) == ("TruncatedStreamError", False)


@pytest.mark.parametrize("format", FORMATS)
async def test_a_dead_primary_falls_through_to_the_second_model(engine: Engine, format: str) -> None:
    second = FORMATS[(FORMATS.index(format) + 1) % len(FORMATS)]
    async with AsyncExitStack() as stack:
        alive = await stack.enter_async_context(strict_api(second))
        alive.replies = [Says("", [("note", {"text": "Bread."})]), Says("Noted.")]
        # It is bound and does not listen: no other process gets the port meanwhile.
        closed = stack.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))
        dead = PROVIDERS[format](f"http://127.0.0.1:{closed.getsockname()[1]}", KEY)
        stack.push_async_callback(dead.aclose)
        register_provider("dead", dead)
        stack.callback(registry._providers.pop, "dead")
        agent = Agent("a", ["dead:some-model", alive.model], tools=[note], limits=Limits(attempts=1))
        async with engine.served(agent) as client:
            run = await client.start("a", "Note bread.")
            response = await run.result()
            events = [event async for event in run.events()]
    assert response.content == "Noted."
    assert {message.model for message in response.messages if message.role == "assistant"} == {alive.name}
    assert [event.attempt for event in events if event.type == "model.completed"] == [1, 1]
    assert (alive.asked, alive.refused) == (2, 0)
    asked = [event.model for event in events if event.type == "model.started"]
    assert asked == ["dead:some-model", alive.model] * 2


ENDS = {"length": "length", "filtered": "content_filter"}


@pytest.mark.parametrize("ends", ENDS)
async def test_a_reply_that_ends_early_is_an_outcome_of_its_own(engine: Engine, api: StrictApi, ends: str) -> None:
    api.replies = [Says("Once upon a", ends=ends)]
    async with engine.served(Agent("a", api.model, tools=[note])) as client:
        response = await (await client.start("a", "Tell me a story.")).result()
    expected = "refusal" if (api.format, ends) == ("anthropic", "filtered") else ENDS[ends]
    assert (response.content, response.finish_reason) == ("Once upon a", expected)


@pytest.mark.parametrize("format", FORMATS[:3])
async def test_arguments_that_are_not_json_are_told_to_the_model(engine: Engine, format: str) -> None:
    """Gemini's arguments are an object, never text."""
    async with strict_api(format) as api:
        api.replies = [Says("", [("note", '{"text": "Br')]), Says("", [("note", {"text": "Bread."})]), Says("Noted.")]
        async with engine.served(Agent("a", api.model, tools=[note])) as client:
            response = await (await client.start("a", "Note bread.")).result()
    wrong, right = (part for message in response.messages for part in message.tool_results)
    assert (wrong.is_error, right.content) == (True, "6 characters")
    assert "must be one JSON object" in wrong.content
    assert 'they were: {"text": "Br' in wrong.content
    assert (api.refused, response.content) == (0, "Noted.")
