"""A conversation that was begun at any server goes on at any other: every pair of dialects, through strict fakes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from perdure.ports.model import Completed, ModelRequest, ToolSpec
from perdure.providers import anthropic_request, google_request, openai_chat_request, openai_responses_request
from perdure.providers.anthropic_reply import AnthropicReply
from perdure.providers.dialects import DIALECTS, Dialect, describe_differences, find_signer
from perdure.providers.endpoint import build_origin
from perdure.providers.history import decode_messages
from perdure.providers.openai_chat import ChatReply
from perdure.types.messages import FilePart, Message, TextPart, ToolResultPart
from tests.servers import chat, dialects, google, responses

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CAT = FilePart(media_type="image/png", data=PNG)
LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {"n": {"type": "integer"}}})
MODELS = {
    "anthropic": "claude-opus-4-6",
    "bedrock": "anthropic.claude-sonnet-4-6-v1:0",
    "vertex": "claude-opus-4-6",
    "azure-foundry": "claude-opus-4-6",
    "google": "gemini-3-pro",
    "openrouter": "anthropic/claude-sonnet-4.6",
    "deepseek": "deepseek-v4-pro",
    "openai": "gpt-5-mini",
}
ENTRIES = [(kind, entry) for kind in ("openai", "anthropic") for entry in DIALECTS if kind in entry.formats]
NATIVE = ("google", "openai-responses")
WHOLE = {"openai/openai", "anthropic/anthropic", *NATIVE}
"""Histories of which every beginning is sent, and every server's own; of the others one with results, and all of it."""
OFFICIAL = {"openai": ("openai.com",), "anthropic": ("anthropic.com",)}


def model_of(format: str, name: str) -> str:
    if (format, name) in (("openai", "vertex"), ("openai", "google")):
        return "google/gemini-3-pro"
    return MODELS.get(name, "some-model")


def origin_of(format: str, dialect: Dialect) -> str:
    host = dialect.hosts[0] if dialect.hosts else f"{dialect.name}.test"
    return build_origin(format, host, OFFICIAL[format])


def ask(format: str, dialect: Dialect, model: str, text: str, ids: list[str]) -> Message:
    """A reply of the fake server, as the adapter reads it."""
    origin = origin_of(format, dialect)
    signer = find_signer(model)
    reply: Any
    if format == "openai":
        reply = ChatReply("api.test", origin, signer=signer, dialect=dialect)
    else:
        reply = AnthropicReply("api.test", origin, signer=None if origin == "anthropic" else signer)
    for chunk in dialects.reply(format, dialect.name, model, text, ids):
        list(reply.feed(chunk))
    if format == "openai":
        list(reply.flush())
    completed = reply.complete()
    assert isinstance(completed, Completed)
    assert [part.type for part in completed.parts if part.type == "text"] == ["text"], "thinking is apart from the text"
    assert "think>" not in "".join(part.text for part in completed.parts if isinstance(part, TextPart))
    return Message(role="assistant", parts=completed.parts, model=model)


def begin(format: str, dialect: Dialect, model: str) -> list[Message]:
    """A conversation with tools, thinking, images and interrupts."""
    ids = {"mistral": ["aB3dE6gH9", "zzzzzzzz1"]}.get(dialect.name, ["call_" + "x" * 30, "toolu_0123.4:5"])
    look = ask(format, dialect, model, "I look.", ids)
    results = [ToolResultPart(call_id=call.id, name="look", content="seen", files=(CAT,)) for call in look.tool_calls]
    results[1] = results[1].model_copy(update={"files": (), "content": "", "is_error": True})
    return [
        Message(role="user", parts=(TextPart(text="Look."), CAT)),
        look,
        Message(role="tool", parts=tuple(results)),
        Message(role="system", parts=(TextPart(text="The user interrupted."),)),
        Message.user("Wait."),
        Message.user("Go on."),
        ask(format, dialect, model, "It is a cat.", []),
        Message.assistant(""),
        Message.user("Again."),
    ]


def begin_native(format: str) -> list[Message]:
    """The same at the vendors with formats of their own."""
    if format == "google":
        wire: list[dict[str, Any]] = [
            {"role": "user", "parts": [{"text": "Look."}]},
            {
                "role": "model",
                "parts": [
                    {"text": "I look.", "thought": True, "thoughtSignature": "sig/google/gemini/"},
                    {"functionCall": {"name": "look", "args": {"n": 1}}, "thoughtSignature": "sig/google/gemini/"},
                ],
            },
            {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"output": "seen"}}}]},
        ]
    else:
        reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sig/openai/gpt-5/"}
        call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}"}
        wire = [
            {"role": "user", "content": "Look."},
            {**reasoning},
            {**call, "status": "completed"},
            {"type": "function_call_output", "call_id": "call_1", "output": "seen"},
        ]
    return [*decode_messages(format, wire, origin=format, model="gpt-5").messages, Message.user("Wait.")]


@cache
def list_histories() -> list[tuple[str, list[Message]]]:
    """By what began them. A message keeps what it was encoded to, as in a worker."""
    histories = [(f"{kind}/{each.name}", begin(kind, each, model_of(kind, each.name))) for kind, each in ENTRIES]
    return [*histories, *((kind, begin_native(kind)) for kind in NATIVE)]


