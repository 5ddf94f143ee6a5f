"""PARITY.md, parts C and D: what is streamed to the run's followers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from perdure import Agent, tool
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ToolCallDelta
from perdure.testing import ScriptedProvider, call
from perdure.types.events import ModelDelta, ToolCompleted, TurnEvent
from perdure.types.messages import TextPart, ToolCallPart, Usage
from tests.support.engine import Engine
from tests.support.following import all_of, assert_whole, next_of, shown
from tests.support.scripts import Gate, replied


class Decides:
    """Says something, then calls ``decide`` with arguments that come in pieces; the gates hold it after each."""

    pieces = ('{"verdict": "yes", "sco', 're": 9', "1}")

    def __init__(self) -> None:
        self.gates = [Gate() for _ in range(4)]

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        if replied(request):
            yield Completed((TextPart(text="Done."),), model=request.model)
            return
        yield TextDelta("I decide.")
        await self.gates[0]()
        for number, piece in enumerate(self.pieces):
            yield ToolCallDelta(0, "" if number else "c1", "" if number else "decide", piece)
            await self.gates[number + 1]()
        asked = ToolCallPart(id="c1", name="decide", arguments={"verdict": "yes", "score": 91})
        yield Completed((TextPart(text="I decide."), asked), model=request.model)


async def test_c7_content_calls_and_the_fields_so_far_are_streamed_and_then_the_whole(engine: Engine) -> None:
    """The arguments of a call are an object of which every field may be missing, until the reply is complete."""

    @tool
    def decide(verdict: str, score: int) -> str:
        """Decide."""
        return f"{verdict}, {score}"

    model = Decides()
    async with engine.served(Agent("judge", model, tools=[decide])) as client:
        run = await client.start("judge", "Yes or no?")
        events = run.events()
        chunks: list[tuple[Any, ...]] = []
        for gate in model.gates:
            delta = await next_of(events, "model.delta")
            assert isinstance(delta, ModelDelta)
            chunks.append((delta.kind, delta.name, delta.text, delta.partial))
            gate.open()
        done = await next_of(events, "model.completed")
    assert chunks == [
        ("text", "", "I decide.", None),
        ("tool_call", "decide", model.pieces[0], {"verdict": "yes"}),
        ("tool_call", "decide", model.pieces[1], {"verdict": "yes", "score": 9}),
        ("tool_call", "decide", model.pieces[2], {"verdict": "yes", "score": 91}),
    ]
    assert done.type == "model.completed"
    assert [one.arguments for one in done.calls] == [{"verdict": "yes", "score": 91}]


async def test_c8_text_is_streamed_first_and_the_tools_of_the_reply_run_behind_it(engine: Engine) -> None:
    model, ran = Decides(), []

    @tool
    async def decide(verdict: str, score: int) -> str:
        """Decide."""
        ran.append(score)
        return f"{verdict}, {score}"

    async with engine.served(Agent("judge", model, tools=[decide])) as client:
        run = await client.start("judge", "Yes or no?")
        events = run.events()
        for gate in model.gates:
            await next_of(events, "model.delta")
            assert not ran, "no tool runs before its reply is whole"
            gate.open()
        rest = shown(await all_of(events))
        response = await run.result()
    assert ran == [91]
    assert rest[:3] == ["model.completed", "tool.started", "tool.completed"]
    both = response.messages[1]
    assert (both.text, [one.name for one in both.tool_calls]) == ("I decide.", ["decide"])
    assert response.messages[2].tool_results[0].content == "yes, 91"


async def test_d2_every_event_has_the_conversation_and_the_turn_though_providers_know_neither(engine: Engine) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    class Streams(ScriptedProvider):
        """Text in a piece of its own, that the test has seen."""

        gate = Gate()

        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
            if replied(request):
                yield TextDelta("Se")
                await self.gate()
            async for event in super().stream(request):
                yield event

    model = Streams([call("look"), "Seen."])
    async with engine.served(Agent("looker", model, tools=[look])) as client:
        turn = await client.send("looker", "Look.", id=f"d2-{engine.task_queue}", task_id="task-7")
        following = turn.events()
        seen = [await anext(following)]
        while seen[-1].type != "model.delta":
            seen.append(await anext(following))
        model.gate.open()
        seen += await all_of(following)
        response = await turn.result()
    types = [event.type for event in seen]
    assert {"turn", "model.delta", "model.completed", "tool.started", "tool.completed"} <= set(types)
    assert {(event.context_id, event.task_id) for event in seen} == {(turn.run.id, "task-7")}
    assert_whole(seen, after=seen[0].seq - 1)
    [result] = [event for event in seen if isinstance(event, ToolCompleted)]
    assert (result.name, result.content, result.is_error) == ("look", "seen", False)
    ends = [event for event in seen if isinstance(event, TurnEvent)]
    assert [event.state for event in ends] == ["started", "completed"]
    assert ends[-1].usage == response.usage != Usage()
