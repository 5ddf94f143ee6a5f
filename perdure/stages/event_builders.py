"""What there is to say of a model call: the events of its beginning, of its outcome, and of any call's failure.

Keys make attempts say once what is so for all of them.
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
from ..loop.refused_content import find_last_withheld
from ..ports import ModelCall, ModelReply, NewEvent, ToolCall, timestamp
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
from .retries import RetryDecision
from .transcript import move_file_to_blob

# ---
# What there is to say of approvals: that a call waits, and what was decided.


def build_approvals_requested(output: ModelOutput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """The calls of a reply that wait for somebody. ``said`` is what every event has."""
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
    """The calls of which somebody is reminded."""
    for one in task.reminders or ():
        event = ApprovalReminded(**said, **one.model_dump())
        yield NewEvent(event, key=f"reminded/{task.scope}/{task.op}/{one.call_id}")


def build_approvals_revoked(task: ModelInput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """Standing approvals that somebody took back."""
    for one in task.revoked:
        event = ApprovalRevoked(**said, name=one.tool, by=one.by, revoked_at=one.at, approved_by=one.approved_by)
        yield NewEvent(event, key=f"revoked/{task.scope}/{one.tool}/{one.at}")


def build_approval_decided(how: ApprovalOutcome, call_id: str, name: str, key: str, said: dict[str, Any]) -> NewEvent:
    """What came of the wait; ``key`` names the call."""
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
# What there is to say of branches: that they begin, and what they came to.


def build_branches_started(task: ModelInput, output: ModelOutput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """The branches that a step waits for. ``said`` is what every event has."""
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
    """What the branches came to that the step has waited for."""
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
# What the events of one call share.


def build_event_fields(call: ModelCall | ToolCall) -> dict[str, Any]:
    """What every event of ``call`` has."""
    task = call.input
    now = timestamp(datetime.now(UTC))
    return {"context_id": task.context_id, "task_id": task.task_id or None, "at": now, "attempt": call.attempt}


def build_result_event_key(scope: str, head: str | None, call_id: str) -> str:
    """The same for the tool and for the model call that is given the result: a call has one, whoever says it first."""
    return f"result/{scope}/{head}/{call_id}"


# ---
# What there is to say of what a model call is given: messages that join the conversation, results that no tool said.
#
# A message or result is known by the head that it comes behind and its place there: a call that failed, or was
# stopped,
# leaves both as they were for the next.


def build_input_events(call: ModelCall, said: dict[str, Any]) -> Iterator[NewEvent]:
    """The messages that join the conversation, and results that no tool recorded: of refused or stopped calls."""
    task, count = call.input, 0
    head = task.head if task.behind is None else task.behind or None  # as the first of these calls said it
    for item in task.new:
        if isinstance(item, NewResult):
            if item.decided is not None:
                key = build_result_event_key(task.scope, head, item.call_id)
                yield build_approval_decided(item.decided, item.call_id, item.name, key, said)
                if item.decided.state == "approved":  # a client was to run it since then
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
            digest = hashlib.sha256(plain.encode()).hexdigest()[:16]  # a reset run may be told something else
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
# What there is to say of questions: that a call waits for an answer, and who has given one.


def build_external_call_events(
    task: ModelInput, output: ModelOutput, said: dict[str, Any], owner: str
) -> Iterator[NewEvent]:
    """The calls of a reply that other workers or a client are to run, and nothing stands between.

    They are handed over with the reply, under the ``owner`` of the model call. Of the others their own activities say
    so: of those that somebody has to approve, that hooks are to see, or that a limit holds back.
    """
    for call in select_immediate_external_calls(task, output):
        begins = ToolStarted(
            **said, call_id=call.id, name=call.name, arguments=_omit_large_event_arguments(call.arguments)
        )
        yield NewEvent(begins, key=f"tool/{owner}/{call.id}")
        if isinstance(how := call.disposition, CallbackCall):
            yield NewEvent(_question_asked(said, call.id, call.name, how, arguments=call.arguments))


def select_immediate_external_calls(task: ModelInput, output: ModelOutput) -> Iterator[Call]:
    """The calls that are handed over as soon as the reply is recorded; limits count as the loop does
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
    """A client is to run the call, as nothing stands before it any more."""
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
    """The tool asks."""
    event = _question_asked(said, call.input.call_id, call.input.name, question)
    return NewEvent(event, key=f"asked/{call.key}")


