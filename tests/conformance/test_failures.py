"""What goes wrong, in all four formats: errors, cut streams, arguments that are none, tools that are not there."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import tool
from perdure.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    ModelNotFoundError,
    OverloadedError,
    PerdureError,
    PermissionDeniedError,
    ProviderServerError,
    RateLimitError,
)
from perdure.types.events import ErrorEvent, Event, ModelDelta, ModelRetracted
from tests.conformance.aimock import Fixture, ask, fail, say
from tests.conformance.formats import Api
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine
from tests.support.following import holding
from tests.support.scripts import Gate

pytestmark = pytest.mark.node

LONG = " ".join(f"word{n}" for n in range(30))
THOUGHT = " ".join(f"thought{n}" for n in range(20))


@tool
def look_up(step: int) -> str:
    """Look a fact up."""
    return f"fact {step}."


FINAL: list[tuple[int, str, str, type[PerdureError], str]] = [
    (400, "tools.0: this is not a schema", "invalid_request_error", BadRequestError, "this is not a schema"),
    (400, "prompt is too long: 250000 tokens > 200000 maximum", "", ContextLengthError, "prompt is too long"),
    (401, "no such key", "authentication_error", AuthenticationError, "Check {key_env} and base_url"),
    (403, "not for you", "permission_error", PermissionDeniedError, "not for you"),
    (404, "no such model", "not_found_error", ModelNotFoundError, "Check the model's name and base_url"),
]


@pytest.mark.parametrize(("status", "message", "type", "cls", "said"), FINAL)
async def test_an_error_that_stays_fails_the_run_at_once(
    engine: Engine, api: Api, status: int, message: str, type: str, cls: type[PerdureError], said: str
) -> None:
    outcome = await api.run(engine, fail(status, message, type), say("Never said."))
    assert outcome.error.__class__ is cls
    assert said.format(key_env=api.format.key_env) in str(outcome.error)
    assert f"127.0.0.1 answered {status}" in str(outcome.error)
    assert "sk-conformance" not in str(outcome.error)
    assert len(await api.aimock.asked()) == 1
    (event,) = outcome.of("error")
    assert (event.error_type, event.final) == (cls.__name__, True)


PASSING: list[tuple[Fixture, type[PerdureError], float]] = [
    (fail(429, "slow down", "rate_limit_error", code="rate_limit_exceeded", retry_after=2), RateLimitError, 2.0),
    (fail(500, "boom", "server_error"), ProviderServerError, 0.0),
    (fail(503, "later", "overloaded_error"), OverloadedError, 0.0),
    (fail(529, "Overloaded", "overloaded_error"), OverloadedError, 0.0),
]
"""What fails, as which error, and the seconds until the next attempt: of the answer, or of the tests' retry policy."""


@pytest.mark.parametrize(("failure", "cls", "wait"), PASSING, ids=["429", "500", "503", "529"])
async def test_an_error_that_passes_is_tried_again(
    engine: Engine, api: Api, failure: Fixture, cls: type[PerdureError], wait: float
) -> None:
    outcome = await api.run(engine, failure, say("Recovered."))
    assert outcome.answered().content == "Recovered."
    asked = await api.aimock.asked()
    assert [entry["response"]["status"] for entry in asked] == [failure["response"]["status"], 200]
    (event,) = outcome.of("error")
    assert isinstance(event, ErrorEvent)
    assert (event.error_type, event.final, event.retry_in) == (cls.__name__, False, wait)


CUT_TEXT = say(LONG, chunkSize=4, latency=20, truncateAfterChunks=20)
CUT_CALL = ask(("look_up", {"step": 1}), text="Let me look that up.", chunkSize=2, latency=20)
CUT_AFTER = {"openai": 14, "openai-responses": 24, "anthropic": 17, "google": 10}
"""Pieces after which a call has begun, and is not whole; Gemini sends a call in one piece, so before it."""


