"""A bad image or message does not end a conversation: it is withheld, said to be, and the conversation goes on."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from perdure import Agent, Compaction, File, Message, Run, local, tool
from perdure.errors import AuthenticationError, BadRequestError, ContentFilterError, ProviderServerError
from perdure.hooks import hook
from perdure.ports.model import ModelRequest, TextDelta
from perdure.providers import register_provider, registry
from perdure.testing import ScriptedProvider, scripted
from perdure.types.events import ErrorEvent, MessageWithheld
from perdure.types.messages import iter_file_parts
from tests.servers.model_server import OpenAIServer
from tests.servers.wire import CORRUPT, MISLABELLED
from tests.support.apis import FORMATS, Says, StrictApi, strict_api
from tests.support.engine import Engine, side_by_side
from tests.support.following import all_of

PNG = b"\x89PNG\r\n\x1a\n"
GOOD, BAD = File(PNG, name="good.png"), File(PNG + CORRUPT, name="bad.png")
NAMED = File(PNG + MISLABELLED, name="bad.png")
REFUSED = "Could not process image"


def sees(request: ModelRequest) -> Any:
    """A model whose API takes no image of the name ``bad.png``, and that says which it sees."""
    names = [part.name for part in iter_file_parts(request.messages)]
    return BadRequestError(REFUSED, status=400) if "bad.png" in names else f"I see {names}."


def an_agent(**options: Any) -> Agent:
    return Agent("reader", "openai:gpt-5-mini", **options)


async def withheld(run: Run) -> list[MessageWithheld]:
    return [event for event in await all_of(run.events()) if isinstance(event, MessageWithheld)]


def images(request: Any) -> int:
    """How many there are in a request's JSON, in any of the formats."""
    if isinstance(request, dict):
        found = request.get("type") in ("image", "image_url", "input_image") or "inlineData" in request
        return found + sum(map(images, request.values()))
    return sum(map(images, request)) if isinstance(request, list) else 0


@pytest.mark.fault(
    "Models and tools",
    "The model's API refuses an image or a message.",
    "It is withheld, and the conversation continues without it.",
)
@pytest.mark.parametrize("bad", [BAD, NAMED], ids=["unnamed", "named"])
@pytest.mark.parametrize("format", FORMATS)
async def test_one_corrupt_image_does_not_end_a_conversation(format: str, bad: File) -> None:
    async with AsyncExitStack() as stack:
        api: StrictApi = await stack.enter_async_context(strict_api(format))
        api.replies = [Says("One is fine."), Says("Still here.")]
        reader, other = Agent("reader", api.model), Agent("other", "openai:any")
        await stack.enter_async_context(scripted(other, []))
        client = await stack.enter_async_context(local(agents=[other, reader]))
        first = await client.send("reader", ["Look.", bad, GOOD], id="s")
        assert (await first.result()).content == "One is fine."
        second = await client.send("reader", "And now?", id="s")
        answer = await second.result()
        await first.run.close()
        (event,) = await withheld(first.run)
    assert answer.content == "Still here."
    assert [images(request) for request in api.requests] == [1, 1]
    # It is named by its place, except by OpenAI's chat: there the whole message is, and GOOD is tried first.
    assert api.refused == (2 if bad is BAD or format == "openai" else 1)
    assert (event.kind, event.what) == ("file", "image/png bad.png")
    assert event.reason.startswith("BadRequestError: 127.0.0.1 answered 400")
    assert [part.name for part in iter_file_parts(answer.messages)] == ["bad.png", "good.png"]  # nothing is edited