def build_question_answered(call: ToolCall, said: dict[str, Any]) -> NewEvent:
    """The tool goes on with the last of its answers."""
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
# What there is to say of a tool call: that it begins, and what it came to.


def build_tool_start_events(call: ToolCall) -> list[NewEvent]:
    """The tool begins, or begins again after a lost worker; and who had approved it."""
    task = call.input
    if task.answers:  # it began before it asked
        return [build_question_answered(call, build_event_fields(call))]
    if isinstance(task.side, AfterExternalCall):  # it has begun elsewhere
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
    # A call that is run elsewhere begins once, however often the worker looks at it before.
    began = f"began/{build_result_event_key(task.scope, task.head, task.call_id)}"
    return NewEvent(event, key=f"tool/{call.owner}" if task.side is None else began)


def build_tool_end_events(call: ToolCall, output: ToolOutput) -> list[NewEvent]:
    """What the call came to: a result, or a question; or it is handed over to whoever runs it."""
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
    """What is so as soon as the call begins: run and turn are under way, and what the model is told."""
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
    """``model`` is asked; of a chain of models, as number ``place`` from 0."""
    event = ModelStarted(**build_event_fields(call), iteration=call.input.iteration, model=model)
    return NewEvent(event, key=f"asked/{call.owner}/{place}")


def build_model_retracted(call: ModelCall, reason: str) -> NewEvent:
    """What was streamed so far does not count."""
    return NewEvent(ModelRetracted(**build_event_fields(call), iteration=call.input.iteration, reason=reason))


def build_reply_events(call: ModelCall, reply: ModelReply) -> list[NewEvent]:
    """The reply is whole; with an answer the turn has ended, and a session waits."""
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
    steps = [NewEvent(step.model_copy(update=said)) for step in call.step_events]
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
    """What this reply is the first to be given without."""
    task, now = call.input, reply.message.withheld if reply.message is not None else ()
    before = {one.key for one in find_last_withheld([*call.prefix, *call.new_messages])} if now else ()
    for one in now:
        if one.key not in before:
            event = MessageWithheld(**build_event_fields(call), **one.model_dump(exclude={"key"}))
            yield NewEvent(event, key=f"withheld/{task.scope}/{task.op}/{one.key}")


def _build_subagents_started(call: ModelCall, reply: ModelReply) -> Iterator[NewEvent]:
    """The calls of other agents, which begin as soon as this is recorded: what happens in them is in their own runs."""
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
    """The conversation was summed up; nothing where there was nothing to sum up."""
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
    """How the run, or only its turn, ended, where that is for the loop to say."""
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
    elif state != "waiting":  # else a part of what was said is recorded, and the turn goes on
        events.append(NewEvent(RunEvent(**said, state="waiting", agent=task.agent)))
    return events


def build_reminder_events(call: ModelCall) -> Iterator[NewEvent]:
    """The calls that still wait."""
    return build_approvals_reminded(call.input, build_event_fields(call))


def _build_turn_ended(turn: TurnEvent, op: int = 0) -> NewEvent:
    """The call that gave the answer may have said so already, and a message may have extended the turn since: maybe
    without a model call, and then the ending ``op`` says so once more."""
    more = f"/{op}" if turn.unanswered else ""
    return NewEvent(turn, key=f"ended/{turn.task_id}/{turn.iterations}/{turn.state}/{turn.finish_reason}{more}")


def _build_limit_reached(call: ModelCall, use: LimitUse) -> NewEvent:
    event = LimitReached(**build_event_fields(call), kind=use.name, scope=use.scope, limit=use.allowed, used=use.used)
    return NewEvent(event, key=f"limit/{call.input.task_id}/{use.name}/{use.scope}/{use.allowed}")


def build_failure_events(call: ModelCall | ToolCall, found: RetryDecision) -> list[NewEvent]:
    """The attempt failed; what it streamed does not count, and the run may have to wait for an operator."""
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
