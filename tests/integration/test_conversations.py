"""Conversations of many turns, through the client: sending, waiting, closing, going on after an end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure import Agent, Message, tool
from perdure.errors import AuthenticationError, InvalidInputError, RunCancelledError, RunClosedError, RunNotFoundError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.interface import WORKFLOW_TYPE, UserMessage
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


def echo(request: ModelRequest) -> str:
    """Answers with what it was told last, and how much it has heard."""
    heard = users(request.messages)
    return f"{heard[-1] if heard else 'nothing'} ({len(heard)})"


def talker(replies: Any = echo, **options: Any) -> Agent:
    return Agent("talker", ScriptedProvider(replies), **options)


async def test_a_conversation_of_several_turns(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        one = await client.send("talker", "one", id="u-1" + engine.task_queue)
        first = await one.result()
        assert (first.content, first.iterations, first.task_id) == ("one (1)", 1, one.task_id)
        two = await client.send("talker", "two", id=one.run.id)
        second = await two.result()
        assert (second.content, second.iterations) == ("two (2)", 1)
        assert one.task_id != two.task_id
        assert [message.text for message in second.messages] == ["one", "one (1)", "two", "two (2)"]
        assert (await one.result()).content == "one (1)", "a turn keeps its answer"
        assert second.usage.total_tokens < (await two.run.status()).usage.total_tokens
        status = await two.run.status()
        assert (status.state, status.mode, status.turn) == ("idle", "session", 2)
        await two.run.close()
        assert (await two.run.result()).content == "two (2)"
        assert (await two.result()).content == "two (2)"


@pytest.mark.fault("Clients", "A message is delivered twice.", "It counts once.")
async def test_the_same_message_twice_counts_once(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        chat = "u-2" + engine.task_queue
        turns = [await client.send("talker", "hi", id=chat, message_id="m1") for _ in range(3)]
        assert {turn.task_id for turn in turns} == {turns[0].task_id}
        assert (await turns[0].result()).content == "hi (1)"
        await turns[0].run.close()
        await turns[0].run.result()
        again = await client.send("talker", "hi", id=chat, message_id="m1")
        assert (again.task_id, (await again.result()).content) == (turns[0].task_id, "hi (1)")
        assert (await again.run.status()).state == "completed", "no execution was opened for it"


@pytest.mark.fault(
    "Clients", "Several senders open, close and send at once.", "There is one conversation, and no message is lost."
)
@pytest.mark.server
async def test_racing_senders_open_one_conversation(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        chat = "u-3" + engine.task_queue
        turns = await asyncio.gather(
            *(client.send("talker", f"m{n % 10}", id=chat, message_id=f"m{n % 10}") for n in range(20))
        )
        for n in range(10):
            assert turns[n].task_id == turns[n + 10].task_id, "the same message twice"
        await asyncio.gather(*(turn.result() for turn in turns))
        heard = users(await turns[0].run.transcript())
        assert sorted(heard) == sorted(f"m{n}" for n in range(10))


@pytest.mark.fault(
    "Clients", "A session closes, by `close` or its idle timeout.", "The next message continues the conversation."
)
async def test_a_message_to_a_closed_conversation_goes_on_from_its_end(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        one = await client.send("talker", "one", id="u-4" + engine.task_queue)
        await one.result()
        await one.run.close()
        await one.run.result()
        two = await client.send("talker", "two", id=one.run.id)
        assert (await two.result()).content == "two (2)"
        assert (await one.result()).content == "one (1)", "from the store: the new execution does not know it"
        await two.run.close()
        await two.run.result()
        three = await one.run.send("three")
        assert (await three.result()).content == "three (3)"
        assert (await three.run.status()).mode == "session"


@pytest.mark.fault("Clients", "Several senders open, close and send at once.")
@pytest.mark.server
async def test_senders_and_closers_at_once_lose_nothing(engine: Engine) -> None:
    """The conversation is closed again and again under the messages that are on their way to it."""
    async with engine.served(talker()) as client:
        chat = "u-5" + engine.task_queue
        stop, sent = asyncio.Event(), Counter[str]()

        async def close() -> None:
            while not stop.is_set():
                try:
                    execution = str((await client.run(chat).describe()).run_id)
                    if sent[execution] < 500:  # Temporal takes 10,000 signals of one that is slow to end
                        await client.run(chat).close()
                        sent[execution] += 1
                except (RunClosedError, RunNotFoundError):
                    await asyncio.sleep(0)

        closing = asyncio.create_task(close())
        try:
            for n in range(6):
                turn = await client.send("talker", f"m{n}", id=chat)
                assert (await turn.result()).content == f"m{n} ({n + 1})"
        finally:
            stop.set()
            await closing
        assert users(await client.run(chat).transcript()) == [f"m{n}" for n in range(6)]


@pytest.mark.fault("Clients", "A session closes, by `close` or its idle timeout.")
async def test_an_idle_conversation_closes(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        turn = await client.send("talker", "hi", id="u-6" + engine.task_queue, idle_timeout=0.2)
        await turn.result()
        assert (await turn.run.result()).content == "hi (1)"
        rows = {row.context_id: row.status for row in await (await client.store()).list_runs()}
        assert rows[turn.run.id] == "completed"


@pytest.mark.fault("Clients", "A run fails, is cancelled or terminated.")
async def test_a_failed_turn_raises_and_the_next_message_goes_on(engine: Engine) -> None:
    replies = [AuthenticationError("wrong key"), "Hello."]
    async with engine.served(talker(replies)) as client:
        chat = "u-7" + engine.task_queue
        failed = await client.send("talker", "one", id=chat)
        with pytest.raises(AuthenticationError, match="wrong key"):
            await failed.result()
        turn = await client.send("talker", "two", id=chat)
        response = await turn.result()
        assert users(response.messages) == ["one", "two"]
        with pytest.raises(AuthenticationError, match="wrong key"):
            await failed.result()


@pytest.mark.fault(
    "Clients", "A run fails, is cancelled or terminated.", "`resume` or the next message continues from its last word."
)
async def test_a_failed_run_is_resumed_from_its_head(engine: Engine) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    replies = [call("look"), AuthenticationError("wrong key"), "Done."]
    agent = talker(replies, tools=[look], context=dict[str, str])
    async with engine.served(agent) as client:
        run = await client.start("talker", "Go.", context={"user": "7"})
        with pytest.raises(AuthenticationError):
            await run.result()
        await run.resume()
        response = await run.result()
        assert response.content == "Done."
        assert [message.role for message in response.messages] == ["user", "assistant", "tool", "assistant"]
        with pytest.raises(RunClosedError, match="completed"):
            await run.resume()


@pytest.mark.fault("Clients", "A run fails, is cancelled or terminated.")
@pytest.mark.server
async def test_a_cancelled_and_a_terminated_run_are_resumed(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def hold() -> str:
        """Hold."""
        await gate()
        return "held"

    def reply(request: ModelRequest) -> Any:
        return "Done." if request.messages[-1].role == "tool" else call("hold")

    async with engine.served(talker(reply, tools=[hold])) as client:
        for n, end in enumerate(("cancel", "terminate")):
            run = await client.start("talker", "Go.", id=f"u-8-{end}-{engine.task_queue}")
            await eventually(lambda n=n: gate.entered == n + 1)  # type: ignore[misc]
            await (run.cancel() if end == "cancel" else run.handle.terminate())
            with pytest.raises(RunCancelledError):
                await run.result()
            await run.resume()
            response = await run.result()
            assert response.content == "Done."
            (result,) = response.messages[2].tool_results
            assert result.is_error


@pytest.mark.server
async def test_two_who_resume_at_once(engine: Engine) -> None:
    async with engine.served(talker([AuthenticationError("wrong key"), "Done."])) as client:
        run = await client.start("talker", "Go.")
        with pytest.raises(AuthenticationError):
            await run.result()
        others = [client.run(run.id) for _ in range(3)]
        await asyncio.gather(*(other.resume() for other in others), return_exceptions=True)
        assert [(await other.result()).content for other in others] == ["Done."] * 3


async def test_a_turn_without_a_message(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        one = await client.send("talker", "one", id="u-9" + engine.task_queue)
        await one.result()
        bare = await client.send("talker", None, id=one.run.id)
        response = await bare.result()
        assert (response.content, bare.task_id != one.task_id) == ("one (1)", True)
        assert [message.role for message in response.messages] == ["user", "assistant", "assistant"]


async def test_the_name_of_a_turn_of_an_execution_that_is_over_is_not_given_to_another(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        chat = "u-named" + engine.task_queue
        one = await client.send("talker", "one", id=chat, task_id="mine")
        await one.result()
        await one.run.close()
        await one.run.result()
        two = await client.send("talker", "two", id=chat, task_id="mine")
        assert (await two.result()).content == "two (2)"
        assert two.task_id != "mine"
        assert (await client.run(chat).turn("mine").result()).content == "one (1)"


async def test_history_from_messages_a_run_a_response_and_a_head(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        given = [Message.user("zero"), Message.assistant("Hello.")]
        run = await client.start("talker", "one", history=given)
        first = await run.result()
        assert first.content == "one (2)"
        for history in (run, first, first.head):
            response = await (await client.start("talker", "two", history=history)).result()
            assert [message.text for message in response.messages] == [
                "zero", "Hello.", "one", "one (2)", "two", "two (3)"
            ]  # fmt: skip


async def test_an_override_is_for_the_turn(engine: Engine) -> None:
    def reply(request: ModelRequest) -> str:
        return str(request.system)

    async with engine.served(talker(reply, instructions="Be good.")) as client:
        chat = "u-10" + engine.task_queue
        turn = await client.send("talker", "one", id=chat, override={"instructions": "Be bad."})
        assert (await turn.result()).content == "Be bad."
        assert (await (await client.send("talker", "two", id=chat)).result()).content == "Be good."


async def test_an_override_of_a_turn_leaves_what_the_run_overrides(engine: Engine) -> None:
    def reply(request: ModelRequest) -> str:
        return f"{request.system} {dict(request.settings)}"

    async with engine.served(talker(reply, instructions="Be good.")) as client:
        chat = "u-15" + engine.task_queue
        of_the_run = {"instructions": "Be brief.", "settings": {"max_tokens": 9, "seed": 1}}
        await client.start("talker", id=chat, mode="session", override=of_the_run)
        turn = await client.send("talker", "one", id=chat, override={"settings": {"seed": 2}})
        assert (await turn.result()).content == "Be brief. {'max_tokens': 9, 'seed': 2}"
        assert (await (await client.send("talker", "two", id=chat)).result()).content.endswith("'seed': 1}")


async def test_a_handle_goes_on_with_the_conversation_that_it_opened_again(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        run = await client.start("talker", "one")
        assert (await run.result()).content == "one (1)"
        await run.send("two")
        assert (await run.result()).content == "two (2)"


@pytest.mark.server
async def test_a_client_without_the_store_resumes_a_run_and_repeats_nothing(engine: Engine) -> None:
    async with engine.served(talker([AuthenticationError("wrong key"), "Done."])) as client:
        run = await client.start("talker", "Go.")
        with pytest.raises(AuthenticationError):
            await run.result()
        other = (await engine.client(store=False)).run(run.id)
        await other.resume()
        assert (await other.result()).content == "Done."
        assert users(await run.transcript()) == ["Go."]


async def test_a_message_to_a_run_that_was_started_wrongly(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        chat = "u-16" + engine.task_queue
        await client.temporal.start_workflow(WORKFLOW_TYPE, {"agnt": "talker"}, id=chat, task_queue=engine.task_queue)
        with pytest.raises(InvalidInputError, match="agent: Field required"):
            await client.run(chat).send("one")


@pytest.mark.server
async def test_a_turn_of_a_terminated_run_ends(engine: Engine) -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        await gate()
        return "late"

    async with engine.served(talker(reply)) as client:
        turn = await client.send("talker", "one", id="u-17" + engine.task_queue)
        await eventually(lambda: gate.entered)
        await turn.run.handle.terminate()
        with pytest.raises(RunCancelledError, match="was terminated"):
            await turn.result()


async def test_a_turn_of_a_run_that_was_refused_ends(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        chat = "u-18" + engine.task_queue
        await client.temporal.start_workflow(WORKFLOW_TYPE, {"agnt": "talker"}, id=chat, task_queue=engine.task_queue)
        with pytest.raises(InvalidInputError, match="agnt"):
            await client.run(chat).turn().result()


async def test_a_message_whose_answer_is_lost_with_the_run_counts_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine.served(talker()) as client:
        run = client.run("u-19" + engine.task_queue)
        deliver = client.temporal.execute_update_with_start_workflow

        async def lost(*args: Any, **options: Any) -> Any:
            monkeypatch.undo()
            await deliver(*args, **options)
            await run.close()
            await run.result()
            await (await client.send("talker", "two", id=run.id)).result()
            raise RPCError("workflow execution already completed", RPCStatusCode.NOT_FOUND, b"")

        monkeypatch.setattr(client.temporal, "execute_update_with_start_workflow", lost)
        turn = await client.send("talker", "one", id=run.id)
        assert (await turn.result()).content == "one (1)"
        assert users(await run.transcript()) == ["one", "two"]


async def test_who_waits_for_an_ending_does_not_wait_for_the_next_execution(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client opens the conversation again before the sender has looked."""
    async with engine.served(talker([AuthenticationError("wrong key"), "One.", "Two."])) as client:
        failed = await client.send("talker", "zero", id="u-20" + engine.task_queue)
        with pytest.raises(AuthenticationError):
            await failed.result()
        ended = client.temporal.get_workflow_handle(failed.run.id, run_id=(await failed.run.describe()).run_id)
        await (await client.send("talker", "one", id=failed.run.id)).result()
        refusal = WorkflowUpdateFailedError(ApplicationError("it is ending", type="RunClosedError"))

        async def refused(name: str, arg: Any, *, start_workflow_operation: Any, **options: Any) -> Any:
            monkeypatch.undo()
            start_workflow_operation._workflow_handle.set_result(ended)
            raise refusal

        monkeypatch.setattr(client.temporal, "execute_update_with_start_workflow", refused)
        assert (await (await client.send("talker", "two", id=failed.run.id)).result()).content == "Two."


