"""Implements ``call(on_approval=…)``: decides pending calls on the terminal or by a function, while the client
waits."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal

from .._terminal import escape_line
from ..agent.spec import AgentSpec
from ..client.inbox import PendingCall, list_pending_calls_of_run
from ..client.run import Run
from ..client.tasks import background_task
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
from ..tools import CallbackTool, SubagentTool
from ..types.forms import find_form_mismatch

OnApproval = Literal["prompt", "raise", "wait", "approve"] | Callable[[PendingCall], Any]
"""A function, sync or async, that takes a pending call: True approves, False denies, None leaves it pending. For a
question or a callback (``kind``) it returns the answer."""
Approving = tuple[Any, str | None]
"""What a call was given for ``on_approval`` and ``approve_as``."""
_ON_APPROVAL_MODES = ("prompt", "raise", "wait", "approve")
_PENDING_POLL_FIRST_DELAY, _PENDING_POLL_MAX_DELAY = 0.05, 1.0
"""Seconds between two reads of the pending calls: the first and the longest delay."""
_ERROR_ARGUMENT_CHARS = 300
"""Characters of a call's arguments in an error."""
_TRANSIENT_POLL_ERRORS = (ServerUnreachableError, StoreError, RunNotFoundError)
"""Errors after which the pending calls are read again."""


# ---
# Prompts on the terminal for a pending call: ``call(on_approval="prompt")``.


async def prompt_for_call(pending_call: PendingCall) -> Any:
    """Prompt for a decision or an answer, and return it; None where the user leaves the call pending.

    The whole call is shown, with control characters escaped: the model has written it.
    """
    call = format_pending_call(pending_call)
    if pending_call.kind == "approval":
        typed = await _read_typed_line(f"\napprove {call}? [y/N] ")
        return typed.strip().lower() in ("y", "yes") if typed else None
    question = pending_call.question
    asks = f"asks: {escape_line(question)}" if question else "is run by you: enter its result."
    form = pending_call.form
    before = f"\n{call} {asks}\n"
    if form is not None:
        before += f"form: {escape_line(json.dumps(form, ensure_ascii=False))}\n"
    while answer := (await _read_typed_line(f"{before}answer: ")).strip():
        if form is None or find_form_mismatch(form, answer) is None:
            return answer
        value = answer
        with suppress(ValueError):
            value = json.loads(answer)
        if (mismatch := find_form_mismatch(form, value)) is None:
            return value
        before = f"the answer does not fit: {escape_line(mismatch)}\n"
    return None


def format_pending_call(pending_call: PendingCall, max_chars: int | None = None) -> str:
    """Format the call in one line, with at most ``max_chars`` characters of its arguments."""
    arguments = pending_call.arguments
    text = "…" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    cut = max_chars is not None and len(text) > max_chars
    return escape_line(f"{pending_call.tool}({text[:max_chars]}{'…' if cut else ''})")


async def _read_typed_line(text: str) -> str:
    """Print ``text`` and read the line typed after it; empty at the end of the input. A cancelled wait leaves no thread
    behind, neither one that delays the exit of the program nor one that consumes later input."""
    sys.stderr.write(text)
    sys.stderr.flush()
    stop_reader, stop_writer = os.pipe()
    reading = asyncio.ensure_future(asyncio.to_thread(_read_stdin_line, stop_reader))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        sys.stderr.write("\n")
        raise
    finally:
        os.write(stop_writer, b"\0")
        await asyncio.wait([reading])
        os.close(stop_writer)
        os.close(stop_reader)


def _read_stdin_line(stop_reader: int) -> str:
    """Read a line of the standard input; empty if ``stop_reader`` becomes readable first."""
    with suppress(OSError):  # stdin may be a replacement without a file descriptor
        # A terminal gives a line at a time, so none is in Python's buffer.
        if sys.stdin.isatty() and sys.platform != "win32":
            ready, _, _ = select.select([sys.stdin.fileno(), stop_reader], [], [])
            if stop_reader in ready:
                return ""
    return sys.stdin.readline()


# ---
# Decides pending calls while the client waits.


def check_on_approval(on_approval: Any) -> OnApproval:
    """Return ``on_approval``; None becomes ``"prompt"`` on a terminal, else ``"raise"``. Raises
    ``InvalidInputError``."""
    if on_approval is None:
        return "prompt" if sys.stdin.isatty() and sys.stderr.isatty() else "raise"
    if on_approval not in _ON_APPROVAL_MODES and not callable(on_approval):
        modes = ", ".join(map(repr, _ON_APPROVAL_MODES))
        raise InvalidInputError(f"on_approval is {on_approval!r:.100}", hint=f"It can be {modes}, or a function.")
    return on_approval  # type: ignore[no-any-return]  # just checked


