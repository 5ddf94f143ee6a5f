"""What only Gemini has: signatures, continued replies, kinds of models, what goes out in full."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import aiohttp
import pytest
from google.genai import errors

from perdure.errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    MalformedReplyError,
    OverloadedError,
    PerdureError,
    ProviderConnectionError,
    ProviderServerError,
    ProviderTimeoutError,
    SettingsError,
    TruncatedStreamError,
)
from perdure.ports.model import Completed, ModelRequest, TextDelta, ToolCallDelta, ToolSpec
from perdure.providers.google import translate_error
from perdure.providers.google_request import check_settings, encode_request, parse_gemini_version
from perdure.types.messages import BlobRef, FilePart, Message, OpaquePart, TextPart, ThinkingPart, ToolCallPart
from tests.servers.google import chunk, reason
from tests.servers.model_server import Call, Reply, error
from tests.support.adapters import ADD, Api, result, said, tool

ADAPTER = "google"
MODEL, ORIGIN = "gemini-3-pro", "google@127.0.0.1"


async def test_calls_keep_their_signatures(ask: Api) -> None:
    calls = [Call("add", {"a": 1}, id="c1", signature="c2lnMQ=="), Call("add", {"text": "é"}, id=None)]
    *deltas, completed = await ask(Reply(text="both", calls=calls))
    assert isinstance(completed, Completed)
    assert completed.finish_reason == "tool_calls"
    assert completed.parts == (
        TextPart(text="both"),
        ToolCallPart(id="c1", name="add", arguments={"a": 1}, provider=ORIGIN, opaque={"thoughtSignature": "c2lnMQ=="}),
        ToolCallPart(id="", name="add", arguments={"text": "é"}),
    )
    assert [d for d in deltas if isinstance(d, ToolCallDelta)] == [
        ToolCallDelta(0, "c1", "add", '{"a": 1}'),
        ToolCallDelta(1, "", "add", '{"text": "é"}'),
    ]


async def test_no_part_with_a_signature_becomes_one_with_another(ask: Api) -> None:
    chunks = [
        chunk({"text": "think", "thought": True}),
        chunk({"text": "ing", "thought": True, "thoughtSignature": "dA=="}),
        chunk({"text": "a"}, {"text": "b"}),
        chunk({"text": "c", "thoughtSignature": "Yw=="}),
        chunk({"text": "d"}),
        chunk({"text": "", "thoughtSignature": "ZQ=="}, finish="STOP"),
    ]
    completed = await ask.reply(Reply(chunks=chunks))
    assert completed.parts == (
        ThinkingPart(text="think", provider=ORIGIN),
        ThinkingPart(text="ing", provider=ORIGIN, opaque={"thoughtSignature": "dA=="}),
        TextPart(text="ab"),
        TextPart(text="c", provider=ORIGIN, opaque={"thoughtSignature": "Yw=="}),
        TextPart(text="d"),
        OpaquePart(provider=ORIGIN, data={"text": "", "thoughtSignature": "ZQ=="}),
    )


async def test_what_only_google_understands_is_kept_whole(ask: Api) -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "print(1)"}}
    ran = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}}
    picture = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}, "thoughtSignature": "cA=="}
    completed = await ask.reply(Reply(chunks=[chunk(code), chunk(ran), chunk(picture, finish="STOP")]))
    assert completed.parts == tuple(OpaquePart(provider=ORIGIN, data=data) for data in (code, ran, picture))


async def test_a_long_reply_is_continued(ask: Api) -> None:
    def rule(request: dict[str, object]) -> Reply:
        if "continuationToken" not in request:
            cut = chunk({"text": "one "}, finish="CONTINUATION", usageMetadata={"promptTokenCount": 5})
            cut["candidates"][0]["continuationToken"] = "bmV4dA=="
            return Reply(chunks=[cut])
        return Reply(chunks=[chunk({"text": "two"}, finish="STOP", usageMetadata={"promptTokenCount": 6})])

    completed = await ask.reply(rule)
    assert completed.parts == (TextPart(text="one two"),)
    assert completed.usage.input_tokens == 11
    assert ask.server.requests[1] == {**ask.server.requests[0], "continuationToken": "bmV4dA=="}


@pytest.mark.parametrize(
    ("said", "expected"),
    [("MALFORMED_FUNCTION_CALL", MalformedReplyError), ("MISSING_THOUGHT_SIGNATURE", BadRequestError)],
)
async def test_a_reason_with_which_there_is_no_reply(ask: Api, said: str, expected: type[PerdureError]) -> None:
    last = chunk(finish=said)
    last["candidates"][0]["finishMessage"] = "Malformed function call: print(add("
    with pytest.raises(expected, match=r"print\(add\("):
        await ask(Reply(chunks=[last]))


def test_a_connection_and_a_status_that_is_none() -> None:
    def translated(error: Exception, reply_started: bool = False) -> PerdureError:
        return translate_error(error, reply_started=reply_started, endpoint="api.test", key_name="GEMINI_API_KEY")

    assert type(translated(aiohttp.ClientPayloadError("cut"), reply_started=True)) is TruncatedStreamError
    assert type(translated(aiohttp.ServerDisconnectedError())) is ProviderConnectionError
    assert type(translated(TimeoutError())) is ProviderTimeoutError
    over_a_socket = errors.APIError(None, {"error": {"message": "?"}})  # type: ignore[arg-type]
    assert type(translated(over_a_socket)) is ProviderServerError


async def test_every_finish_reason_of_the_sdk_has_an_outcome() -> None:
    from google.genai.types import FinishReason

    from perdure.providers.finish_reasons import ENDINGS

    assert {reason.value.lower() for reason in FinishReason} <= ENDINGS.keys()


async def test_a_refused_conversation_is_an_error(ask: Api) -> None:
    with pytest.raises(ContentFilterError, match="PROHIBITED_CONTENT"):
        await ask(Reply(chunks=[{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}]))


async def test_malformed_calls_of_a_filtered_reply_are_dropped(ask: Api) -> None:
    bad = {"functionCall": {"name": "add", "args": "{a"}}
    assert (await ask.reply(Reply(chunks=[chunk(bad, finish="SAFETY")]))).parts == ()
    for finish in ("STOP", "MAX_TOKENS"):
        completed = await ask.reply(Reply(chunks=[chunk(bad, finish=finish)]))
        assert completed.parts == (ToolCallPart(id="", name="add", malformed='"{a"'),)


def call(**fields: Any) -> dict[str, Any]:
    return {"functionCall": fields}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([call(name="pay"), call(args={"n": 5})], [{"n": 5}]),
        ([call(name="pay", args={}), call(name="", args={"n": 5}, id="x")], [{"n": 5}]),
        ([call(name="pay", args={"n": 5}), call(args={"n": 5}), call()], [{"n": 5}]),
        ([call(name="pay", args={"n": 5}), call(name="pay", args={"n": 5})], [{"n": 5}, {"n": 5}]),
        ([call(name="pay"), call(args={"n": 5}), call(name="pay"), call(args={"n": 6})], [{"n": 5}, {"n": 6}]),
        ([call(name="pay", args=[])], [{}]),
        ([call(name="pay", args='{"n": 5}')], [{"n": 5}]),
    ],
)
async def test_a_part_without_a_name_belongs_to_the_call_before_it(ask: Api, parts: Any, expected: Any) -> None:
    chunks = [*map(chunk, parts), chunk(finish="STOP")]
    *deltas, completed = await ask(Reply(chunks=chunks))
    assert isinstance(completed, Completed)
    calls = [part for part in completed.parts if isinstance(part, ToolCallPart)]
    assert [(part.name, part.arguments) for part in calls] == [("pay", each) for each in expected]
    assert {delta.index for delta in deltas if isinstance(delta, ToolCallDelta)} == set(range(len(expected)))


async def test_a_signature_of_a_part_without_a_name_stays(ask: Api) -> None:
    chunks = [chunk(call(name="pay")), chunk(call(args={"n": 5}) | {"thoughtSignature": "c2ln"}, finish="STOP")]
    [part] = (await ask.reply(Reply(chunks=chunks))).parts
    assert isinstance(part, ToolCallPart)
    assert part.opaque == {"thoughtSignature": "c2ln"}


@pytest.mark.parametrize("parts", [[call(args={"n": 5})], [call(name="pay", args={"n": 5}), call(args={"n": 6})]])
async def test_arguments_that_belong_to_no_call(ask: Api, parts: Any) -> None:
    with pytest.raises(MalformedReplyError, match="a function call without a name"):
        await ask(Reply(chunks=[*map(chunk, parts), chunk(finish="STOP")]))


async def test_lone_surrogates_are_cleaned(ask: Api) -> None:
    chunks = [chunk({"text": text}) for text in ("a\ud83d", "\ude00b", "\udc00")]
    chunks += [chunk({"functionCall": {"name": "add", "args": {"x": "\ud800"}}}, finish="STOP")]
    completed = await ask.reply(Reply(chunks=chunks))
    assert completed.parts == (TextPart(text="a😀b�"), ToolCallPart(id="", name="add", arguments={"x": "�"}))


async def test_the_key_may_have_googles_other_name(ask: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ask.another(api_key=None) as mine:
        for name, key in (("GOOGLE_API_KEY", "one"), ("GEMINI_API_KEY", "two")):
            monkeypatch.setenv(name, key)
            assert await mine()
        assert [headers["x-goog-api-key"] for headers in ask.server.headers] == ["one", "two"]
        monkeypatch.delenv("GEMINI_API_KEY")
        refused = error(400, "API key not valid.", "INVALID_ARGUMENT", reason("API_KEY_INVALID"))
        with pytest.raises(AuthenticationError, match="GOOGLE_API_KEY"):
            await mine(refused)


async def test_without_aiohttp_the_sdk_uses_its_own_connections(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.genai import _api_client

    monkeypatch.setattr(_api_client, "has_aiohttp", False)
    async with api.another() as ask:
        assert (await ask.reply("one two")).parts == (TextPart(text="one two"),)
        with pytest.raises(OverloadedError):
            await ask(error(503, "The model is overloaded.", "UNAVAILABLE"))
        with pytest.raises(TruncatedStreamError):
            await ask(Reply(text="one two three four five", cut_after=300))
        ask.server.rule = lambda _: Reply(text="one two three", hang=ask.server.release, hang_after=2)
        stream = ask.provider.stream(ask.hi)
        assert await anext(stream) == TextDelta("one ")
        await stream.aclose()
        await ask("again")
        assert ask.server.stats.aborted == 2


PNG = b"\x89PNG"
BLOB = BlobRef(hash=hashlib.sha256(PNG).hexdigest(), size=len(PNG))
SKIP = "skip_thought_signature_validator"
OLD = "gemini-2.5-flash"


def texts(*parts: str) -> list[dict[str, str]]:
    return [{"text": part} for part in parts]


async def test_the_whole_request(ask: Api) -> None:
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


async def test_roles_and_what_is_put_together(ask: Api) -> None:
    call = ToolCallPart(id="c1", name="add", arguments={"a": 1})
    bad = ToolCallPart(id="c2", name="add", malformed="{a")
    sent = await ask.sent(
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


async def test_what_a_reply_carried_goes_back_on_the_same_parts(ask: Api) -> None:
    calls = [Call("add", {"a": 1}, signature="c2lnMQ=="), Call("add", {"a": 2}, id=None)]
    reply = await ask.reply(Reply(thinking="so so", text="I add.", signature="dGV4dA==", calls=calls))
    parts = [
        part.model_copy(update={"id": f"mine{n}"}) if isinstance(part, ToolCallPart) else part
        for n, part in enumerate(reply.parts)
    ]
    ids = [part.id for part in parts if isinstance(part, ToolCallPart)]
    sent = await ask.sent(Message.user("hi"), said(*parts), tool(*map(result, ids)))
    assert sent[1]["parts"] == [
        {"text": "so so", "thought": True},
        {"text": "I add."},
        {"text": "", "thoughtSignature": "dGV4dA=="},
        {"functionCall": {"id": ids[0], "name": "add", "args": {"a": 1}}, "thoughtSignature": "c2lnMQ=="},
        {"functionCall": {"id": ids[1], "name": "add", "args": {"a": 2}}},
    ]


async def test_what_another_provider_gave_is_left_out(ask: Api) -> None:
    opaque = {"thoughtSignature": "Zm9yZWlnbg=="}
    for origin in ("anthropic", "google", None):
        parts = (
            ThinkingPart(text="hm", provider=origin, opaque=opaque),
            OpaquePart(provider=origin or "x", data={"text": "", **opaque}),
            TextPart(text="well", provider=origin, opaque=opaque),
            ToolCallPart(id="toolu_1", name="add", provider=origin, opaque=opaque),
        )
        sent = await ask.sent(Message.user("hi"), said(*parts), tool(result("toolu_1")))
        call = {"functionCall": {"id": "toolu_1", "name": "add", "args": {}}, "thoughtSignature": SKIP}
        assert sent[1]["parts"] == [{"text": "well"}, call]


async def test_only_models_that_want_a_signature_are_given_the_dummy(ask: Api) -> None:
    messages = (Message.user("hi"), said(ToolCallPart(id="c", name="add")), tool(result("c")))
    for model, signed in ((OLD, False), (MODEL, True), ("gemini-flash-latest", True), ("gemma-3-27b-it", False)):
        sent = await ask.sent(*messages, model=model)
        assert ("thoughtSignature" in sent[1]["parts"][0]) == signed


async def test_files_go_as_they_can(ask: Api) -> None:
    files = (
        FilePart(media_type="image/png", blob=BLOB),
        FilePart(media_type="application/pdf", data=base64.b64encode(b"%PDF").decode()),
        FilePart(media_type="video/mp4", url="https://files.test/a.mp4"),
        FilePart(media_type="application/x-foo", name="a.foo", blob=BLOB),
        FilePart(media_type="text/csv", name="a.csv", data=base64.b64encode(b"a,b").decode()),
    )
    sent = await ask.sent(Message(role="user", parts=files), files={BLOB.hash: PNG})
    assert sent[0]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}},
        {"inlineData": {"mimeType": "application/pdf", "data": base64.b64encode(b"%PDF").decode()}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "https://files.test/a.mp4"}},
        {"text": "[file a.foo (application/x-foo, 4 bytes): this model cannot read it]"},
        {"text": "[file a.csv (text/csv, 3 bytes)]\na,b"},
    ]


async def test_a_media_type_may_have_capitals_and_parameters(ask: Api) -> None:
    data = base64.b64encode(PNG).decode()
    sent = {"inlineData": {"mimeType": "image/png", "data": data}}
    picture = FilePart(media_type="IMAGE/PNG; q=1", data=data)
    call = ToolCallPart(id="c1", name="look")
    messages = [
        Message(role="user", parts=(picture,)),
        said(call),
        tool(result("c1", "Here.", "look", files=(picture,))),
    ]
    asked, _, answered = await ask.sent(*messages, tools=[ToolSpec("look", "Looks.", {"type": "object"})])
    assert asked["parts"] == [sent]
    assert answered["parts"][0]["functionResponse"]["parts"] == [sent]


@pytest.mark.parametrize(
    "messages",
    [[], [Message.user("")], [Message.user("a"), Message.assistant("b")], [Message.assistant("b"), Message.user("")]],
)
async def test_the_last_content_is_the_users(ask: Api, messages: list[Message]) -> None:
    """The API refuses a request that ends with the model's, and one without any content."""
    assert (await ask.sent(*messages))[-1] == {"role": "user", "parts": [{"text": "Go on."}]}


