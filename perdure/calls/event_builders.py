"""Builds the events of model calls, tool calls, approvals, questions, branches and failures.

An event's key is the same in every attempt, so that several attempts record the event once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

from ..loop.finish import REMINDER_ID
from ..loop.lifecycle import PAUSING_ERRORS
from ..ports.failures import HELD_UP_ATTEMPTS
from ..ports.store import NewEvent, move_file_to_blob
from ..ports.times import timestamp
from ..types.approvals import ApprovalOutcome, hash_arguments
from ..types.events import (
    ApprovalDecided,
    ApprovalReminded,
    ApprovalRequested,
    ApprovalRevoked,
    BranchCompleted,
    BranchStarted,
    CallSaid,
    ConversationCompacted,
    ErrorEvent,
    LimitReached,
    MessageInjected,
    MessageWithheld,
    ModelCompleted,
    ModelRetracted,
    ModelStarted,
    QuestionAnswered,
    QuestionAsked,
    RunEvent,
    ToolCompleted,
    ToolStarted,
    TurnEvent,
)
from ..types.interface import FINISH_TOOL, OperatorPause, Response
from ..types.limits import LimitUse
from ..types.messages import INLINE_BYTES, FilePart, TextPart
from ..types.plain_json import measure_json
from ..types.run_ids import format_child_run_id
from ..types.summaries import summarize_call, summarize_question
from ..types.tool_calls import (
    ActivityCall,
    AfterExternalCall,
    AnsweredCall,
    BeforeExternalCall,
    Call,
    CallbackCall,
    InlineCall,
    Question,
    RefusedCall,
    RemoteCall,
    SubagentCall,
)
from ..types.wire import CloseInput, CompactOutput, ModelInput, ModelOutput, NewMessage, NewResult, ToolOutput
from .call import CloseCall, CompactCall, ModelCall, ModelReply, RemindCall, StepCall, ToolCall
from .incoming import render_as_xml
from .retries import RetryDecision, find_next_delay
from .run_rows import build_response

# ---
# Events of approvals.


def build_approvals_requested(output: ModelOutput, fields: dict[str, Any]) -> Iterator[NewEvent]:
    """Build an event for each call of a reply that needs an approval. ``fields`` has the fields of every event."""
    for call in output.calls:
        if call.approval is not None:
            event = ApprovalRequested(
                **fields,
                call_id=call.id,
                name=call.name,
                arguments=call.arguments,
                summary=call.summary,
                amount=call.amount,
                hash=call.approval.hash,
                expires_in=call.approval.expires,
                on_expiry=call.approval.on_expiry,
            )
            yield NewEvent(event)


def build_reminder_events(call: RemindCall) -> Iterator[NewEvent]:
    """Build the events of reminders of pending approvals."""
    task = call.input
    for reminder in task.reminders:
        event = ApprovalReminded(**build_event_fields(call), **reminder.model_dump())
        yield NewEvent(event, key=f"reminded/{task.scope}/{task.op}/{reminder.call_id}")


def build_approvals_revoked(task: ModelInput | CloseInput, fields: dict[str, Any]) -> Iterator[NewEvent]:
    """Build the events of revoked standing approvals."""
    for revocation in task.revoked:
        event = ApprovalRevoked(
            **fields,
            name=revocation.tool,
            by=revocation.by,
            revoked_at=revocation.at,
            approved_by=revocation.approved_by,
        )
        yield NewEvent(event, key=f"revoked/{task.scope}/{revocation.tool}/{revocation.at}")


def build_approval_decided(
    outcome: ApprovalOutcome, call_id: str, name: str, key: str, fields: dict[str, Any]
) -> NewEvent:
    """Build the event of a decision; ``key`` identifies the call."""
    event = ApprovalDecided(
        **fields,
        call_id=call_id,
        name=name,
        decision=outcome.state,
        decided_at=outcome.at,
        **outcome.model_dump(include={"by", "comment", "arguments", "always", "standing"}),
    )
    return NewEvent(event, key=f"decided/{key}")


# ---
# Events of branches.


def build_branches_started(task: ModelInput, output: ModelOutput, fields: dict[str, Any]) -> Iterator[NewEvent]:
    """Build the events of the branches that a step waits for. ``fields`` has the fields of every event."""
    for index, branch in enumerate(output.branches):
        event = BranchStarted(
            **fields,
            iteration=task.iteration,
            agent=branch.agent,
            message=branch.message or "",
            blob=branch.blob,
            child_context_id=_build_child_id(task, index),
        )
        yield NewEvent(event)


def _build_child_id(task: ModelInput, index: int) -> str:
    """Build the id of the child that the call or branch ``index`` of the reply starts: the loop numbers them in their
    order, behind the model call (``loop/apply.py``, ``loop/children.py``)."""
    return format_child_run_id(task.context_id, task.scope, task.op + 1 + index)


def build_branches_completed(task: ModelInput, fields: dict[str, Any]) -> Iterator[NewEvent]:
    """Build the events of the outcomes of the branches that the step has waited for."""
    for outcome in task.branches:
        child = format_child_run_id(task.context_id, task.scope, outcome.op)
        event = BranchCompleted(
            **fields,
            iteration=task.iteration,
            child_context_id=child,
            agent=outcome.agent,
            content=outcome.content,
            blob=outcome.blob,
            error_type=outcome.error_type,
            error=outcome.error,
        )
        yield NewEvent(event, key=f"branch/{task.scope}/{outcome.op}")


# ---
# Fields and keys that the events of one call share.


def build_event_fields(call: StepCall | ToolCall) -> dict[str, Any]:
    """Return the fields of every event of ``call``."""
    task = call.input
    at = timestamp(datetime.now(UTC))
    return {"context_id": task.context_id, "task_id": task.task_id or None, "at": at, "attempt": call.attempt}


def build_result_event_key(scope: str, head: str | None, call_id: str) -> str:
    """Return the key of a result's event. It is the same in the tool activity and in the next model call, so the result
    is recorded once."""
    return f"result/{scope}/{head}/{call_id}"


# ---
# Events of a model call's input: new messages, and results that no tool activity recorded.
#
# A message or result is identified by the head that it follows and its position there: both stay the same for the
# next call after one that failed or was stopped.


def build_input_events(task: ModelInput | CloseInput, head: str | None, fields: dict[str, Any]) -> Iterator[NewEvent]:
    """Build the events of new messages, and of results that no tool activity recorded (refused or stopped calls), which
    follow ``head``."""
    count = 0
    for item in task.new:
        if isinstance(item, NewResult):
            if item.decided is not None:
                key = build_result_event_key(task.scope, head, item.call_id)
                yield build_approval_decided(item.decided, item.call_id, item.name, key, fields)
                if item.decided.state == "approved":  # a client was to run the call from then on
                    yield NewEvent(ToolStarted(**fields, call_id=item.call_id, name=item.name), key=f"began/{key}")
            if item.key is None:
                result = ToolCompleted(
                    **fields,
                    call_id=item.call_id,
                    name=item.name,
                    content=item.text or "",
                    blob=item.blob,
                    is_error=item.is_error,
                    answered_by=item.answered_by,
                )
                yield NewEvent(result, key=build_result_event_key(task.scope, head, item.call_id))
        elif item.id != REMINDER_ID:
            plain = json.dumps(item.model_dump(mode="json", exclude_none=True), sort_keys=True)
            digest = hashlib.sha256(plain.encode()).hexdigest()[:16]  # a run that was reset may get another message
            yield NewEvent(_build_message_injected(item, fields), key=f"said/{task.scope}/{head}/{count}/{digest}")
            count += 1


def _build_message_injected(item: NewMessage, fields: dict[str, Any]) -> MessageInjected:
    content = item.content
    fields = {**fields, "id": item.id, "by": item.by}
    if isinstance(content, str):
        return MessageInjected(**fields, content=render_as_xml(content) if item.typed else content)
    if not isinstance(content, tuple):
        return MessageInjected(**fields, blob=content)
    texts = [part for part in content if isinstance(part, TextPart)]
    files = tuple(move_file_to_blob(part, []) for part in content if isinstance(part, FilePart))
    blob = next((part.blob for part in texts if part.blob is not None), None)
    return MessageInjected(**fields, content="".join(part.text for part in texts), blob=blob, files=files)


# ---
# Events of external calls and of questions.


def build_external_call_events(
    task: ModelInput, output: ModelOutput, fields: dict[str, Any], owner: str
) -> Iterator[NewEvent]:
    """Build the events of a reply's remote and callback calls that are handed over as soon as the reply is recorded.

    Their keys have the ``owner`` of the model call. Calls that need an approval, that hooks see first, or that a limit
    holds back get these events from their own activities.
    """
    for call in select_immediate_external_calls(task, output):
        started = ToolStarted(
            **fields, call_id=call.id, name=call.name, arguments=_omit_large_event_arguments(call.arguments)
        )
        yield NewEvent(started, key=f"tool/{owner}/{call.id}")
        if isinstance(disposition := call.disposition, CallbackCall):
            shown = hash_arguments(call.id, call.name, call.arguments)
            details: dict[str, Any] = {"arguments": call.arguments, "summary": call.summary, "amount": call.amount}
            asked = _build_question_asked(fields, call.id, call.name, disposition, shown, **details)
            yield NewEvent(asked)


def select_immediate_external_calls(task: ModelInput, output: ModelOutput) -> Iterator[Call]:
    """Select the calls that are handed over as soon as the reply is recorded. Counts limits as the loop does
    (``admit_calls``)."""
    left = output.limits.count_calls_left(task.calls_left) - sum(map(_is_inline, output.calls))
    for call in output.calls:
        disposition = call.disposition
        if _is_inline(call) or isinstance(disposition, RefusedCall | AnsweredCall):
            continue
        left -= 1
        if not isinstance(disposition, RemoteCall | CallbackCall) or call.approval is not None:
            continue
        if left >= 0 and not disposition.around.before:
            yield call


def _is_inline(call: Call) -> bool:
    disposition = call.disposition
    return isinstance(disposition, InlineCall) or (isinstance(disposition, ActivityCall) and disposition.inline)


def _build_question_asked(
    fields: dict[str, Any],
    call_id: str,
    name: str,
    terms: Question | CallbackCall | BeforeExternalCall,
    hash: str,
    *,
    arguments: dict[str, Any] | None = None,
    summary: str = "",
    amount: float | None = None,
) -> QuestionAsked:
    """Build the event; ``hash`` is that of ``CallWait``, which the answer names."""
    summary = summary or summarize_call(name, arguments)
    details: dict[str, Any] = {"kind": "callback", "arguments": arguments, "summary": summary, "amount": amount}
    if isinstance(terms, Question):
        summary = summarize_question(name, terms.text)
        details = {"question": terms.text, "consent": terms.consent, "summary": summary}
    fields = {**fields, "form": terms.form, "expires_in": terms.expires, "hash": hash}
    return QuestionAsked(**fields, call_id=call_id, name=name, **details)


def _omit_large_event_arguments(arguments: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if measure_json(arguments) > INLINE_BYTES else arguments


# ---
# Events of tool calls and of model calls.


def build_tool_start_events(call: ToolCall) -> list[NewEvent]:
    """Build the events of a tool's start, also after a lost worker: the start, its approval, or its last answer."""
    task, fields = call.input, build_event_fields(call)
    if task.answers:  # its start was recorded before its question
        last = task.answers[-1]
        answer = {"by": last.by, "answered_at": last.at, "value": last.value, "error": last.error}
        answered = QuestionAnswered(**fields, call_id=task.call_id, name=task.name, **answer)
        return [NewEvent(answered, key=f"answered/{call.key}")]
    if isinstance(task.side, AfterExternalCall):  # its start was recorded when it was handed over
        return []
    key = build_result_event_key(task.scope, task.head, task.call_id)
    arguments = _omit_large_event_arguments(dict(call.arguments))
    started = ToolStarted(**fields, call_id=task.call_id, name=task.name, arguments=arguments)
    # An external call starts once, however often the worker's own activity before it runs.
    events = [NewEvent(started, key=f"tool/{call.owner}" if task.side is None else f"began/{key}")]
    if task.approval is not None:
        events.insert(0, build_approval_decided(task.approval, task.call_id, task.name, key, fields))
    return events


