"""What servers make of a streamed reply, and what becomes of the turn: each call runs once or not at all, a reply that
broke is asked for again, and the model hears of a call that the output limit cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import Agent, Client, Limits, Response, Run, tool
from perdure.errors import OutputLimitError, ProviderServerError
from perdure.ports.model import Completed, ModelRequest, Provider
from perdure.providers import Anthropic, Google, OpenAIChat, OpenAIResponses, register_provider, registry
from perdure.testing import ScriptedProvider, call
from perdure.types.events import ModelCompleted
from perdure.types.interface import FINISH_TOOL
from perdure.types.messages import TextPart, ThinkingPart, ToolCallPart
from tests.servers.google import chunk as google_chunk
from tests.servers.model_server import AnthropicServer, GoogleServer, OpenAIServer, Reply, ResponsesServer
from tests.support.commands import Commands
from tests.support.engine import Engine


@pytest.fixture(autouse=True)
def providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Providers that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(registry, "_providers", {})


def use(provider: Provider, model: str = "gpt-test") -> str:
    """Register ``provider``; its model."""
    register_provider("served", provider)
    return f"served:{model}"


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def entry(arguments: Any, id: Any = ..., name: Any = "pay", index: Any = 0) -> dict[str, Any]:
    function = {"arguments": arguments} | ({} if name is ... else {"name": name})
    fields = {"index": index, "id": id, "function": function}
    return {key: value for key, value in fields.items() if value is not ...}


def stream(*pieces: dict[str, Any], finish: str = "tool_calls") -> list[dict[str, Any]]:
    return [*(delta(tool_calls=[piece]) for piece in pieces), delta(finish)]


class Till:
    """A tool with effects, and what it was paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []

        @tool
        def pay(amount: int = 1) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        self.tool = pay


async def ask(client: Client, message: str) -> Response:
    """What agent ``a`` answers."""
    return await (await client.start("a", message)).result()


def is_answered(request: dict[str, Any]) -> bool:
    """Whether the last message of a chat completion has a tool's result."""
    return bool(request["messages"][-1]["role"] == "tool")


FORMS: dict[str, tuple[Sequence[dict[str, Any]], list[int]]] = {
    "name and id in each piece": ([entry('{"amount"', "c1"), entry(": 5}", "c1"), entry("", "c1")], [5]),
    "name in each piece, id in the first": ([entry('{"amount"', "c1"), entry(": 5}"), entry("")], [5]),
    "name in each piece, then empty ids": ([entry('{"amount"', "c1"), entry(": 5}", ""), entry("", "")], [5]),
    "another id in each piece": ([entry('{"amount"', "c1"), entry(": 5}", "c2", ...)], [5]),
    "an empty piece with a new id behind it": ([entry('{"amount": 5}', "c1"), entry("", "c9", "")], [5]),
    "an empty object in front": ([entry("{}", "c1"), entry('{"amount"', ..., ...), entry(": 5}", ..., ...)], [5]),
    "the whole call again": ([entry('{"amount": 5}', "c1"), entry('{"amount": 5}', ..., "pay", 1)], [5]),
    "an equal call with an id of its own": ([entry('{"amount": 5}', "c1"), entry('{"amount": 5}', "c2")], [5, 5]),
    "one id and index 0 for all": ([entry(f'{{"amount": {n}}}', "call_0") for n in (5, 6, 7)], [5, 6, 7]),
    "no ids and index 0 for all": ([entry(f'{{"amount": {n}}}', "") for n in (5, 6, 7)], [5, 6, 7]),
    "one id for all": ([entry(f'{{"amount": {n}}}', "call_0", "pay", n) for n in (5, 6, 7)], [5, 6, 7]),
    "null as text": ([entry("null", "c1")], [1]),
    "an empty list": ([entry([], "c1")], [1]),
    "a text in a text": ([entry(json.dumps('{"amount": 5}'), "c1")], [5]),
}


async def test_each_call_of_a_streamed_chat_completion_runs_once(engine: Engine) -> None:
    till = Till()
    async with OpenAIServer() as api:
        agent = Agent("a", use(OpenAIChat(api.base_url, "k")), tools=[till.tool])
        async with engine.served(agent) as client:
            for name, (pieces, expected) in FORMS.items():
                till.paid.clear()
                chunks = stream(*pieces)
                api.rule = lambda request, chunks=chunks: "ok" if is_answered(request) else Reply(chunks=chunks)
                assert (await ask(client, "Pay.")).content == "ok", name
                assert sorted(till.paid) == expected, name
                [sent] = [one for one in api.requests[-1]["messages"] if one.get("tool_calls")]
                assert [json.loads(one["function"]["arguments"]) for one in sent["tool_calls"]] == [
                    {"amount": amount} if amount != 1 else {} for amount in expected
                ]