@pytest.mark.parametrize("what", ["text", "call"])
async def test_a_stream_that_is_cut_is_tried_again_and_taken_back(engine: Engine, api: Api, what: str) -> None:
    cut = CUT_TEXT if what == "text" else CUT_CALL | {"truncateAfterChunks": CUT_AFTER[api.name]}
    gate = Gate()
    outcome = await api.run(
        engine,
        cut,
        ask(("look_up", {"step": 2})),
        say("Whole."),
        tools=[look_up],
        gate=gate,
        hooks=[holding("before_llm_call", gate, after=1)],
        seen=lambda events: events[-1].type == "model.retracted",
    )
    response = outcome.answered()
    assert response.content == "Whole."
    assert results(response.messages) == ["fact 2."], "nothing of the cut reply is there"
    assert [message.role for message in response.messages] == ["user", "assistant", "tool", "assistant"]
    assert_closed(response.messages)
    (error,) = outcome.of("error")
    assert (error.error_type, error.final) == ("TruncatedStreamError", False)
    (retracted,) = outcome.of("model.retracted")
    assert isinstance(retracted, ModelRetracted)
    deltas = [event for event in outcome.of("model.delta") if event.seq < retracted.seq]
    assert {event.attempt for event in deltas} == {1}
    kinds = {"text"} if what == "text" or api.name == "google" else {"text", "tool_call"}
    assert {event.kind for event in deltas} == kinds
    covered = {n for first, last in retracted.retracts for n in range(first, last + 1)}
    assert {event.seq for event in deltas} == covered


def streamed(events: list[Event], kind: str) -> str:
    """What was seen of it."""
    return "".join(event.text for event in events if isinstance(event, ModelDelta) and event.kind == kind)


async def test_slow_tokens_are_seen_as_they_come(engine: Engine, api: Api) -> None:
    slow = {"ttft": 200, "tps": 40, "jitter": 0}
    gate = Gate()
    outcome = await api.run(
        engine,
        say(LONG, thinking=THOUGHT, chunkSize=6, streamingProfile=slow),
        gate=gate,
        hooks=[holding("after_llm_call", gate)],
        seen=lambda events: streamed(events, "text") == LONG,
    )
    assert outcome.answered().content == LONG
    for kind, whole in (("text", LONG), ("thinking", THOUGHT)):
        shown = [event for event in outcome.of("model.delta") if event.kind == kind]
        assert len(shown) > 1
        assert streamed(outcome.events, kind) == whole
        assert [event.offset for event in shown] == [sum(len(e.text) for e in shown[:n]) for n in range(len(shown))]


async def test_arguments_are_seen_as_they_come(engine: Engine, api: Api) -> None:
    @tool
    def note(title: str, text: str) -> str:
        """Keep a note."""
        return f"{len(text)} characters"

    call = ask(("note", {"title": "Bread", "text": LONG}), chunkSize=8, latency=15)
    gate = Gate()
    outcome = await api.run(
        engine,
        call,
        say("Noted."),
        tools=[note],
        gate=gate,
        hooks=[holding("after_llm_call", gate)],
        # Gemini's calls come in one piece.
        seen=lambda events: api.name == "google" or LONG in streamed(events, "tool_call"),
    )
    assert results(outcome.answered().messages) == [f"{len(LONG)} characters"]
    partials = [event.partial for event in outcome.of("model.delta") if event.kind == "tool_call"]
    if api.name == "google":
        return  # a call comes in one piece
    assert len(partials) > 2
    text = partials[len(partials) // 2]["text"]
    assert text
    assert LONG.startswith(text)


async def test_calls_that_cannot_be_run_are_told_to_the_model(engine: Engine, api: Api) -> None:
    """aimock takes no fixture whose arguments are not JSON: that is tested at our own servers."""
    wrong = [("look_up", '["step", 1]'), ("look_down", {}), ("look_up", {"stepp": "x"})]
    fixtures = [ask(*wrong), ask(("look_up", {"step": 2})), say("Done.")]
    response = (await api.run(engine, *fixtures, tools=[look_up])).answered()
    no_object, unknown, misfit, right = (part for message in response.messages for part in message.tool_results)
    assert [part.is_error for part in (no_object, unknown, misfit, right)] == [True, True, True, False]
    assert "must be one JSON object" in no_object.content
    assert unknown.content.startswith("tool not found: look_down")
    assert "step" in misfit.content
    assert right.content == "fact 2."
    asked: list[dict[str, Any]] = (await api.aimock.asked())[1]["body"]["messages"]
    told = [message["content"] for message in asked if message["role"] == "tool"]
    assert unknown.content in told[1].replace('\\"', '"')
