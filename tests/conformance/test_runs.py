"""The same runs in all four formats: ten iterations, parallel calls, thinking, tokens, and how a reply may end."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import Message, tool
from perdure.types.messages import OpaquePart, ThinkingPart, Usage
from tests.conformance.aimock import Fixture, ask, say
from tests.conformance.formats import Api
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine

pytestmark = pytest.mark.node


@tool
def look_up(step: int) -> str:
    """Look a fact up."""
    return f"fact {step}."


def thoughts(messages: Sequence[Message]) -> list[str]:
    """What the model thought, in order, where it may be read."""
    parts = [part for message in messages for part in message.parts if isinstance(part, ThinkingPart)]
    return [part.text for part in parts if part.text]


def ten_steps() -> list[Fixture]:
    """Each step is asked for when the result of the one before has come; the fourth asks for two facts at once."""
    fixtures: list[Fixture] = []
    for step in range(10):
        before = "fact 103." if step == 4 else f"fact {step - 1}."
        calls = [("look_up", {"step": step})] + ([("look_up", {"step": 103})] if step == 3 else [])
        fixture = ask(
            *calls,
            text="Half way." if step == 5 else "",
            thinking=f"Fact {step} is missing.",
            usage={"input_tokens": 100 + step, "output_tokens": 7},
        )
        fixtures.append(fixture | {"match": {"toolResultContains": before} if step else {"hasToolResult": False}})
    last = say("All ten facts.", usage={"input_tokens": 200, "output_tokens": 3})
    return [*fixtures, last | {"match": {"toolResultContains": "fact 9."}}]


def seen(conversation: Sequence[dict[str, Any]]) -> list[Any]:
    """A conversation as aimock understood it: texts, names and arguments of calls, and results."""
    told: list[Any] = []
    for message in conversation:
        if message["role"] == "tool":
            content = message["content"]
            told.append(json.loads(content)["output"] if content.startswith("{") else content)
            continue
        if message.get("content"):
            told.append((message["role"], message["content"]))
        functions = [call["function"] for call in message.get("tool_calls", ())]
        told.extend((function["name"], json.loads(function["arguments"])) for function in functions)
    return told


async def test_ten_iterations_and_their_tokens(engine: Engine, api: Api) -> None:
    response = (await api.run(engine, *ten_steps(), tools=[look_up], instructions="Look up ten facts.")).answered()
    assert (response.content, response.iterations, response.finish_reason) == ("All ten facts.", 11, "stop")
    assert_closed(response.messages)
    steps = [0, 1, 2, 3, 103, 4, 5, 6, 7, 8, 9]
    assert results(response.messages) == [f"fact {step}." for step in steps]
    assert thoughts(response.messages) == [f"Fact {step} is missing." for step in range(10)]
    replies = [message for message in response.messages if message.role == "assistant"]
    assert [reply.finish_reason for reply in replies] == ["tool_calls"] * 10 + ["stop"]
    assert replies[5].text == "Half way."
    asked = await api.aimock.asked()
    assert [entry["response"]["status"] for entry in asked] == [200] * 11
    expected: list[Any] = [("system", "Look up ten facts."), ("user", "Look it up.")]
    for step in range(10):
        expected += [("assistant", "Half way.")] * (step == 5)
        pair = (step, 103) if step == 3 else (step,)
        expected += [("look_up", {"step": each}) for each in pair] + [f"fact {each}." for each in pair]
    assert seen(asked[-1]["body"]["messages"]) == expected
    for before, after in itertools.pairwise(asked):
        told = seen(before["body"]["messages"])
        assert seen(after["body"]["messages"])[: len(told)] == told, "what was said before stays as it was"
    per_call = [reply.usage for reply in replies]
    assert per_call == [Usage(input_tokens=100 + step, output_tokens=7) for step in range(10)] + [
        Usage(input_tokens=200, output_tokens=3)
    ]
    assert response.usage == sum((usage for usage in per_call if usage is not None), Usage())
    assert response.cost_usd is not None


async def test_calls_of_one_reply_run_in_parallel(engine: Engine, api: Api) -> None:
    together = threading.Barrier(3)

    @tool
    def wait_for_the_others(who: str) -> str:
        """Ends when three of it run."""
        together.wait(30)
        return f"{who} was there."

    calls = [("wait_for_the_others", {"who": who}) for who in ("Ana", "Bo", "Cy")]
    response = (await api.run(engine, ask(*calls), say("Three."), tools=[wait_for_the_others])).answered()
    assert response.content == "Three."
    assert results(response.messages) == ["Ana was there.", "Bo was there.", "Cy was there."]
    assert_closed(response.messages)


async def test_thinking_is_kept_and_goes_back(engine: Engine, api: Api) -> None:
    """aimock answers 400 to a request of Anthropic's that lacks it; the strict servers check the other formats."""
    sealed = {"redacted": ["c2VhbGVk"]} if api.name == "anthropic" else {}
    fixtures = [
        ask(("look_up", {"step": 1}), text="Let me see.", thinking="Which fact?", **sealed),
        ask(("look_up", {"step": 2}), thinking="Not that one."),
        say("The second.", thinking="Clear."),
    ]
    response = (await api.run(engine, *fixtures, tools=[look_up])).answered()
    assert response.content == "The second."
    assert thoughts(response.messages) == ["Which fact?", "Not that one.", "Clear."]
    parts = [part for message in response.messages for part in message.parts]
    first = next(part for part in parts if isinstance(part, ThinkingPart))
    assert first.provider == f"{api.name}@127.0.0.1"
    match api.name:
        case "openai":
            assert first.opaque == {"field": "reasoning_content"}
        case "openai-responses":
            assert (first.opaque or {})["item"]["encrypted_content"]
        case "anthropic":
            # At a host that is not Anthropic's, what was signed is bound to the models of the vendor that signed it.
            assert first.opaque == {"signature": "signed Which fact?", "model": "claude"}
            (redacted,) = (part for part in parts if isinstance(part, OpaquePart))
            assert redacted.data == {"type": "redacted_thinking", "data": "c2VhbGVk", "model": "claude"}
        case "google":
            assert first.opaque is None, "aimock gives no thought signatures, which the API gives with the call"


async def test_a_reply_that_was_too_long(engine: Engine, api: Api) -> None:
    # aimock ends such a response of the Responses API with `response.completed` and without `incomplete_details`
    # (dist/responses.js, buildTextStreamEvents): an incomplete one without a reason is taken as cut.
    response = (await api.run(engine, say("Once upon a", finish="length"))).answered()
    assert response.content == "Once upon a"
    assert (response.messages[-1].finish_reason, response.finish_reason) == ("length", "length")


async def test_a_reply_that_was_filtered(engine: Engine, api: Api) -> None:
    finish = "refusal" if api.name == "anthropic" else "content_filter"  # Anthropic's API has no other stop reason
    outcome = await api.run(engine, say("I would", finish=finish), say("Asked again."))
    response = outcome.answered()
    if api.name == "openai-responses":
        # aimock makes it a response that has failed, without an error (dist/responses.js, responsesStatus). The API
        # says "incomplete" with the reason content_filter (openai's Response.incomplete_details), as our server does;
        # a response that has failed is asked for again.
        assert [event.error_type for event in outcome.of("error")] == ["ProviderServerError"]
        assert response.content == "Asked again."
        return
    assert (response.content, response.finish_reason) == ("I would", finish)