def build_tool_end_events(call: ToolCall, output: ToolOutput) -> list[NewEvent]:
    """Build the event of the call's end: its result, its question, or the handover to a client."""
    task, fields = call.input, build_event_fields(call)
    if output.question is not None:
        shown = {"question": output.question.text, "answers": len(task.answers)}
        asked = hash_arguments(task.call_id, task.name, shown)
        question = _build_question_asked(fields, task.call_id, task.name, output.question, asked)
        return [NewEvent(question, key=f"asked/{call.key}")]
    if output.cleared is not None:
        if not (isinstance(task.side, BeforeExternalCall) and task.side.client):
            return []
        arguments = dict(call.arguments) if output.cleared.arguments is None else output.cleared.arguments
        changed = output.cleared.arguments
        cleared = hash_arguments(task.call_id, task.name, task.arguments if changed is None else changed)
        callback = _build_question_asked(fields, task.call_id, task.name, task.side, cleared, arguments=arguments)
        return [NewEvent(callback, key=f"asked/{call.key}")]
    event = ToolCompleted(
        **fields,
        call_id=task.call_id,
        name=task.name,
        content=output.content or "",
        blob=output.blob,
        files=output.files,
        is_error=output.is_error,
        answered_by=task.side.answered_by if isinstance(task.side, AfterExternalCall) else None,
    )
    return [NewEvent(event, key=build_result_event_key(task.scope, task.head, task.call_id))]


