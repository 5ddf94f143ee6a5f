"""What goes out, checked by a server that enforces the API's rules."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.errors import BadRequestError, SettingsError
from perdure.ports import ModelRequest, ToolSpec
from perdure.providers.google import check_settings
from perdure.providers.google_settings import generation
from perdure.types.messages import BlobRef, FilePart, Message, OpaquePart, TextPart, ThinkingPart, ToolCallPart
from tests.servers.model_server import Call, Reply
from tests.unit.providers.google_ask import MODEL, ORIGIN, Asking, asking, result, said, tool

PNG = b"\x89PNG"
BLOB = BlobRef(hash=hashlib.sha256(PNG).hexdigest(), size=len(PNG))
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
SKIP = "skip_thought_signature_validator"
OLD = "gemini-2.5-flash"


@pytest.fixture
async def ask() -> AsyncIterator[Asking]:
    async with asking() as made:
        yield made


def texts(*parts: str) -> list[dict[str, str]]:
    return [{"text": part} for part in parts]


async def test_the_whole_request(ask: Asking) -> None:
    settings = {"temperature": 0.2, "top_p": 1, "max_tokens": 9, "top_k": 4, "stop": "x", "seed": 3}
    settings["reasoning_effort"] = "low"
    options = {
        "safetySettings": [{"category": "X", "threshold": "OFF"}],
        "generationConfig": {"presencePenalty": 0.5},
        "tools": [{"googleSearch": {}}],
        "toolConfig": {"includeServerSideToolInvocations": True},
    }
    check_settings(settings, options)
    none = ToolSpec("now", "The time.", {"type": "object", "properties": {}})
    await ask(request=ModelRequest(MODEL, [Message.user("hi")], "be brief", [ADD, none], "add", settings, options))
    declared = {"name": "add", "description": "Adds.", "parametersJsonSchema": ADD.parameters}
    assert ask.server.requests == [
        {
            "systemInstruction": {"parts": [{"text": "be brief"}]},
            "tools": [
                {"functionDeclarations": [declared, {"name": "now", "description": "The time."}]},
                {"googleSearch": {}},
            ],
            "toolConfig": {
                "includeServerSideToolInvocations": True,
                "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]},
            },
            "generationConfig": {
                "temperature": 0.2,
                "topP": 1,
                "maxOutputTokens": 9,
                "topK": 4,
                "stopSequences": ["x"],
                "seed": 3,
                "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
                "presencePenalty": 0.5,
            },
            "safetySettings": [{"category": "X", "threshold": "OFF"}],
            "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        }
    ]


async def test_roles_and_what_is_put_together(ask: Asking) -> None:
    call = ToolCallPart(id="c1", name="add", arguments={"a": 1})
    bad = ToolCallPart(id="c2", name="add", malformed="{a")
    sent = await ask.contents(
        Message.system("rules"),
        Message.user("one"),
        Message.user("two"),
        said(TextPart(text="well"), call, bad),
        tool(result("c1", "1")),
        tool(result("c2", "not JSON", is_error=True)),
        Message.user("three"),
        said(TextPart(text="")),
        Message.user("four\x00\ud800"),
    )
    assert sent == [
        {"role": "user", "parts": texts("rules", "one", "two")},
        {
            "role": "model",
            "parts": [
                {"text": "well"},
                {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}, "thoughtSignature": SKIP},
                {"functionCall": {"id": "c2", "name": "add", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c1", "name": "add", "response": {"output": "1"}}},
                {"functionResponse": {"id": "c2", "name": "add", "response": {"error": "not JSON"}}},
            ],
        },
        {"role": "user", "parts": texts("three", "four\ufffd�")},
    ]


async def test_what_a_reply_carried_goes_back_on_the_same_parts(ask: Asking) -> None:
    calls = [Call("add", {"a": 1}, signature="c2lnMQ=="), Call("add", {"a": 2}, id=None)]
    reply = await ask.reply(Reply(thinking="so so", text="I add.", signature="dGV4dA==", calls=calls))
    parts = [
        part.model_copy(update={"id": f"mine{n}"}) if isinstance(part, ToolCallPart) else part
        for n, part in enumerate(reply.parts)
    ]
    ids = [part.id for part in parts if isinstance(part, ToolCallPart)]
    sent = await ask.contents(Message.user("hi"), said(*parts), tool(*map(result, ids)))
    assert sent[1]["parts"] == [
        {"text": "so so", "thought": True},
        {"text": "I add."},
        {"text": "", "thoughtSignature": "dGV4dA=="},
        {"functionCall": {"id": ids[0], "name": "add", "args": {"a": 1}}, "thoughtSignature": "c2lnMQ=="},
        {"functionCall": {"id": ids[1], "name": "add", "args": {"a": 2}}},
    ]


async def test_what_another_provider_gave_is_left_out(ask: Asking) -> None:
    opaque = {"thoughtSignature": "Zm9yZWlnbg=="}
    for origin in ("anthropic", "google", None):
        parts = (
            ThinkingPart(text="hm", provider=origin, opaque=opaque),
            OpaquePart(provider=origin or "x", data={"text": "", **opaque}),
            TextPart(text="well", provider=origin, opaque=opaque),
            ToolCallPart(id="toolu_1", name="add", provider=origin, opaque=opaque),
        )
        sent = await ask.contents(Message.user("hi"), said(*parts), tool(result("toolu_1")))
        call = {"functionCall": {"id": "toolu_1", "name": "add", "args": {}}, "thoughtSignature": SKIP}
        assert sent[1]["parts"] == [{"text": "well"}, call]


async def test_only_models_that_want_a_signature_are_given_the_dummy(ask: Asking) -> None:
    messages = (Message.user("hi"), said(ToolCallPart(id="c", name="add")), tool(result("c")))
    for model, signed in ((OLD, False), (MODEL, True), ("gemini-flash-latest", True), ("gemma-3-27b-it", False)):
        sent = await ask.contents(*messages, model=model)
        assert ("thoughtSignature" in sent[1]["parts"][0]) == signed


async def test_files_go_as_they_can(ask: Asking) -> None:
    files = (
        FilePart(media_type="image/png", blob=BLOB),
        FilePart(media_type="application/pdf", data=base64.b64encode(b"%PDF").decode()),
        FilePart(media_type="video/mp4", url="https://files.test/a.mp4"),
        FilePart(media_type="application/x-foo", name="a.foo", blob=BLOB),
        FilePart(media_type="text/csv", name="a.csv", data=base64.b64encode(b"a,b").decode()),
    )
    sent = await ask.contents(Message(role="user", parts=files), files={BLOB.hash: PNG})
    assert sent[0]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}},
        {"inlineData": {"mimeType": "application/pdf", "data": base64.b64encode(b"%PDF").decode()}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "https://files.test/a.mp4"}},
        {"text": "[file a.foo (application/x-foo, 4 bytes): this model cannot read it]"},
        {"text": "[file a.csv (text/csv, 3 bytes)]\na,b"},
    ]


async def test_files_of_results(ask: Asking) -> None:
    png = FilePart(media_type="image/png", name="a.png", blob=BLOB)
    film = FilePart(media_type="video/mp4", url="https://files.test/a.mp4")
    calls = said(ToolCallPart(id="c1", name="add"), ToolCallPart(id="c2", name="add"))
    messages = (Message.user("hi"), calls, tool(result("c1", files=(png, film))), tool(result("c2")))
    data = base64.b64encode(PNG).decode()
    inside = {"inlineData": {"mimeType": "image/png", "data": data, "displayName": "a.png"}}
    address = {"fileData": {"mimeType": "video/mp4", "fileUri": "https://files.test/a.mp4"}}

    _, _, answered, moved = await ask.contents(*messages, files={BLOB.hash: PNG})
    assert [part["functionResponse"].get("parts") for part in answered["parts"]] == [[inside], None]
    assert moved["parts"] == [*texts("[file from the result of add, call c1]"), address]

    _, _, answered, moved = await ask.contents(*messages, Message.user("so?"), model=OLD, files={BLOB.hash: PNG})
    assert [part["functionResponse"].get("parts") for part in answered["parts"]] == [None, None]
    picture = {"inlineData": {"mimeType": "image/png", "data": data}}
    assert moved["parts"] == [*texts("[files from the result of add, call c1]"), picture, address, *texts("so?")]


async def test_content_that_was_not_loaded_is_refused(ask: Asking) -> None:
    lost = FilePart(media_type="image/png", blob=BLOB)
    for message in (
        tool(result("c", "", blob=BLOB)),
        tool(result("c", files=(lost,))),
        Message(role="user", parts=(lost,)),
    ):
        with pytest.raises(BadRequestError, match="not loaded"):
            await ask.contents(message)


async def test_a_message_is_encoded_once_for_a_kind_of_model(ask: Asking) -> None:
    message = Message.user("hi")
    await ask.contents(message)
    message.remember_wire(f"google:{ORIGIN}:3", b'{"text":"from memory"}')
    assert (await ask.contents(message))[0]["parts"] == texts("from memory")
    assert (await ask.contents(message, model=OLD))[0]["parts"] == texts("hi")


async def test_the_servers_rules_reach_the_caller(ask: Asking) -> None:
    with pytest.raises(BadRequestError, match="number of function response parts"):
        await ask.contents(Message.user("hi"), said(ToolCallPart(id="c", name="add")), Message.user("well?"))


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("gemini-3-pro", None, {"includeThoughts": True}),
        ("gemini-3.8-flash", "high", {"includeThoughts": True, "thinkingLevel": "HIGH"}),
        ("gemini-3-flash", "none", {"includeThoughts": True, "thinkingLevel": "MINIMAL"}),
        ("gemini-flash-latest", "xhigh", {"includeThoughts": True, "thinkingLevel": "XHIGH"}),
        ("gemini-2.5-flash", "medium", {"includeThoughts": True, "thinkingBudget": 8192}),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.0-flash", "high", None),
        ("gemma-3-27b-it", None, None),
    ],
)
async def test_how_much_to_think(ask: Asking, model: str, effort: str | None, expected: Any) -> None:
    await ask(request=ModelRequest(model, [Message.user("hi")], settings={"reasoning_effort": effort}))
    assert ask.server.requests[0].get("generationConfig", {}).get("thinkingConfig") == expected


def test_generations() -> None:
    assert generation("models/gemini-2.5-pro-preview") == 2.5
    assert generation("tunedModels/mine") == 0


async def test_options_may_say_how_to_think(ask: Asking) -> None:
    options = {"generationConfig": {"thinkingConfig": {"includeThoughts": False, "thinkingBudget": 128}}}
    check_settings({"temperature": 1}, options)
    await ask(request=ModelRequest(OLD, [Message.user("hi")], provider_options=options))
    assert ask.server.requests[0]["generationConfig"] == options["generationConfig"]


@pytest.mark.parametrize(
    ("settings", "options", "named"),
    [
        ({"metadata": {}}, {}, "metadata"),
        ({"reasoning_effort": "huge"}, {}, "huge"),
        ({}, {"contents": []}, "contents"),
        ({}, {"system_instruction": {}}, "system_instruction"),
        ({"max_tokens": 5}, {"generationConfig": {"max_output_tokens": 6}}, "max_output_tokens"),
        ({"max_tokens": 5}, {"generation_config": {}}, "generationConfig"),
        ({}, {"generationConfig": []}, "generationConfig"),
        ({}, {"generationConfig": {"candidateCount": 2}}, "candidateCount"),
        ({}, {"generationConfig": {"thinkingConfig": "low"}}, "thinkingConfig"),
        ({"reasoning_effort": "low"}, {"generationConfig": {"thinkingConfig": "low"}}, "'thinkingConfig'.* is a dict"),
        (
            {"reasoning_effort": "low"},
            {"generationConfig": {"thinkingConfig": {"thinkingBudget": 1}}},
            "thinkingBudget",
        ),
        ({}, {"toolConfig": {"functionCallingConfig": {}}}, "functionCallingConfig"),
        ({}, {"labels": {"a": object()}}, "JSON"),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], options: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        check_settings(settings, options)
