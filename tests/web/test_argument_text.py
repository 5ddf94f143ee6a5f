"""Arguments that are streamed in pieces: a front end gets each once, and their rest with the reply."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from time import process_time
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.applications import Starlette

from perdure import Agent, Client, tool
from perdure.events import CallSaid, Event, ModelCompleted, ModelDelta, ModelRetracted, ModelStarted, TurnEvent
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ToolCallDelta
from perdure.types.messages import TextPart, ToolCallPart
from perdure.web.agui_events import AguiTranslator
from perdure.web.app import build_web
from perdure.web.argument_text import find_rest
from perdure.web.vercel import VercelTranslator, vercel_routes
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.web import ADA, NamedCallers, serve
from tests.web.agui_rules import StrictClient
from tests.web.test_vercel import ChatMessage, build_chat, user

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)
RAW = '{"invoice_id": "INV-8 \\u00E9\\ud83d\\ude00", "lines": [1, 2.50, {"deep": null}], "note": "a \\"b\\" \\n"}'


@st.composite
def spellings(draw: Any) -> tuple[str, dict[str, Any]]:
    """JSON of arguments as models write it, and the arguments."""
    arguments = draw(ARGUMENTS)
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :\n")]))
    raw = json.dumps(
        arguments, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])), separators=separators
    )
    return raw, arguments


def test_many_names_do_not_multiply_a_long_text() -> None:
    def measure(names: int) -> float:
        arguments = {f"b{number}": 1 for number in range(names)}
        begun = process_time()
        assert find_rest('{ "\\n' + "a" * 20_000, arguments) is None
        return process_time() - begun

    assert min(measure(400) for _ in range(3)) < 5 * min(measure(20) for _ in range(3))


@given(spellings(), st.data())
@example((RAW, json.loads(RAW)), None)
def test_the_rest_completes_the_text_wherever_it_was_cut(
    spelling: tuple[str, dict[str, Any]], data: st.DataObject | None
) -> None:
    raw, arguments = spelling
    for cut in range(len(raw) + 1) if data is None else [data.draw(st.integers(0, len(raw)))]:
        rest = find_rest(raw[:cut], arguments)
        assert rest is not None, raw[:cut]
        assert json.loads(raw[:cut] + rest) == arguments


@pytest.mark.parametrize(
    "raw", ["1.50", "1E5", "1.25e+1", "12.5e-3", "0.0000005", "-0.5E-10", "120e28", "1.0E+2", "100e-2", "-0", "1e005"]
)
def test_numbers_may_be_spelled_in_any_way(raw: str) -> None:
    text = f'{{"a": {raw}}}'
    for cut in range(len(text) + 1):
        rest = find_rest(text[:cut], json.loads(text))
        assert rest is not None, text[:cut]
        assert json.loads(text[:cut] + rest) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a":1', {"a": 2}),
        ('{"b', {"a": 2}),
        ('{"a":1}x', {"a": 1}),
        ('{"a":"x', {"a": "y"}),
        ('{"a":[1,2', {"a": [1]}),
        ('{"a":{', {"a": 1}),
        ('{"a":1,', {"a": 1}),
        ('"{\\"a', {"a": 1}),
        ("[" * 100_000, {}),
        ('{"a":1,"a":2', {"a": 2}),
    ],
)
def test_a_text_of_other_arguments_has_no_rest(text: str, arguments: dict[str, Any]) -> None:
    assert find_rest(text, arguments) is None


# ---
# The front ends' streams.


@st.composite
def replies(draw: Any) -> tuple[list[Event], list[CallSaid]]:
    """A reply with calls, of whose pieces a reader sees the first ones: the rest comes with ``model.completed``."""
    at: dict[str, Any] = {"context_id": "s", "task_id": "k", "iteration": 1}
    events: list[Event] = [TurnEvent(state="started", context_id="s", task_id="k"), ModelStarted(**at)]
    text = draw(st.sampled_from(["", "I will look.", "é"]))
    seen = draw(st.integers(0, len(text)))
    events += [ModelDelta(text=text[:seen], **at)] if seen else []
    calls: list[CallSaid] = []
    for index in range(draw(st.integers(1, 3))):
        raw, arguments = draw(spellings())
        calls.append(CallSaid(id=f"c{index}", name="look", arguments=arguments))
        end, offset = draw(st.integers(0, len(raw))), 0
        while offset < end and seen == len(text):
            size = draw(st.integers(1, 12))
            piece = raw[offset : min(offset + size, end)]
            delta: Any = {"kind": "tool_call", "text": piece, "offset": offset, "index": index, "call_id": f"c{index}"}
            events.append(ModelDelta(name="look", **delta, **at))
            offset += len(piece)
    events.append(ModelCompleted(text=text, calls=tuple(calls), model="m", **at))
    return events, calls


@given(replies())
def test_agui_gets_each_piece_once_and_no_snapshot(reply: tuple[list[Event], list[CallSaid]]) -> None:
    events, calls = reply
    sent = [{"id": "u1", "role": "user", "content": "hello"}]
    client, translator = StrictClient(sent), AguiTranslator("s", "k", version="1.0")
    frames = [*translator.start(sent), *(frame for event in events for frame in translator.feed(event))]
    for frame in frames:
        client.take(frame)
    assert not [frame for frame in frames if frame["type"] == "MESSAGES_SNAPSHOT"]
    written = dict.fromkeys((call.id for call in calls), "")
    for frame in frames:
        if frame["type"] == "TOOL_CALL_ARGS":
            written[frame["toolCallId"]] += frame["delta"]
        if frame["type"] == "TOOL_CALL_END":
            json.loads(written[frame["toolCallId"]])
    assert {call_id: json.loads(raw) for call_id, raw in written.items()} == {c.id: c.arguments for c in calls}


@pytest.mark.parametrize("sdk", [6, 7])
@given(reply=replies())
def test_a_chat_gets_each_piece_once_and_no_reset(sdk: Any, reply: tuple[list[Event], list[CallSaid]]) -> None:
    events, calls = reply
    message, translator = ChatMessage(), VercelTranslator("s", "k", sdk=sdk)
    parts = [*translator.start(), *(part for event in events for part in translator.feed(event))]
    for part in parts:
        message.take(part)
    assert not [part for part in parts if part["type"] in ("reset-step", "data-retracted")]
    written = dict.fromkeys((call.id for call in calls), "")
    for part in parts:
        if part["type"] == "tool-input-delta":
            written[part["toolCallId"]] += part["inputTextDelta"]
    assert {call_id: json.loads(raw) for call_id, raw in written.items()} == {c.id: c.arguments for c in calls}
    shown = [part for part in message.parts if part["type"] == "dynamic-tool"]
    assert {part["toolCallId"]: part["input"] for part in shown} == {c.id: c.arguments for c in calls}


def test_a_failed_attempt_still_resets() -> None:
    at: dict[str, Any] = {"context_id": "s", "task_id": "k", "iteration": 1}
    piece: Any = {"kind": "tool_call", "text": '{"a', "call_id": "c1", "name": "look"}
    events: list[Event] = [ModelStarted(**at), ModelDelta(**piece, **at), ModelRetracted(reason="RateLimitError", **at)]
    chat, agui = VercelTranslator("s", "k"), AguiTranslator("s", "k", version="1.0")
    assert "reset-step" in [part["type"] for event in events for part in chat.feed(event)]
    assert "MESSAGES_SNAPSHOT" in [frame["type"] for event in events for frame in agui.feed(event)]


class Pieces:
    """Streams a call's arguments in pieces of 12 characters, and holds before the last but one until it was read."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        if request.messages[-1].role == "tool":
            yield Completed((TextPart(text="Done."),), model=request.model)
            return
        yield TextDelta("I look. ")
        pieces = [RAW[at : at + 12] for at in range(0, len(RAW), 12)]
        for index, piece in enumerate(pieces):
            if index == len(pieces) - 2:
                await self.gate()
            yield ToolCallDelta(0, "call_1", "look", piece)
        parts = TextPart(text="I look. "), ToolCallPart(id="call_1", name="look", arguments=json.loads(RAW))
        yield Completed(parts, model=request.model)


@tool
async def look(invoice_id: str, lines: list[Any], note: str) -> str:
    """Look."""
    return f"{invoice_id} {len(lines)} {note}"


async def test_the_streams_of_a_run_reset_nothing(engine: Engine) -> None:
    pieces = Pieces()
    async with engine.served(Agent("helper", pieces, tools=[look])) as client:
        parts = [part async for part in _read_chat(client, pieces.gate)]
    kinds = [part["type"] for part in parts]
    assert "reset-step" not in kinds
    assert kinds.count("text-start") == 2
    assert json.loads("".join(part["inputTextDelta"] for part in parts if part["type"] == "tool-input-delta")) == (
        json.loads(RAW)
    )


async def _read_chat(client: Client, gate: Gate) -> AsyncIterator[dict[str, Any]]:
    app = Starlette(routes=vercel_routes(build_web(client, authenticator=NamedCallers(ADA))))
    async with (
        serve(client, app=app) as service,
        httpx.AsyncClient(headers={"Authorization": "Bearer ada"}, timeout=60) as http,
        http.stream("POST", f"{service.url}/ui/helper", json=build_chat(user("Look."))) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                part = json.loads(line[len("data: ") :])
                yield part
                if part["type"] == "tool-input-delta":
                    gate.open()