def iter_refusals(format: str, dialect: Dialect) -> Iterator[str]:
    """What the fake of that server says to all that it may be sent."""
    model = model_of(format, dialect.name)
    for source, messages in list_histories():
        is_whole = source in WHOLE or source == f"{format}/{dialect.name}"
        for size in range(1, len(messages) + 1) if is_whole else (3, len(messages)):
            if any(messages[size - 1].tool_calls):
                continue  # the engine never sends a call without its result
            request = ModelRequest(model, messages[:size], "Be brief.", [LOOK], settings={"max_tokens": 99})
            for tool_choice in (None, "look") if is_whole else (None,):
                body = encode(format, dialect, replace(request, tool_choice=tool_choice))
                assert "Look." in json.dumps(body)
                if flaw := dialects.refuse(format, dialect.name, body):
                    yield f"{size} messages from {source}: {flaw}"


def encode(format: str, dialect: Dialect, request: ModelRequest) -> dict[str, Any]:
    origin = origin_of(format, dialect)
    if format == "openai":
        body = openai_chat_request.encode_request(request, origin=origin, dialect=dialect)
    else:
        body = anthropic_request.encode_request(request, origin=origin, dialect=dialect).body
    decoded: dict[str, Any] = json.loads(body)
    return decoded


@pytest.mark.parametrize(("format", "dialect"), ENTRIES, ids=[f"{kind}-{each.name}" for kind, each in ENTRIES])
def test_the_history_of_any_server_is_taken(format: str, dialect: Dialect) -> None:
    assert next(iter_refusals(format, dialect), None) is None


UNSEEN = {
    ("openai", "ollama", "forced_tool"),  # it ignores what it does not know
    ("anthropic", "ollama", "forced_tool"),
    ("openai", "minimax", "thinking"),  # it thinks worse, and says nothing
    ("openai", "mistral", "thinking"),
    *(("anthropic", name, "thinking") for name in dialects.SIGNING),  # a Claude's own thinking is always signed
}
"""Not to be seen in a refusal."""
CHANGED = [
    (kind, each, name)
    for kind, each in ENTRIES
    for name in describe_differences(each, kind)
    if name not in ("think_tags", "done_ends_reply") and (kind, each.name, name) not in UNSEEN
]


@pytest.mark.parametrize(
    ("format", "dialect", "field"), CHANGED, ids=[f"{kind}-{each.name}-{name}" for kind, each, name in CHANGED]
)
def test_every_field_of_the_table_is_needed(format: str, dialect: Dialect, field: str) -> None:
    usual: dict[str, Any] = {field: getattr(Dialect(), field)}
    assert next(iter_refusals(format, replace(dialect, **usual)), None) is not None


@pytest.mark.parametrize("format", ["openai", "openai-responses", "google"])
def test_the_history_of_any_server_is_taken_by_the_vendors(format: str) -> None:
    for source, messages in list_histories():
        if format == source:
            continue
        request = ModelRequest("gemini-3-pro" if format == "google" else "gpt-5", messages, "Be brief.", [LOOK])
        if format == "google":
            sent = google.parse(google_request.encode_request(request, origin="google"), "gemini-3-pro")
        elif format == "openai":
            sent = chat.parse(openai_chat_request.encode_request(request, origin="openai"))
        else:
            sent = responses.parse(openai_responses_request.encode_request(request, origin="openai-responses"), {})
        own = {"google": "sig/google/gemini/", "openai-responses": "sig/openai/gpt-5/"}.get(format, "no")
        assert "sig/" not in json.dumps(sent).replace(own, ""), source


@pytest.mark.parametrize(
    ("format", "name"), [("openai", "openrouter"), ("openai", "google"), ("anthropic", "openrouter")]
)
def test_what_a_vendor_signed_goes_to_its_models_alone(format: str, name: str) -> None:
    """One server may have the models of many vendors: chains, step policies, overrides."""
    [dialect] = [entry for kind, entry in ENTRIES if (kind, entry.name) == (format, name)]
    models = {"claude": ("anthropic/claude-opus-4.6", "anthropic/claude-haiku-4.6"), "gpt": ("openai/gpt-5",) * 2}
    models["gemini"] = ("google/gemini-3-pro", "google/gemini-3-flash")
    for giver, (first, _) in models.items():
        messages = begin(format, dialect, first)
        for taker, (_, second) in models.items():
            body = encode(format, dialect, ModelRequest(second, messages, tools=[LOOK], settings={"max_tokens": 9}))
            assert dialects.refuse(format, name, body) is None, (first, second)
            if giver == taker:
                assert dialects.sign(name, first) in json.dumps(body), "it goes back to the vendor's own models"


def test_unsigned_thinking_goes_back_word_for_word() -> None:
    for wire, name in (("anthropic", "deepseek"), ("anthropic", "kimi"), ("openai", "deepseek"), ("openai", "kimi")):
        [dialect] = [entry for kind, entry in ENTRIES if (kind, entry.name) == (wire, name)]
        body = encode(wire, dialect, ModelRequest("m", begin(wire, dialect, "m"), tools=[LOOK]))
        [calling] = [
            message
            for message in body["messages"]
            if message.get("tool_calls")
            or any(isinstance(b, dict) and b["type"] == "tool_use" for b in message["content"] or ())
        ]
        assert "I look." in json.dumps(calling.get("reasoning_content") or calling["content"][0])


def test_thinking_in_tags_is_not_sent_back_but_to_who_demands_it() -> None:
    for name, sent in (("ollama", False), ("compatible", False), ("minimax", True)):
        [dialect] = [entry for kind, entry in ENTRIES if (kind, entry.name) == ("openai", name)]
        body = encode("openai", dialect, ModelRequest("m", begin("openai", dialect, "m"), tools=[LOOK]))
        assert ("<think>" in json.dumps(body)) is sent