class ApprovalHandler:
    """Decides the pending calls of ``run``, beside what the client waits for."""

    def __init__(self, run: Run, agent: AgentSpec, on_approval: OnApproval, approve_as: str | None = None) -> None:
        self._run = run
        self._on_approval = on_approval
        self._by = approve_as
        self._decided: set[tuple[str, datetime | None]] = set()
        self.is_needed = on_approval != "wait" and _can_agent_wait(agent)
        """Whether a call of the agent can wait for this client."""

    async def decide_calls(self) -> None:
        """Decide the pending calls as they come, until cancelled. Raises ``ApprovalPendingError`` for a call that this
        client is not to decide, and what an author's function raises."""
        delay = _PENDING_POLL_FIRST_DELAY
        while True:
            with suppress(*_TRANSIENT_POLL_ERRORS):
                for pending_call in await list_pending_calls_of_run(self._run):
                    if (pending_call.hash, pending_call.since) not in self._decided:
                        await self._decide_call(pending_call)
                        self._decided.add((pending_call.hash, pending_call.since))
                        delay = _PENDING_POLL_FIRST_DELAY
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, _PENDING_POLL_MAX_DELAY)

    async def _prompt_until_decided(self, pending_call: PendingCall) -> Any:
        """Return the typed decision or answer; None as soon as another client has decided."""
        wait = pending_call.hash, pending_call.since
        async with background_task(prompt_for_call(pending_call)) as prompting:
            while not (await asyncio.wait([prompting], timeout=_PENDING_POLL_MAX_DELAY))[0]:
                with suppress(*_TRANSIENT_POLL_ERRORS):
                    if wait not in [(call.hash, call.since) for call in await list_pending_calls_of_run(self._run)]:
                        return None
            return await prompting

    async def _decide_call(self, pending_call: PendingCall) -> None:
        decision: Any = True
        is_approval = pending_call.kind == "approval"
        if self._on_approval == "prompt":
            decision = await self._prompt_until_decided(pending_call)
        elif callable(self._on_approval):
            decision = self._on_approval(pending_call)
            decision = await decision if inspect.isawaitable(decision) else decision
        elif self._on_approval == "raise" or not is_approval:  # "approve" has no answer to a question
            raise _build_approval_pending_error(pending_call)
        if decision is None:
            return
        with suppress(ApprovalDecidedError, ApprovalExpiredError, RunClosedError):  # another client decided first
            if not is_approval:
                await pending_call.answer(decision, by=self._by)
            elif decision is True:
                await pending_call.approve(by=self._by)
            elif decision is False:
                await pending_call.deny(by=self._by)
            else:
                hint = "It must return True, False or None."
                raise InvalidInputError(f"on_approval returned {decision!r:.100}", hint=hint)


def _can_agent_wait(agent: AgentSpec) -> bool:
    """Whether a call of ``agent`` may wait for a person: a tool that takes the context may ask a question."""
    if agent.approvals or agent.subagents or agent.hooks.on("on_iteration"):  # a branch's calls may wait
        return True
    # Calls of perdure's own toolsets ask no questions.
    if any(not type(toolset).__module__.startswith("perdure.") for toolset in agent.toolsets):
        return True
    return any(
        tool.needs_approval or tool.context_parameter is not None or isinstance(tool, SubagentTool | CallbackTool)
        for tool in agent.toolbox
    )


def _build_approval_pending_error(pending_call: PendingCall) -> PerdureError:
    run_id, call = pending_call.run_id, format_pending_call(pending_call, _ERROR_ARGUMENT_CHARS)
    if pending_call.kind == "approval":
        return ApprovalPendingError(
            f"run {run_id!r} waits for approval of {call}",
            hint=f"The run stays open: perdure approve {run_id}, or deny. "
            'on_approval="wait" waits for that, "approve" or a function decides.',
        )
    question = pending_call.question
    wanted = f"for the answer to {question!r:.300} of" if question else "for a client to run"
    return ApprovalPendingError(
        f"run {run_id!r} waits {wanted} {call}",
        hint=f"The run stays open: perdure answer {run_id} …. "
        'on_approval="wait" waits for that, "prompt" asks on the terminal, a function returns the answer.',
    )