async def test_a_reply_that_broke_is_asked_for_again_and_its_calls_do_not_run(engine: Engine) -> None:
    till = Till()
    half = delta(content="The capital of Fra")
    ends = [delta(reason) for reason in ("error", "network_error", "something_new")]
    last = delta("stop")
    last["choices"][0]["error"] = {"code": 502, "message": "Upstream provider disconnected"}
    native = delta("stop")
    native["choices"][0]["native_finish_reason"] = "error"
    broken = [[half, end] for end in (*ends, last, native)]
    broken += [[delta(tool_calls=[entry('{"amount": 5}', "c1")]), end] for end in ends]
    async with OpenAIServer() as api:
        agent = Agent("a", use(OpenAIChat(api.base_url, "k")), tools=[till.tool], limits=Limits(attempts=2))
        async with engine.served(agent) as client:
            for chunks in broken:
                replies = iter([Reply(chunks=chunks), "The capital of France is Paris."])
                api.rule = lambda _, replies=replies: next(replies)
                assert (await ask(client, "Capital of France?")).content == "The capital of France is Paris."
            api.rule = lambda _: Reply(chunks=broken[0])
            with pytest.raises(ProviderServerError, match=r"broke off the reply \(error\)"):
                await ask(client, "Capital of France?")
    assert till.paid == []


async def test_a_call_of_gemini_whose_arguments_come_without_a_name(engine: Engine) -> None:
    till = Till()
    parts = [{"functionCall": {"name": "pay", "args": {}}}, {"functionCall": {"args": {"amount": 5}}}]
    chunks = [*map(google_chunk, parts), google_chunk(finish="STOP")]
    async with GoogleServer() as api:
        api.rule = lambda request: "ok" if "functionResponse" in str(request["contents"][-1]) else Reply(chunks=chunks)
        agent = Agent("a", use(Google(api.base_url, "k"), "gemini-3-pro"), tools=[till.tool])
        async with engine.served(agent) as client:
            assert (await ask(client, "Pay.")).content == "ok"
    assert till.paid == [5]


async def test_what_responses_streamed_and_left_out_of_its_last_event(engine: Engine) -> None:
    till = Till()
    item = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "pay", "arguments": ""}
    shared = {"output_index": 0, "item_id": "fc_1"}
    chunks: list[Any] = [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.function_call_arguments.delta", **shared, "delta": '{"amount"'},
        {"type": "response.function_call_arguments.delta", **shared, "delta": ": 5}"},
        {"type": "response.function_call_arguments.done", **shared, "arguments": '{"amount": 5}'},
    ]
    answers = [
        {"type": "response.output_text.delta", "output_index": 0, "delta": "o"},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "k"},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ]
    finals: list[list[dict[str, Any]]] = [
        [],  # nothing
        [item],  # without its arguments
        [item | {"arguments": '{"amount": 5}'}],
        [item | {"arguments": '{"amount":5}', "id": "fc_9", "call_id": "c9"}],  # other ids
        [item | {"arguments": '{"amount": 5}'}, item | {"arguments": '{"amount": 5}'}],  # twice
    ]
    async with ResponsesServer() as api:
        agent = Agent("a", use(OpenAIResponses(api.base_url, "k")), tools=[till.tool])
        async with engine.served(agent) as client:
            for output in finals:
                till.paid.clear()
                end = {"type": "response.completed", "response": {"status": "completed", "output": output}}
                replies = iter([Reply(chunks=[*chunks, end]), Reply(chunks=answers)])
                api.rule = lambda _, replies=replies: next(replies)
                assert (await ask(client, "Pay.")).content == "ok", output
                assert till.paid == [5], output


async def test_a_call_of_claude_with_an_empty_object_in_front_or_twice(engine: Engine) -> None:
    till = Till()
    for pieces in (["{}", '{"amount"', ": 5}"], ['{"amount": 5}', '{"amount": 5}'], ["null", '{"amount": 5}']):
        till.paid.clear()
        start = {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        block = [
            {"type": "content_block_start", "index": 0, "content_block": start},
            *({"type": "content_block_delta", "index": 0, "delta": each} for each in deltas),
        ]
        again = [{**each, "index": 1} for each in block]  # the block once more, under another index
        stop = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}
        chunks = [{"type": "message_start", "message": {}}, *block, *again, stop, {"type": "message_stop"}]
        async with AnthropicServer() as api:
            api.rule = lambda request, chunks=chunks: (
                "ok" if "tool_result" in str(request["messages"][-1]) else Reply(chunks=chunks)
            )
            agent = Agent("a", use(Anthropic(api.base_url, "k"), "claude-sonnet-4-6"), tools=[till.tool])
            async with engine.served(agent) as client:
                assert (await ask(client, "Pay.")).content == "ok"
        assert till.paid == [5]