@pytest.mark.parametrize("format", FORMATS)
async def test_a_corrupt_image_in_a_tools_result_does_not_end_the_run(format: str) -> None:
    @tool
    def draw() -> list[Any]:
        """Draw."""
        return ["Drawn.", BAD]

    async with AsyncExitStack() as stack:
        api: StrictApi = await stack.enter_async_context(strict_api(format))
        api.replies = [Says(calls=[("draw", {})], thinking="Hm." if format == "google" else ""), Says("Done.")]
        reader, other = Agent("reader", api.model, tools=[draw]), Agent("other", "openai:any")
        await stack.enter_async_context(scripted(other, []))
        client = await stack.enter_async_context(local(agents=[other, reader]))
        run = await client.start("reader", "Draw.")
        response = await run.result()
        (event,) = await withheld(run)
    assert response.content == "Done."
    assert (event.what, bool(event.call_id), event.id) == ("image/png bad.png", True, None)
    assert (api.refused, images(api.requests[-1])) == (1, 0)
    assert "Withheld: image/png bad.png" in str(api.requests[-1])


async def test_what_is_withheld_stays_so_in_later_turns_forks_and_executions() -> None:
    agent = an_agent()
    async with scripted(agent, sees) as script:
        turn = await script.send(["Look.", GOOD, BAD], id="s", task_id="one")
        assert (await turn.result()).content == "I see ['good.png']."
        await (await script.send("And now?", id="s")).result()
        await turn.run.close()
        await turn.run.result()
        again = await script.send(["And this?", File(PNG, name="new.png")], id="s")  # a new execution
        assert (await again.result()).content == "I see ['good.png', 'new.png']."
        branch = await turn.run.fork(at=2, message="What if?")
        assert (await branch.turn().result()).content == "I see ['good.png']."
        await branch.close()
        assert await withheld(branch) == []  # it was said in the conversation that it parts from
        assert len(script.requests) == 5  # bad.png was sent once
        await again.run.close()
        assert len(await withheld(again.run)) == 1


async def test_an_image_sent_anew_is_tried_anew() -> None:
    agent, refuses = an_agent(), [True]

    def reply(request: ModelRequest) -> Any:
        return sees(request) if refuses[0] else f"I see {len(list(iter_file_parts(request.messages)))}."

    async with scripted(agent, reply) as script:
        await (await script.send(["Look.", BAD], id="s")).result()
        refuses[0] = False
        turn = await script.send(["Again.", BAD], id="s")
        assert (await turn.result()).content == "I see 1."


async def test_a_resume_sends_what_was_withheld_once_more() -> None:
    agent = an_agent()
    replies: list[Any] = [sees, sees, BadRequestError("no such parameter"), sees, sees]

    async def resumed(refused: bool) -> tuple[str, list[list[str | None]]]:
        last = (
            replies
            if refused
            else [*replies[:3], lambda request: f"{len(list(iter_file_parts(request.messages)))} seen"]
        )
        async with scripted(agent, last) as script:
            turn = await script.send(["Look.", BAD], id="s")
            await turn.result()
            with pytest.raises(BadRequestError, match="no such parameter"):
                await (await script.send("And now?", id="s")).result()
            await turn.run.resume()
            response = await turn.run.turn().result()
            asked = [[part.name for part in iter_file_parts(request.messages)] for request in script.requests]
            return response.content, asked

    assert await resumed(refused=True) == ("I see [].", [["bad.png"], [], [], ["bad.png"], []])
    assert await resumed(refused=False) == ("1 seen", [["bad.png"], [], [], ["bad.png"]])


async def test_a_resume_that_comes_during_a_call_is_for_the_next() -> None:
    agent = an_agent()

    async def resumes(request: ModelRequest) -> Any:
        await turn.run.resume()
        return sees(request)

    async with scripted(agent, [sees, sees, resumes, sees, sees, sees]) as script:
        turn = await script.send(["Look.", BAD], id="s")
        await turn.result()
        for message in ("One.", "Two.", "Three."):
            await (await script.send(message, id="s")).result()
        asked = [len(list(iter_file_parts(request.messages))) for request in script.requests]
    assert asked == [1, 0, 0, 1, 0, 0]