def build_begin_events(call: ModelCall | CompactCall | CloseCall) -> list[NewEvent]:
    """Build the events of a run's begin and its first turn's, for the first calls of a run."""
    task, fields = call.input, build_event_fields(call)
    if task.iteration > 1:
        return []
    started = RunEvent(**fields, state="started", agent=task.agent)
    turn = [NewEvent(TurnEvent(**fields, state="started"), key=f"turn/{task.task_id}")] if task.task_id else []
    return [NewEvent(started, key=f"run/{task.scope}"), *turn]


def build_iteration_start_events(call: ModelCall) -> list[NewEvent]:
    """Build the events of a model call's start: run and turn started, its input, and a limit that was reached."""
    task, fields = call.input, build_event_fields(call)
    # The head that the first of these calls used.
    head = task.head if task.refused_head is None else task.refused_head or None
    return [
        *build_begin_events(call),
        *build_approvals_revoked(task, fields),
        *build_input_events(task, head, fields),
        *build_branches_completed(task, fields),
        *([_build_limit_reached(call, task.limit)] if task.limit is not None else ()),
    ]


def build_closing_start_events(call: CloseCall) -> list[NewEvent]:
    """Build the events of what is recorded with an ending."""
    task, fields = call.input, build_event_fields(call)
    return [
        *build_begin_events(call),
        *build_approvals_revoked(task, fields),
        *build_input_events(task, task.head, fields),
    ]