async def test_files_of_results(ask: Api) -> None:
    png = FilePart(media_type="image/png", name="a.png", blob=BLOB)
    film = FilePart(media_type="video/mp4", url="https://files.test/a.mp4")
    calls = said(ToolCallPart(id="c1", name="add"), ToolCallPart(id="c2", name="add"))
    messages = (Message.user("hi"), calls, tool(result("c1", files=(png, film))), tool(result("c2")))
    data = base64.b64encode(PNG).decode()
    inside = {"inlineData": {"mimeType": "image/png", "data": data, "displayName": "a.png"}}
    address = {"fileData": {"mimeType": "video/mp4", "fileUri": "https://files.test/a.mp4"}}

    _, _, answered, moved = await ask.sent(*messages, files={BLOB.hash: PNG})
    assert [part["functionResponse"].get("parts") for part in answered["parts"]] == [[inside], None]
    assert moved["parts"] == [*texts("[file from the result of add, call c1]"), address]

    _, _, answered, moved = await ask.sent(*messages, Message.user("so?"), model=OLD, files={BLOB.hash: PNG})
    assert [part["functionResponse"].get("parts") for part in answered["parts"]] == [None, None]
    picture = {"inlineData": {"mimeType": "image/png", "data": data}}
    assert moved["parts"] == [*texts("[files from the result of add, call c1]"), picture, address, *texts("so?")]


