"""Implements ``call(on_approval=…)``: decides pending calls on the terminal or by a function, while the client
waits."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import select
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, TypeVar

from ..agent.agent import Agent
from ..errors import (
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
from ..ports import Toolset
from ..terminal import escape_line
from ..tools import CallbackTool, SubagentTool
from ..types.forms import find_form_mismatch
from .inbox import PendingCall, list_pending_calls_of_run
from .run import Run

# ---
# Prompts on the terminal for a pending call: ``call(on_approval="prompt")``.


async def prompt_for_call(one: PendingCall) -> Any:
    """Prompt for a decision or an answer, and return it; None where the user leaves the call pending.

    The whole call is shown, with control characters escaped: the model has written it.
    """
    return await (_prompt_for_decision(one) if one.kind == "approval" else _prompt_for_answer(one))


def format_pending_call(one: PendingCall, most: int | None = None) -> str:
    """Format the call in one line, with at most ``most`` characters of its arguments."""
    said = "…" if one.arguments is None else json.dumps(one.arguments, ensure_ascii=False)
    cut = most is not None and len(said) > most
    return escape_line(f"{one.tool}({said[:most]}{'…' if cut else ''})")


async def _prompt_for_decision(one: PendingCall) -> bool | None:
    said = await _read_typed_line(f"\napprove {format_pending_call(one)}? [y/N] ")
    return said.strip().lower() in ("y", "yes") if said else None


async def _prompt_for_answer(one: PendingCall) -> Any:
    """Prompt until the answer fits the form. An empty line leaves the call pending."""
    asks = f"asks: {escape_line(one.question)}" if one.question else "is yours to run."
    form = "" if one.form is None else f"form: {escape_line(json.dumps(one.form, ensure_ascii=False))}\n"
    before = f"\n{format_pending_call(one)} {asks}\n{form}"
    while True:
        if not (said := (await _read_typed_line(f"{before}answer: ")).strip()):
            return None
        try:
            value = said if one.form is None or find_form_mismatch(one.form, said) is None else json.loads(said)
        except ValueError:
            value = said
        if one.form is None or (why := find_form_mismatch(one.form, value)) is None:
            return value
        before = f"it does not fit: {escape_line(why)}\n"


async def _read_typed_line(text: str) -> str:
    """Print ``text`` and read the line typed after it; empty at the end of the input. A cancelled wait leaves no thread
    behind, neither one that delays the exit of the program nor one that consumes later input."""
    sys.stderr.write(text)
    sys.stderr.flush()
    stopped, stop = os.pipe()
    reading = asyncio.ensure_future(asyncio.to_thread(_read_stdin_line, stopped))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        sys.stderr.write("\n")
        raise
    finally:
        os.write(stop, b"\0")
        await asyncio.wait([reading])
        os.close(stop)
        os.close(stopped)


def _read_stdin_line(stopped: int) -> str:
    """Read a line of the standard input; empty if ``stopped`` becomes readable first."""
    try:
        typed = [sys.stdin.fileno()] if sys.stdin.isatty() else []
    except OSError:  # stdin is a replacement without a file descriptor
        typed = []
    if typed and sys.platform != "win32":  # a terminal gives a line at a time, so none is in Python's buffer
        ready, _, _ = select.select([*typed, stopped], [], [])
        if stopped in ready:
            return ""
    return sys.stdin.readline()


__all__ = ["format_pending_call", "prompt_for_call"]


T = TypeVar("T")

OnApproval = Literal["prompt", "raise", "wait", "approve"] | Callable[[PendingCall], Any]
"""A function, sync or async, that takes a pending call: True approves, False denies, None leaves it pending. For a
question or a callback (``kind``) it returns the answer."""
_ON_APPROVAL_MODES = ("prompt", "raise", "wait", "approve")
_PENDING_POLL_FIRST_DELAY, _PENDING_POLL_MAX_DELAY = 0.05, 1.0
"""Seconds between two reads of the pending calls: the first and the longest delay."""
_ERROR_ARGUMENT_CHARS = 300
"""Characters of a call's arguments in an error."""
_TRANSIENT_POLL_ERRORS = (ServerUnreachableError, StoreError, RunNotFoundError)
"""Errors after which the pending calls are read again."""


def check_on_approval(how: Any) -> OnApproval:
    """Return ``on_approval``; None becomes ``"prompt"`` on a terminal, else ``"raise"``. Raises
    ``InvalidInputError``."""
    if how is None:
        return "prompt" if sys.stdin.isatty() and sys.stderr.isatty() else "raise"
    if how not in _ON_APPROVAL_MODES and not callable(how):
        raise InvalidInputError(
            f"on_approval is {how!r:.100}", hint=f"It can be {', '.join(map(repr, _ON_APPROVAL_MODES))}, or a function."
        )
    return how  # type: ignore[no-any-return]  # just checked


