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
        self.asked = asked
        self._branches = branches
        self._answer = answer
        self.awaited = answer is not None
        """Whether the policy waits for it, or need not."""

    def __repr__(self) -> str:
        return f"<Branch {self.asked.said}>"

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    def result(self) -> Any:
        """The answer, for a policy that is a plain ``def``: begin all that are to run in parallel before you ask."""
        self.awaited = True
        if self._answer is None:
            self._branches.leave()
        return self._answered()

    async def _wait(self) -> Any:
        self.awaited = True
        if self._answer is None:
            await self._branches.held()
        return self._answered()

    def _answered(self) -> Any:
        assert self._answer is not None, "nobody comes here before the answer"
        return self._answer()


class Branches:
    """What the policies of one attempt have asked for. ``recorded``: what earlier attempts' branches came to."""

    def __init__(self, recorded: tuple[BranchOutcome, ...], answer: Callable[[BranchOutcome], Any]) -> None:
        """``answer`` gives a recorded branch's answer, or raises."""
        self._unclaimed = list(recorded)
        self._answer = answer
        self.new: list[Branch] = []
        """Those that nobody has answered, of the policy that runs."""
        self.left = False
        """A policy waits for them."""
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        """Whether we have cancelled it, to leave the policy."""
        self._held: list[asyncio.Future[None]] = []

    def begin(self, asked: BranchRequest) -> Branch:
        """The branch of ``asked``: one of the recorded ones, or a new one."""
        for place, outcome in enumerate(self._unclaimed):
            if outcome.key == asked.key:
                del self._unclaimed[place]
                return Branch(self, asked, partial(self._answer, outcome))
        branch = Branch(self, asked, None)
        self.new.append(branch)
        return branch

    # --- waiting, on the author's side

    def leave(self) -> None:
        """Leave a policy that waits. Raises ``DefinitionError`` where it asks for another branch than before."""
        if self._unclaimed:
            raise self._another()
        self.left = True
        raise NotAnsweredError

    async def held(self) -> None:
        """Wait until the policy is left. Raises as :meth:`leave`."""
        if self.left:  # it goes on in spite of being cancelled
            raise NotAnsweredError
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.get_loop() is not loop:  # a loop of the author's own (asyncio.run)
            self.leave()
        waiting = loop.create_future()
        self._held.append(waiting)
        if len(self._held) == 1:
            loop.call_soon(self._look, LOOP_PASSES)
        await waiting

    def _look(self, turns: int) -> None:
        """Let it ask for more, and then cancel it."""
        task = self._task
        if task is None or task.done():
            return
        if turns:
            task.get_loop().call_soon(self._look, turns - 1)
        elif self._unclaimed:
            task.get_loop().call_later(REPEAT_REQUEST_SECONDS, self._look_again, len(self._unclaimed))
        else:
            self.left = self._cancelled = True
            task.cancel()

    def _look_again(self, unclaimed: int) -> None:
        if len(self._unclaimed) < unclaimed:  # it goes on asking
            self._look(LOOP_PASSES)
            return
        for waiting in self._release():
            waiting.set_exception(self._another())

    def _release(self) -> list[asyncio.Future[None]]:
        held, self._held = self._held, []
        return [one for one in held if not one.done()]

    def _another(self) -> DefinitionError:
        asked = next(one.asked.said for one in self.new if one.awaited)
        return DefinitionError(
            f"the policy asks for the branch {asked}, where it asked for {self._unclaimed[0].said} when it ran before",
            hint="A policy runs again from its start when a branch has answered, and has to ask for the same: "
            "leave out what changes from time to time (the clock, dice). If a deploy has changed what it asks: "
            "resume the run, which goes on from the last results, and the policy asks anew at its next step.",
        )

    # --- around a policy

    def around(self, run: AuthorRunner) -> AuthorRunner:
        """``run``, which raises ``LeftError`` where a policy waits, whatever the policy makes of that."""

        async def contained(name: str, fn: Callable[..., Any], *args: Any) -> Any:
            inside = self._on_loop if inspect.iscoroutinefunction(fn) else self._in_thread
            try:
                value = await run(name, inside, fn, *args)
            except Exception:
                if not self.left:
                    raise
            if self.left:
                raise LeftError
            return value

        return contained

    def forget(self) -> None:
        """The policy has failed, and that is only logged: what it asked for is not asked for."""
        self.new.clear()

    def check(self) -> None:
        """Raise ``DefinitionError`` for a branch that was begun, and nobody waited for; or not until it was left, as
        with a timeout of its own or a task left behind: the step would go on as if nothing had been asked."""
        if self.new and not self.left:
            raise DefinitionError(
                f"the policy began the branch {self.new[0].asked.said} and did not wait for its answer",
                hint="Write await step.branch(…), without a timeout around it, or in a plain def "
                "step.branch(…).result().",
            )

    def _in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        try:
            return fn(*args)
        except NotAnsweredError:
            return None

    async def _on_loop(self, fn: Callable[..., Any], *args: Any) -> Any:
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
            for waiting in self._release():
                waiting.cancel()
