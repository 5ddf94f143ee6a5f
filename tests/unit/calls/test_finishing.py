"""Answers that will not do, where what is said of them, or what is done with them, goes too far."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from perdure import Agent, ModelRetry, RunContext, tool
from perdure.calls import answer
from perdure.calls.approvals import ApprovalGate
from perdure.calls.author_loop import AuthorLoop
from perdure.calls.reply import ReplyReader
from perdure.calls.retries import decide_retry
from perdure.errors import HookError
from perdure.testing import call
from perdure.types.messages import Message
from perdure.types.wire import ModelOutput
from tests.unit.calls.build import model_call

LONG = "y" * 1_000_000


class Amount(BaseModel):
    value: int

    @field_validator("value", mode="before")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        threads.append(threading.current_thread().name)
        if value == 0:
            raise ZeroDivisionError("nobody pays nothing")
        if value == -1:
            raise ValueError(LONG)
        return value


threads: list[str] = []


@tool
def pay(amount: Amount) -> str:
    """Pay."""
    return str(amount)


@pytest.fixture
def author() -> Iterator[AuthorLoop]:
    loop = AuthorLoop()
    loop.start()
    yield loop
    loop.stop()


async def read(author: AuthorLoop, said: Any, validator: Any = None, **more: Any) -> ModelOutput:
    """What the loop is told of a reply."""
    agent = Agent("a", "openai:gpt-5", output_validators=[validator] if validator else [], tools=[pay], **more)
    message = Message.assistant(said) if isinstance(said, str) else Message(role="assistant", parts=(said,))
    told: RunContext[Any] = RunContext()
    epilogue = ReplyReader(author, ApprovalGate(author, {agent.name: agent}.get))
    return await epilogue.build_output(agent, model_call().input, message, told)


def refuse(output: Any) -> Any:
    raise ModelRetry(LONG)


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("Done.", {"validator": refuse}),
        (call("__finish__", value=3), {"validator": refuse, "output": int}),
        (call("__finish__", value=-1), {"output": Amount}),
        (call("pay", amount={"value": -1}), {}),
    ],
)
async def test_what_the_model_is_told_of_it_fits_into_history(author: AuthorLoop, said: Any, more: Any) -> None:
    output = await read(author, said, **more)
    assert "yyy" in output.model_dump_json()
    assert len(output.model_dump_json()) < 20_000


async def test_what_a_validator_gives_is_read_on_the_author_s_side_and_fails_the_run_once(author: AuthorLoop) -> None:
    threads.clear()
    output = await read(author, call("__finish__", value=3), lambda _: {"value": 0}, output=Amount)
    assert output.failed is not None, "a reply that is paid for is recorded"
    assert (output.failed.type, "nobody pays nothing" in output.failed.message) == ("HookError", True)
    assert threads
    assert threading.current_thread().name not in threads, "the author's code could block heartbeats"


async def test_a_text_that_a_validator_gives_can_be_stored(author: AuthorLoop) -> None:
    output = await read(author, "Done.", lambda text: f"{text} \ud800")
    assert output.finish is not None
    assert output.finish.content.startswith("Done. ")
    assert output.model_dump_json()


def test_an_error_can_be_sent_whatever_its_text_holds() -> None:
    assert decide_retry(HookError("no file \ud800"), 1).message.encode()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_validator_that_takes_too_long_fails_the_run(
    author: AuthorLoop, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    monkeypatch.setattr(answer, "VALIDATOR_TIMEOUT", 0.1)
    release = threading.Event()

    async def slow(output: Any) -> None:
        await asyncio.Event().wait()

    def slow_too(output: Any) -> None:
        release.wait()

    output = await read(author, "Done.", validator=slow if is_async else slow_too)
    release.set()
    assert output.failed is not None
    assert "did not return within 0.1 s" in output.failed.message
