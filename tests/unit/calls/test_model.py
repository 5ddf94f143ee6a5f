"""The bare model call: what a paid reply must survive, and what an author's code must not stall."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from perdure import Agent, Compaction, Limits, RunContext, tool
from perdure.calls import prompt
from perdure.calls.agent_setup import AgentSetup
from perdure.calls.agents import Agents
from perdure.calls.author_loop import AuthorLoop
from perdure.calls.call import ConversationCall, ModelReply, RequestCall
from perdure.calls.iteration_hooks import HookRunner
from perdure.calls.model import ModelActivity
from perdure.calls.prompt import RequestBuilder
from perdure.calls.summary import SummaryStage
from perdure.calls.view import ViewStage
from perdure.errors import DefinitionError, ProviderTimeoutError, TruncatedStreamError
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta
from perdure.providers.fallback import ModelChain
from perdure.store.cache import ByteLRU
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import Message, TextPart, ThinkingPart, ToolCallPart, Usage
from perdure.types.tool_calls import ActivityCall, RefusedCall
from perdure.types.wire import CallFacts, CompactInput, ModelInput
from tests.unit.calls.build import iteration_stage

INPUT = ModelInput(agent="a", context_id="c", task_id="t", scope="s", op=3, iteration=1)


@pytest.fixture
def author() -> Any:
    loop = AuthorLoop()
    loop.start()
    yield loop
    loop.stop()


async def reply(agent: Agent, author: AuthorLoop, idle: float = 5.0) -> ModelReply:
    def chain(agent: Agent) -> ModelChain:
        return ModelChain(agent.chain, lambda model: model.own, idle=idle)  # type: ignore[arg-type,return-value]

    activity = ModelActivity(chain, lambda *_: None)  # type: ignore[arg-type]
    return await iteration_stage(agent, author).model(
        ConversationCall(input=INPUT, new_messages=[Message.user("Go.")]), activity.call
    )


@pytest.mark.parametrize(
    ("more", "asked"),
    [((), "ours"), (("google:gemini-2.5-pro",), "ours"), (("openai:other",), None)],
    ids=["one", "of a chain", "one of two of a provider"],
)
async def test_a_price_is_looked_for_by_the_name_that_was_asked_too(
    author: AuthorLoop, more: tuple[str, ...], asked: str | None
) -> None:
    looked: list[tuple[str, str, str | None]] = []

    def cost(provider: str, model: str, usage: Usage, asked: str | None) -> float:
        looked.append((provider, model, asked))
        return 0.5

    agent = Agent("a", ["openai:ours", *more])
    answer = Completed((TextPart(text="Done."),), model="ours-2026", provider="openai")
    activity = ModelActivity(lambda _: ScriptedProvider([answer]), cost)
    said = await iteration_stage(agent, author).model(
        ConversationCall(input=INPUT, new_messages=[Message.user("Go.")]), activity.call
    )
    assert said.output.cost_usd == 0.5
    assert looked == [("openai", "ours-2026", asked)]


async def test_a_summary_without_a_price_does_not_count_as_free(author: AuthorLoop) -> None:
    limits, way = Limits(cost_usd=1), Compaction.summarise(at=100, keep_last=0)
    agent = Agent("a", ScriptedProvider([]), limits=limits, compaction=way)
    setup = AgentSetup(Agents([agent]), author, HookRunner(author, None))
    stage = SummaryStage(setup, RequestBuilder(author), ViewStage(ByteLRU(1000)))
    prefix = [Message.user("Go."), Message.assistant("Gone."), Message.user("And?"), Message.assistant("Back.")]
    task = CompactInput(**{**INPUT.model_dump(include=set(CallFacts.model_fields)), "iteration": 2})

    async def summed(_: RequestCall) -> Message:
        return Message(
            role="assistant", parts=(TextPart(text="Short."),), model="ours-2026", usage=Usage(input_tokens=5)
        )

    with pytest.raises(DefinitionError, match="no price of 'ours-2026'"):
        await stage.compact(ConversationCall(input=task, head="h", prefix=prefix), summed)


@tool
def look(where: Any = None) -> str:
    """Look."""
    return "seen"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("arguments", [{"where": nested(300)}, {"where": "\udc80"}], ids=["deep", "lone"])
async def test_arguments_that_cannot_be_kept_are_malformed(author: AuthorLoop, arguments: dict[str, Any]) -> None:
    part = ToolCallPart.model_construct(id="1", name="look", arguments=arguments)
    answered = await reply(Agent("a", ScriptedProvider([Completed((part,))]), tools=[look]), author)
    (asked,) = answered.output.calls
    assert isinstance(asked.disposition, RefusedCall)
    assert "must be one JSON object" in asked.disposition.text
    answered.output.model_dump_json()
    assert answered.message is not None
    assert answered.message.tool_calls[0].malformed


async def test_texts_that_cannot_be_kept_are_mended(author: AuthorLoop) -> None:
    parts = (ThinkingPart(text="hm\udc80"), TextPart(text="ok\udc80"))
    answered = await reply(Agent("a", ScriptedProvider([Completed(parts)])), author)
    assert answered.message is not None
    assert [part.text for part in answered.message.parts if not isinstance(part, ToolCallPart)] == ["hm�", "ok�"]  # type: ignore[union-attr]


async def test_validators_of_an_author_run_on_the_authors_side(author: AuthorLoop) -> None:
    ran: list[threading.Thread] = []

    def check(value: int) -> int:
        ran.append(threading.current_thread())
        return value

    @tool
    def count(to: Annotated[int, AfterValidator(check)]) -> str:
        """Count."""
        return str(to)

    answered = await reply(Agent("a", ScriptedProvider([call("count", to=3)]), tools=[count]), author)
    assert isinstance(answered.output.calls[0].disposition, ActivityCall)
    assert ran
    assert threading.main_thread() not in ran
    assert (look.validates_by_code, count.validates_by_code) == (False, True)


async def test_instructions_are_text(author: AuthorLoop) -> None:
    def wrong(ctx: RunContext) -> Any:
        return 5

    provider = ScriptedProvider(["never asked"])
    with pytest.raises(DefinitionError, match="instructions of agent a returned int"):
        await reply(Agent("a", provider, instructions=wrong), author)
    assert provider.requests == []


async def test_instructions_are_mended_before_the_model_is_paid(author: AuthorLoop) -> None:
    provider = ScriptedProvider(["fine"])
    answered = await reply(Agent("a", provider, instructions=lambda _: "file \udc80"), author)
    assert (answered.system, provider.requests[0].system) == ("file �", "file �")


async def test_instructions_that_hang_are_named(author: AuthorLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "INSTRUCTIONS_TIMEOUT", 0.05)

    async def hang(ctx: RunContext) -> str:
        await asyncio.Event().wait()
        return ""

    with pytest.raises(TimeoutError, match="instructions of agent a did not return"):
        await reply(Agent("a", ScriptedProvider(["never"]), instructions=hang), author)


class Cut:
    """A provider whose stream stops early, or falls silent."""

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent
        self.closed = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        try:
            yield TextDelta("half a")
            if self.silent:
                await asyncio.Event().wait()
        finally:
            self.closed = True


@pytest.mark.parametrize(("silent", "error"), [(False, TruncatedStreamError), (True, ProviderTimeoutError)])
async def test_half_a_reply_counts_for_nothing(author: AuthorLoop, silent: bool, error: type[Exception]) -> None:
    provider = Cut(silent=silent)
    with pytest.raises(error):
        await reply(Agent("a", provider), author, idle=0.05)
    assert provider.closed
