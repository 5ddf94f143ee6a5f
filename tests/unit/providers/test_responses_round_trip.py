"""Transcript → Responses format → transcript loses nothing, and whatever goes out is taken."""

from __future__ import annotations

import base64
import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from perdure.ports.model import ModelRequest
from perdure.providers.history import decode_messages
from perdure.providers.openai_responses_request import encode_request, read_item
from perdure.types.messages import (
    FilePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    encode_canonical,
    parse_messages,
)
from tests.servers import responses
from tests.servers.model_server import Call, Reply
from tests.servers.responses import parse
from tests.servers.wire import fresh

ORIGIN, MODEL = "openai-responses", "gpt-test"

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda v: st.lists(v, max_size=2), max_leaves=4
)
arguments = st.dictionaries(texts, values, max_size=3)
bodies = st.binary(min_size=1, max_size=9).map(lambda body: base64.b64encode(body).decode())
files = st.one_of(
    st.builds(FilePart, media_type=st.sampled_from(["image/png", "image/gif"]), data=bodies),
    st.builds(FilePart, media_type=st.just("image/webp"), url=st.just("https://x.test/a.webp?size=3")),
    st.builds(FilePart, media_type=st.just("application/pdf"), name=st.just("a.pdf"), data=bodies),
    st.builds(FilePart, media_type=st.just("text/csv"), name=st.just("b c.csv"), data=bodies),
)
users = st.one_of(
    texts.map(Message.user),
    st.lists(texts.map(lambda t: TextPart(text=t)) | files, min_size=2, max_size=3).map(
        lambda parts: Message(role="user", parts=tuple(parts))
    ),
)
outputs = st.one_of(
    st.builds(responses.message, texts, phase=st.sampled_from([None, "commentary", "final_answer"])),
    st.builds(responses.message, texts, refusal=st.just("No.")),
    arguments.map(lambda a: responses.function_call(Call("add", a))),
    arguments.map(lambda a: responses.function_call(Call("add", json.dumps(a, indent=1)))),
    arguments.map(lambda a: responses.function_call(Call("add", {"z": a, "a": 1}))),
    st.builds(lambda q: {"id": fresh("ws"), "type": "web_search_call", "action": {"query": q}}, texts),
)
thoughts = st.lists(texts, max_size=2).map(lambda summary: responses.reasoning(*summary))
replies = st.lists(st.tuples(st.booleans(), thoughts, outputs), min_size=1, max_size=4)
contents = st.tuples(texts, st.lists(files, max_size=2))


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[Message], dict[str, str]]:
    """A conversation as the engine keeps it, and which item was given after which reasoning."""
    said: list[Message] = []
    needs: dict[str, str] = {}
    for reply in draw(st.lists(replies, max_size=3)):
        if not said or not said[-1].tool_results:
            said.append(draw(users))
        items = [item for thinks, thought, item in reply for item in ([thought, item] if thinks else [item])]
        items = responses.output(Reply(content=items), model=MODEL, encrypted=True)
        needs |= {b["id"]: a["id"] for a, b in itertools.pairwise(items) if a["type"] == "reasoning"}
        parts = tuple(part for item in items for part in read_item(item, origin=ORIGIN, model=MODEL))
        said.append(Message(role="assistant", parts=parts))
        if calls := said[-1].tool_calls:
            said.append(Message(role="tool", parts=tuple(_result(call, *draw(contents)) for call in calls)))
    said.append(draw(users))
    return said, needs


def _result(call: ToolCallPart, content: str, given_files: list[FilePart]) -> ToolResultPart:
    return ToolResultPart(call_id=call.id, name=call.name, content=content, files=tuple(given_files))


def _plain(messages: list[Message]) -> list[tuple[str, tuple[Part, ...]]]:
    return [(message.role, message.parts) for message in messages]


@given(conversations())
def test_round_trip(conversation: tuple[list[Message], dict[str, str]]) -> None:
    said, needs = conversation
    body = encode_request(ModelRequest(MODEL, said), origin=ORIGIN)
    taken = decode_messages(ORIGIN, parse(body, needs)["input"], origin=ORIGIN, model=MODEL).messages
    assert _plain(taken) == _plain(said)
    assert encode_request(ModelRequest(MODEL, taken), origin=ORIGIN) == body
    stored = parse_messages(encode_canonical(said))  # keys sorted
    assert encode_request(ModelRequest(MODEL, stored), origin=ORIGIN) == body


@given(
    conversations(), st.sampled_from([(ORIGIN, "gpt-other"), ("openai-responses@x.test", MODEL), ("anthropic", "m")])
)
def test_another_model_or_server_takes_it_too(
    conversation: tuple[list[Message], dict[str, str]], target: tuple[str, str]
) -> None:
    said, needs = conversation
    origin, model = target
    asked = parse(encode_request(ModelRequest(model, said), origin=origin), needs)
    assert not any("encrypted_content" in item or item["type"] == "web_search_call" for item in asked["input"])
    calls = [item["arguments"] for item in asked["input"] if item["type"] == "function_call"]
    assert [json.loads(call) for call in calls] == [call.arguments for m in said for call in m.tool_calls]
