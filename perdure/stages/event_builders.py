"""Builds the events of model calls, tool calls, approvals, questions, branches and failures.

An event's key is the same in every attempt, so that several attempts record the event once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from ..agent.xml import to_xml
from ..loop.finish import REMINDER_ID
from ..loop.lifecycle import PAUSING_ERRORS
from ..ports import NewEvent, timestamp
from ..types.approvals import ApprovalOutcome
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
from ..types.interface import FINISH_TOOL, Response, parse_output
from ..types.limits import LimitUse
from ..types.messages import FilePart, TextPart
from ..types.plain_json import measure_json
from ..types.tool_calls import (
    ActivityCall,
    AfterExternalCall,
    AnsweredCall,
    BeforeExternalCall,
    Call,
    CallbackCall,
    Clearance,
    InlineCall,
    Question,
    RefusedCall,
    RemoteCall,
    SubagentCall,
)
from ..types.wire import (
    INLINE_BYTES,
    MODEL_ACTIVITY,
    TOOL_ACTIVITY_PREFIX,
    ModelInput,
    ModelOutput,
    NewMessage,
    NewResult,
    ToolOutput,
)
from .calls import ModelCall, ModelReply, ToolCall
from .retries import RetryDecision
from .transcript import move_file_to_blob

# ---
# Events of approvals.


def build_approvals_requested(output: ModelOutput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """Build an event for each call of a reply that needs an approval. ``said`` has the fields of every event."""
    for call in output.calls:
        if call.approval is not None:
            event = ApprovalRequested(
                **said,
                call_id=call.id,
                name=call.name,
                arguments=call.arguments,
                hash=call.approval.hash,
                expires_in=call.approval.expires,
                on_expiry=call.approval.on_expiry,
            )
            yield NewEvent(event)


def build_approvals_reminded(task: ModelInput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """Build the events of reminders of pending approvals."""
    for one in task.reminders or ():
        event = ApprovalReminded(**said, **one.model_dump())
        yield NewEvent(event, key=f"reminded/{task.scope}/{task.op}/{one.call_id}")


def build_approvals_revoked(task: ModelInput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """Build the events of revoked standing approvals."""
    for one in task.revoked:
        event = ApprovalRevoked(**said, name=one.tool, by=one.by, revoked_at=one.at, approved_by=one.approved_by)
        yield NewEvent(event, key=f"revoked/{task.scope}/{one.tool}/{one.at}")


def build_approval_decided(how: ApprovalOutcome, call_id: str, name: str, key: str, said: dict[str, Any]) -> NewEvent:
    """Build the event of a decision; ``key`` identifies the call."""
    event = ApprovalDecided(
        **said,
        call_id=call_id,
        name=name,
        decision=how.state,
        decided_at=how.at,
        **how.model_dump(include={"by", "comment", "arguments", "always", "standing"}),
    )
    return NewEvent(event, key=f"decided/{key}")


# ---
# Events of branches.


def build_branches_started(task: ModelInput, output: ModelOutput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """Build the events of the branches that a step waits for. ``said`` has the fields of every event."""
    for place, one in enumerate(output.branches):
        event = BranchStarted(
            **said,
            iteration=task.iteration,
            agent=one.agent,
            message=one.message or "",
            blob=one.blob,
            child_context_id=f"{task.context_id}/{task.op + 1 + place}",  # as the loop numbers it (branching.py)
        )
        yield NewEvent(event)


def build_branches_completed(task: ModelInput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """Build the events of the outcomes of the branches that the step has waited for."""
    for one in task.branches:
        event = BranchCompleted(
            **said,
            iteration=task.iteration,
            agent=one.agent,
            child_context_id=f"{task.context_id}/{one.op}",
            content=one.content,
            blob=one.blob,
            error_type=one.error_type,
            error=one.error,
        )
        yield NewEvent(event, key=f"branch/{task.scope}/{one.op}")


# ---
# Fields and keys that the events of one call share.


def build_event_fields(call: ModelCall | ToolCall) -> dict[str, Any]:
    """Return the fields of every event of ``call``."""
    task = call.input
    now = timestamp(datetime.now(UTC))
    return {"context_id": task.context_id, "task_id": task.task_id or None, "at": now, "attempt": call.attempt}


def build_result_event_key(scope: str, head: str | None, call_id: str) -> str:
    """Return the key of a result's event. It is the same in the tool activity and in the next model call, so the result
    is recorded once."""
    return f"result/{scope}/{head}/{call_id}"


# ---
# Events of a model call's input: new messages, and results that no tool activity recorded.
#
# A message or result is identified by the head that it follows and its position there: both stay the same for the
# next call after one that failed or was stopped.


def build_input_events(call: ModelCall, said: dict[str, Any]) -> Iterator[NewEvent]:
    """Build the events of new messages, and of results that no tool activity recorded (refused or stopped calls)."""
    task, count = call.input, 0
    head = task.head if task.behind is None else task.behind or None  # the head that the first of these calls used
    for item in task.new:
        if isinstance(item, NewResult):
            if item.decided is not None:
                key = build_result_event_key(task.scope, head, item.call_id)
                yield build_approval_decided(item.decided, item.call_id, item.name, key, said)
                if item.decided.state == "approved":  # a client was to run the call from then on
                    yield NewEvent(ToolStarted(**said, call_id=item.call_id, name=item.name), key=f"began/{key}")
            if item.key is None:
                result = ToolCompleted(
                    **said,
                    call_id=item.call_id,
                    name=item.name,
                    content=item.text or "",
                    blob=item.blob,
                    is_error=item.is_error,
                    answered_by=item.answered_by or None,
                )
                yield NewEvent(result, key=build_result_event_key(task.scope, head, item.call_id))
        elif item.id != REMINDER_ID:
            plain = json.dumps(item.model_dump(mode="json", exclude_none=True), sort_keys=True)
            digest = hashlib.sha256(plain.encode()).hexdigest()[:16]  # a run that was reset may get another message
            yield NewEvent(_build_message_injected(item, said), key=f"said/{task.scope}/{head}/{count}/{digest}")
            count += 1


def _build_message_injected(item: NewMessage, said: dict[str, Any]) -> MessageInjected:
    content = item.content
    said = {**said, "id": item.id, "by": item.by}
    if isinstance(content, str):
        plain = parse_output(content) if item.typed else None
        return MessageInjected(**said, content=to_xml(plain) if isinstance(plain, dict) else content)
    if not isinstance(content, tuple):
        return MessageInjected(**said, blob=content)
    texts = [part for part in content if isinstance(part, TextPart)]
    files = tuple(move_file_to_blob(part)[0] for part in content if isinstance(part, FilePart))
    blob = next((part.blob for part in texts if part.blob is not None), None)
    return MessageInjected(**said, content="".join(part.text for part in texts), blob=blob, files=files)


# ---
# Events of external calls and of questions.


def build_external_call_events(
    task: ModelInput, output: ModelOutput, said: dict[str, Any], owner: str
) -> Iterator[NewEvent]:
    """Build the events of a reply's remote and callback calls that are handed over as soon as the reply is recorded.

    Their keys have the ``owner`` of the model call. Calls that need an approval, that hooks see first, or that a limit
    holds back get these events from their own activities.
    """
    for call in select_immediate_external_calls(task, output):
        begins = ToolStarted(
            **said, call_id=call.id, name=call.name, arguments=_omit_large_event_arguments(call.arguments)
        )
        yield NewEvent(begins, key=f"tool/{owner}/{call.id}")
        if isinstance(how := call.disposition, CallbackCall):
            yield NewEvent(_question_asked(said, call.id, call.name, how, arguments=call.arguments))


def select_immediate_external_calls(task: ModelInput, output: ModelOutput) -> Iterator[Call]:
    """Select the calls that are handed over as soon as the reply is recorded. Counts limits as the loop does
    (``admit_calls``)."""
    bounds = [one.tool_calls for one in (output.limits.run, output.limits.turn) if one and one.tool_calls is not None]
    left = task.calls_left if task.calls_left is not None else min(bounds, default=math.inf)
    ways = [call.disposition for call in output.calls]
    left -= sum(isinstance(how, InlineCall) or (isinstance(how, ActivityCall) and how.inline) for how in ways)
    for call in output.calls:
        how = call.disposition
        if isinstance(how, InlineCall | RefusedCall | AnsweredCall) or (isinstance(how, ActivityCall) and how.inline):
            continue
        left -= 1
        if left < 0 or call.approval is not None or not isinstance(how, RemoteCall | CallbackCall):
            continue
        if not how.around.before:
            yield call


def build_callback_asked(call: ToolCall, how: Clearance, said: dict[str, Any]) -> NewEvent:
    """Build the event of a callback call that a client is now to run."""
    task = call.input
    assert isinstance(task.side, BeforeExternalCall), "it is looked at"
    arguments = dict(call.arguments) if how.arguments is None else how.arguments
    event = _question_asked(said, task.call_id, task.name, task.side, arguments=arguments)
    return NewEvent(event, key=f"asked/{call.key}")


def _question_asked(
    said: dict[str, Any],
    call_id: str,
    name: str,
    terms: Question | CallbackCall | BeforeExternalCall,
    *,
    arguments: dict[str, Any] | None = None,
) -> QuestionAsked:
    what = {"question": terms.text} if isinstance(terms, Question) else {"kind": "callback", "arguments": arguments}
    return QuestionAsked(**said, call_id=call_id, name=name, form=terms.form, expires_in=terms.expires, **what)


def _omit_large_event_arguments(arguments: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if measure_json(arguments) > INLINE_BYTES else arguments


def build_question_asked(call: ToolCall, question: Question, said: dict[str, Any]) -> NewEvent:
    """Build the event of a question that the tool asks."""
    event = _question_asked(said, call.input.call_id, call.input.name, question)
    return NewEvent(event, key=f"asked/{call.key}")


def build_question_answered(call: ToolCall, said: dict[str, Any]) -> NewEvent:
    """Build the event of the call's last answer."""
    last = call.input.answers[-1]
    event = QuestionAnswered(
        **said,
        call_id=call.input.call_id,
        name=call.input.name,
        by=last.by,
        answered_at=last.at,
        value=last.value,
        error=last.error,
    )
    return NewEvent(event, key=f"answered/{call.key}")


