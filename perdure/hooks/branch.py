"""``Branch``: what ``step.branch(…)`` gives a policy to wait for, and how the policy is left while nobody has answered.

A policy waits by ending: its activity says what it waits for, and when that is there the policy runs again from its
start. So an ``await`` of a branch that has not answered never comes back: the policy is cancelled where it waits. In a
plain ``def``, ``result()`` raises what no ``except Exception`` catches.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from ..errors import DefinitionError
from ..types.subagents import BranchOutcome, BranchRequest
from .dispatch import AuthorRunner

LOOP_PASSES = 20
"""Turns of the event loop that a policy is given to ask for more, once it waits: for branches in parallel."""
REPEAT_REQUEST_SECONDS = 2.0
"""Seconds that it is given to ask for what it has asked for before, where it asks for something else first."""


class NotAnsweredError(BaseException):
    """The policy is left. No ``Exception``: a policy that reacts to failures must not react to this."""


class LeftError(BaseException):
    """The policy was left, on the worker's side."""


class Branch:
    """A branch of a step. ``await`` it for its answer, or in a plain ``def`` call :meth:`result`.

    Either raises ``BranchError`` where it has none.
    """

    def __init__(self, branches: Branches, asked: BranchRequest, answer: Callable[[], Any] | None) -> None:
        self.request = asked
        self._branches = branches
        self._read_answer = answer
        self.is_awaited = answer is not None
        """Whether the policy waits for it, or need not."""

    def __repr__(self) -> str:
        return f"<Branch {self.request.said}>"

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait_for_answer().__await__()

    def result(self) -> Any:
        """The answer, for a policy that is a plain ``def``: begin all that are to run in parallel before you ask."""
        self.is_awaited = True
        if self._read_answer is None:
            self._branches.leave_policy()
        return self._get_answer()

    async def _wait_for_answer(self) -> Any:
        self.is_awaited = True
        if self._read_answer is None:
            await self._branches.wait_until_left()
        return self._get_answer()

    def _get_answer(self) -> Any:
        assert self._read_answer is not None, "nobody comes here before the answer"
        return self._read_answer()


class Branches:
    """What the policies of one attempt have asked for. ``recorded``: what earlier attempts' branches came to."""

    def __init__(self, recorded: tuple[BranchOutcome, ...], answer: Callable[[BranchOutcome], Any]) -> None:
        """``answer`` gives a recorded branch's answer, or raises."""
        self._unclaimed = list(recorded)
        self._read_answer = answer
        self.new_branches: list[Branch] = []
        """Those that nobody has answered, of the policy that runs."""
        self.is_left = False
        """A policy waits for them."""
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        """Whether we have cancelled it, to leave the policy."""
        self._waiters: list[asyncio.Future[None]] = []

    def begin_branch(self, asked: BranchRequest) -> Branch:
        """The branch of ``asked``: one of the recorded ones, or a new one."""
        for place, outcome in enumerate(self._unclaimed):
            if outcome.key == asked.key:
                del self._unclaimed[place]
                return Branch(self, asked, partial(self._read_answer, outcome))
        branch = Branch(self, asked, None)
        self.new_branches.append(branch)
        return branch

    # --- waiting, on the author's side

    def leave_policy(self) -> None:
        """Leave a policy that waits. Raises ``DefinitionError`` where it asks for another branch than before."""
        if self._unclaimed:
            raise self._build_changed_branch_error()
        self.is_left = True
        raise NotAnsweredError

    async def wait_until_left(self) -> None:
        """Wait until the policy is left. Raises as :meth:`leave_policy`."""
        if self.is_left:  # it goes on in spite of being cancelled
            raise NotAnsweredError
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.get_loop() is not loop:  # a loop of the author's own (asyncio.run)
            self.leave_policy()
        waiting = loop.create_future()
        self._waiters.append(waiting)
        if len(self._waiters) == 1:
            loop.call_soon(self._cancel_after_passes, LOOP_PASSES)
        await waiting

    def _cancel_after_passes(self, turns: int) -> None:
        """Let it ask for more, and then cancel it."""
        task = self._task
        if task is None or task.done():
            return
        if turns:
            task.get_loop().call_soon(self._cancel_after_passes, turns - 1)
        elif self._unclaimed:
            task.get_loop().call_later(REPEAT_REQUEST_SECONDS, self._check_repeated_requests, len(self._unclaimed))
        else:
            self.is_left = self._cancelled = True
            task.cancel()

    def _check_repeated_requests(self, unclaimed: int) -> None:
        if len(self._unclaimed) < unclaimed:  # it goes on asking
            self._cancel_after_passes(LOOP_PASSES)
            return
        for waiting in self._take_waiters():
            waiting.set_exception(self._build_changed_branch_error())

    def _take_waiters(self) -> list[asyncio.Future[None]]:
        held, self._waiters = self._waiters, []
        return [one for one in held if not one.done()]

    def _build_changed_branch_error(self) -> DefinitionError:
        asked = next(one.request.said for one in self.new_branches if one.is_awaited)
        return DefinitionError(
            f"the policy asks for the branch {asked}, where it asked for {self._unclaimed[0].said} when it ran before",
            hint="A policy runs again from its start when a branch has answered, and has to ask for the same: "
            "leave out what changes from time to time (the clock, dice). If a deploy has changed what it asks: "
            "resume the run, which goes on from the last results, and the policy asks anew at its next step.",
        )

    # --- around a policy

    def wrap_runner(self, run: AuthorRunner) -> AuthorRunner:
        """``run``, which raises ``LeftError`` where a policy waits, whatever the policy makes of that."""

        async def contained(name: str, fn: Callable[..., Any], *args: Any) -> Any:
            inside = self._call_async_policy if inspect.iscoroutinefunction(fn) else self._call_sync_policy
            try:
                value = await run(name, inside, fn, *args)
            except Exception:
                if not self.is_left:
                    raise
            if self.is_left:
                raise LeftError
            return value

        return contained

    def discard_new_branches(self) -> None:
        """The policy has failed, and that is only logged: what it asked for is not asked for."""
        self.new_branches.clear()

    def check_awaited(self) -> None:
        """Raise ``DefinitionError`` for a branch that was begun, and nobody waited for; or not until it was left, as
        with a timeout of its own or a task left behind: the step would go on as if nothing had been asked."""
        if self.new_branches and not self.is_left:
            raise DefinitionError(
                f"the policy began the branch {self.new_branches[0].request.said} and did not wait for its answer",
                hint="Write await step.branch(…), without a timeout around it, or in a plain def "
                "step.branch(…).result().",
            )

    def _call_sync_policy(self, fn: Callable[..., Any], *args: Any) -> Any:
        try:
            return fn(*args)
        except NotAnsweredError:
            return None

    async def _call_async_policy(self, fn: Callable[..., Any], *args: Any) -> Any:
        self._task = task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        try:
            return await fn(*args)
        except NotAnsweredError:
            return None
        except asyncio.CancelledError:
            if task.cancelling() > self._cancelled:  # somebody else has cancelled it, too
                raise
            return None
        finally:
            self._task = None
            if self._cancelled:
                task.uncancel()
            for waiting in self._take_waiters():
                waiting.cancel()
