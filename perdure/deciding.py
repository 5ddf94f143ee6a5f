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
from .ports import Toolset
from .run import Run
from .tools import CallbackTool, SubagentTool
from .types.form import misfit

T = TypeVar("T")

OnApproval = Literal["prompt", "raise", "wait", "approve"] | Callable[[PendingCall], Any]
"""A function, sync or async, of a call that waits: True approves, False denies, None leaves it to somebody else. Of one
that asks something, or that a client is to run (``kind``), it returns the answer."""
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
        self._idle = how == "wait" or not _may_wait(agent)

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
                if one.kind != "approval":  # nobody knows the answer
                    raise _pending(one)
                said: Any = True
            case "prompt":
                said = await asyncio.to_thread(_prompt if one.kind == "approval" else _prompt_answer, one)
            case _:
                assert callable(self._how), "else nothing is looked at"
                said = self._how(one)
                said = await said if inspect.isawaitable(said) else said
        if said is None:
            return
        with suppress(ApprovalDecidedError, ApprovalExpiredError, RunClosedError):  # somebody else was quicker
            if one.kind != "approval":
                await one.answer(said)
            elif said is True:
                await one.approve()
            elif said is False:
                await one.deny()
            else:
                raise InvalidInputError(f"on_approval returned {said!r:.100}", hint="It gives True, False or None.")


def _may_wait(agent: Agent) -> bool:
    """Whether a call of ``agent`` may come to wait for a person: a tool that is given the context may ask."""
    if agent.approvals or agent.subagents or agent.hooks.on("on_iteration"):  # its branches may
        return True
    if any(_may_ask(one) for one in agent.toolsets):
        return True
    return any(
        tool.needs_approval or tool.context_parameter is not None or isinstance(tool, SubagentTool | CallbackTool)
        for tool in agent.toolbox
    )


def _may_ask(toolset: Toolset) -> bool:
    """Whether its calls are code that is given the context: those of perdure's own toolsets do not ask."""
    return not type(toolset).__module__.startswith("perdure.")


def _pending(one: PendingCall) -> PerdureError:
    if one.kind != "approval":
        asked = f"for the answer to {one.question!r:.300} of" if one.question else "for a client to run"
        return ApprovalPendingError(
            f"run {one.run_id!r} waits {asked} {shown(one)}",
            hint=f"The run stays open: perdure answer {one.run_id} …. "
            'on_approval="wait" waits for that, "prompt" asks on the terminal, a function returns the answer.',
        )
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


def _prompt_answer(one: PendingCall) -> Any:
    """Ask on the terminal until the answer fits; an empty line, or the end of the input, leaves it to somebody else."""
    sys.stderr.write(f"\n{shown(one)} {f'asks: {one.question}' if one.question else 'is yours to run.'}\n")
    if one.form is not None:
        sys.stderr.write(f"form: {json.dumps(one.form, ensure_ascii=False)}\n")
    while True:
        sys.stderr.write("answer: ")
        sys.stderr.flush()
        if not (said := sys.stdin.readline().strip()):
            return None
        try:
            value = said if one.form is None or misfit(one.form, said) is None else json.loads(said)
        except ValueError:
            value = said
        if one.form is None or (why := misfit(one.form, value)) is None:
            return value
        sys.stderr.write(f"it does not fit: {why}\n")