def build_model_started(call: ModelCall | CompactCall, model: str, place: int = 0) -> NewEvent:
    """Build the event of a call to ``model``, number ``place`` (from 0) in a chain of models."""
    event = ModelStarted(
        **build_event_fields(call), iteration=call.input.iteration, model=model, left_out=tuple(call.recording.left_out)
    )
    return NewEvent(event, key=f"asked/{call.owner}/{place}")


def build_model_retracted(call: ModelCall | CompactCall, reason: str) -> NewEvent:
    """Build the event that retracts what was streamed so far."""
    return NewEvent(ModelRetracted(**build_event_fields(call), iteration=call.input.iteration, reason=reason))


def build_reply_events(call: ModelCall, reply: ModelReply) -> list[NewEvent]:
    """Build the events of a complete reply; with an answer, also of the end of the turn and of a waiting session."""
    task, output, fields = call.input, reply.output, build_event_fields(call)
    if output.branches:
        return list(build_branches_started(task, output, fields))
    completed = ModelCompleted(
        **fields,
        iteration=task.iteration,
        model=output.model,
        text=output.text,
        blob=output.blob,
        calls=tuple([CallSaid(id=call.id, name=call.name, arguments=call.arguments) for call in output.calls]),
        finish_reason=output.finish_reason,
        usage=output.usage,
        cost_usd=output.cost_usd,
        head=output.head,
    )
    steps = [NewEvent(step.model_copy(update=fields)) for step in reply.step_events]
    events = [*steps, *_build_messages_withheld(call, reply), NewEvent(completed)]
    if not task.is_forced:  # else the loop runs no call of the reply, and none of them waits
        events += _build_subagents_started(call, reply)
        events += build_approvals_requested(output, fields)
        events += build_external_call_events(task, output, fields, call.owner)
    for one in output.calls:
        if isinstance(one.disposition, AnsweredCall) and one.name != FINISH_TOOL:
            disposition = one.disposition
            result = ToolCompleted(
                **fields, call_id=one.id, name=one.name, content=disposition.text, is_error=disposition.is_error
            )
            events.append(NewEvent(result, key=build_result_event_key(task.scope, output.head, one.id)))
    if output.finish is None:
        return events
    reason = "limit" if task.is_forced else output.finish_reason
    response = build_response(task, output, output.finish)
    events.append(_build_turn_ended(response, **fields, state="completed", finish_reason=reason))
    if task.mode == "session":
        events.append(NewEvent(RunEvent(**fields, state="idle", agent=task.agent)))
    return events


