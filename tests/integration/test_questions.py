"""What tools ask of people (``ctx.ask``)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from temporalio.client import WorkflowUpdateFailedError

from perdure import Agent, Approval, Run, RunContext, ToolContext, hook, tool
from perdure.client.inbox import list_pending_calls_of_run
from perdure.errors import ApprovalDecidedError, ApprovalExpiredError, InvalidInputError, QuestionDeclinedError
from perdure.testing import ScriptedProvider, call
from perdure.types.approvals import WaitingCall
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

RAN: list[tuple[str, Any]] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


class Transfer(BaseModel):
    account: str
    amount: float

    @field_validator("account")
    @classmethod
    def _known(cls, account: str) -> str:
        if account != "savings":
            raise ValueError("there is no such account")
        return account


@tool
async def pay(ctx: ToolContext, who: str) -> str:
    """Pay a person."""
    RAN.append((who, ctx.idempotency_key))
    try:
        transfer = await ctx.ask("Which account, and how much?", Transfer)
    except Exception as error:
        return f"swallowed {error!r}"
    return f"paid {who} {transfer.amount:g} of {transfer.account}"


@tool
def choose(ctx: ToolContext) -> str:
    """Choose."""
    first = ctx.blocking.ask("First?")
    second = ctx.blocking.ask("Second?", int)
    return f"{first} and {second + 1}"


def agent(*replies: Any, **options: Any) -> Agent:
    return Agent("clerk", ScriptedProvider(list(replies)), **{"tools": [pay, choose], **options})


async def asked(run: Run, count: int = 1, question: str | None = None) -> list[WaitingCall]:
    """Until ``count`` calls wait for a person."""

    async def there() -> list[WaitingCall]:
        found = list((await run.status()).approvals)
        fits = len(found) == count and (question is None or found[0].question == question)
        return found if fits else []

    return await eventually(there, deadline=45, what=f"{count} questions")


async def told(run: Run) -> list[str]:
    transcript = await run.transcript()
    assert_closed(transcript)
    return results(transcript)


async def test_a_tool_asks_and_goes_on_with_the_answer(engine: Engine) -> None:
    async with engine.served(agent(call("pay", who="bo"), "Done.")) as client:
        run = await client.start("clerk", "Go.")
        (one,) = await asked(run)
        status = await run.status()
        assert (status.state, status.doing) == ("waiting", "answer")
        assert (one.kind, one.tool, one.arguments) == ("question", "pay", {"who": "bo"})
        assert one.question == "Which account, and how much?"
        assert one.form is not None
        assert set(one.form["properties"]) == {"account", "amount"}
        answered = await run.answer(one.call_id, Transfer(account="savings", amount=3), by="ana")
        assert (answered.state, answered.by, answered.tool) == ("answered", "ana", "pay")
        assert (await run.result()).content == "Done."
        assert await told(run) == ["paid bo 3 of savings"]
        (first, key), (second, again) = RAN
        assert (first, second, key == again) == ("bo", "bo", True)


async def test_questions_come_one_after_the_other(engine: Engine) -> None:
    async with engine.served(agent(call("choose"), "Done.")) as client:
        run = await client.start("clerk", "Go.")
        await asked(run, question="First?")
        (first,) = await list_pending_calls_of_run(run)
        await run.answer(value={"a": None}, by="ana")
        (second,) = await asked(run, question="Second?")
        assert (first.call_id, first.hash != second.hash) == (second.call_id, True)
        with pytest.raises(InvalidInputError, match="has changed: it is"):
            await run.answer(value=1, hash=first.hash)
        with pytest.raises(ApprovalDecidedError, match="already answered by ana"):
            await first.answer("late", by="bea")
        assert (await first.answer({"a": None}, by="ana")).by == "ana"
        with pytest.raises(InvalidInputError, match='"x" is no integer'):
            await run.answer(value="x")
        await run.answer(value=1)
        await run.result()
        assert await told(run) == ["{'a': None} and 2"]


async def test_an_answer_that_only_its_type_can_refuse_is_asked_for_again(engine: Engine) -> None:
    async with engine.served(agent(call("pay", who="bo"), "Done.")) as client:
        run = await client.start("clerk", "Go.")
        await asked(run)
        with pytest.raises(InvalidInputError, match="amount: it is missing"):
            await run.answer(value={"account": "savings"})
        await run.answer(value={"account": "cellar", "amount": 1})

        async def again() -> str | None:
            waiting = (await run.status()).approvals
            return (
                waiting[0].question if waiting and "there is no such account" in (waiting[0].question or "") else None
            )

        said = await eventually(again, what="the question once more")
        assert said is not None
        assert said.startswith("Which account, and how much?\nThe answer before does not fit:")
        await run.answer(value={"account": "savings", "amount": 2})
        await run.result()
        assert await told(run) == ["paid bo 2 of savings"]
        assert len(RAN) == 3


@pytest.mark.server
async def test_of_two_who_answer_at_once_one_is_told_who_was_quicker(engine: Engine) -> None:
    async with engine.served(agent(call("pay", who="bo"), "Done.")) as client:
        run = await client.start("clerk", "Go.")
        (one,) = await asked(run)
        said = await asyncio.gather(
            *(
                run.answer(one.call_id, {"account": "savings", "amount": n}, by=by)
                for n, by in ((1, "ana"), (2, "bea"))
            ),
            return_exceptions=True,
        )
        (lost,) = [one for one in said if isinstance(one, BaseException)]
        (won,) = [one for one in said if not isinstance(one, BaseException)]
        assert isinstance(lost, ApprovalDecidedError)
        assert f"already answered by {won.by}" in str(lost)
        await run.result()
        assert await told(run) == [f"paid bo {1 if won.by == 'ana' else 2} of savings"]
        again = await run.answer(one.call_id, {"account": "savings", "amount": 1 if won.by == "ana" else 2}, by=won.by)
        assert again == won
        with pytest.raises(ApprovalDecidedError, match=f"already answered by {won.by}"):
            await run.answer(one.call_id, "else", by="cleo")


@pytest.mark.server
async def test_what_is_no_answer_is_refused_without_a_trace(engine: Engine) -> None:
    async with engine.served(agent([call("pay", who="bo"), call("choose")], "Done.", approvals=[])) as client:
        run = await client.start("clerk", "Go.")
        ids = {one.tool: one.call_id for one in await asked(run, 2)}
        before = (await run.describe()).history_length
        wrong: list[Any] = [
            None,
            "yes",
            {"call_id": ids["pay"]},
            {"value": 1},
            {"call_id": "x", "value": 1, "error": "y"},
        ]
        for raw in wrong:
            with pytest.raises(Exception, match="Workflow update failed"):
                await run.handle.execute_update("answer_call", raw)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.handle.execute_update("answer_call", {"call_id": ids["pay"], "value": "\ud800"})
        assert "value: must be plain JSON" in str(refused.value.cause)
        with pytest.raises(InvalidInputError, match="no call 'other' waits for an answer"):
            await run.answer("other", 1)
        with pytest.raises(InvalidInputError, match="2 calls of run"):
            await run.answer(value=1)
        with pytest.raises(InvalidInputError, match="bytes as JSON and may have 65,536"):
            await run.answer(ids["choose"], ["x" * 70_000])
        with pytest.raises(InvalidInputError, match="waits for an answer, not for approval"):
            await run.approve(ids["pay"])
        with pytest.raises(InvalidInputError, match=r"no call of run .* waits for approval"):
            await run.deny()
        assert (await run.describe()).history_length == before
        await run.cancel()


async def test_whoever_will_not_answer_says_why(engine: Engine) -> None:
    caught: list[Exception] = []

    @tool
    async def ask(ctx: ToolContext, twice: bool) -> str:
        """Ask."""
        try:
            return str(await ctx.ask("Sure?", bool))
        except QuestionDeclinedError as error:
            caught.append(error)
            return str(await ctx.ask("Really not?", bool)) if twice else "left"

    one = agent([call("pay", who="bo"), call("ask", twice=True)], "Done.", tools=[pay, ask])
    async with engine.served(one) as client:
        run = await client.start("clerk", "Go.")
        ids = {one.tool: one.call_id for one in await asked(run, 2)}
        await run.answer(ids["pay"], error="too much", by="ana")
        await run.answer(ids["ask"], error="no time", by="bea")
        await asked(run, question="Really not?")
        await run.answer(value=True)
        await run.result()
        paid, said = await told(run)
        assert paid.startswith("swallowed QuestionDeclinedError(\"ana did not answer 'Which account, and how much?'")
        assert said == "True"
        assert "bea did not answer 'Sure?': no time" in str(caught[0])


async def test_a_question_expires(engine: Engine) -> None:
    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.ask("Sure?", expires=0.3))

    async with engine.served(agent(call("ask"), "Done.", tools=[ask])) as client:
        run = await client.start("clerk", "Go.")
        await run.result()
        assert await told(run) == ["Expired: the call of ask was not answered in time"]
        asked_id = (await run.transcript())[1].tool_calls[0].id
        with pytest.raises(ApprovalExpiredError, match="has expired: no decision by"):
            await run.answer(asked_id, True)


async def test_an_inline_tool_that_asks_waits_like_any_other(engine: Engine) -> None:
    quick = tool(choose.fn, name="choose", inline=True)
    async with engine.served(agent([call("choose"), call("choose")], "Done.", tools=[quick])) as client:
        run = await client.start("clerk", "Go.")
        for one in await asked(run, 2):
            await run.answer(one.call_id, "x")
        for one in await asked(run, 2, "Second?"):
            await run.answer(one.call_id, 1, hash=one.hash)
        await run.result()
        assert await told(run) == ["x and 2", "x and 2"]


async def test_an_answered_call_goes_on_while_others_are_still_running(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def slow() -> str:
        """Take long."""
        await gate()
        return "at last"

    one = agent([call("slow"), call("pay", who="bo")], "Done.", tools=[slow, pay])
    async with engine.served(one) as client:
        run = await client.start("clerk", "Go.")
        await asked(run)
        await eventually(lambda: gate.entered, what="the slow one")
        await run.answer(value={"account": "savings", "amount": 3})
        await eventually(lambda: len(RAN) == 2, what="the call that was answered")
        assert (gate.entered, gate.left) == (1, 0)
        gate.open()
        await run.result()
        assert await told(run) == ["at last", "paid bo 3 of savings"]


async def test_a_question_expires_while_other_calls_are_still_running(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def slow() -> str:
        """Take long."""
        await gate()
        return "at last"

    @tool
    async def hasty(ctx: ToolContext) -> str:
        """Ask in a hurry."""
        return str(await ctx.ask("Quick?", expires=0.3))

    one = agent([call("slow"), call("hasty")], "Done.", tools=[slow, hasty])
    async with engine.served(one) as client:
        run = await client.start("clerk", "Go.")

        async def expired() -> bool:
            status = await run.status()
            return not status.approvals and [one.state for one in status.decided] == ["expired"]

        await eventually(expired, what="the end of the time to answer")
        assert gate.left == 0
        gate.open()
        await run.result()
        assert await told(run) == ["at last", "Expired: the call of hasty was not answered in time"]


async def test_a_call_is_approved_first_and_then_asks(engine: Engine) -> None:
    approved = tool(pay.fn, name="pay", needs_approval=Approval(expires="1d"))
    async with engine.served(agent(call("pay", who="bo"), "Done.", tools=[approved])) as client:
        run = await client.start("clerk", "Go.")
        (one,) = await asked(run)
        with pytest.raises(InvalidInputError, match="waits for approval, not for an answer"):
            await run.answer(one.call_id, 1)
        await run.approve(by="ana", arguments={"who": "cleo"})
        (two,) = await asked(run, question="Which account, and how much?")
        assert two.arguments == {"who": "cleo"}
        assert [(one.state, one.by) for one in (await run.status()).decided] == [("approved", "ana")]
        await run.answer(value={"account": "savings", "amount": 3}, by="bea")
        await run.result()
        assert (await told(run))[0].endswith("paid cleo 3 of savings")


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_what_stops_the_run_closes_what_it_asks(engine: Engine, how: str) -> None:
    async with engine.served(agent(call("pay", who="bo"), "Done.")) as client:
        run = await client.start("clerk", "Go.")
        (one,) = await asked(run)
        await (run.interrupt("Never mind.") if how == "interrupt" else run.cancel())

        async def ended() -> bool:
            return (await run.status()).state in ("completed", "cancelled")

        await eventually(ended)
        assert (await told(run))[0].startswith("Interrupted" if how == "interrupt" else "Cancelled")
        with pytest.raises(Exception, match=r"has ended|no call|is closed|not running"):
            await run.answer(one.call_id, 1)
        assert len(RAN) == 1


async def test_memory_is_written_once_however_often_the_tool_runs(engine: Engine) -> None:
    @tool
    async def count(ctx: ToolContext) -> str:
        """Count."""
        seen = await ctx.memory.get("count", engine.task_queue, 0)
        await ctx.memory.put("count", engine.task_queue, seen + 1)
        await ctx.ask("Sure?")
        return str(await ctx.memory.get("count", engine.task_queue))

    async with engine.served(agent(call("count"), "Done.", tools=[count])) as client:
        run = await client.start("clerk", "Go.")
        await asked(run)
        assert await client.memory.get("count", engine.task_queue) is None
        await run.answer(value=True)
        await run.result()
        assert await told(run) == ["1"]
        assert await client.memory.get("count", engine.task_queue) == 1


async def test_events_and_hooks_say_what_is_asked_and_who_answered(engine: Engine) -> None:
    heard: list[Any] = []

    @hook("on_approval")
    def notify(kind: str, name: str, question: str, form: Any, call_id: str, ctx: RunContext) -> None:
        heard.append((kind, name, question, form is not None, call_id, ctx.run_id))

    async with engine.served(agent(call("pay", who="bo"), "Done.", hooks=[notify])) as client:
        run = await client.start("clerk", "Go.")
        (one,) = await asked(run)
        assert heard == [("question", "pay", "Which account, and how much?", True, one.call_id, run.id)]
        await run.answer(value={"account": "savings", "amount": 3}, by="ana")
        await run.result()
        events = [event async for event in run.events(wait=False)]
        kinds = [event.type for event in events if getattr(event, "call_id", None) == one.call_id]
        assert kinds == ["tool.started", "question.asked", "question.answered", "tool.completed"]
        (answered,) = [event for event in events if event.type == "question.answered"]
        assert (answered.by, answered.value) == ("ana", {"account": "savings", "amount": 3})
        assert len(heard) == 1


async def test_a_hook_that_fails_makes_the_call_an_error(engine: Engine) -> None:
    @hook("on_approval")
    def notify(name: str) -> None:
        raise RuntimeError("the chat is down")

    async with engine.served(agent(call("pay", who="bo"), "Done.", hooks=[notify])) as client:
        run = await client.start("clerk", "Go.")
        await run.result()
        (said,) = await told(run)
        assert "the chat is down" in said


async def test_what_a_subagent_asks_is_in_the_same_inbox(engine: Engine) -> None:
    helper = agent(call("pay", who="bo"), "Helped.")
    boss = Agent("boss", ScriptedProvider([call("call_clerk", task="Pay bo."), "Done."]), subagents=[helper])
    async with engine.served(boss) as client:
        run = await client.start("boss", "Go.")

        async def there() -> Any:
            return [one for one in await client.approvals(agent="clerk") if one.run_id.startswith(run.id)]

        (one,) = await eventually(there, what="the question")
        assert (one.kind, one.question) == ("question", "Which account, and how much?")
        await one.answer({"account": "savings", "amount": 3}, by="ana")
        assert (await run.result()).content == "Done."
        assert await told(client.run(one.run_id)) == ["paid bo 3 of savings"]
