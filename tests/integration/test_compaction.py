"""Compaction: views, summaries, calls that are refused as too long, and what may happen meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import pytest
from pydantic import Field

from perdure import Agent, Compaction, Message, Run, tool
from perdure.calls.summary import SUMMARY_PROMPT
from perdure.errors import AuthenticationError, ContextLengthError, RunCancelledError
from perdure.loop.compaction import WINDOW_NOTE_ID, estimate_tokens
from perdure.loop.transcript import SUMMARY_ID
from perdure.ports.model import Completed, ModelRequest
from perdure.testing import ScriptedProvider, at, call, scripted
from perdure.types.events import Event
from perdure.types.messages import TextPart, ToolCallPart, Usage
from tests.support.checks import assert_closed, users
from tests.support.engine import Engine
from tests.support.following import holding
from tests.support.scripts import Gate
from tests.support.wait import eventually

PAGE = "word " * 200


@tool(inline=True)
def read(page: int) -> str:
    """Read a page."""
    return f"page {page}: {PAGE}"


def is_summary(request: ModelRequest) -> bool:
    return SUMMARY_PROMPT in request.messages[-1].text


class Reader:
    """A model that reads so many pages and sums up when told to; one that takes ``most`` tokens, if that is said."""

    def __init__(self, pages: int, *, most: int | None = None, during: Callable[[], Any] | None = None) -> None:
        self.provider = ScriptedProvider(self.reply)
        self.summaries: list[ModelRequest] = []
        self.refused = 0
        self.pages = pages
        self.most = most
        self.during = during

    async def reply(self, request: ModelRequest) -> Any:
        tokens = estimate_tokens(request.messages)
        if self.most is not None and tokens > self.most:
            self.refused += 1
            return ContextLengthError(f"too long: {tokens} tokens")
        if is_summary(request):
            self.summaries.append(request)
            if self.during is not None:
                await self.during()
            return self._said(f"Pages up to {self.last_page(request)} were read.", tokens)
        page = self.last_page(request) + 1
        if page > self.pages:
            return self._said(f"All {self.pages} pages; the last thing said was: {users(request.messages)[-1]}", tokens)
        return self._said(ToolCallPart(id=f"call_{page}", name="read", arguments={"page": page}), tokens)

    def last_page(self, request: ModelRequest) -> int:
        """Of the results, or of the summary."""
        results = [part.content for message in request.messages for part in message.tool_results]
        texts = [*results, *(message.text for message in request.messages)]
        read = [text.partition("page ")[2].partition(":")[0] for text in texts if "page " in text]
        summed = [text.rpartition("Pages up to ")[2].partition(" ")[0] for text in texts if "Pages up to " in text]
        return max([0, *(int(number) for number in read + summed if number.isdigit())])

    def _said(self, part: str | ToolCallPart, tokens: int) -> Completed:
        said = TextPart(text=part) if isinstance(part, str) else part
        reason = "stop" if isinstance(part, str) else "tool_calls"
        return Completed((said,), reason, Usage(input_tokens=tokens, output_tokens=10), "m")  # type: ignore[arg-type]


def agent(reader: Reader, *ways: Compaction, **options: Any) -> Agent:
    return Agent(
        "reader", reader.provider, **{"tools": [read], "compaction": ways or None, "max_iterations": 500, **options}
    )


def pages(messages: list[Message] | tuple[Message, ...]) -> list[int]:
    """Those whose results stand in ``messages``, in order."""
    results = [part.content for message in messages for part in message.tool_results]
    return [int(text.partition("page ")[2].partition(":")[0]) for text in results]


async def test_a_conversation_that_gets_long_is_summed_up_and_goes_on(engine: Engine) -> None:
    reader = Reader(30)
    async with engine.served(agent(reader, Compaction.summarise(at=3000, keep_last=4))) as client:
        run = await client.start("reader", "Read everything.")
        response = await run.result()
        present, full = await run.transcript(), await run.transcript(full=True)
        events = [event async for event in run.events(wait=False)]
        rows = await (await client.store()).list_usage()
    assert response.content.startswith("All 30 pages")
    assert response.iterations == 31, "summaries are no iterations"
    assert len(reader.summaries) >= 2
    paid = [estimate_tokens(request.messages) for request in reader.provider.requests]
    assert max(paid) < 4500
    assert response.usage.input_tokens == sum(paid), "summaries are paid by the turn"
    assert response.usage.input_tokens == sum(row.input_tokens for row in rows), "and have rows of their usage"
    assert [row.requests for row in rows if row.purpose == "compact"] == [1] * len(reader.summaries)
    # the present chain
    assert present == list(response.messages)
    assert (present[0].role, present[0].id, present[0].by) == ("user", SUMMARY_ID, "perdure")
    assert present[0].replaces is not None
    assert_closed(present)
    # all of it
    assert full[0] == Message.user("Read everything.", by="tests")
    assert pages(full) == list(range(1, 31))
    assert [message.id for message in full].count(SUMMARY_ID) == len(reader.summaries)
    assert_closed(full)
    # those who follow
    compacted = [event for event in events if event.type == "compacted"]
    assert len(compacted) == len(reader.summaries)
    assert [event.head_before for event in compacted][-1] == present[0].replaces.head
    assert all(event.tokens_after < event.tokens_before for event in compacted)
    assert all(event.messages_after < event.messages_before for event in compacted)
    assert sum(event.type == "model.completed" for event in events) == 31
    assert "Pages up to" not in "".join(event.text for event in events if event.type == "model.delta")


async def test_followers_read_along_after_a_summary_and_see_nothing_of_it(engine: Engine) -> None:
    gate = Gate()

    def reply(request: ModelRequest) -> Any:
        return "Not for followers." if is_summary(request) else "Yes, it is."

    ways = Compaction.summarise(at=100, keep_last=1)
    asked = Agent("short", ScriptedProvider(reply), compaction=ways, hooks=[holding("after_llm_call", gate, after=2)])
    async with engine.served(asked) as client, asyncio.timeout(30):
        run = await client.start("short", f"Well? {PAGE}", mode="session")
        await run.turn().result()
        await run.send("So?")
        events: list[Event] = []
        async for event in run.events():
            events.append(event)
            if event.type == "model.delta":
                gate.open()
            if event.type == "turn" and event.task_id.endswith("-2") and event.state == "completed":
                break
    types = [event.type for event in events]
    (at,) = [index for index, kind in enumerate(types) if kind == "compacted"]
    assert types[at : at + 4] == ["compacted", "message.injected", "model.started", "model.delta"]
    assert types.count("model.started") == types.count("model.completed") == 2, "none of the summary's own call"
    assert "".join(event.text for event in events[at:] if event.type == "model.delta") == "Yes, it is."


async def test_followers_are_told_of_a_turn_before_its_summary_is_written(engine: Engine) -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> Any:
        if is_summary(request):
            await gate()
        return "Yes."

    asked = Agent("short", ScriptedProvider(reply), compaction=Compaction.summarise(at=100, keep_last=1))
    async with engine.served(asked) as client, asyncio.timeout(30):
        run = await client.start("short", f"Well? {PAGE}", mode="session")
        await run.turn().result()
        turn = await run.send("So?")
        async for event in run.events():
            if event.type == "turn" and event.task_id == turn.task_id:
                break
        assert (event.state, gate.left) == ("started", 0)
        gate.open()
        await turn.result()


async def test_the_task_of_a_turn_is_not_summed_up(engine: Engine) -> None:
    """Nor is it told twice: by the model, by the transcript, or by all of it."""
    reader = Reader(30)
    async with engine.served(agent(reader, Compaction.summarise(at=3000, keep_last=4))) as client:
        turn = await client.send("reader", "Read everything.", id=engine.task_queue)
        await turn.result()
        first = await turn.run.transcript()
        reader.pages = 60
        second = await (await turn.run.send("Read on.")).result()
        full = await turn.run.transcript(full=True)
        await turn.run.close()
    assert len(reader.summaries) >= 4
    for request in reader.provider.requests:
        of_user = [text for text in users(request.messages) if text in ("Read everything.", "Read on.")]
        task = "Read everything." if reader.last_page(request) < 30 else "Read on."
        if not is_summary(request):
            assert task in of_user or reader.last_page(request) == 30
        assert len(of_user) == len(set(of_user))
    assert [message.text for message in first[:2]][1] == "Read everything."
    assert [message.id for message in second.messages[:1]] == [SUMMARY_ID]
    assert users(second.messages)[1:] == ["Read on."], "the first turn's is part of the summary"
    assert [text for text in users(full) if "Pages" not in text] == ["Read everything.", "Read on."]
    assert pages(full) == list(range(1, 61))
    assert_closed(second.messages)


async def test_kept_results_larger_than_the_threshold_are_warned_of_once(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(inline=True, name="read")
    def read_much(page: int) -> str:
        """Read a page."""
        return f"page {page}: {PAGE * 4}"

    reader = Reader(24)
    asked = agent(reader, Compaction.summarise(at=2000, keep_last=4), tools=[read_much])
    async with engine.served(asked) as client:
        run = await client.start("reader", "Read everything.")
        response = await run.result()
        events = [event async for event in run.events(wait=False)]
    assert response.content.startswith("All 24 pages")
    assert users(response.messages)[1] == "Read everything."
    warnings = [event.warning for event in events if event.type == "compacted" and event.warning]
    assert len(warnings) == 1
    assert "summarise(at=2,000) is due from 2,000 on; the last 4 messages and the user's task have about" in warnings[0]
    assert sum("raise at, lower keep_last" in record.getMessage() for record in caplog.records) == 1
    assert 2 <= len(reader.summaries) <= 12, "not one before almost every call"


@pytest.mark.parametrize(
    ("instructions", "description", "warned"),
    [
        ("Be good. " * 100, "Look.", False),
        ("Be good. " * 250, "Look.", True),
        ("", "Look closely. " * 200, True),
        ("", "ж" * 900, False),  # 450 tokens, and three times that as escaped JSON
    ],
)
@pytest.mark.parametrize("decorated", [False, True])
async def test_a_threshold_that_instructions_and_tools_reach_is_warned_of(
    instructions: str, description: str, warned: bool, decorated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def look(at: Annotated[str, Field(description=description)]) -> str:
        """Look."""
        return at

    reader = Agent(
        "a",
        "openai:gpt-5-mini",
        instructions=instructions,
        tools=() if decorated else [look],
        compaction=Compaction.summarise(at=500, keep_last=4),
    )
    if decorated:
        reader.tool(look)
    for _ in range(2):
        async with scripted(reader, []):
            pass
    texts = [record.getMessage() for record in caplog.records]
    assert ["instructions and tools have about" in text for text in texts] == [True] * warned


async def test_instructions_and_tools_are_no_reason_for_the_warning_of_what_stays(engine: Engine) -> None:
    reader = Reader(24)
    asked = agent(reader, Compaction.summarise(at=3000, keep_last=4), instructions="Be good. " * 1100)  # 2,475 tokens
    async with engine.served(asked) as client:
        run = await client.start("reader", "Read everything.")
        await run.result()
        compacted = [event async for event in run.events(wait=False) if event.type == "compacted"]
    assert compacted
    assert [event.warning for event in compacted if event.warning] == []


async def test_the_agents_own_model_sums_up_behind_what_it_has_in_its_cache(engine: Engine) -> None:
    reader = Reader(12)
    ways = [Compaction.summarise(at=2000, keep_last=2), Compaction.truncate(after=50)]
    async with engine.served(agent(reader, *ways, instructions="Be good.")) as client:
        await (await client.start("reader", "Read everything.")).result()
    place = next(place for place, request in enumerate(reader.provider.requests) if is_summary(request))
    before, summary = reader.provider.requests[place - 1 : place + 1]
    assert (summary.system, summary.tools) == (before.system, before.tools)
    shared = list(summary.messages[:-1])
    assert shared == list(before.messages)[: len(shared)]
    assert len(shared) > 2


async def test_another_model_is_given_the_conversation_as_text(engine: Engine) -> None:
    reader, other = Reader(12), Reader(0)
    way = Compaction.summarise(at=2000, keep_last=2, model=other.provider, prompt=f"Briefly! {SUMMARY_PROMPT}")
    asked = agent(reader, way, settings={"temperature": 0.5})
    async with engine.served(asked) as client:
        response = await (await client.start("reader", "Read everything.")).result()
    assert response.content.startswith("All 12 pages")
    assert not reader.summaries
    request = other.summaries[0]
    assert (len(request.messages), request.tools, dict(request.settings)) == (1, (), {})
    assert request.messages[0].text.startswith("Briefly! ")
    assert "Read everything." in request.messages[0].text
    assert '(calls read with {"page": 1})' in request.messages[0].text


async def test_a_call_that_is_refused_as_too_long_is_made_again_with_a_summary(engine: Engine) -> None:
    """The threshold is beyond what the model takes; so is the conversation that is to be summed up."""
    reader = Reader(20, most=3000)
    async with engine.served(agent(reader, Compaction.summarise(at=1_000_000, keep_last=4))) as client:
        run = await client.start("reader", "Read everything.")
        response = await run.result()
        events = [event async for event in run.events(wait=False)]
        full = await run.transcript(full=True)
    errors = [event for event in events if event.type == "error"]
    assert response.content.startswith("All 20 pages")
    assert reader.refused >= 1
    assert reader.summaries
    assert pages(full) == list(range(1, 21))
    assert {error.error_type for error in errors} == {"ContextLengthError"}
    assert not any(error.final for error in errors), "the same call is made again"


async def test_a_message_that_a_refused_call_was_given_is_told_once(engine: Engine) -> None:
    reader = Reader(0, most=500)
    history = [
        Message.user(f"Hi. {PAGE}"),
        Message.assistant("Hello."),
        Message.user("Well?"),
        Message.assistant("Well."),
    ]
    async with engine.served(agent(reader, Compaction.summarise(at=1_000_000, keep_last=2))) as client:
        run = await client.start("reader", f"So? {PAGE}", history=history)
        response = await run.result()
        events = [event async for event in run.events(wait=False)]
    assert reader.refused >= 1
    assert response.messages[0].id == SUMMARY_ID
    assert [event.content for event in events if event.type == "message.injected"] == [f"So? {PAGE}"]
    assert [event.type for event in events].count("compacted") == 1


async def test_also_where_the_conversation_is_opened_again(engine: Engine) -> None:
    """Its first call does not know the head that it comes behind."""
    reader = Reader(6)
    one = agent(reader, Compaction.summarise(at=1_000_000, keep_last=2))
    async with engine.served(one) as client:
        turn = await client.send("reader", "Read.", id=engine.task_queue)
        await turn.result()
        await turn.run.close()
        await turn.run.result()
        reader.most, reader.pages = 1200, 8
        turn = await client.send("reader", "More.", id=engine.task_queue)
        response = await turn.result()
        whole = await turn.run.transcript(full=True)
        events = [event async for event in turn.run.events(wait=False)]
        await turn.run.close()
    assert reader.refused >= 1
    assert reader.summaries
    assert response.content == "All 8 pages; the last thing said was: More."
    assert users(whole).count("More.") == 1
    assert [event.content for event in events if event.type == "message.injected"] == ["Read.", "More."]


async def test_a_first_message_outlives_a_summary_before_its_reply_and_a_termination(engine: Engine) -> None:
    """The row that the summary writes does not say that the message is recorded."""
    gate = Gate()

    async def reply(request: ModelRequest) -> Any:
        if is_summary(request):
            return "Greetings."
        if len(request.messages) > 4:
            return ContextLengthError("too long")
        await gate()
        return "Yes."

    asked = Agent("short", ScriptedProvider(reply), compaction=Compaction.summarise(at=1_000_000, keep_last=1))
    history = [Message.user("Hi."), Message.assistant("Hello."), Message.user("Well?"), Message.assistant("Well.")]
    async with engine.served(asked) as client:
        run = await client.start("short", "So?", history=history)
        await eventually(lambda: gate.entered, what="the call after the summary")
        await run.terminate()
        with pytest.raises(RunCancelledError):
            await run.result()
        gate.open()
        await run.resume()
        await run.result()
        assert users(await run.transcript(full=True)).count("So?") == 1
        assert users(await run.transcript())[-1] == "So?"


async def test_a_window_that_lets_too_much_through_is_tightened(engine: Engine) -> None:
    reader = Reader(20, most=2000)
    async with engine.served(agent(reader, Compaction.window(tokens=5000))) as client:
        run = await client.start("reader", "Read everything.")
        response = await run.result()
    assert response.content.startswith("All 20 pages")
    assert 1 <= reader.refused <= 4, "it stays tightened"
    assert pages(response.messages) == list(range(1, 21)), "a view changes no transcript"
    last = reader.provider.requests[-1]
    assert last.messages[0].text == "Read everything."
    assert last.messages[1].id == WINDOW_NOTE_ID


async def test_what_does_not_fit_in_any_way_fails_and_says_what_was_tried(engine: Engine) -> None:
    async with engine.served(agent(Reader(3, most=20), Compaction.summarise(at=500))) as client:
        with pytest.raises(ContextLengthError, match=r"too long: \d+ tokens$"):
            await (await client.start("reader", PAGE)).result()
        history = [Message.user("Hi."), Message.assistant("Hello."), Message.user("Well?"), Message.assistant("Well.")]
        run = await client.start("reader", PAGE, history=history)
        with pytest.raises(ContextLengthError) as caught:
            await run.result()
        assert len(await run.transcript(full=True)) >= 4
    assert "could not be summed up" in str(caught.value)
    small = Reader(3, most=400)
    ways = [Compaction.summarise(at=900), Compaction.window(messages=8)]
    async with engine.served(agent(small, *ways)) as client:
        with pytest.raises(ContextLengthError) as caught:
            await (await client.start("reader", PAGE * 9, history=history)).result()
    assert "(it was summed up twice and its window was halved 6 times)" in str(caught.value)


async def test_without_compaction_a_call_that_is_too_long_fails_as_before(engine: Engine) -> None:
    async with engine.served(agent(Reader(3, most=20))) as client:
        with pytest.raises(ContextLengthError, match=r"too long: \d+ tokens$"):
            await (await client.start("reader", PAGE)).result()


async def test_a_summary_that_cannot_be_had_fails_the_run_and_a_resume_goes_on(engine: Engine) -> None:
    reader = Reader(12)
    failing = [AuthenticationError("wrong key")]

    async def during() -> None:
        if failing:
            raise failing.pop()

    reader.during = during
    async with engine.served(agent(reader, Compaction.summarise(at=2000, keep_last=2))) as client:
        run = await client.start("reader", "Read everything.")
        with pytest.raises(AuthenticationError, match="the conversation could not be summed up: wrong key"):
            await run.result()
        await run.resume()
        response = await run.result()
        full = await run.transcript(full=True)
    assert response.content.startswith("All 12 pages")
    assert pages(full) == list(range(1, 13))


# --- what may happen meanwhile


@asynccontextmanager
async def _held(engine: Engine, then: Callable[[Run, Gate], Any]) -> AsyncIterator[Run]:
    """A run to which something has happened while its first summary was written."""
    gate = Gate()
    reader = Reader(8, during=gate)
    async with engine.served(agent(reader, Compaction.summarise(at=1500, keep_last=2))) as client:
        run = await client.start("reader", "Read everything.")
        await eventually(lambda: gate.entered == 1)
        await then(run, gate)
        gate.open()
        with suppress(RunCancelledError):
            await run.result()
        yield run


async def test_messages_that_arrive_during_a_summary_are_answered(engine: Engine) -> None:
    async def then(run: Run, gate: Gate) -> None:
        assert (await run.status()).doing == "compacting"
        await run.inject("Hurry.", id="hurry")

    async with _held(engine, then) as run:
        full = await run.transcript(full=True)
    assert [message.id for message in full].count("hurry") == 1
    assert full[-1].text.endswith("was: Hurry."), full[-1].text
    assert pages(full) == list(range(1, 9))
    assert_closed(full)


async def test_a_summary_is_interrupted_and_written_before_the_next_call(engine: Engine) -> None:
    async def then(run: Run, gate: Gate) -> None:
        await run.interrupt("Something else.")
        await eventually(lambda: (gate.entered, gate.left) == (2, 1), what="a second summary")

    async with _held(engine, then) as run:
        full = await run.transcript(full=True)
    assert full[-1].text.endswith("was: Something else.")
    assert pages(full) == list(range(1, 9))
    assert_closed(full)


async def test_a_run_that_is_cancelled_during_a_summary_ends_with_its_transcript(engine: Engine) -> None:
    async def then(run: Run, gate: Gate) -> None:
        await run.cancel()
        await eventually(lambda: gate.left == 1)

    async with _held(engine, then) as run:
        assert (await run.status()).state == "cancelled"
        transcript = await run.transcript()
    assert transcript[0].text == "Read everything.", "nothing was replaced"
    assert_closed(transcript)


async def test_a_session_is_summed_up_when_it_goes_on_not_when_it_ends(engine: Engine) -> None:
    reader = Reader(4)
    async with engine.served(agent(reader, Compaction.summarise(at=1000, keep_last=2), max_iterations=9)) as client:
        first = await client.send("reader", "Read everything.", id=engine.task_queue)
        await first.result()
        summed = len(reader.summaries)
        run = client.run(engine.task_queue)
        before = await run.transcript()
        second = await (await run.send("What now?")).result()
        await run.close()
    assert before[-1].text.startswith("All 4 pages")
    assert len(reader.summaries) == summed + 1
    assert second.content.endswith("was: What now?")
    assert second.messages[0].id == SUMMARY_ID


async def test_a_worker_lost_behind_a_summary_does_not_pay_for_it_again(engine: Engine) -> None:
    """The outcome is in the store, and Temporal has not been told: the next attempt finds it."""
    reader = Reader(8)
    failed: list[int] = []

    def fail() -> None:
        if len(reader.summaries) == 1 and not failed:
            failed.append(1)
            raise ConnectionError("lost")

    async with engine.served(agent(reader, Compaction.summarise(at=1500, keep_last=2))) as client:
        with at("model.recorded", fail):
            run = await client.start("reader", "Read everything.")
            response = await run.result()
        events = [event async for event in run.events(wait=False)]
    assert failed
    assert response.content.startswith("All 8 pages")
    assert len(reader.summaries) == sum(event.type == "compacted" for event in events)


@pytest.mark.server
async def test_a_run_continues_as_new_between_a_refusal_and_what_is_done_about_it(engine: Engine) -> None:
    reader = Reader(30, most=3000)
    ways = [Compaction.summarise(at=1_000_000, keep_last=4), Compaction.window(tokens=9000)]
    async with engine.served(agent(reader, *ways)) as client:
        run = await client.start("reader", "Read everything.", max_history_events=40)
        response = await run.result()
        assert pages(await run.transcript(full=True)) == list(range(1, 31))
    assert response.content.startswith("All 30 pages")


async def test_a_conversation_goes_on_from_a_summed_up_one(engine: Engine) -> None:
    """By reference its whole past stays readable; messages are given as they are."""
    reader = Reader(8)
    async with engine.served(agent(reader, Compaction.summarise(at=1500, keep_last=2))) as client:
        run = await client.start("reader", "Read everything.")
        response = await run.result()
        assert response.messages[0].id == SUMMARY_ID
        on = await client.start("reader", "And now?", history=run)
        assert (await on.result()).content.endswith("was: And now?")
        assert pages(await on.transcript(full=True)) == list(range(1, 9))
        given = await client.start("reader", "And now?", history=list(response.messages))
        assert (await given.result()).content.endswith("was: And now?")
        assert (await given.transcript(full=True))[0].id == SUMMARY_ID


async def test_calls_that_are_no_summary(engine: Engine) -> None:
    """A model that goes on instead of summing up is given the conversation as text; one that says nothing, nothing."""
    said: list[str] = []

    def reply(request: ModelRequest) -> Any:
        if is_summary(request):
            said.append(request.messages[-1].text)
            return call("read", page=99) if len(request.messages) > 1 else "Summed up."
        n = sum(len(message.tool_results) for message in request.messages)
        return "Done." if len(said) > 1 else call("read", page=n)

    asked = Agent("reader", ScriptedProvider(reply), tools=[read], compaction=Compaction.summarise(at=900, keep_last=2))
    async with engine.served(asked) as client:
        run = await client.start("reader", "Read.")
        response = await run.result()
    assert response.content == "Done."
    assert "<conversation>" in said[1]
    assert "Summed up." in response.messages[0].text
    assert 99 not in pages(response.messages)