async def test_who_sent_a_message_is_in_the_transcript(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        turn = await client.send("talker", "one", id="u-11" + engine.task_queue, by="ana")
        response = await turn.result()
        assert response.messages[0].by == "ana"
        again = await client.send("talker", "two", id=turn.run.id)
        assert (await again.result()).messages[2].by == "tests"


async def test_a_client_without_the_store_waits_for_a_turn(engine: Engine) -> None:
    async with engine.served(talker()):
        client = await engine.client(store=False)
        turn = await client.send("talker", "one", id="u-12" + engine.task_queue)
        assert (await turn.result()).content == "one (1)"
        assert (await client.run(turn.run.id).turn().result()).task_id == turn.task_id
        with pytest.raises(RunNotFoundError, match="no turn 'nonsense'"):
            await turn.run.turn("nonsense").result()


@pytest.mark.server
async def test_a_plain_temporal_client_sends_and_asks(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        handle = await client.temporal.start_workflow(
            WORKFLOW_TYPE,
            {"agent": "talker", "mode": "session"},
            id="u-13" + engine.task_queue,
            task_queue=engine.task_queue,
        )
        said = await handle.execute_update("send_message", {"content": "one", "id": "m1"})
        again = await handle.execute_update("send_message", {"content": "one", "id": "m1"})
        assert said == again

        async def answer() -> Any:
            turn = await handle.query("turn", said["task_id"])
            return turn.get("response", {}).get("content")

        await eventually(answer)
        assert await answer() == "one (1)"
        before = (await handle.describe()).history_length
        for bad in ({"text": "x"}, 7, {"content": "x", "idd": 1}):
            with pytest.raises(Exception, match="Workflow update failed") as caught:
                await handle.execute_update("send_message", bad)
            assert getattr(caught.value.__cause__, "type", None) == "InvalidInputError"
        assert (await handle.describe()).history_length == before, "what is refused leaves no trace"


@pytest.mark.server
async def test_a_conversation_goes_on_through_many_executions(engine: Engine) -> None:
    async with engine.served(talker()) as client:
        chat = "u-14" + engine.task_queue
        run = await client.start("talker", id=chat, mode="session", max_history_events=30)
        task_ids = []
        for n in range(12):
            turn = await client.send("talker", f"m{n}", id=chat, message_id=f"m{n}")
            assert (await turn.result()).content == f"m{n} ({n + 1})"
            task_ids.append(turn.task_id)
        assert len(set(task_ids)) == 12
        again = await client.send("talker", "m0", id=chat, message_id="m0")
        assert again.task_id == task_ids[0]
        described = await client.run(chat).handle.describe()
        assert described.run_id != run.handle.result_run_id, "it has continued as new"
        assert (await client.run(chat).turn(task_ids[0]).result()).content == "m0 (1)"


async def test_a_message_of_20_mb_is_sent_and_sent_again(engine: Engine) -> None:
    async with engine.served(talker(lambda r: str(len(users(r.messages)[-1])))) as client:
        text = "x" * 20_000_000
        turns = [await client.send("talker", text, id="u-20mb" + engine.task_queue, message_id="m1") for _ in range(2)]
        assert turns[0].task_id == turns[1].task_id
        assert (await turns[0].result()).content == str(len(text))


def test_a_message_is_plain_json() -> None:
    assert UserMessage.model_validate_json('{"content": null}').content is None
