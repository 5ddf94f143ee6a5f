"""What goes out to the Responses API, past a server that refuses what the real one refuses."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from perdure.errors import BadRequestError, SettingsError
from perdure.ports import Completed, ModelRequest, ToolSpec
from perdure.providers import check_settings
from perdure.providers.openai_responses import OpenAIResponses
from perdure.types.messages import (
    BlobRef,
    FilePart,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from tests.servers.model_server import Call, Reply, ResponsesServer
from tests.servers.responses import ENCRYPTED, message, reasoning
from tests.unit.providers.conftest import KEY

ORIGIN = "openai-responses@127.0.0.1"
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PNG = b"\x89PNG\r\n\x1a\n\0"
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}

Reach = Callable[..., Awaitable[Message]]


@pytest.fixture
async def server() -> AsyncIterator[ResponsesServer]:
    async with ResponsesServer() as running:
        yield running


@pytest.fixture
async def provider(server: ResponsesServer) -> AsyncIterator[OpenAIResponses]:
    made = OpenAIResponses(base_url=server.base_url, api_key=KEY)
    yield made
    await made.aclose()


@pytest.fixture
def reach(server: ResponsesServer, provider: OpenAIResponses) -> Reach:
    """Ask once, with the server answering ``reply``; the message that the reply is."""

    async def run(messages: list[Message], reply: Any = "Fine.", model: str = "gpt-test", **fields: Any) -> Message:
        server.rule = lambda _: reply
        request = ModelRequest(model, messages, **fields)
        *_, completed = [event async for event in provider.stream(request)]
        assert isinstance(completed, Completed)
        return Message(role="assistant", parts=completed.parts, finish_reason=completed.finish_reason)

    return run


def results(said: Message, *contents: str) -> Message:
    pairs = zip(said.tool_calls, contents, strict=True)
    return Message(role="tool", parts=tuple(ToolResultPart(call_id=c.id, name=c.name, content=t) for c, t in pairs))


async def test_the_whole_request(reach: Reach, server: ResponsesServer) -> None:
    settings = {"temperature": 0.2, "top_p": 1, "max_tokens": 99, "metadata": {"a": "b"}, "reasoning_effort": "low"}
    options = {
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"summary": "auto"},
        "include": ["web_search_call.action.sources"],
        "tools": [{"type": "web_search"}],
    }
    said = [Message.user("hi")]
    more = {"system": "be brief", "tools": [ADD], "tool_choice": "add"}
    await reach(said, settings=settings, provider_options=options, **more)
    assert server.requests == [
        {
            "model": "gpt-test",
            "stream": True,
            "store": False,
            "include": [ENCRYPTED, "web_search_call.action.sources"],
            "tools": [
                {
                    "type": "function",
                    "name": "add",
                    "description": "Adds.",
                    "parameters": ADD.parameters,
                    "strict": False,
                },
                {"type": "web_search"},
            ],
            "tool_choice": {"type": "function", "name": "add"},
            "temperature": 0.2,
            "top_p": 1,
            "max_output_tokens": 99,
            "metadata": {"a": "b"},
            "reasoning": {"effort": "low", "summary": "auto"},
            "parallel_tool_calls": False,
            "prompt_cache_key": "k",
            "instructions": "be brief",
            "input": [{"type": "message", "role": "user", "content": "hi"}],
        }
    ]


async def test_reasoning_goes_back_before_its_item_and_the_input_only_grows(
    reach: Reach, server: ResponsesServer
) -> None:
    replies = [
        Reply("I add.", calls=[Call("add", {"a": 1}), Call("add", '{"a": 2}')], thinking=["Hm."]),
        Reply(calls=[Call("add", '{"b":2,"a":{"d":1,"e":"é"}}')], reasons=True),
        Reply(content=[reasoning("Search."), SEARCH, reasoning("Say."), message("6", phase="final_answer")]),
        "Bye.",
    ]
    said = [Message.user("Add.")]
    for reply in replies:
        answer = await reach(said, reply, system="s", tools=[ADD])
        said.append(answer)
        said.append(results(answer, *("ok" for _ in answer.tool_calls)) if answer.tool_calls else Message.user("And?"))
    kinds = [item["type"] for item in server.requests[-1]["input"]]
    assert kinds == [
        *("message", "reasoning", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "reasoning", "function_call", "function_call_output"),
        *("reasoning", "web_search_call", "reasoning", "message", "message"),
    ]
    first = server.requests[-1]["input"][3]
    assert (first["id"][:3], first["status"], first["arguments"]) == ("fc_", "completed", '{"a":1}')
    assert server.requests[-1]["input"][4]["arguments"] == '{"a": 2}'
    assert server.requests[-1]["input"][8]["arguments"] == '{"b":2,"a":{"d":1,"e":"é"}}'
    assert said[3].tool_calls[0].opaque is not None
    assert said[3].tool_calls[0].opaque["keys"] == ["b", "a"]
    assert server.requests[-1]["input"][-2]["phase"] == "final_answer"
    for before, after in zip(server.bodies, server.bodies[1:], strict=False):
        assert after.startswith(before.removesuffix(b"]}"))
    assert server.stats.refused == 0


async def test_what_another_model_gave_goes_without_its_reasoning_and_ids(
    reach: Reach, server: ResponsesServer
) -> None:
    said = [Message.user("Add.")]
    said.append(await reach(said, Reply("I add.", calls=[Call("add", {"a": 1}, id="c1")], reasons=True), tools=[ADD]))
    said.append(results(said[1], "1"))
    await reach(said, model="gpt-other")
    assert server.requests[-1]["input"][1:] == [
        {"type": "message", "role": "assistant", "content": "I add."},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
    ]
    await reach(said)  # and the first model has its own again
    assert [item["type"] for item in server.requests[-1]["input"]][1:3] == ["reasoning", "message"]
    assert server.stats.refused == 0, "nothing was sent that had to be left out of a second request"


async def test_what_another_provider_gave_goes_without_what_is_opaque(reach: Reach, server: ResponsesServer) -> None:
    foreign = {"provider": "anthropic", "opaque": {"signature": "x"}}
    call = ToolCallPart(id="toolu_" + "x" * 90, name="search.the web", arguments={"q": "é"}, **foreign)
    parts = (
        ThinkingPart(text="hm", **foreign),
        OpaquePart(provider="anthropic", data={"type": "redacted_thinking"}),
        TextPart(text="Well, ", **foreign),
        TextPart(text="let us see."),
        call,
        ToolCallPart(id="c2", name="add", malformed="{a"),
    )
    answer = Message(role="assistant", parts=parts)
    alone = Message(role="assistant", parts=(ThinkingPart(text="only", **foreign),))
    await reach([Message.user("hi"), answer, results(answer, "1", "not JSON"), alone, Message.user("go on")])
    call_id = server.requests[0]["input"][2]["call_id"]
    assert len(call_id) <= 64
    assert server.requests[0]["input"] == [
        {"type": "message", "role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "content": "Well, let us see."},
        {"type": "function_call", "call_id": call_id, "name": "search_the_web", "arguments": '{"q":"é"}'},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": call_id, "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": "not JSON"},
        {"type": "message", "role": "user", "content": "go on"},
    ]


async def test_reasoning_that_cannot_go_back_stays_here(reach: Reach, server: ResponsesServer) -> None:
    """A reply that ended in its reasoning, and reasoning that came without its encrypted content."""
    said = [Message.user("Think.")]
    cut = Reply(content=[message("Well"), reasoning("hm")], finish_reason="max_output_tokens")
    said += [await reach(said, cut), Message.user("Go on.")]
    unsealed = reasoning("hm") | {"encrypted_content": None}
    said += [await reach(said, Reply(content=[unsealed, message("42")])), Message.user("And?")]
    opened = reasoning(content=["openly"]) | {"encrypted_content": None, "status": "completed"}
    said += [await reach(said, Reply(content=[opened, message("43")])), Message.user("And?")]
    await reach(said)
    items = server.requests[-1]["input"]
    assert [item["type"] for item in items] == ["message"] * 5 + ["reasoning"] + ["message"] * 2
    assert "id" in items[1]
    assert "id" not in items[3]
    assert items[5].keys() == {"id", "type", "summary", "content"}


async def test_a_refusal_goes_back_as_one(reach: Reach, server: ResponsesServer) -> None:
    said = [Message.user("hi")]
    said += [await reach(said, Reply(refusal="No.")), Message.user("please")]
    await reach(said)
    assert server.requests[-1]["input"][1]["content"] == [{"type": "refusal", "refusal": "No."}]


async def test_a_model_that_does_not_reason_is_asked_without_encryption(provider: OpenAIResponses) -> None:
    async with ResponsesServer("Hi.", plain_models={"gpt-plain"}) as server:
        provider._base_url = server.base_url
        request = ModelRequest("gpt-plain", [Message.user("hi")])
        for _ in range(2):
            assert [event async for event in provider.stream(request)]
        assert ["include" in asked for asked in server.requests] == [False, False]
        assert server.stats.refused == 1  # and not once for every call
        asking = ModelRequest("gpt-plain", [Message.user("hi")], provider_options={"include": [ENCRYPTED]})
        with pytest.raises(BadRequestError, match="not supported"):
            [event async for event in provider.stream(asking)]


async def test_reasoning_that_the_api_cannot_read_any_more_is_given_up(reach: Reach, server: ResponsesServer) -> None:
    said = [Message.user("hi")]
    lost = reasoning("hm") | {"encrypted_content": "gAAAAlost"}
    said += [await reach(said, Reply(content=[lost, message("42")])), Message.user("And?")]
    assert (await reach(said)).text == "Fine."
    assert server.stats.refused == 1
    assert server.requests[-1]["input"][1] == {"type": "message", "role": "assistant", "content": "42"}


async def test_files_of_a_user_and_of_a_result(reach: Reach, server: ResponsesServer) -> None:
    blob = BlobRef(hash="ab" * 32, size=len(PNG))
    pdf = FilePart(media_type="application/pdf", name="a.pdf", data=base64.b64encode(b"%PDF").decode())
    files = (
        FilePart(media_type="image/png", blob=blob),
        FilePart(media_type="image/jpeg", url="https://x.test/a.jpg"),
        pdf,
        FilePart(media_type="application/pdf", url="https://x.test/a.pdf", name="a.pdf"),
        FilePart(media_type="text/csv", data=base64.b64encode(b"a,b").decode()),
        FilePart(media_type="audio/wav", name="a.wav", data=base64.b64encode(b"RIFF").decode()),
    )
    call = ToolCallPart(id="c1", name="draw")
    drawn = ToolResultPart(call_id="c1", name="draw", content="Here.", files=(files[0], pdf))
    said = [
        Message(role="user", parts=(TextPart(text="Look."), *files)),
        Message(role="assistant", parts=(call,)),
        Message(role="tool", parts=(drawn,)),
    ]
    await reach(said, files={blob.hash: PNG})
    picture = {
        "type": "input_image",
        "detail": "auto",
        "image_url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}",
    }
    paper = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}
    assert server.requests[0]["input"][0]["content"] == [
        {"type": "input_text", "text": "Look."},
        picture,
        {"type": "input_image", "detail": "auto", "image_url": "https://x.test/a.jpg"},
        paper,
        {"type": "input_file", "file_url": "https://x.test/a.pdf"},
        {"type": "input_file", "filename": "file.csv", "file_data": "data:text/csv;base64,YSxi"},
        {"type": "input_text", "text": "[file a.wav (audio/wav, 4 bytes): this model cannot read it]"},
    ]
    assert server.requests[0]["input"][2]["output"] == [{"type": "input_text", "text": "Here."}, picture, paper]


async def test_a_message_is_encoded_once_for_a_model(reach: Reach, server: ResponsesServer) -> None:
    said = [Message.user("hi")]
    said.append(await reach(said))
    said.append(Message.user("more"))
    await reach(said)
    kept = said[1].wire(f"openai-responses {ORIGIN} gpt-test")
    assert kept is not None
    assert kept in server.bodies[1]
    said[1].remember_wire(f"openai-responses {ORIGIN} gpt-test", b'{"role":"assistant","content":"from memory"}')
    await reach(said)
    assert server.requests[-1]["input"][1]["content"] == "from memory"


async def test_content_that_was_not_loaded_is_refused(reach: Reach) -> None:
    part = TextPart(blob=BlobRef(hash="ab" * 32, size=9))
    with pytest.raises(BadRequestError, match="not loaded"):
        await reach([Message(role="user", parts=(part,))])


async def test_the_servers_rules_reach_the_caller(reach: Reach) -> None:
    with pytest.raises(BadRequestError, match="c1"):
        await reach([Message.user("hi"), Message.assistant("", ToolCallPart(id="c1", name="add"))])


def test_the_origin_names_the_host() -> None:
    assert OpenAIResponses(base_url="https://api.openai.com/v1").origin == "openai-responses"
    assert OpenAIResponses(base_url="https://x.openai.azure.com/openai/v1").origin.endswith("@x.openai.azure.com")


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"stop": "x"}, {}, "has no setting 'stop'"),
        ({"max_tokens": 5}, {}, "at least 16"),
        ({"metadata": {"a": 1}}, {}, "texts"),
        ({}, {"input": []}, "perdure sets it"),
        ({}, {"store": True}, "perdure sets it"),
        ({}, {"previous_response_id": "resp_1"}, "the transcript sets it"),
        ({"max_tokens": 99}, {"max_output_tokens": 99}, "max_tokens"),
        ({"temperature": 1}, {"temperature": 1}, "temperature"),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "high"}}, "reasoning_effort"),
        ({}, {"reasoning": "high"}, "is a dict"),
        ({}, {"tools": [{"type": "function", "name": "x"}]}, "tool of the agent"),
        ({}, {"tools": [{"type": "computer_use_preview"}]}, "run by the caller"),
        ({}, {"tools": ["web_search"]}, "objects with a type"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        check_settings("openai-responses", settings, options)


def test_settings_that_go_together() -> None:
    settings = {"reasoning_effort": "low", "max_tokens": 16, "temperature": None, "metadata": {"a": "b"}}
    options = {"reasoning": {"summary": "auto"}, "tools": [{"type": "web_search"}], "include": [ENCRYPTED]}
    check_settings("openai-responses", settings, options)
