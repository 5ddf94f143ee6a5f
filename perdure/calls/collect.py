"""Collects what an activity had recorded that ended without a result: its worker was lost, or Temporal cancelled it
between two attempts. The run then stops, or has failed, and must know what was paid and done.

Nothing begins here. A call that had begun and has no outcome gets one that says so. A call that had not begun is closed
in the journal, so that an attempt that was only taken for lost cannot begin it any more.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from temporalio import activity

from ..errors import RunIdError
from ..ports.store import Commit, EventBatch, Outcome, Store, build_batch_token
from ..types.tool_calls import Call
from ..types.wire import (
    COLLECT_ACTIVITY,
    CallFacts,
    CloseInput,
    CloseOutput,
    CollectOutput,
    CompactInput,
    CompactOutput,
    ModelInput,
    ModelOutput,
    ToolInput,
    ToolOutput,
)
from .call import Attempt, CollectCall, OutputT, ToolCall
from .event_builders import build_tool_end_events
from .event_feed import build_event_batch
from .inline_tools import build_inline_input, is_inline_call, omit_large_results, set_inline_result
from .journal import build_unknown_outcome
from .journal_keys import (
    build_tool_key,
    encode_given_up,
    find_step_outcome,
    get_outcome_kind,
    parse_outcome,
    read_given_up,
)
from .transcript import check_store_id


class CollectActivity:
    """Reads the journal of ``store`` for calls that are given up."""

    def __init__(self, store: Store) -> None:
        self._journal = store

    @activity.defn(name=COLLECT_ACTIVITY)
    async def collect(self, call: Any) -> Any:
        """The activity. It is passed a ``CollectCall``, never the JSON."""
        return await self.call(cast(CollectCall, call))

    async def call(self, call: CollectCall) -> CollectOutput:
        """Return what the journal has: nothing of a run that the store refuses (``RunIdError``) because it was deleted,
        or its id is another's. Raises ``StoreError``, also for a run that is kept in another store.
        """
        given = call.input
        check_store_id(given.facts, self._journal.store_id)
        with suppress(RunIdError):
            if given.model is not None:
                return CollectOutput(model=await self._collect_reply(call, given.model))
            if given.compact is not None:
                return CollectOutput(compact=await self._collect_step(call, given.compact, CompactOutput))
            if given.close is not None:
                return CollectOutput(close=await self._collect_step(call, given.close, CloseOutput))
            if given.tool is not None:
                return CollectOutput(tool=await self._collect_result(call, given.tool))
        return CollectOutput()

    async def _collect_reply(self, call: CollectCall, task: ModelInput) -> ModelOutput | None:
        output = await self._collect_step(call, task, ModelOutput)
        if output is None or task.is_forced:  # no call of such a reply runs
            return output
        calls: list[Call] = []
        for index, tool_call in enumerate(output.calls):
            if is_inline_call(tool_call):
                result = await self._collect_result(call, build_inline_input(task, output, index))
                tool_call = tool_call if result is None else set_inline_result(tool_call, result)
            calls.append(tool_call)
        return output.model_copy(update={"calls": tuple(omit_large_results(calls))})

    async def _collect_step(
        self, call: CollectCall, task: ModelInput | CompactInput | CloseInput, output_type: type[OutputT]
    ) -> OutputT | None:
        """Return the outcome of a step's call. One without an outcome is given up where the run stops."""
        key, recorded = await find_step_outcome(self._journal, task, call.asked_at)
        if recorded is None and call.input.closing:
            mark = Outcome(key, get_outcome_kind(task), encode_given_up(call.asked_at))
            recorded = await self._journal.commit(Commit(outcome=mark, events=_build_no_events(call, task)))
        if recorded is None or read_given_up(recorded) is not None:
            return None
        return parse_outcome(output_type, recorded, key)

    async def _collect_result(self, call: CollectCall, task: ToolInput) -> ToolOutput | None:
        """Return the outcome of a tool call, or None if it has none and, where the run stops, never began."""
        key = build_tool_key(task)
        # The owner is the same in each attempt to collect, which finds its own claim as new.
        tool_call = ToolCall(task, owner=f"collect/{key}", attempt=call.attempt, asked_at=call.asked_at)
        not_run = _build_not_run_outcome(tool_call).model_dump_json(exclude_none=True).encode()
        recorded = (await self._journal.find_outcomes([key])).get(key)
        # side: hooks around an external call, which leave nothing but what is recorded
        if recorded is None and call.input.closing and task.side is None:
            recorded = await self._close_call(tool_call, not_run)
        return None if recorded in (None, not_run) else parse_outcome(ToolOutput, recorded, key)

    async def _close_call(self, call: ToolCall, not_run: bytes) -> bytes:
        """Record an outcome of a call that has none, ``not_run`` if it has not begun; return the recorded one."""
        claim = await self._journal.claim(call.key, call.owner, events=_build_no_events(call, call.input))
        if claim.outcome is not None:
            return claim.outcome
        body, events = not_run, _build_no_events(call, call.input)
        if claim.state == "begun":
            output = build_unknown_outcome(call)
            body = output.model_dump_json(exclude_none=True).encode()
            events = build_event_batch(call, build_tool_end_events(call, output))
        first = await self._journal.commit(Commit(outcome=Outcome(call.key, "tool", body), events=events))
        assert first is not None, "a commit with an outcome returns the recorded one"
        return first


def _build_no_events(call: Attempt, task: CallFacts) -> EventBatch:
    """Build a batch without events: it tells the store which run an entry of the journal belongs to."""
    lineage, scheduled = task.lineage if task.is_child else None, build_batch_token(call.asked_at)
    return EventBatch(task.context_id, [], lineage=lineage, agent=task.agent, scheduled=scheduled)


def _build_not_run_outcome(call: ToolCall) -> ToolOutput:
    """Build the outcome that prevents a call from beginning: the run has stopped without it."""
    text = f"Cancelled: the run was stopped before {call.input.name} had begun"
    return ToolOutput(key=call.key, content=text, is_error=True, status="cancelled")