# ---
# Events of tool calls and of model calls.


def build_tool_start_events(call: ToolCall) -> list[NewEvent]:
    """Build the events of a tool's start, also after a lost worker: the start, its approval, or its last answer."""
    task = call.input
    if task.answers:  # its start was recorded before its question
        return [build_question_answered(call, build_event_fields(call))]
    if isinstance(task.side, AfterExternalCall):  # its start was recorded when it was handed over
        return []
    if task.approval is None:
        return [_build_tool_started(call)]
    key = build_result_event_key(task.scope, task.head, task.call_id)
    return [
        build_approval_decided(task.approval, task.call_id, task.name, key, build_event_fields(call)),
        _build_tool_started(call),
    ]


def _build_tool_started(call: ToolCall) -> NewEvent:
    task = call.input
    arguments = None if measure_json(dict(call.arguments)) > INLINE_BYTES else dict(call.arguments)
    event = ToolStarted(**build_event_fields(call), call_id=task.call_id, name=task.name, arguments=arguments)
    # An external call starts once, however often the worker's own activity before it runs.
    began = f"began/{build_result_event_key(task.scope, task.head, task.call_id)}"
    return NewEvent(event, key=f"tool/{call.owner}" if task.side is None else began)


def build_tool_end_events(call: ToolCall, output: ToolOutput) -> list[NewEvent]:
    """Build the event of the call's end: its result, its question, or the handover to a client."""
    task = call.input
    if output.question is not None:
        return [build_question_asked(call, output.question, build_event_fields(call))]
    if output.cleared is not None:
        asked = isinstance(task.side, BeforeExternalCall) and task.side.client
        return [build_callback_asked(call, output.cleared, build_event_fields(call))] if asked else []
    event = ToolCompleted(
        **build_event_fields(call),
        call_id=task.call_id,
        name=task.name,
        content=output.content or "",
        blob=output.blob,
        files=output.files,
        is_error=output.is_error,
        answered_by=(task.side.answered_by or None) if isinstance(task.side, AfterExternalCall) else None,
    )
    return [NewEvent(event, key=build_result_event_key(task.scope, task.head, task.call_id))]


