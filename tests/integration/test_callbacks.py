"""Calls that are handed to a client (``callback_tool``)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Run, RunContext, callback_tool, hook
from perdure.errors import ApprovalDecidedError, ApprovalExpiredError, InvalidInputError
from perdure.testing import ScriptedProvider, call
from perdure.types.wire import REMOTE_BYTES
from tests.integration.test_questions import asked, told
from tests.support.engine import Engine
from tests.support.wait import eventually


class Place(BaseModel):
    path: str
    line: int = 1


class Selection(BaseModel):
    text: str
    whole: bool = False


show = callback_tool("show", "Show a file in the editor, and get what the user selects.", Place, output=Selection)
read = callback_tool("read", "Read the page.")
KINDS = ("tool.started", "question.asked", "tool.completed")
"""Of a call that a client runs, in order."""


def agent(*replies: Any, **options: Any) -> Agent:
    return Agent("editor", ScriptedProvider(list(replies)), **{"tools": [show, read], **options})


async def test_a_client_runs_the_call_and_answers_with_its_result(engine: Engine) -> None:
    async with engine.served(agent([call("show", path="/a"), call("read")], "Done.")) as client:
        run = await client.start("editor", "Go.")
        first, second = await asked(run, 2)
        assert [(one.kind, one.tool, one.arguments) for one in (first, second)] == [
            ("callback", "show", {"path": "/a"}),
            ("callback", "read", {}),
        ]
        assert first.form is not None
        assert (first.form["required"], second.form) == (["text"], None)
        with pytest.raises(InvalidInputError, match="text: it is missing"):
            await run.answer(first.call_id, {"whole": True})
        answered = await run.answer(first.call_id, Selection(text="x"), by="ana")
        assert (answered.state, answered.by) == ("answered", "ana")
        assert (await run.status()).doing == "answer"
        await run.answer(second.call_id, "as it is", by="bea")
        assert (await run.result()).content == "Done."
        assert await told(run) == ['{"text": "x", "whole": false}', "as it is"]
        parts = [part for message in await run.transcript() for part in message.tool_results]
        assert [part.given_by for part in parts] == ["ana", "bea"]


async def test_arguments_that_do_not_fit_are_the_models_to_mend(engine: Engine) -> None:
    async with engine.served(agent([call("show", line=2), call("read", x=1)], "Done.")) as client:
        run = await client.start("editor", "Go.")
        (one,) = await asked(run)
        assert one.tool == "read"
        await run.answer(value=None)
        await run.result()
        wrong, null = await told(run)
        assert wrong.startswith("the arguments of show are not valid")
        assert null == "null"


async def test_an_error_is_the_result(engine: Engine) -> None:
    async with engine.served(agent(call("read"), "Done.")) as client:
        run = await client.start("editor", "Go.")
        await asked(run)
        with pytest.raises(InvalidInputError, match="either a value or an error"):
            await run.answer(value=1, error="no")
        await run.answer(error="the page is gone", by="ana")
        await run.result()
        (part,) = [part for message in await run.transcript() for part in message.tool_results]
        assert (part.content, part.is_error, part.given_by) == ("the page is gone", True, "ana")


async def test_of_two_clients_one_is_told_who_was_quicker(engine: Engine) -> None:
    async with engine.served(agent(call("read"), "Done.")) as client:
        run = await client.start("editor", "Go.")
        (one,) = await asked(run)
        said = await asyncio.gather(*(run.answer(one.call_id, by, by=by) for by in ("a", "b")), return_exceptions=True)
        (lost,) = [one for one in said if isinstance(one, BaseException)]
        (won,) = [one for one in said if not isinstance(one, BaseException)]
        assert isinstance(lost, ApprovalDecidedError)
        assert f"already answered by {won.by}" in str(lost)
        await run.result()
        assert await told(run) == [won.by]


@pytest.mark.parametrize("says", [None, "Nobody is at the editor."])
async def test_it_expires(engine: Engine, says: str | None) -> None:
    quick = callback_tool("quick", "Be quick.", expires=0.3, on_expiry=says)
    async with engine.served(agent(call("quick"), "Done.", tools=[quick])) as client:
        run = await client.start("editor", "Go.")
        await run.result()
        assert await told(run) == [says or "Expired: the call of quick was not answered in time"]
        with pytest.raises(ApprovalExpiredError, match="has expired: no decision by"):
            await run.answer((await run.transcript())[1].tool_calls[0].id, 1)


async def test_somebody_approves_it_before_a_client_is_to_run_it(engine: Engine) -> None:
    careful = callback_tool("careful", "Open the door.", Place, needs_approval=True, expires="1d")
    calls = [call("careful", path="/a"), call("careful", path="/b")]
    async with engine.served(agent(calls, "Done.", tools=[careful])) as client:
        run = await client.start("editor", "Go.")
        first, second = await asked(run, 2)
        assert (first.kind, first.expires) == ("approval", None)
        with pytest.raises(InvalidInputError, match="waits for approval, not for an answer"):
            await run.answer(first.call_id, 1)
        with pytest.raises(InvalidInputError, match="those of a callback cannot be changed"):
            await run.approve(first.call_id, arguments={"path": "/"})
        await run.deny(second.call_id, by="ana")
        await run.approve(first.call_id, by="ana")
        (one,) = await asked(run)
        assert (one.kind, one.arguments) == ("callback", {"path": "/a"})

        async def expires() -> bool:  # in process a run may be asked before the step that begins the wait
            return (await run.status()).approvals[0].expires is not None

        await eventually(expires)
        await run.answer(value="open", by="bea")
        await run.result()
        assert await told(run) == ["open", "Denied by ana"]
        events = [event async for event in run.events(wait=False) if getattr(event, "call_id", "") == first.call_id]
        kinds = ["approval.requested", "approval.decided", "tool.started", "question.asked", "tool.completed"]
        assert [event.type for event in events] == kinds


async def test_a_long_text_goes_by_way_of_the_store(engine: Engine) -> None:
    async with engine.served(agent([call("read"), call("show", path="/a")], "Done.")) as client:
        run = await client.start("editor", "Go.")
        first, second = await asked(run, 2)
        await run.answer(first.call_id, "ж" * 300_000)
        with pytest.raises(InvalidInputError, match="too long for what is asked"):
            await run.answer(second.call_id, "x" * 300_000)
        with pytest.raises(InvalidInputError, match=f"may have {REMOTE_BYTES:,}"):
            await run.answer(second.call_id, {"text": "x" * REMOTE_BYTES})
        await run.answer(second.call_id, {"text": "x" * 200_000})
        await run.result()
        long, other = await told(run)
        assert (long, len(other)) == ("ж" * 300_000, 200_000 + len('{"text": ""}'))


async def test_events_and_hooks_say_what_a_client_is_to_run(engine: Engine) -> None:
    heard: list[Any] = []

    @hook("on_approval")
    def notify(kind: str, name: str, arguments: dict[str, Any], expires_in: float | None, ctx: RunContext) -> None:
        heard.append((kind, name, arguments, expires_in))

    async with engine.served(agent(call("show", path="/a"), "Done.", hooks=[notify])) as client:
        run = await client.start("editor", "Go.")
        await asked(run)
        assert heard == [("callback", "show", {"path": "/a"}, None)]
        events = [event async for event in run.events(wait=False) if event.type == "question.asked"]
        heard_id = events[0].call_id
        assert [(one.kind, one.name, one.arguments) for one in events] == [("callback", "show", {"path": "/a"})]
        await run.answer(value={"text": "x"}, by="ana")
        await run.result()
        said = [event async for event in run.events(wait=False) if event.type in KINDS]
        assert [one.type for one in said] == list(KINDS)
        assert {one.call_id for one in said} == {heard_id}
        done = said[-1]
        assert (done.content, done.answered_by) == ('{"text": "x"}', "ana")


@pytest.mark.server
async def test_any_temporal_client_answers(engine: Engine) -> None:
    async with engine.served(agent(call("read"), "Done.")) as client:
        run: Run = await client.start("editor", "Go.")
        (one,) = await asked(run)
        handle = (await engine.temporal()).get_workflow_handle(run.id)
        said = await handle.execute_update("answer_call", {"call_id": one.call_id, "value": None, "by": "ts"})
        assert (said["state"], said["by"]) == ("answered", "ts")
        await run.result()
        assert await told(run) == ["null"]
