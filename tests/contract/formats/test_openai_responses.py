"""What only the Responses API has: items, encrypted reasoning, what goes out in full."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.errors import BadRequestError, SettingsError
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from perdure.providers import check_settings, encoding
from perdure.providers.openai_responses import OpenAIResponses
from perdure.providers.openai_responses_request import read_item
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
from tests.servers.responses import ENCRYPTED, function_call, message, reasoning
from tests.support.adapters import ADD, KEY, Api

ADAPTER = "openai-responses"

ORIGIN = "openai-responses@127.0.0.1"
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}


def whole(events: list[StreamEvent]) -> Completed:
    assert isinstance(events[-1], Completed)
    return events[-1]


async def test_text_streams_and_completes(ask: Api) -> None:
    events = await ask(Reply("Hello wörld.", phase="final_answer"))
    assert [d.text for d in events if isinstance(d, TextDelta)] == ["Hello ", "wörld."]
    completed = whole(events)
    (part,) = completed.parts
    assert isinstance(part, TextPart)
    assert (part.text, part.provider) == ("Hello wörld.", ORIGIN)
    assert part.opaque is not None
    assert part.opaque.pop("id").startswith("msg_")
    assert part.opaque == {"model": "gpt-test", "status": "completed", "phase": "final_answer"}
    assert (completed.finish_reason, completed.model) == ("stop", "gpt-test")


async def test_reasoning_is_kept_whole_and_its_summary_is_shown(ask: Api) -> None:
    events = await ask(Reply("42", thinking=["First this.", "Then that."]))
    assert "".join(d.text for d in events if isinstance(d, ThinkingDelta)) == "First this.\n\nThen that."
    thought, text = whole(events).parts
    assert isinstance(thought, ThinkingPart)
    assert (thought.text, thought.provider) == ("First this.\n\nThen that.", ORIGIN)
    assert thought.opaque is not None
    assert thought.opaque["model"] == "gpt-test"
    assert thought.opaque["item"]["encrypted_content"].startswith("gAAAA")
    assert [part["text"] for part in thought.opaque["item"]["summary"]] == ["First this.", "Then that."]
    assert isinstance(text, TextPart)


async def test_open_reasoning_is_shown_too(ask: Api) -> None:
    events = await ask(Reply(content=[reasoning(content=["Let ", "me see."]), message("42")]))
    assert "".join(d.text for d in events if isinstance(d, ThinkingDelta)) == "Let me see."
    assert whole(events).parts[0].text == "Let me see."  # type: ignore[union-attr]  # it is a ThinkingPart


async def test_parallel_calls_stream_and_complete(ask: Api) -> None:
    calls = [Call("add", {"a": 1}, id="call_1"), Call("note", '{"text": "é\\n"}', id="call_2")]
    events = await ask(Reply("both", calls=calls, reasons=True))
    completed = whole(events)
    assert completed.finish_reason == "tool_calls"
    assert [part.type for part in completed.parts] == ["thinking", "text", "tool_call", "tool_call"]
    first, second = (part for part in completed.parts if isinstance(part, ToolCallPart))
    assert (first.id, first.name, first.arguments) == ("call_1", "add", {"a": 1})
    assert (second.id, second.arguments) == ("call_2", {"text": "é\n"})
    assert first.opaque is not None
    assert second.opaque is not None
    assert "arguments" not in first.opaque
    assert second.opaque["arguments"] == '{"text": "é\\n"}'  # blanks as the model wrote them
    deltas = [d for d in events if isinstance(d, ToolCallDelta)]
    assert {(d.index, d.id, d.name) for d in deltas} == {(0, "call_1", "add"), (1, "call_2", "note")}
    assert "".join(d.arguments for d in deltas if d.index == 1) == '{"text": "é\\n"}'


async def test_arguments_that_come_at_once_are_streamed_once(ask: Api) -> None:
    item = function_call(Call("add", {"a": 1}, id="call_1"))
    added = {"type": "response.output_item.added", "output_index": 0, "item": item}
    done = {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": '{"a":1}'}
    end = {"type": "response.completed", "response": {"status": "completed", "output": [item]}}
    events = await ask(Reply(chunks=[added, done, end]))
    assert "".join(d.arguments for d in events if isinstance(d, ToolCallDelta)) == '{"a":1}'


async def test_a_gateway_s_word_for_the_last_event(ask: Api) -> None:
    item = function_call(Call("add", {"a": 1}, id="call_1"))
    completed = whole(await ask(Reply(chunks=[{"type": "response.done", "response": {"output": [item]}}])))
    assert [(part.name, part.arguments) for part in completed.parts if isinstance(part, ToolCallPart)] == [
        ("add", {"a": 1})
    ]


async def test_items_of_built_in_tools_and_unknown_ones_are_kept(ask: Api) -> None:
    novel = {"id": "nv_1", "type": "novelty", "data": {"deep": [1, None, "\ud800"]}}
    cited = message("See there.", annotations=[{"type": "url_citation", "url": "https://x", "title": "X"}])
    completed = whole(await ask(Reply(content=[SEARCH, novel, cited])))
    search, unknown, text = completed.parts
    assert search == OpaquePart(provider=ORIGIN, data={"model": "gpt-test", "item": SEARCH})
    assert isinstance(unknown, OpaquePart)
    assert unknown.data["item"]["data"] == {"deep": [1, None, "�"]}
    assert isinstance(text, TextPart)
    assert text.opaque is not None
    assert text.opaque["annotations"][0]["url"] == "https://x"


async def test_a_search_that_was_broken_off_is_dropped(ask: Api) -> None:
    completed = whole(await ask(Reply(content=[reasoning("hm"), SEARCH], finish_reason="max_output_tokens")))
    assert [part.type for part in completed.parts] == ["thinking"]


async def test_the_items_count_where_the_end_has_no_output(ask: Api) -> None:
    completed = whole(await ask(Reply("both", calls=[Call("add")], reasons=True, final_output=False)))
    assert [part.type for part in completed.parts] == ["thinking", "text", "tool_call"]


async def test_a_connection_that_breaks_behind_the_end_does_not_matter(ask: Api) -> None:
    end = {"type": "response.completed", "response": {"status": "completed", "output": [message("x")]}}
    hanging = Reply(chunks=[end, b": comment\n\n"], hang=ask.server.release, hang_after=1)
    assert whole(await ask(hanging)).finish_reason == "stop"


async def test_a_connection_whose_stream_ends_a_little_later_serves_the_next_call(ask: Api) -> None:
    end = {"type": "response.completed", "response": {"status": "completed", "output": [message("x")]}}
    ended = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, ended.set)
    await ask(Reply(chunks=[end, b": comment\n\n"], hang=ended, hang_after=1))
    await ask("And?")
    assert ask.server.stats.completed == 2, "it hung up on the first"


def test_arguments_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(encoding, "parse_json", lambda text: parsed.append(text) or json.loads(text))
    for text, arguments in (('{"b":1,"a":2}', {"b": 1, "a": 2}), (" ", {})):
        item = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": text}
        (call,) = read_item(item, origin=ORIGIN, model="gpt-test")
        assert isinstance(call, ToolCallPart)
        assert (call.arguments, call.malformed) == (arguments, None)
    assert parsed == ['{"b":1,"a":2}']


PNG = b"\x89PNG\r\n\x1a\n\0"

Reach = Callable[..., Awaitable[Message]]


@pytest.fixture
def reach(api: Api) -> Reach:
    """Ask once, with the server answering ``reply``; the message that the reply is."""

    async def run(messages: list[Message], reply: Any = "Fine.", model: str = "gpt-test", **fields: Any) -> Message:
        completed = await api.reply(reply, ModelRequest(model, messages, **fields))
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


async def test_a_model_that_does_not_reason_is_asked_without_encryption() -> None:
    async with ResponsesServer("Hi.", plain_models={"gpt-plain"}) as server:
        provider = OpenAIResponses(base_url=server.base_url, api_key=KEY)
        request = ModelRequest("gpt-plain", [Message.user("hi")])
        for _ in range(2):
            assert [event async for event in provider.stream(request)]
        assert ["include" in asked for asked in server.requests] == [False, False]
        assert server.stats.refused == 1  # and not once for every call
        asking = ModelRequest("gpt-plain", [Message.user("hi")], provider_options={"include": [ENCRYPTED]})
        with pytest.raises(BadRequestError, match="not supported"):
            [event async for event in provider.stream(asking)]
        await provider.aclose()


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
        ({}, {"reasoning": "high"}, "must be a dict"),
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
