from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import BadRequestError, RateLimitError
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import Message, TextPart, ThinkingPart, ToolCallPart


async def ask(provider: ScriptedProvider, text: str = "hi") -> list[StreamEvent]:
    return [event async for event in provider.stream(ModelRequest("m", [Message.user(text)]))]


async def test_each_request_gets_the_next_reply() -> None:
    provider = ScriptedProvider(["one two", call("f", name="x", id=3), ["both", call("f"), call("g")]])
    assert (await ask(provider))[:2] == [TextDelta("one "), TextDelta("two")]
    *deltas, last = await ask(provider)
    assert deltas == [ToolCallDelta(0, "call_1", "f", '{"name": "x", "id": 3}')]
    assert isinstance(last, Completed)
    assert (last.finish_reason, last.parts) == (
        "tool_calls",
        (ToolCallPart(id="call_1", name="f", arguments={"name": "x", "id": 3}),),
    )
    last = (await ask(provider))[-1]
    assert isinstance(last, Completed)
    assert [getattr(part, "id", None) for part in last.parts] == [None, "call_2", "call_3"]
    assert len(provider.requests) == 3


async def test_the_script_ends() -> None:
    provider = ScriptedProvider(["one"])
    await ask(provider)
    with pytest.raises(BadRequestError, match=r"1 reply, and the model was called 2 times.*last message: hi"):
        await ask(provider)


async def test_exceptions_and_whole_replies() -> None:
    whole = Completed((ThinkingPart(text="hm"), TextPart(text="x")), "length")
    provider = ScriptedProvider([RateLimitError("slow"), whole, ValueError("bug")])
    with pytest.raises(RateLimitError):
        await ask(provider)
    assert await ask(provider) == [ThinkingDelta("hm"), TextDelta("x"), whole]
    with pytest.raises(ValueError, match="bug"):
        await ask(provider)


async def test_replies_may_depend_on_the_request() -> None:
    async def later(request: ModelRequest) -> Any:
        return [call("f", said=request.messages[-1].text)]

    provider = ScriptedProvider([lambda request: request.messages[-1].text.upper(), later])
    assert (await ask(provider, "hi"))[0] == TextDelta("HI")
    assert (await ask(provider, "ho"))[0] == ToolCallDelta(0, "call_1", "f", '{"said": "ho"}')


async def test_one_function_for_all() -> None:
    provider = ScriptedProvider(lambda request: request.model)
    assert [len(await ask(provider)) for _ in range(3)] == [2, 2, 2]
