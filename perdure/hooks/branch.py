"""``Branch``: the awaitable of ``step.branch(…)``, and how a policy is left until its branches have answered.

A policy waits by ending: its activity returns the branches that it waits for, and when these have answered the policy
runs again from its start. So an ``await`` of a branch without an answer never returns: the policy is cancelled where it
waits. In a plain ``def``, ``result()`` raises an exception that no ``except Exception`` catches.
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
"""Passes of the event loop in which a waiting policy may begin more branches, to run in parallel."""
REPEAT_REQUEST_SECONDS = 2.0
"""Seconds in which a policy has to begin all branches that it began before, if it begins another one first."""


class NotAnsweredError(BaseException):
    """Leaves the policy. Not an ``Exception``: a policy that handles failures must not handle this."""


class LeftError(BaseException):
    """Raised on the worker's side after the policy was left."""


class Branch:
    """A branch of a step. ``await`` it for its answer, or in a plain ``def`` call :meth:`result`.

    Either raises ``BranchError`` if the branch ended without an answer.
    """

    def __init__(self, branches: Branches, request: BranchRequest, read_answer: Callable[[], Any] | None) -> None:
        self.request = request
        self._branches = branches
        self._read_answer = read_answer
        self.is_awaited = read_answer is not None
        """Whether the policy waits for the answer, or already has it."""

    def __repr__(self) -> str:
        return f"<Branch {self.request.label}>"

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait_for_answer().__await__()

    def result(self) -> Any:
        """Return the answer, in a policy that is a plain ``def``: begin all parallel branches before the first call."""
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
        assert self._read_answer is not None, "the policy is left before the answer"
        return self._read_answer()


class Branches:
    """The branches that the policies of one attempt begin."""

    def __init__(self, recorded: tuple[BranchOutcome, ...], read_answer: Callable[[BranchOutcome], Any]) -> None:
        """``recorded``: outcomes of branches from earlier attempts. ``read_answer`` returns the answer of one,
        or raises ``BranchError``."""
        self._unclaimed = list(recorded)
        self._read_answer = read_answer
        self.new_branches: list[Branch] = []
        """Branches of the running policy that have no outcome yet."""
        self.is_left = False
        """A policy was left, to wait for them."""
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        """Whether the task was cancelled here, to leave the policy."""
        self._waiters: list[asyncio.Future[None]] = []

    def begin_branch(self, request: BranchRequest) -> Branch:
        """Return the branch for ``request``: a recorded one, or a new one."""
        for index, outcome in enumerate(self._unclaimed):
            if outcome.key == request.key:
                del self._unclaimed[index]
                return Branch(self, request, partial(self._read_answer, outcome))
        branch = Branch(self, request, None)
        self.new_branches.append(branch)
        return branch

    # --- waiting, on the author's side

    def leave_policy(self) -> None:
        """Leave a policy that waits. Raises ``DefinitionError`` if it has begun another branch than before."""
        if self._unclaimed:
            raise self._build_changed_branch_error()
        self.is_left = True
        raise NotAnsweredError

    async def wait_until_left(self) -> None:
        """Wait until the policy is left. Raises as :meth:`leave_policy`."""
        if self.is_left:  # the policy goes on in spite of the cancellation
            raise NotAnsweredError
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.get_loop() is not loop:  # a loop of the author's own (asyncio.run)
            self.leave_policy()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        if len(self._waiters) == 1:
            loop.call_soon(self._cancel_after_passes, LOOP_PASSES)
        await waiter

    def _cancel_after_passes(self, passes: int) -> None:
        """Let the policy begin more branches, and then cancel it."""
        task = self._task
        if task is None or task.done():
            return
        if passes:
            task.get_loop().call_soon(self._cancel_after_passes, passes - 1)
        elif self._unclaimed:
            task.get_loop().call_later(REPEAT_REQUEST_SECONDS, self._check_repeated_requests, len(self._unclaimed))
        else:
            self.is_left = self._cancelled = True
            task.cancel()

    def _check_repeated_requests(self, unclaimed: int) -> None:
        if len(self._unclaimed) < unclaimed:  # the policy goes on with the branches that it began before
            self._cancel_after_passes(LOOP_PASSES)
            return
        for waiter in self._take_waiters():
            waiter.set_exception(self._build_changed_branch_error())

    def _take_waiters(self) -> list[asyncio.Future[None]]:
        waiters, self._waiters = self._waiters, []
        return [waiter for waiter in waiters if not waiter.done()]

    def _build_changed_branch_error(self) -> DefinitionError:
        description = next(branch.request.label for branch in self.new_branches if branch.is_awaited)
        before = self._unclaimed[0].label
        return DefinitionError(
            f"the policy asks for the branch {description}, where it asked for {before} when it ran before",
            hint="A policy runs again from its start when a branch has answered, and has to make the same requests: "
            "leave out what changes between two runs (the clock, random numbers). If a deploy has changed the "
            "requests, resume the run: it goes on from the last results, and the policy asks again at its next step.",
        )

    # --- around a policy

    def wrap_runner(self, run: AuthorRunner) -> AuthorRunner:
        """Wrap ``run`` so that it raises ``LeftError`` after a policy was left, whatever the policy did then."""

        async def run_policy(name: str, fn: Callable[..., Any], *args: Any) -> Any:
            call_policy = self._call_async_policy if inspect.iscoroutinefunction(fn) else self._call_sync_policy
            try:
                value = await run(name, call_policy, fn, *args)
            except Exception:
                if not self.is_left:
                    raise
            if self.is_left:
                raise LeftError
            return value

        return run_policy

    def discard_new_branches(self) -> None:
        """Forget the branches of a policy that has failed, if that is only logged."""
        self.new_branches.clear()

    def check_awaited(self) -> None:
        """Raise ``DefinitionError`` for a branch that was begun and not awaited; or not until the policy was left, as
        with a timeout of its own or a task left behind: the step would go on as if there were no branch."""
        if self.new_branches and not self.is_left:
            reason = f"the policy began the branch {self.new_branches[0].request.label} and did not wait for its answer"
            hint = "Write await step.branch(…), without a timeout around it, or in a plain def step.branch(…).result()."
            raise DefinitionError(reason, hint=hint)

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
            if task.cancelling() > self._cancelled:  # it was cancelled from outside, too
                raise
            return None
        finally:
            self._task = None
            if self._cancelled:
                task.uncancel()
            for waiter in self._take_waiters():
                waiter.cancel()