def build_iteration_start_events(call: ModelCall) -> list[NewEvent]:
    """Build the events of a model call's start: run and turn started, its input, and a limit that was reached."""
    task, said = call.input, build_event_fields(call)
    events: list[NewEvent] = []
    if task.iteration <= 1:
        events.append(NewEvent(RunEvent(**said, state="started", agent=task.agent), key=f"run/{task.scope}"))
        if task.task_id:
            events.append(NewEvent(TurnEvent(**said, state="started"), key=f"turn/{task.task_id}"))
    events += build_approvals_revoked(task, said)
    events += build_input_events(call, said)
    events += build_branches_completed(task, said)
    if task.limit is not None:
        events.append(_build_limit_reached(call, task.limit))
    return events


def build_model_started(call: ModelCall, model: str, place: int = 0) -> NewEvent:
    """Build the event of a call to ``model``, number ``place`` (from 0) in a chain of models."""
    event = ModelStarted(**build_event_fields(call), iteration=call.input.iteration, model=model)
    return NewEvent(event, key=f"asked/{call.owner}/{place}")


def build_model_retracted(call: ModelCall, reason: str) -> NewEvent:
    """Build the event that retracts what was streamed so far."""
    return NewEvent(ModelRetracted(**build_event_fields(call), iteration=call.input.iteration, reason=reason))


