"""``Branches``: how a policy is left, and what it is given when it runs again, without a run around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.errors import DefinitionError
from perdure.hooks import branch as module
from perdure.hooks.branch import Branch, Branches, LeftError
from perdure.types.subagents import BranchOutcome, BranchRequest


def asked(name: str) -> BranchRequest:
    return BranchRequest(key=name, label=repr(name), agent=name)


def recorded(*names: str) -> Branches:
    """Of these the answers are there: their own names."""
    outcomes = tuple(BranchOutcome(key=name, label=repr(name), agent=name, op=0) for name in names)
    return Branches(outcomes, lambda outcome: outcome.agent)


async def ran(branches: Branches, policy: Callable[[Callable[[str], Branch]], Any]) -> Any:
    """What ``policy`` returns, or the names of what it waits for."""

    async def run(_: str, fn: Callable[..., Any], *args: Any) -> Any:
        value = fn(*args)
        return await value if isinstance(value, Awaitable) else value

    try:
        return await branches.wrap_runner(run)("policy", policy, lambda name: branches.begin_branch(asked(name)))
    except LeftError:
        return [branch.request.label for branch in branches.new_branches]


async def _one(ask: Any) -> Any:
    return await ask("a")


async def _gathered(ask: Any) -> Any:
    return await asyncio.gather(ask("a"), ask("b"), return_exceptions=True)


async def _nested(ask: Any) -> Any:
    async def deeper(name: str) -> Any:
        await asyncio.sleep(0)
        return await asyncio.gather(_await(ask(name)), return_exceptions=True)

    return await asyncio.gather(deeper("a"), deeper("b"), return_exceptions=True)


async def _await(branch: Branch) -> Any:
    return await branch


async def _begun(ask: Any) -> Any:
    first, second = ask("a"), ask("b")
    return [await first, await second]


async def _caught(ask: Any) -> Any:
    try:
        return await ask("a")
    except BaseException:
        raise ValueError("caught") from None


async def _ignored(ask: Any) -> Any:
    try:
        return await ask("a")
    except BaseException:
        return "ignored"


async def _again(ask: Any) -> Any:
    try:
        return await ask("a")
    except asyncio.CancelledError:
        return await ask("b")


async def _left_behind(ask: Any) -> Any:
    waiting = [asyncio.ensure_future(_await(ask("a")))]
    await asyncio.wait(waiting)
    return waiting[0].result()


def _plain(ask: Any) -> Any:
    first, second = ask("a"), ask("b")
    return [first.result(), second.result()]


def _plain_ignored(ask: Any) -> Any:
    try:
        return ask("a").result()
    except BaseException:
        return "ignored"


def _plain_loop(ask: Any) -> Any:
    return asyncio.run(_await(ask("a")))


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (_one, ["a"]),
        (_gathered, ["a", "b"]),
        (_nested, ["a", "b"]),
        (_begun, ["a", "b"]),
        (_caught, ["a"]),
        (_ignored, ["a"]),
        (_again, ["a", "b"]),
        (_left_behind, ["a"]),
        (_plain, ["a", "b"]),
        (_plain_ignored, ["a"]),
    ],
)
async def test_a_policy_is_left_whatever_it_makes_of_that(policy: Any, waits: list[str]) -> None:
    assert await ran(recorded(), policy) == [repr(name) for name in waits]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize(
    ("policy", "value"),
    [(_one, "a"), (_gathered, ["a", "b"]), (_begun, ["a", "b"]), (_left_behind, "a"), (_plain, ["a", "b"])],
)
async def test_what_was_recorded_is_there_at_once(policy: Any, value: Any) -> None:
    assert await ran(recorded("b", "a"), policy) == value


async def test_a_loop_of_the_author_s_own_is_left_too() -> None:
    async def policy(ask: Any) -> Any:
        return await asyncio.to_thread(_plain_loop, ask)

    assert await ran(recorded(), policy) == ["'a'"]


async def test_a_cancellation_from_outside_stays_one() -> None:
    begun = asyncio.Event()

    async def policy(_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(ran(recorded(), policy))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_another_question_than_before_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPEAT_REQUEST_SECONDS", 0.0)
    for policy in (_one, _plain):
        with pytest.raises(DefinitionError, match="asks for the branch 'a', where it asked for 'z'"):
            await ran(recorded("z"), policy)


async def test_the_order_may_be_another_where_they_are_asked_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPEAT_REQUEST_SECONDS", 0.5)  # it asks within some turns of the event loop

    async def policy(ask: Any) -> Any:
        async def slow() -> Any:
            for _ in range(2 * module.LOOP_PASSES):
                await asyncio.sleep(0)
            return await ask("a")

        return await asyncio.gather(_await(ask("b")), slow())

    assert await ran(recorded("a"), policy) == ["'b'"]
    assert await ran(recorded("a", "b"), policy) == ["b", "a"]


async def test_one_that_nobody_waits_for_is_a_mistake() -> None:
    branches = recorded("b")

    async def policy(ask: Any) -> None:
        ask("b")
        ask("a")

    await ran(branches, policy)
    with pytest.raises(DefinitionError, match="began the branch 'a' and did not wait"):
        branches.check_awaited()


async def test_one_that_nobody_waits_for_long_enough_is_a_mistake() -> None:
    async def timed(ask: Any) -> Any:
        try:
            return await asyncio.wait_for(_await(ask("a")), 0)
        except TimeoutError:
            return "late"

    async def behind(ask: Any) -> Any:
        tasks.append(asyncio.ensure_future(_await(ask("a"))))
        await asyncio.sleep(0)
        return "gone on"

    async def begun(ask: Any) -> Any:
        waiting = asyncio.ensure_future(_await(ask("a")))
        await asyncio.wait([waiting], timeout=0)
        waiting.cancel()
        return "gone on"

    tasks: list[asyncio.Future[Any]] = []
    for policy, came in ((timed, "late"), (behind, "gone on"), (begun, "gone on")):
        branches = Branches((), lambda outcome: outcome.agent)
        assert await ran(branches, policy) == came
        with pytest.raises(DefinitionError, match="began the branch 'a' and did not wait"):
            branches.check_awaited()
