"""Questions and callbacks in process: the same workflow code, and what ``call(on_approval=…)`` does."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from perdure import Agent, ToolContext, callback_tool, tool
from perdure.client.inbox import PendingCall
from perdure.errors import ApprovalPendingError, InvalidInputError
from perdure.testing import call, scripted
from tests.support.checks import results
from tests.support.wait import eventually


@tool
def pay(ctx: ToolContext) -> str:
    """Pay."""
    amount = ctx.blocking.ask("How much?", float)
    return f"paid {amount:g}" if ctx.blocking.ask("Sure?", bool) else "not paid"


read = callback_tool("read", "Read the page.")
clerk = Agent("clerk", "openai:gpt-5", tools=[pay, read])
REPLIES: list[Any] = [[call("pay"), call("read")], "Done."]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_function_returns_the_answers() -> None:
    seen: list[tuple[str, str | None]] = []

    async def person(one: PendingCall) -> Any:
        seen.append((one.kind, one.question))
        if one.kind == "callback":
            await one.answer(None, by="browser")
            return None
        return 3 if one.question == "How much?" else True

    with scripted(clerk, REPLIES):
        response = clerk.call_sync("Go.", on_approval=person)
    assert results(response.messages) == ["paid 3", "null"]
    assert sorted(map(str, seen)) == ["('callback', None)", "('question', 'How much?')", "('question', 'Sure?')"]


def test_a_function_that_answers_what_does_not_fit_is_told() -> None:
    with scripted(clerk, REPLIES[:1]), pytest.raises(InvalidInputError, match='"much" is no number'):
        clerk.call_sync("Go.", on_approval=lambda one: "much" if one.kind == "question" else None)


@pytest.mark.parametrize("how", ["approve", "raise", None])
async def test_nobody_waits_in_silence_for_what_cannot_be_approved(how: Any) -> None:
    async with scripted(clerk, [call("pay"), "Done."]) as script:
        with pytest.raises(ApprovalPendingError, match="waits for the answer to 'How much\\?' of pay") as refused:
            await clerk.call("Go.", id="order-7", on_approval=how)
        assert "perdure answer order-7" in str(refused.value)
        run = script.client.run("order-7")
        await run.answer(value=2, by="ana")

        async def sure() -> list[PendingCall]:
            return [one for one in await script.client.approvals() if one.question == "Sure?"]

        (waiting,) = await eventually(sure)
        await waiting.answer(False, by="bea")
        assert results((await run.result()).messages) == ["not paid"]


async def test_a_call_for_a_client_does_not_wait_in_silence_either() -> None:
    async with scripted(clerk, [call("read"), "Done."]) as script:
        with pytest.raises(ApprovalPendingError, match="waits for a client to run read"):
            await clerk.call("Go.", id="order-7", on_approval="raise")
        run = script.client.run("order-7")
        await run.answer(value="the page")
        assert results((await run.result()).messages) == ["the page"]


def test_the_terminal_asks_until_the_answer_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Terminal()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(sys, "stdin", Terminal("much\n2.5\ntrue\nas it stands\n"))
    with scripted(clerk, [call("pay"), call("read"), "Done."]):
        response = clerk.call_sync("Go.")
    assert results(response.messages) == ["paid 2.5", "as it stands"]
    shown = said.getvalue()
    assert "pay({}) asks: How much?" in shown
    assert 'the answer does not fit: "much" is no number' in shown
    assert "read({}) is run by you: enter its result." in shown