def build_reply_events(call: ModelCall, reply: ModelReply) -> list[NewEvent]:
    """Build the events of a complete reply; with an answer, also of the end of the turn and of a waiting session."""
    task, output, said = call.input, reply.output, build_event_fields(call)
    if task.purpose == "compact":
        return list(_build_conversation_compacted(call, reply))
    if output.branches:
        return list(build_branches_started(task, output, said))
    completed = ModelCompleted(
        **said,
        iteration=task.iteration,
        model=output.model,
        text=output.text,
        blob=output.blob,
        calls=tuple(CallSaid(id=one.id, name=one.name, arguments=one.arguments) for one in output.calls),
        finish_reason=output.finish_reason,
        usage=output.usage,
        cost_usd=output.cost_usd,
        head=output.head,
    )
    steps = [NewEvent(step.model_copy(update=said)) for step in reply.step_events]
    events = [*steps, *_build_messages_withheld(call, reply), NewEvent(completed)]
    if task.purpose == "call":  # the loop runs no call of another reply, and none of them waits
        events += _build_subagents_started(call, reply)
        events += build_approvals_requested(output, said)
        events += build_external_call_events(task, output, said, call.owner)
    for one in output.calls:
        if isinstance(one.disposition, AnsweredCall) and one.name != FINISH_TOOL:
            how = one.disposition
            told = ToolCompleted(**said, call_id=one.id, name=one.name, content=how.text, is_error=how.is_error)
            events.append(NewEvent(told, key=build_result_event_key(task.scope, output.head, one.id)))
    if output.finish is None:
        return events
    reason = "limit" if task.purpose == "force_finish" else output.finish_reason
    turn = TurnEvent(
        **said,
        state="completed",
        content=output.finish.content,
        blob=output.answer_blob,
        finish_reason=reason,
        iterations=task.iteration,
        usage=task.used + output.usage,
        cost_usd=task.cost_usd if output.cost_usd is None else output.cost_usd + (task.cost_usd or 0.0),
    )
    events.append(_build_turn_ended(turn))
    if task.mode == "session":
        events.append(NewEvent(RunEvent(**said, state="waiting", agent=task.agent)))
    return events


def _build_messages_withheld(call: ModelCall, reply: ModelReply) -> Iterator[NewEvent]:
    """Build the events of content that is withheld from a request for the first time."""
    for content in reply.new_withheld:
        event = MessageWithheld(**build_event_fields(call), **content.model_dump(exclude={"key"}))
        yield NewEvent(event, key=f"withheld/{call.input.scope}/{call.input.op}/{content.key}")


def _build_subagents_started(call: ModelCall, reply: ModelReply) -> Iterator[NewEvent]:
    """Build the start events of subagent calls, which begin once this is recorded; their own runs have the rest."""
    task = call.input
    for index, one in enumerate(reply.output.calls):
        if isinstance(one.disposition, SubagentCall):
            child = f"{task.context_id}/{task.op + 1 + index}"  # as the loop numbers it (loop/apply.py)
            began = ToolStarted(
                **build_event_fields(call),
                call_id=one.id,
                name=one.name,
                arguments=one.arguments,
                child_context_id=child,
                background=one.disposition.background is not None,
            )
            yield NewEvent(began, key=f"tool/{call.owner}/{one.id}")