async def test_done_without_a_finish_reason_is_an_end_where_the_provider_says_so(engine: Engine) -> None:
    chunks = [delta(content="Hello "), delta(content="there.")]
    async with OpenAIServer(lambda _: Reply(chunks=chunks)) as api:
        agent = Agent("a", use(OpenAIChat(api.base_url, "k", done_ends_reply=True)))
        async with engine.served(agent) as client:
            assert (await ask(client, "Hi.")).content == "Hello there."
    assert api.stats.requests == 1


# ---
# The output limit.


@tool
def write_file(path: str, content: str) -> str:
    """Write a file."""
    return "written"


def cut(text: str = "") -> Completed:
    """A reply whose call the output limit cut."""
    said = (TextPart(text=text),) if text else ()
    part = ToolCallPart(id="c1", name="write_file", malformed='{"path": "r.md", "content": "A very lo')
    return Completed((*said, part), "length")


def read_results(request: ModelRequest) -> list[str]:
    return [part.content for part in request.messages[-1].tool_results]


@pytest.mark.parametrize("text", ["", "I write the report into a file now."])
async def test_the_model_hears_of_its_cut_call_and_writes_less(engine: Engine, text: str) -> None:
    told: list[list[str]] = []

    def answer(request: ModelRequest) -> str:
        told.append(read_results(request))
        return "Done."

    def again(request: ModelRequest) -> Any:
        told.append(read_results(request))
        return call("write_file", path="r.md", content="Short.")

    agent = Agent("a", ScriptedProvider([cut(text), again, answer]), tools=[write_file])
    async with engine.served(agent) as client:
        run = await client.start("a", "Write the report.")
        assert (await run.result()).content == "Done."
        completed = [event async for event in run.events(wait=False) if isinstance(event, ModelCompleted)]
    [[first], second] = told
    assert "the output limit cut your reply within this call of write_file, which was not run" in first
    assert "38 characters of its arguments came. Write less, or in parts" in first
    assert second == ["written"]
    assert [event.finish_reason for event in completed] == ["length", "tool_calls", "stop"]


@pytest.mark.parametrize("reply", [cut(), cut("I write it now."), Completed((ThinkingPart(text="hm"),), "length")])
async def test_a_third_cut_reply_in_a_row_fails_the_turn(engine: Engine, reply: Completed) -> None:
    provider = ScriptedProvider([reply] * 9)
    async with engine.served(Agent("a", provider, tools=[write_file])) as client:
        with pytest.raises(OutputLimitError, match=r"the output limit cut 3 replies of agent 'a' in a row"):
            await ask(client, "Write the report.")
    assert len(provider.requests) == 3


async def test_cut_replies_with_others_between_them_do_not_add_up(engine: Engine) -> None:
    whole = call("write_file", path="r.md", content="Short.")
    replies = [cut(), cut(), whole, cut(), cut(), whole, "Done."]
    async with engine.served(Agent("a", ScriptedProvider(replies), tools=[write_file])) as client:
        assert (await ask(client, "Write the report.")).content == "Done."


async def test_a_whole_call_beside_a_cut_one_runs_and_both_have_results(engine: Engine) -> None:
    told: list[list[str]] = []
    whole = ToolCallPart(id="c0", name="write_file", arguments={"path": "a.md", "content": "Short."})
    both = Completed((whole, *cut().parts), "length")

    def answer(request: ModelRequest) -> str:
        told.append(read_results(request))
        return "Done."

    async with engine.served(Agent("a", ScriptedProvider([both, answer]), tools=[write_file])) as client:
        assert (await ask(client, "Write.")).content == "Done."
    [[first, second]] = told
    assert first == "written"
    assert "the output limit cut" in second


async def test_a_cut_finish_call_is_no_answer(engine: Engine) -> None:
    part = ToolCallPart(id="c1", name=FINISH_TOOL, malformed='{"numb')
    replies = [Completed((TextPart(text="Half."), part), "length"), call(FINISH_TOOL, value=42)]
    async with engine.served(Agent("a", ScriptedProvider(replies), output=int)) as client:
        assert (await ask(client, "How many?")).output == 42


async def test_the_command_line_says_that_the_output_limit_cut_a_reply(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(engine, monkeypatch)
    half = Completed((TextPart(text="The capital of Fra"),), "length")
    async with engine.served(Agent("a", ScriptedProvider([cut(), half]), tools=[write_file])) as client:
        run: Run = await client.start("a", "Write the report.", id="r")
        assert (await run.result()).finish_reason == "length"
        for command in ("show", "events"):
            shown = (await commands(command, "r")).out
            assert shown.count("(cut by the output limit)") == 2, shown
            assert "an empty reply" not in shown