class ApprovalHandler:
    """Decides the pending calls of ``run`` while the client waits for other work. Does not poll if no call of the agent
    can wait."""

    def __init__(self, run: Run, agent: Agent, how: OnApproval) -> None:
        self._run = run
        self._how = how
        self._known: set[tuple[str, str | None]] = set()
        self._idle = how == "wait" or not _can_agent_wait(agent)

    async def run_while_deciding(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``. Raises ``ApprovalPendingError`` for a call that this client is not to
        decide."""
        if self._idle:
            return await work
        working, looking = asyncio.ensure_future(work), asyncio.ensure_future(self._poll_pending_calls())
        try:
            await asyncio.wait([working, looking], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await looking
            return await working
        finally:
            working.cancel()
            looking.cancel()
            await asyncio.gather(working, looking, return_exceptions=True)

    async def _poll_pending_calls(self) -> None:
        delay = _PENDING_POLL_FIRST_DELAY
        while True:
            with suppress(*_TRANSIENT_POLL_ERRORS):
                for one in await list_pending_calls_of_run(self._run):
                    if _build_pending_key(one) not in self._known:
                        await self._decide_call(one)
                        self._known.add(_build_pending_key(one))
                        delay = _PENDING_POLL_FIRST_DELAY
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, _PENDING_POLL_MAX_DELAY)

    async def _prompt_until_decided(self, one: PendingCall) -> Any:
        """Return the typed decision or answer; None as soon as another client has decided."""
        asking = asyncio.ensure_future(prompt_for_call(one))
        try:
            while not (await asyncio.wait([asking], timeout=_PENDING_POLL_MAX_DELAY))[0]:
                with suppress(*_TRANSIENT_POLL_ERRORS):
                    if _build_pending_key(one) not in map(
                        _build_pending_key, await list_pending_calls_of_run(self._run)
                    ):
                        return None
            return await asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _decide_call(self, one: PendingCall) -> None:
        match self._how:
            case "raise":
                raise _build_approval_pending_error(one)
            case "approve":
                if one.kind != "approval":  # no automatic answer is possible
                    raise _build_approval_pending_error(one)
                said: Any = True
            case "prompt":
                said = await self._prompt_until_decided(one)
            case _:
                assert callable(self._how), "else nothing is looked at"
                said = self._how(one)
                said = await said if inspect.isawaitable(said) else said
        if said is None:
            return
        with suppress(ApprovalDecidedError, ApprovalExpiredError, RunClosedError):  # another client decided first
            if one.kind != "approval":
                await one.answer(said)
            elif said is True:
                await one.approve()
            elif said is False:
                await one.deny()
            else:
                raise InvalidInputError(f"on_approval returned {said!r:.100}", hint="It gives True, False or None.")


def _build_pending_key(one: PendingCall) -> tuple[str, str | None]:
    return one.hash, one.since.isoformat() if one.since else None


def _can_agent_wait(agent: Agent) -> bool:
    """Whether a call of ``agent`` may wait for a person: a tool that takes the context may ask a question."""
    if agent.approvals or agent.subagents or agent.hooks.on("on_iteration"):  # a branch's calls may wait
        return True
    if any(_can_toolset_ask(one) for one in agent.toolsets):
        return True
    return any(
        tool.needs_approval or tool.context_parameter is not None or isinstance(tool, SubagentTool | CallbackTool)
        for tool in agent.toolbox
    )


def _can_toolset_ask(toolset: Toolset) -> bool:
    """Whether the toolset's calls may ask a question: those of perdure's own toolsets do not."""
    return not type(toolset).__module__.startswith("perdure.")


def _build_approval_pending_error(one: PendingCall) -> PerdureError:
    if one.kind != "approval":
        asked = f"for the answer to {one.question!r:.300} of" if one.question else "for a client to run"
        return ApprovalPendingError(
            f"run {one.run_id!r} waits {asked} {format_pending_call(one, _ERROR_ARGUMENT_CHARS)}",
            hint=f"The run stays open: perdure answer {one.run_id} …. "
            'on_approval="wait" waits for that, "prompt" asks on the terminal, a function returns the answer.',
        )
    return ApprovalPendingError(
        f"run {one.run_id!r} waits for approval of {format_pending_call(one, _ERROR_ARGUMENT_CHARS)}",
        hint=f"The run stays open: perdure approve {one.run_id}, or deny. "
        'on_approval="wait" waits for that, "approve" or a function decides.',
    )