def _build_conversation_compacted(call: ModelCall, reply: ModelReply) -> Iterator[NewEvent]:
    """Build the event of a compaction; none where nothing was summarised."""
    output = reply.output
    done = output.compacted
    if done is not None:
        counts = done.model_dump(exclude={"replaces"})
        paid: dict[str, Any] = {"model": output.model, "usage": output.usage, "cost_usd": output.cost_usd}
        yield NewEvent(
            ConversationCompacted(
                **build_event_fields(call), **counts, **paid, head=output.head, head_before=done.replaces
            )
        )


def build_closing_events(call: ModelCall) -> list[NewEvent]:
    """Build the events of an ending that the loop decided on: of the run, or only of its turn."""
    task, said = call.input, build_event_fields(call)
    closing = task.closing
    if closing is None:
        return []
    why: dict[str, Any] = {"error_type": closing.error_type, "error": closing.error}
    response = Response.model_validate(closing.response or {})
    events: list[NewEvent] = []
    if closing.limit is not None:
        events.append(_build_limit_reached(call, closing.limit))
    if closing.status == "paused":
        reason = str(closing.limit)
        paused = RunEvent(**said, state="paused", agent=task.agent, reason=reason)
        return [*events, NewEvent(paused, key=f"paused/{task.scope}/{task.op}")]
    state = closing.turn or closing.status
    if state != "waiting" and task.task_id:
        turn = TurnEvent(
            **said,
            **(why if state == "failed" else {}),
            state=state,
            content=response.content,
            blob=response.blob,
            finish_reason=response.finish_reason if state == "completed" else None,
            iterations=response.iterations,
            usage=response.usage,
            cost_usd=response.cost_usd,
            unanswered=response.unanswered,
        )
        events.append(_build_turn_ended(turn, task.op))
    if closing.status != "waiting":
        execution = call.owner.partition("/")[0]
        run = RunEvent(**said, **why, state=closing.status, agent=task.agent)
        events.append(NewEvent(run, key=f"ended/{execution}/{closing.status}"))
    elif state != "waiting":  # else part of the input is recorded, and the turn goes on
        events.append(NewEvent(RunEvent(**said, state="waiting", agent=task.agent)))
    return events


def build_reminder_events(call: ModelCall) -> Iterator[NewEvent]:
    """Build the events of reminders of pending approvals."""
    return build_approvals_reminded(call.input, build_event_fields(call))


def _build_turn_ended(turn: TurnEvent, op: int = 0) -> NewEvent:
    """Build the event of a turn's end. The call that gave the answer may have recorded it already. If a message has
    extended the turn since, without a model call, the ending ``op`` makes the key a new one."""
    more = f"/{op}" if turn.unanswered else ""
    return NewEvent(turn, key=f"ended/{turn.task_id}/{turn.iterations}/{turn.state}/{turn.finish_reason}{more}")


def _build_limit_reached(call: ModelCall, use: LimitUse) -> NewEvent:
    event = LimitReached(**build_event_fields(call), kind=use.name, scope=use.scope, limit=use.allowed, used=use.used)
    return NewEvent(event, key=f"limit/{call.input.task_id}/{use.name}/{use.scope}/{use.allowed}")


def build_failure_events(call: ModelCall | ToolCall, found: RetryDecision) -> list[NewEvent]:
    """Build the events of a failed attempt: the error, the retraction of what was streamed, and the run's pause if it
    has to wait for an operator."""
    said, final = build_event_fields(call), not found.retry
    tool = call.input if isinstance(call, ToolCall) else None
    error = ErrorEvent(
        **said,
        activity=f"{TOOL_ACTIVITY_PREFIX}{tool.name}" if tool else MODEL_ACTIVITY,
        error_type=found.error_type,
        error=found.message,
        final=final and not found.ways,  # the same call is made again with a shorter conversation
        retry_in=None if final else found.delay,
        call_id=tool.call_id if tool else None,
    )
    events = [NewEvent(error)]
    if isinstance(call, ModelCall) and call.input.purpose == "remind":
        return events  # the run waits on
    if isinstance(call, ModelCall):
        events.append(build_model_retracted(call, found.error_type))
    if final and found.error_type in PAUSING_ERRORS:
        reason = f"{found.error_type}: {found.message}"
        events.append(NewEvent(RunEvent(**said, state="paused", agent=call.input.agent, reason=reason)))
    return events