def _build_messages_withheld(call: ModelCall, reply: ModelReply) -> Iterator[NewEvent]:
    """Build the events of content that is withheld from a request for the first time."""
    for content in reply.new_withheld:
        event = MessageWithheld(**build_event_fields(call), **content.model_dump(exclude={"key"}))
        yield NewEvent(event, key=f"withheld/{call.input.scope}/{call.input.op}/{content.key}")


def _build_subagents_started(call: ModelCall, reply: ModelReply) -> Iterator[NewEvent]:
    """Build the start events of subagent calls, which begin once this is recorded; their own runs have the rest."""
    task = call.input
    for index, tool_call in enumerate(reply.output.calls):
        if isinstance(tool_call.disposition, SubagentCall):
            started = ToolStarted(
                **build_event_fields(call),
                call_id=tool_call.id,
                name=tool_call.name,
                arguments=tool_call.arguments,
                child_context_id=_build_child_id(task, index),
                background=tool_call.disposition.background is not None,
            )
            yield NewEvent(started, key=f"tool/{call.owner}/{tool_call.id}")


def build_compaction_events(call: CompactCall, output: CompactOutput) -> list[NewEvent]:
    """Build the event of a compaction; none where nothing was summarised."""
    compacted = output.compacted
    if compacted is None:
        return []
    counts = compacted.model_dump(exclude={"replaces"})
    paid: dict[str, Any] = {"model": output.model, "usage": output.usage, "cost_usd": output.cost_usd}
    heads: dict[str, Any] = {"head": output.head, "head_before": compacted.replaces}
    return [NewEvent(ConversationCompacted(**build_event_fields(call), **counts, **paid, **heads))]


def build_closing_events(call: CloseCall) -> list[NewEvent]:
    """Build the events of an ending that the loop decided on: of the run, or only of its turn."""
    task, fields = call.input, build_event_fields(call)
    closing = task.closing
    if closing is None:
        return []
    failure: dict[str, Any] = {"error_type": closing.error_type, "error": closing.error}
    response = Response.model_validate(closing.response or {})
    events: list[NewEvent] = []
    if closing.limit is not None:
        events.append(_build_limit_reached(call, closing.limit))
    if closing.pause is not None and closing.status == "paused":
        return [*events, _build_pause_event(call, closing.pause, "paused")]
    waiting = NewEvent(RunEvent(**fields, state="idle", agent=task.agent))
    if closing.pause is not None:
        is_idle = closing.turn is not None or not task.task_id
        return [*events, _build_pause_event(call, closing.pause, "resumed"), *([waiting] if is_idle else ())]
    if closing.status == "paused":
        reason = str(closing.limit)
        paused = RunEvent(**fields, state="paused", agent=task.agent, reason=reason)
        return [*events, NewEvent(paused, key=f"paused/{task.scope}/{task.op}")]
    state = closing.turn or closing.status
    if state != "waiting" and task.task_id:
        turn_fields = fields | (failure if state == "failed" else {})
        turn_fields["finish_reason"] = response.finish_reason if state == "completed" else None
        events.append(_build_turn_ended(response, task.op, **turn_fields, state=state))
    if closing.status != "waiting":
        execution = call.owner.partition("/")[0]
        run = RunEvent(**fields, **failure, state=closing.status, agent=task.agent)
        events.append(NewEvent(run, key=f"ended/{execution}/{closing.status}"))
    elif closing.stays_paused is not None:
        events.append(_build_pause_event(call, closing.stays_paused, "paused"))
    elif state != "waiting":  # else part of the input is recorded, and the turn goes on
        events.append(waiting)
    return events