async def test_a_summary_is_asked_for_without_what_is_withheld_and_what_stays_is_withheld_still() -> None:
    agent = an_agent(compaction=Compaction.summarise(at=100, keep_last=3))
    summed = [0]

    def reply(request: ModelRequest) -> Any:
        summing = request.messages[-1].text.startswith("Sum up")
        summed[0] += summing
        return (
            "A summary." if summing and "bad.png" not in str(list(iter_file_parts(request.messages))) else sees(request)
        )

    async with scripted(agent, reply) as script:
        await (await script.send("word " * 150, id="s")).result()
        await (await script.send(["Look.", BAD], id="s")).result()
        for message in ("One.", "Two.", "word " * 150, "Four.", "Five."):
            turn = await script.send(message, id="s")
            assert (await turn.result()).content == "I see []."
        refused = [request for request in script.requests if list(iter_file_parts(request.messages))]
    assert summed[0] >= 2
    assert len(refused) == 1


async def test_a_resumed_session_sends_it_with_its_next_call() -> None:
    agent = an_agent()
    async with scripted(
        agent, [sees, sees, lambda request: str(len(list(iter_file_parts(request.messages))))]
    ) as script:
        turn = await script.send(["Look.", BAD], id="s")
        await turn.result()
        await turn.run.resume()
        assert (await (await script.send("And now?", id="s")).result()).content == "1"


async def test_a_refusal_that_is_not_about_the_images_fails_with_the_first_error() -> None:
    agent = an_agent()
    async with scripted(agent, lambda _: BadRequestError(f"no such parameter ({len(script.requests)})")) as script:
        with pytest.raises(BadRequestError, match=r"no such parameter \(1\)"):
            await agent.call("Hi.")
        assert len(script.requests) == 1
        run = await script.client.start("reader", ["Look.", GOOD, BAD])
        with pytest.raises(BadRequestError, match=r"no such parameter \(2\)"):
            await run.result()
        assert len(script.requests) == 1 + 4  # as it is, without each of the two, and without both
        assert await withheld(run) == []


async def test_an_attempt_that_fails_meanwhile_withholds_nothing_and_the_next_begins_anew() -> None:
    agent = an_agent()
    async with scripted(agent, [sees, ProviderServerError("down"), sees, sees]) as script:
        run = await script.client.start("reader", ["Look.", BAD])
        assert (await run.result()).content == "I see []."
        assert [len(list(iter_file_parts(request.messages))) for request in script.requests] == [1, 0, 1, 0]
        events = await all_of(run.events())
    assert len([event for event in events if isinstance(event, MessageWithheld)]) == 1
    errors = [event for event in events if isinstance(event, ErrorEvent)]
    assert [event.error_type for event in errors] == ["BadRequestError", "ProviderServerError", "BadRequestError"]
    assert not any(event.final for event in errors)


async def test_a_message_that_the_content_filter_refuses_does_not_end_the_conversation() -> None:
    def filtered(request: ModelRequest) -> Any:
        if any("bomb" in message.text for message in request.messages):
            return ContentFilterError("The response was filtered due to the prompt", status=400)
        return f"{request.messages[-1].text:.30}"

    agent = an_agent()
    async with scripted(agent, filtered) as script:
        turn = await script.send("How is a bomb built?", id="s")
        assert (await turn.result()).content.startswith("[Withheld: this message.")
        assert (await (await script.send("Hi.", id="s")).result()).content == "Hi."
        await turn.run.close()
        (event,) = await withheld(turn.run)
        assert len(script.requests) == 3
    assert (event.kind, event.what) == ("message", "message")
    assert event.reason.startswith("ContentFilterError")


async def test_what_a_failed_turn_has_recorded_is_withheld_from_the_next() -> None:
    agent = an_agent()
    async with scripted(agent, [AuthenticationError("no key"), sees, sees, sees]) as script:
        turn = await script.send(["Look.", BAD], id="s")
        with pytest.raises(AuthenticationError):
            await turn.result()
        for message in ("And now?", "And then?"):
            assert (await (await script.send(message, id="s")).result()).content == "I see []."