async def test_a_message_is_encoded_once_for_a_kind_of_model(ask: Api) -> None:
    message = Message.user("hi")
    await ask.sent(message)
    message.remember_wire(f"google:{ORIGIN}:3", b'{"text":"from memory"}')
    assert (await ask.sent(message))[0]["parts"] == texts("from memory")
    assert (await ask.sent(message, model=OLD))[0]["parts"] == texts("hi")


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
async def test_how_much_to_think(ask: Api, model: str, effort: str | None, expected: Any) -> None:
    await ask(request=ModelRequest(model, [Message.user("hi")], settings={"reasoning_effort": effort}))
    assert ask.server.requests[0].get("generationConfig", {}).get("thinkingConfig") == expected


def test_generations() -> None:
    assert parse_gemini_version("models/gemini-2.5-pro-preview") == 2.5
    assert parse_gemini_version("tunedModels/mine") == 0


async def test_options_may_say_how_to_think(ask: Api) -> None:
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
        (
            {"reasoning_effort": "low"},
            {"generationConfig": {"thinkingConfig": "low"}},
            "'thinkingConfig'.* must be a dict",
        ),
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


def test_results_are_sent_in_the_order_of_their_calls() -> None:
    calls = said(ToolCallPart(id="a", name="add"), ToolCallPart(id="b", name="get"))
    results = tool(result("b", name="get"), result("a", name="add"))
    body = json.loads(
        encode_request(ModelRequest("gemini-3-pro", [Message.user("hi"), calls, results]), origin="google")
    )
    assert [part["functionResponse"]["id"] for part in body["contents"][2]["parts"]] == ["a", "b"]


async def test_a_gateway_may_end_the_stream_as_openai_does(ask: Api) -> None:
    chunks = [b"data: " + json.dumps(chunk({"text": "Hello."}, finish="STOP")).encode() + b"\n\n", b"data: [DONE]\n\n"]
    assert (await ask.reply(Reply(chunks=chunks))).parts == (TextPart(text="Hello."),)
    with pytest.raises(TruncatedStreamError):
        await ask(
            Reply(chunks=[b"data: " + json.dumps(chunk({"text": "Hel"})).encode() + b"\n\n", b"data: [DONE]\n\n"])
        )