def _build_pause_event(call: CloseCall, pause: OperatorPause, state: Literal["paused", "resumed"]) -> NewEvent:
    """Build the event of a pause that a client has asked for, or of its end."""
    task = call.input
    event = RunEvent(**build_event_fields(call), state=state, agent=task.agent, reason=pause.reason, by=pause.by)
    return NewEvent(event, key=f"{state}/{task.scope}/{task.op}")


def _build_turn_ended(response: Response, op: int = 0, **fields: Any) -> NewEvent:
    """Build the event of a turn's end. The call that gave the answer may have recorded it already. If a message has
    extended the turn since, without a model call, the ending ``op`` makes the key a new one."""
    turn = TurnEvent(
        **fields,
        content=response.content,
        blob=response.blob,
        iterations=response.iterations,
        usage=response.usage,
        cost_usd=response.cost_usd,
        unanswered=response.unanswered,
    )
    more = f"/{op}" if turn.unanswered else ""
    return NewEvent(turn, key=f"ended/{turn.task_id}/{turn.iterations}/{turn.state}/{turn.finish_reason}{more}")


def _build_limit_reached(call: ModelCall | CloseCall, use: LimitUse) -> NewEvent:
    event = LimitReached(**build_event_fields(call), kind=use.name, scope=use.scope, limit=use.allowed, used=use.used)
    return NewEvent(event, key=f"limit/{call.input.task_id}/{use.name}/{use.scope}/{use.allowed}")


def build_failure_events(
    call: StepCall | ToolCall, decision: RetryDecision, source: str = "", status: int | None = None
) -> list[NewEvent]:
    """Build the events of a failed attempt: the error, that it holds the run up if it does (the store knows how many
    have failed), the retraction of what was streamed, and the run's pause if it has to wait for an operator.

    ``source`` and ``status`` are as in :class:`~perdure.types.events.ErrorEvent`.
    """
    fields, final = build_event_fields(call), not decision.retry
    error = ErrorEvent(
        **fields,
        activity=call.input.activity,
        error_type=decision.error_type,
        error=decision.message,
        source=source,
        status=status,
        final=final and not decision.ways,  # the same call is made again with a shorter conversation
        retry_in=find_next_delay(decision),
        call_id=call.input.call_id if isinstance(call, ToolCall) else None,
    )
    name = _get_failing_call(call)
    events = [NewEvent(error, key=f"error/{call.owner}/{name}")] if decision.is_failure else []
    if isinstance(call, RemindCall):
        return events  # the run waits on
    if decision.is_failure and decision.retry:
        failure: dict[str, Any] = {"error_type": decision.error_type, "error": decision.message}
        reason = f"{HELD_UP_ATTEMPTS} attempts of {source or name} have failed in a row"
        held_up = RunEvent(
            **fields, **failure, state="held_up", agent=call.input.agent, reason=reason, failing_call=name
        )
        events.append(NewEvent(held_up, key=f"held_up/{call.owner}/{name}"))
    if isinstance(call, ModelCall):
        events.append(build_model_retracted(call, decision.error_type))
    if final and decision.error_type in PAUSING_ERRORS:
        reason = f"{decision.error_type}: {decision.message}"
        events.append(NewEvent(RunEvent(**fields, state="paused", agent=call.input.agent, reason=reason)))
    return events


def build_recovery_events(call: StepCall | ToolCall) -> list[NewEvent]:
    """Build the event that a call with an outcome holds its run up no longer, which the store drops unless it did; none
    for a first attempt."""
    if call.attempt == 1:
        return []
    name = _get_failing_call(call)
    event = RunEvent(**build_event_fields(call), state="recovered", agent=call.input.agent, failing_call=name)
    return [NewEvent(event, key=f"recovered/{call.owner}/{name}")]


def _get_failing_call(call: StepCall | ToolCall) -> str:
    """Return the name by which failed attempts of the call are counted together."""
    return call.input.call_id if isinstance(call, ToolCall) else call.input.activity
