"""The journal stage, which records each call's outcome once.

A step's call: its outcome is looked up before, and recorded after, in one transaction with the transcript's node.
A tool call: its intent is recorded first, so that a retry can tell "never begun" (run it), "done" (return it) and
"begun, outcome unknown" apart; in the last case only an idempotent tool runs again. An attempt that ends before it has
called the function gives its claim up.

The author's writes into memory are part of the transaction, so they happen as often as the outcome: once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import cast

from ..errors import MemoryChangedError, StoreError
from ..ports.store import Blob, Claim, Commit, EventBatch, Journal, Outcome, move_text_to_blob
from ..ports.test_seams import reach_point
from ..types.outcome_unknown import format_lost_worker, format_lost_workers
from ..types.wire import RequestFacts, ToolOutput
from .call import CallT, NextTool, OutputT, Reply, StepCall, ToolCall
from .event_builders import build_recovery_events, build_tool_end_events, build_tool_start_events
from .event_feed import build_event_batch
from .journal_keys import build_given_up_error, find_step_outcome, get_outcome_kind, parse_outcome, read_given_up
from .retries import retry_store

CANCELLED_COMMIT_TIMEOUT = 10.0
"""Seconds for which a cancelled activity still tries to record its outcome."""


class JournalStage:
    """Looks outcomes up and records them.

    ``waiting`` is called with the reason when a write has to wait for the store, and with "" when it is done.
    """

    def __init__(self, journal: Journal, waiting: Callable[[str], None] = lambda _: None) -> None:
        self._journal = journal
        self._report_waiting = waiting

    async def step(self, call: CallT, next: Callable[[CallT], Awaitable[Reply[OutputT]]]) -> OutputT:
        """Return the recorded outcome of a step's call, or run ``next`` and record its outcome."""
        key, recorded = await find_step_outcome(self._journal, call.input, call.asked_at)
        read = partial(parse_outcome, cast(type[OutputT], call.output_type), key=key)
        if recorded is not None:
            return read(recorded)
        call.nothing_recorded = call.attempt == 1  # an earlier attempt, taken for lost, may still record something
        is_paid = isinstance(call.input, RequestFacts)
        if is_paid:
            reach_point("model.begun")
        reply = await next(call)
        if is_paid:
            reach_point("model.answered")
        body = reply.output.model_dump_json(exclude_none=True).encode()
        read(body)  # an outcome that could not be read back is not recorded
        outcome = Outcome(key, get_outcome_kind(call.input), body)
        call.nothing_recorded = False
        commit = replace(reply.commit, outcome=outcome, memory=tuple(call.recording.memory_writes))
        if call.attempt > 1:
            commit = replace(commit, events=_add_recovery(call, commit.events))
        first = await self._commit_despite_cancel(commit)
        if is_paid:
            reach_point("model.recorded")
        if (given_up := read_given_up(first)) is not None:
            raise build_given_up_error(given_up)
        # Where another attempt recorded its outcome first, that counts.
        return reply.output if first == body else read(first)

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Return the recorded outcome, or run ``next``, if the call may run, and record its outcome."""
        started = build_event_batch(call, build_tool_start_events(call))
        again = call.input.idempotent or call.input.side is not None  # only hooks run, which may run again
        # In this attempt, also where the store is down: the claim may be written and its answer lost, and then another
        # attempt would not know that nothing was begun.
        claiming = asyncio.ensure_future(
            retry_store(
                lambda: self._journal.claim(call.key, call.owner, again=again, events=started), self._report_waiting
            )
        )
        try:
            claim = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await self._release_claim(call, claiming)
            raise
        if claim.outcome is not None:
            return parse_outcome(ToolOutput, claim.outcome, call.key)
        if _is_later_attempt(claim.begun_by, call.owner):
            # This one waited for the store, or its worker stood still, and was taken for lost: the other one acts now.
            raise StoreError(f"a later attempt has begun {call.input.name}")
        call.nothing_recorded = True  # until the tool begins
        while True:
            try:
                return await self._run_and_record(call, claim, next)
            except MemoryChangedError:  # nothing is recorded: it has read values that were changed since
                call.recording.memory_writes.clear()
                call.hook_writes[:] = call.before_hook_writes or ()
                call.recording.blobs.clear()
                call.error = None

    async def _run_and_record(self, call: ToolCall, claim: Claim, next: NextTool) -> ToolOutput:
        """Run the call and record its outcome. Raises ``MemoryChangedError`` where it has to run once more."""
        output = _find_unknown_outcome(call, claim) or await self._run_claimed_tool(call, next)
        blobs: list[Blob] = []
        output = move_text_to_blob(output, "content", blobs, empty=None)
        body = output.model_dump_json(exclude_none=True).encode()
        parse_outcome(ToolOutput, body, call.key)  # an outcome that could not be read back is not recorded
        # A failed tool writes nothing into memory; the writes of another are recorded once, with its outcome.
        # A tool that asks a question runs again from its start, and so do the hooks around it.
        memory = (
            ()
            if output.status == "asking"
            else (*call.hook_writes, *(() if output.is_error else call.recording.memory_writes))
        )
        outcome = Outcome(call.key, "tool", body)
        call.nothing_recorded = False
        ended = [*build_recovery_events(call), *build_tool_end_events(call, output)]
        events = build_event_batch(call, [*call.recording.pending_events, *ended])
        first = await self._commit_despite_cancel(
            Commit(blobs=[*blobs, *call.recording.blobs], outcome=outcome, memory=memory, events=events)
        )
        reach_point("tool.recorded")
        return output if first == body else parse_outcome(ToolOutput, first, call.key)

    async def _run_claimed_tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        reach_point("tool.claimed")
        try:
            output = await next(call)
        except BaseException:
            if not call.has_begun:  # cancelled in a hook before the call, for instance
                await self._release_claim(call)
            raise
        reach_point("tool.acted")
        return output

    async def _release_claim(self, call: ToolCall, claiming: asyncio.Future[Claim] | None = None) -> None:
        """Give up the claim of an attempt that ends before it has called the function, so that the next one runs it.

        A claim that is being written (``claiming``) is awaited first: it must not follow its release. Where the store
        does not take it within ``CANCELLED_COMMIT_TIMEOUT`` seconds, the call counts as begun. A call that may run
        again needs none of this.
        """
        try:
            if call.input.idempotent or call.input.side is not None:
                return
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(CANCELLED_COMMIT_TIMEOUT):
                    if claiming is not None:
                        await claiming
                    await retry_store(lambda: self._journal.release_claim(call.key, call.owner), self._report_waiting)
        finally:
            if claiming is not None:
                claiming.cancel()

    async def _commit_despite_cancel(self, commit: Commit) -> bytes:
        """Write ``commit``, also if the activity is cancelled meanwhile. Return the recorded outcome.

        Raises ``StoreError`` if, after a cancellation, it is not written within ``CANCELLED_COMMIT_TIMEOUT`` seconds.
        """
        try:
            return await self._commit_with_retry(commit)
        except asyncio.CancelledError:
            # It may be written, or about to be: a second commit returns the outcome that is recorded.
            try:
                return await asyncio.wait_for(self._commit_with_retry(commit), CANCELLED_COMMIT_TIMEOUT)
            except TimeoutError:
                raise StoreError(
                    f"cancelled, and the store did not take the outcome within {CANCELLED_COMMIT_TIMEOUT:g} s"
                ) from None

    async def _commit_with_retry(self, commit: Commit) -> bytes:
        """Write ``commit`` as soon as the store takes it. Return the recorded outcome.

        Failing the attempt instead would lose a paid reply, or the outcome of an effect that cannot be undone.
        """
        first = await retry_store(lambda: self._journal.commit(commit), self._report_waiting)
        assert first is not None, "a commit with an outcome returns the recorded one"
        return first


def _add_recovery(call: StepCall, batch: EventBatch | None) -> EventBatch:
    """Return the batch with the event that the call, whose attempts have failed, holds its run up no longer."""
    batch = build_event_batch(call, ()) if batch is None else batch
    return replace(batch, events=[*build_recovery_events(call), *batch.events])


def _is_later_attempt(other: str | None, owner: str) -> bool:
    """Whether ``other`` is a later attempt of the activity whose attempt ``owner`` is (``Attempt.owner``)."""
    if other is None:
        return False
    (*activity, attempt), (*other_activity, other_attempt) = owner.split("/")[:3], other.split("/")[:3]
    return activity == other_activity and int(other_attempt) > int(attempt)


def _find_unknown_outcome(call: ToolCall, claim: Claim) -> ToolOutput | None:
    """Build the result of a call that began, has no recorded outcome, and may not run again; None if it may run."""
    name, retries = call.input.name, call.input.retries
    if claim.state == "begun":
        return build_unknown_outcome(call)
    if retries is not None and claim.starts > retries + 1:
        text = format_lost_workers(name, retries + 1)
        return ToolOutput(key=call.key, content=text, is_error=True, status="unknown")
    return None


def build_unknown_outcome(call: ToolCall) -> ToolOutput:
    """Build the result of a call that began, and of which no outcome is recorded."""
    text = format_lost_worker(call.input.name)
    return ToolOutput(key=call.key, content=text, is_error=True, status="unknown")
