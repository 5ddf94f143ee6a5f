"""The keyless models, ``demo:echo`` and ``demo:tools``: rules that name themselves, and repeat themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, create_model

from perdure import tool
from perdure.errors import DefinitionError
from perdure.ports.model import Completed, ModelRequest, TextDelta, ToolCallDelta, ToolSpec
from perdure.providers import demo, get_provider, list_providers, parse_model
from perdure.providers.demo_arguments import ArgumentReader
from perdure.providers.pricing import calculate_cost_usd, has_price
from perdure.providers.registry import register_provider
from perdure.types.interface import FINISH_TOOL
from perdure.types.messages import Message, ToolResultPart, Usage

pytestmark = pytest.mark.usefixtures("_without_pauses")


@pytest.fixture
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PIECE_SECONDS", 0)


@tool
def track(order_id: str) -> str:
    """Where a parcel is."""
    return order_id


@tool
def refund(order_id: str, amount: float) -> str:
    """Refund an order."""
    return f"{order_id}{amount}"


async def reply(model: str, *messages: Message, tools: Sequence[ToolSpec] = (), **fields: Any) -> Completed:
    """The reply. What was streamed is the same as its end."""
    request = ModelRequest(model, messages, tools=tools, **fields)
    events = [event async for event in get_provider("demo").stream(request)]
    completed = events[-1]
    assert isinstance(completed, Completed)
    message = Message(role="assistant", parts=completed.parts)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == message.text
    calls = [event for event in events if isinstance(event, ToolCallDelta)]
    assert [(e.name, json.loads(e.arguments)) for e in calls] == [(c.name, c.arguments) for c in message.tool_calls]
    again = [event async for event in get_provider("demo").stream(request)]
    assert again == events, "equal requests get equal replies"
    return completed


def text_of(completed: Completed) -> str:
    return Message(role="assistant", parts=completed.parts).text


def result(call: Any, content: str, *, is_error: bool = False) -> Message:
    part = ToolResultPart(call_id=call.id, name=call.name, content=content, is_error=is_error)
    return Message(role="tool", parts=(part,))


async def test_echo_repeats_the_open_messages() -> None:
    said = [Message.user("Old."), Message.assistant("[demo:echo] Old."), Message.user("Where is it?")]
    assert text_of(await reply("echo", *said)) == "[demo:echo] Where is it?"
    both = await reply("echo", *said, Message.user("And when?"))
    assert text_of(both) == "[demo:echo] Where is it?\nAnd when?"
    assert (both.finish_reason, both.model) == ("stop", "demo:echo")
    assert both.usage.input_tokens > 0 < both.usage.output_tokens


async def test_echo_calls_no_tool_and_is_bounded() -> None:
    long = await reply("echo", Message.user("Refund order 7. " * 10_000), tools=[refund.spec])
    assert "characters in all" in text_of(long)
    assert len(text_of(long)) < 11_000
    request = ModelRequest("echo", [Message.user("word " * 1000)])
    assert len([event async for event in get_provider("demo").stream(request)]) <= 52


async def test_tools_calls_the_tool_that_the_words_name_and_answers_with_its_result() -> None:
    tools = [track.spec, refund.spec]
    question = Message.user("Please refund order 77, it cost 12.50.")
    calling = await reply("tools", question, tools=tools)
    message = Message(role="assistant", parts=calling.parts)
    (call,) = message.tool_calls
    assert (call.name, call.arguments) == ("refund", {"order_id": "77", "amount": 12.5})
    assert (message.text, calling.finish_reason) == ("[demo:tools] I call refund.", "tool_calls")
    answer = await reply("tools", question, message, result(call, "done"), tools=tools)
    assert text_of(answer) == "[demo:tools] refund answered: done"


async def test_another_tool_that_is_named_is_called_after_it() -> None:
    tools = [track.spec, refund.spec]
    question = Message.user("Track order 5 and refund it.")
    first = Message(role="assistant", parts=(await reply("tools", question, tools=tools)).parts)
    said = [question, first, result(first.tool_calls[0], "lost", is_error=True)]
    second = Message(role="assistant", parts=(await reply("tools", *said, tools=tools)).parts)
    assert [call.name for call in (*first.tool_calls, *second.tool_calls)] == ["track", "refund"]
    assert "does not say amount, so I made that up" in second.text
    assert first.tool_calls[0].id != second.tool_calls[0].id
    answer = await reply("tools", *said, second, result(second.tool_calls[0], "ok"), tools=tools)
    assert text_of(answer) == "[demo:tools] track failed: lost\nrefund answered: ok"


@pytest.mark.parametrize("tools", [[], [track.spec, refund.spec]], ids=["without", "with"])
async def test_a_message_without_a_word_of_the_tools_calls_none(tools: list[ToolSpec]) -> None:
    answer = text_of(await reply("tools", Message.user("Good morning!"), tools=tools))
    assert answer.startswith("[demo:tools] I follow rules and am not a language model")
    assert ("track and refund" in answer) == bool(tools)


async def test_words_of_any_language_are_compared() -> None:
    spec = ToolSpec("storno", "Eine Überweisung zurückholen.", {"type": "object", "properties": {}})
    completed = await reply("tools", Message.user("Bitte die überweisung!"), tools=[track.spec, spec])
    assert [call.name for call in Message(role="assistant", parts=completed.parts).tool_calls] == ["storno"]


class Verdict(BaseModel):
    order_id: str
    amount: float
    state: Literal["open", "closed"]
    summary: str


FINISH = ToolSpec(FINISH_TOOL, "Give the answer.", TypeAdapter(Verdict).json_schema())


@pytest.mark.parametrize("model", ["echo", "tools"])
async def test_a_typed_answer_is_filled_from_results_and_message(model: str) -> None:
    question = Message.user("Refund order 7: 3.5, it is closed.")
    said = [question]
    if model == "tools":
        calling = Message(role="assistant", parts=(await reply(model, question, tools=[refund.spec, FINISH])).parts)
        said += [calling, result(calling.tool_calls[0], '{"order_id": "7b", "amount": 4}')]
    completed = await reply(model, *said, tools=[refund.spec, FINISH])
    (call,) = Message(role="assistant", parts=completed.parts).tool_calls
    verdict = Verdict.model_validate(call.arguments)
    assert (verdict.order_id, verdict.amount) == (("7b", 4) if model == "tools" else ("7", 3.5))
    assert verdict.state == "closed"
    assert verdict.summary.startswith(f"[demo:{model}] ")
    done = [*said, Message(role="assistant", parts=completed.parts), result(call, "finished")]
    assert text_of(await reply("echo", *done, Message.user("Next."))) == "[demo:echo] Next.", "the turn has ended"


async def test_what_must_be_called_is_called() -> None:
    completed = await reply("tools", Message.user("Hi"), tools=[track.spec, FINISH], tool_choice=FINISH_TOOL)
    assert [call.name for call in Message(role="assistant", parts=completed.parts).tool_calls] == [FINISH_TOOL]


async def test_the_finish_tag_is_used_where_it_is_asked_for() -> None:
    answer = await reply("echo", Message.user("Hi"), system="Answer inside <finish> and </finish>.")
    assert text_of(answer) == "<finish>[demo:echo] Hi</finish>"


# ---
# Arguments.


@pytest.mark.parametrize(
    ("message", "fields", "expected"),
    [
        ("Order 77 arrived broken, it cost 12.50.", {"order_id": str, "amount": float}, ("77", 12.5)),
        ("pay 120 for INV-4, not urgent", {"invoice_id": str, "amount": float, "urgent": bool}, ("INV-4", 120, False)),
        ("Pay 1,200.50 for invoice 4. Urgent!", {"invoice_id": str, "sum": float, "urgent": bool}, ("4", 1200.5, True)),
        ("What is the weather in Oslo for 5 days?", {"city": str, "days": int}, ("Oslo", 5)),
        ("on 2026-02-03 to a@x.test", {"n": int, "day": "date", "to": "email"}, (1, "2026-02-03", "a@x.test")),
        ('Look for "blue chairs"', {"query": str}, ("blue chairs",)),
        ("look for chairs", {"query": str}, ("look for chairs",)),
        ("make it Closed", {"state": Literal["open", "closed"]}, ("closed",)),
        ("don't say it's", {"city": str}, ("don't say it's",)),
        ("add 3, 4 and 5", {"numbers": list[int]}, ([3, 4, 5],)),
    ],
)  # fmt: skip
def test_arguments(message: str, fields: dict[str, Any], expected: tuple[Any, ...]) -> None:
    types = {name: (str if isinstance(kind, str) else kind, ...) for name, kind in fields.items()}
    schema = create_model("Arguments", **types).model_json_schema()
    for name, kind in fields.items():
        if isinstance(kind, str):
            schema["properties"][name]["format"] = kind
    assert tuple(ArgumentReader(message).fill(schema).values()) == expected


def test_what_is_not_said_is_named() -> None:
    reader = ArgumentReader("hello")
    schema = create_model("A", order_id=(str, ...), days=(int, 3), size=(int, ...)).model_json_schema()
    assert reader.fill(schema) == {"order_id": "unknown", "size": 1}
    assert reader.invented == ["order_id", "size"]


class Tree(BaseModel):
    name: str
    size: int
    left: Tree | None = None
    children: list[Tree]


LEAVES = [str, int, float, bool, Literal["a", "b"], int | None, list[str], list[int], dict[str, int], Verdict, Tree]


@given(st.text(max_size=200), st.lists(st.sampled_from(LEAVES), min_size=1, max_size=5))
def test_every_plain_schema_gets_arguments_that_fit(message: str, kinds: list[Any]) -> None:
    names = ["order_id", "amount", "text", "items", "done"]
    model = create_model("Arguments", **{name: (kind, ...) for name, kind in zip(names, kinds, strict=False)})
    model.model_validate(ArgumentReader(message).fill(model.model_json_schema()))


KEYWORDS = (
    "type", "$ref", "anyOf", "properties", "items", "enum", "const", "required", "minItems", "maxItems", "minLength",
    "maxLength", "format", "minimum", "exclusiveMaximum", "multipleOf", "default",
)  # fmt: skip
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["integer", "number", "array", "#"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYWORDS), inner),
)


@given(ANY_JSON, st.text() | st.integers().map(str), st.text() | ANY_JSON.map(json.dumps))
def test_no_schema_message_or_result_breaks_it(schema: Any, message: str, result: str) -> None:
    """Schemas of MCP servers are repaired before, but a provider is not the place that fails."""
    properties = {"a": schema, "type": {"type": "integer"}, "order": {"type": "string"}}
    reader = ArgumentReader(f"order 7 {message}", [result])
    reader.fill({"type": "object", "properties": properties, "required": ["a", "type"]})


def test_a_large_message_and_many_properties_take_no_time_of_the_event_loop() -> None:
    """By what is read: the rest of a message of 20 MB is not."""
    reader = ArgumentReader("x" * 20_000_000 + " 77")
    assert len(reader.text) == 4_000
    assert reader.fill(create_model("A", number=(int, ...)).model_json_schema()) == {"number": 1}
    deep = ArgumentReader("", ["[" * 50_000, '{"a": NaN}', "9" * 5_000])
    assert deep.fill(create_model("A", a=(float, ...)).model_json_schema()) == {"a": 1}


# ---
# As a provider.


def test_they_are_providers_like_others() -> None:
    assert "demo" in list_providers()
    assert parse_model("demo:tools") == ("demo", "tools")
    with pytest.raises(DefinitionError, match=r"(?s)no model 'gpt-5'.*demo:echo, demo:tools"):
        parse_model("demo:gpt-5")
    assert has_price("demo", "tools")
    assert calculate_cost_usd("demo", "tools", Usage(input_tokens=1000, output_tokens=9)) == 0.0


def test_another_provider_of_that_name_is_neither_free_nor_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.providers import registry

    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(registry, "_providers", dict(registry._providers))
    register_provider("demo", demo.Demo())
    assert parse_model("demo:gpt-5") == ("demo", "gpt-5")
    assert calculate_cost_usd("demo", "gpt-5", Usage(input_tokens=1000)) is None
