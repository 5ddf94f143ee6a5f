"""What ``call(on_approval=…)`` does beside waiting for an answer: it decides on calls that wait for a person."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, TypeVar

from .agent import Agent
from .errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    ApprovalPendingError,
    InvalidInputError,
    PerdureError,
    RunClosedError,
    RunNotFoundError,
    ServerUnreachableError,
    StoreError,
)
from .inbox import PendingCall, pending_of
from .run import Run
from .tools import SubagentTool

T = TypeVar("T")

OnApproval = Literal["prompt", "raise", "wait", "approve"] | Callable[[PendingCall], Any]
"""A function, sync or async, of a call that waits: True approves, False denies, None leaves it to somebody else."""
_WAYS = ("prompt", "raise", "wait", "approve")
_FIRST, _LONGEST = 0.05, 1.0
"""Seconds between two looks at what waits: at first, and in the end."""
_PASSING = (ServerUnreachableError, StoreError, RunNotFoundError)
"""What looking may fail with while the answer is still to come: it is looked again."""


def checked_way(how: Any) -> OnApproval:
    """``on_approval``; None is ``"prompt"`` on a terminal, else ``"raise"``. Raises ``InvalidInputError``."""
    if how is None:
        return "prompt" if sys.stdin.isatty() and sys.stderr.isatty() else "raise"
    if how not in _WAYS and not callable(how):
        raise InvalidInputError(
            f"on_approval is {how!r:.100}", hint=f"It can be {', '.join(map(repr, _WAYS))}, or a function."
        )
    return how  # type: ignore[no-any-return]  # just checked


class Deciding:
    """Looks at what waits in ``run`` while something else is waited for. Asks nothing where no call can wait."""

    def __init__(self, run: Run, agent: Agent, how: OnApproval) -> None:
        self._run = run
        self._how = how
        self._known: set[tuple[str, str | None]] = set()
        asks = bool(agent.approvals or agent.subagents or agent.hooks.on("on_iteration")) or any(
            tool.needs_approval or isinstance(tool, SubagentTool) for tool in agent.toolbox
        )
        self._idle = how == "wait" or not asks

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` comes to. Raises ``ApprovalPendingError`` where nobody is to decide here."""
        if self._idle:
            return await work
        working, looking = asyncio.ensure_future(work), asyncio.ensure_future(self._look())
        try:
            await asyncio.wait([working, looking], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await looking
            return await working
        finally:
            working.cancel()
            looking.cancel()
            await asyncio.gather(working, looking, return_exceptions=True)

    async def _look(self) -> None:
        delay = _FIRST
        while True:
            with suppress(*_PASSING):
                for one in await pending_of(self._run):
                    seen = (one.hash, one.since.isoformat() if one.since else None)
                    if seen not in self._known:
                        await self._decide(one)
                        self._known.add(seen)
                        delay = _FIRST
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, _LONGEST)

    async def _decide(self, one: PendingCall) -> None:
        match self._how:
            case "raise":
                raise _pending(one)
            case "approve":
                said: Any = True
            case "prompt":
                said = await asyncio.to_thread(_prompt, one)
            case _:
                assert callable(self._how), "else nothing is looked at"
                said = self._how(one)
                said = await said if inspect.isawaitable(said) else said
        if said is None:
            return
        with suppress(ApprovalDecidedError, ApprovalExpiredError, RunClosedError):  # somebody else was quicker
            if said is True:
                await one.approve()
            elif said is False:
                await one.deny()
            else:
                raise InvalidInputError(f"on_approval returned {said!r:.100}", hint="It gives True, False or None.")


def _pending(one: PendingCall) -> PerdureError:
    return ApprovalPendingError(
        f"run {one.run_id!r} waits for approval of {shown(one)}",
        hint=f"The run stays open: perdure approve {one.run_id}, or deny. "
        'on_approval="wait" waits for that, "approve" or a function decides.',
    )


def shown(one: PendingCall) -> str:
    """The call, in a line."""
    said = "…" if one.arguments is None else json.dumps(one.arguments, ensure_ascii=False)
    return f"{one.tool}({said if len(said) <= 300 else said[:300] + '…'})"


def _prompt(one: PendingCall) -> bool | None:
    """Ask on the terminal. Whoever ends the input leaves it to somebody else."""
    sys.stderr.write(f"\napprove {shown(one)}? [y/N] ")
    sys.stderr.flush()
    said = sys.stdin.readline()
    return said.strip().lower() in ("y", "yes") if said else None
