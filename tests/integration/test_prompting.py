"""``on_approval="prompt"`` at a real terminal, where others decide too."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from collections.abc import Iterator

import pytest

from perdure import Agent, tool
from perdure.testing import call, scripted
from tests.support.checks import results
from tests.support.wait import eventually


@tool(needs_approval=True)
def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return f"refunded {amount:g} of {order}"


support = Agent("support", "openai:gpt-5", tools=[refund])


class Keyboard:
    """The terminal of this process, and what was written on it."""

    def __init__(self, ours: int, capsys: pytest.CaptureFixture[str]) -> None:
        self._ours, self._capsys = ours, capsys
        self._shown = ""

    def type(self, line: str) -> None:
        os.write(self._ours, line.encode() + b"\n")

    def shown(self) -> str:
        self._shown += self._capsys.readouterr().err
        return self._shown

    async def asked(self, text: str) -> None:
        await eventually(lambda: text in self.shown(), what=f"{text!r} on the terminal")


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Keyboard]:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield Keyboard(ours, capsys)
    os.close(ours)


async def test_somebody_else_decides_while_the_terminal_asks(keyboard: Keyboard) -> None:
    asked = [call("refund", order=name, amount=3) for name in ("a", "b")]
    async with scripted(support, [asked, "Done."]) as script:
        answer = asyncio.ensure_future(support.call("Go.", id="order-7", on_approval="prompt"))
        await keyboard.asked('approve refund({"amount": 3, "order": "a"})? [y/N]')
        run = script.client.run("order-7")
        first, _ = (await run.status()).approvals
        await run.deny(first.call_id, by="bea")
        await keyboard.asked('approve refund({"amount": 3, "order": "b"})? [y/N]')  # nothing was typed
        keyboard.type("y")
        assert results((await answer).messages) == ["Denied by bea", "refunded 3 of b"]


async def test_a_program_ends_that_nobody_types_to(keyboard: Keyboard) -> None:
    async with scripted(support, [call("refund", order="a", amount=3), "Done."]) as script:
        answer = asyncio.ensure_future(support.call("Go.", id="order-7", on_approval="prompt"))
        await keyboard.asked("? [y/N]")
        await script.client.run("order-7").approve(by="bea")
        assert (await answer).content == "Done."
    keyboard.type("for the program")
    assert await asyncio.to_thread(sys.stdin.readline) == "for the program\n", "no prompt has taken it"


async def test_all_that_is_approved_is_shown_and_steers_nothing(keyboard: Keyboard) -> None:
    order = "x" * 900 + "\x9b2J\u202ey"
    async with scripted(support, [call("refund", order=order, amount=3), "Done."]):
        answer = asyncio.ensure_future(support.call("Go.", on_approval="prompt"))
        await keyboard.asked("? [y/N]")
        keyboard.type("n")
        assert results((await answer).messages)[0].startswith("Denied")
    assert f'refund({{"amount": 3, "order": "{"x" * 900}\\x9b2J\\u202ey"}})? [y/N]' in keyboard.shown()
