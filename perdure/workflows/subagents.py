"""Calls of other agents: each is a child workflow, which the run waits for, and stops when it is stopped itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from temporalio.common import TypedSearchAttributes
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from .. import loop
from ..loop.subagents import CANCELLED, read_used
from ..types.interface import WORKFLOW, Response
from ..types.state import PendingCall, RunState
from ..types.wire import NewResult
from . import host
from .indexing import of_child
from .options import child_options
from .work import Work


async def run_subagent(state: RunState, pending: PendingCall, work: Work) -> None:
    """Run the child to its end. An interrupt of the run interrupts the child, which then says what it has used."""
    start = work.guard.apply(state, "the start of a subagent", lambda: loop.child_start(state, pending))
    if isinstance(start, NewResult):
        loop.apply_result(state, pending.op, start)
    if not isinstance(start, dict):
        return
    ended = await run_child(state, loop.child_id(state, pending), start)
    stopping = work.stopping() and loop.was_stopped(ended)
    work.guard.apply(state, "the end of a subagent", lambda: loop.apply_child(state, pending, ended, stopping=stopping))


async def run_child(state: RunState, id: str, start: dict[str, Any]) -> loop.Ended:
    """How the child run ended that ``start`` begins. An interrupt of the run interrupts it."""
    try:
        child = await _started(id, start, of_child(state, start["agent"]))
        await _end(child, lambda: state.interrupt is not None)
        return ended_with(child.result())
    except asyncio.CancelledError:
        return loop.Ended(error=CANCELLED)
    except FailureError as error:
        return failed(error)


async def _started(id: str, start: dict[str, Any], found: TypedSearchAttributes | None) -> asyncio.Task[Any]:
    """The child that has begun. A start that is cancelled would leave one behind that nobody waits for: it is let
    begin, and then stopped like any other. Raises ``FailureError``."""
    given = {"memo": {"agent": start["agent"]}, "search_attributes": found} | child_options()
    starting = asyncio.create_task(host.start_child_workflow(WORKFLOW, start, id=id, **given))
    stopped = False
    while not starting.done():
        try:
            await host.wait([starting])
        except asyncio.CancelledError:
            stopped = True
    child = starting.result()
    if stopped:
        child.cancel()
    return child


async def _end(child: asyncio.Task[Any], interrupted: Callable[[], bool]) -> None:
    """Until ``child`` has ended, however it does."""
    while not child.done():
        try:
            await host.wait([child])
        except asyncio.CancelledError:
            if interrupted() and not child.done():
                await _interrupt(child)
            else:
                child.cancel()


async def _interrupt(child: asyncio.Task[Any]) -> None:
    try:
        await host.signal_child(child, "interrupt")
    except (FailureError, asyncio.CancelledError):  # it has ended meanwhile, or is to end: waiting goes on
        child.cancel()


def ended_with(result: Any) -> loop.Ended:
    """How a child ended that gave a result. One that is not of this engine's form is an error of the child."""
    try:
        return loop.Ended(Response.model_validate(result))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the result"
        return loop.Ended(error=f"RunError: the subagent's result cannot be read: {where}: {first['msg']}")


def failed(error: FailureError) -> loop.Ended:
    """How a child ended that did not end well."""
    cause = error.cause if isinstance(error, ChildWorkflowError) else error
    if isinstance(cause, ApplicationError):
        return loop.Ended(error=f"{cause.type}: {cause.message}", used=read_used(cause.details))
    if is_cancelled_exception(error):
        return loop.Ended(error=CANCELLED)
    if isinstance(cause, TerminatedError):
        return loop.Ended(error="the subagent was terminated before it had an answer")
    return loop.Ended(error=f"{type(cause).__name__}: {cause}")


def was_lost(error: BaseException) -> bool:
    """Whether the child could neither say anything at its end, nor close its transcript."""
    cause = error.cause if isinstance(error, ChildWorkflowError) else error
    return isinstance(cause, TerminatedError | TemporalTimeoutError)