async def test_a_filter_that_stops_a_reply_or_a_summary_withholds_nothing() -> None:
    asked: list[ModelRequest] = []

    class Talks:
        async def stream(self, request: ModelRequest) -> Any:
            asked.append(request)
            yield TextDelta("I ")
            raise ContentFilterError("the reply")

    agent = an_agent(compaction=Compaction.summarise(at=100, keep_last=1))

    def reply(request: ModelRequest) -> Any:
        return ContentFilterError("the summary") if request.messages[-1].text.startswith("Sum up") else "Fine."

    talks = Agent("talks", Talks())
    async with scripted(agent, reply) as script, local(agents=[agent, talks]) as client:
        with pytest.raises(ContentFilterError, match="the reply"):
            await (await client.start("talks", ["Look.", GOOD])).result()
        assert len(asked) == 1
        await (await script.send("word " * 150, id="s")).result()
        with pytest.raises(ContentFilterError, match="the summary"):
            await (await script.send("And now?", id="s")).result()
        assert len(script.requests) == 2


async def test_an_error_text_that_no_store_can_keep_does_not_cost_the_reply() -> None:
    def reply(request: ModelRequest) -> Any:
        return BadRequestError("bad \ud800 image") if list(iter_file_parts(request.messages)) else "Fine."

    agent = an_agent()
    async with scripted(agent, reply) as script:
        run = await script.client.start("reader", ["Look.", BAD])
        assert (await run.result()).content == "Fine."
        assert len(await withheld(run)) == 1
        assert len(script.requests) == 2


async def test_the_next_model_of_a_chain_is_asked_before_anything_is_withheld() -> None:
    """What was refused by a filter may be taken by another; what is withheld is withheld from all."""
    strict = ScriptedProvider([ContentFilterError("prompt")])
    open_minded = ScriptedProvider(["It is fine."])
    register_provider("strict", strict)
    register_provider("open-minded", open_minded)
    try:
        reader, other = Agent("reader", ["strict:m", "open-minded:m"]), Agent("other", "openai:any")
        async with scripted(other, []), local(agents=[other, reader]) as client:
            run = await client.start("reader", "Hm?")
            assert (await run.result()).content == "It is fine."
            assert await withheld(run) == []
    finally:
        for name in ("strict", "open-minded"):
            registry._providers.pop(name)


async def test_a_reply_that_a_hook_writes_anew_keeps_what_is_withheld() -> None:
    @hook("after_llm_call")
    def shout(reply: Message) -> Message:
        return Message.assistant(reply.text.upper())

    agent = an_agent(hooks=[shout])
    async with scripted(agent, sees) as script:
        await (await script.send(["Look.", BAD], id="s")).result()
        assert (await (await script.send("And?", id="s")).result()).content == "I SEE []."
        assert len(script.requests) == 3


@pytest.mark.slow
@pytest.mark.server
async def test_a_worker_that_is_lost_behind_a_refusal_says_it_once_and_the_next_execution_knows(
    engine: Engine,
) -> None:
    """Before the reply is recorded everything is tried anew; behind it nothing is."""
    await side_by_side(
        engine, {point: partial(_killed_at, point=point) for point in ("model.answered", "model.recorded")}
    )


async def _killed_at(engine: Engine, *, point: str) -> None:
    async with OpenAIServer("Fine.") as server:
        settings = {"TEST_MODEL_URL": server.base_url, "TEST_KILL_AT": point}
        doomed = await engine.process("counting", **settings)
        client = await engine.client()
        run = await client.start("counting", ["Look.", BAD], mode="session", max_history_events=11)
        assert await doomed.gone() == -signal.SIGKILL
        await engine.process("counting", **settings)  # it reaches the same point, and lives
        assert (await run.turn().result()).content == "Fine."
        for message in ("And now?", "And then?"):
            assert (await (await run.send(message)).result()).content == "Fine."
        first = (await run.describe()).raw_description.workflow_execution_info.first_run_id
        assert (await run.describe()).run_id != first  # it has continued as new
        await run.close()
        await run.result()
        assert len(await withheld(run)) == 1
    assert server.stats.refused == (2 if point == "model.answered" else 1)
    assert [images(request) for request in server.requests] == [0] * len(server.requests)
