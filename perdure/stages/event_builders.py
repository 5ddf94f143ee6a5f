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
from ..loop.containment import withheld_before
from ..loop.finish import REMINDER_ID
from ..loop.lifecycle import PAUSING
from ..ports import ModelCall, ModelReply, NewEvent, ToolCall, timestamp
from ..types.approvals import Decided
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
from ..types.interface import FINISH_TOOL, Response, plain_output
from ..types.limits import LimitUse
from ..types.messages import FilePart, TextPart
from ..types.plain_json import size
from ..types.tool_calls import (
    After,
    Answered,
    AsActivity,
    AsCallback,
    AsRemote,
    AsSubagent,
    Before,
    Call,
    Cleared,
    Inline,
    Question,
    Refused,
)
from ..types.wire import (
    INLINE_BYTES,
    MODEL_ACTIVITY,
    TOOL_ACTIVITY,
    ModelInput,
    ModelOutput,
    NewMessage,
    NewResult,
    ToolOutput,
)
from .retries import Verdict
from .transcript import by_reference

# ---
# What there is to say of approvals: that a call waits, and what was decided.


def requested(output: ModelOutput, said: dict[str, Any]) -> Iterator[NewEvent]:
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


def asked_again(task: ModelInput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """The calls of which somebody is reminded."""
    for one in task.reminders or ():
        event = ApprovalReminded(**said, **one.model_dump())
        yield NewEvent(event, key=f"reminded/{task.scope}/{task.op}/{one.call_id}")


def taken_back(task: ModelInput, said: dict[str, Any]) -> Iterator[NewEvent]:
    """Standing approvals that somebody took back."""
    for one in task.revoked:
        event = ApprovalRevoked(**said, name=one.tool, by=one.by, revoked_at=one.at, approved_by=one.approved_by)
        yield NewEvent(event, key=f"revoked/{task.scope}/{one.tool}/{one.at}")


def decided(how: Decided, call_id: str, name: str, key: str, said: dict[str, Any]) -> NewEvent:
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


def branches_begun(task: ModelInput, output: ModelOutput, said: dict[str, Any]) -> Iterator[NewEvent]:
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


def branches_ended(task: ModelInput, said: dict[str, Any]) -> Iterator[NewEvent]:
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


def facts(call: ModelCall | ToolCall) -> dict[str, Any]:
    """What every event of ``call`` has."""
    task = call.input
    now = timestamp(datetime.now(UTC))
    return {"context_id": task.context_id, "task_id": task.task_id or None, "at": now, "attempt": call.attempt}


def result_key(scope: str, head: str | None, call_id: str) -> str:
    """The same for the tool and for the model call that is given the result: a call has one, whoever says it first."""
    return f"result/{scope}/{head}/{call_id}"


# ---
# What there is to say of what a model call is given: messages that join the conversation, results that no tool said.
#
# A message or result is known by the head that it comes behind and its place there: a call that failed, or was
# stopped,
# leaves both as they were for the next.


def given(call: ModelCall, said: dict[str, Any]) -> Iterator[NewEvent]:
    """The messages that join the conversation, and results that no tool recorded: of refused or stopped calls."""
    task, count = call.input, 0
    head = task.head if task.behind is None else task.behind or None  # as the first of these calls said it
    for item in task.new:
        if isinstance(item, NewResult):
            if item.decided is not None:
                key = result_key(task.scope, head, item.call_id)
                yield decided(item.decided, item.call_id, item.name, key, said)
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
                yield NewEvent(result, key=result_key(task.scope, head, item.call_id))
        elif item.id != REMINDER_ID:
            plain = json.dumps(item.model_dump(mode="json", exclude_none=True), sort_keys=True)
            digest = hashlib.sha256(plain.encode()).hexdigest()[:16]  # a reset run may be told something else
            yield NewEvent(_injected(item, said), key=f"said/{task.scope}/{head}/{count}/{digest}")
            count += 1


def _injected(item: NewMessage, said: dict[str, Any]) -> MessageInjected:
    content = item.content
    said = {**said, "id": item.id, "by": item.by}
    if isinstance(content, str):
        plain = plain_output(content) if item.typed else None
        return MessageInjected(**said, content=to_xml(plain) if isinstance(plain, dict) else content)
    if not isinstance(content, tuple):
        return MessageInjected(**said, blob=content)
    texts = [part for part in content if isinstance(part, TextPart)]
    files = tuple(by_reference(part)[0] for part in content if isinstance(part, FilePart))
    blob = next((part.blob for part in texts if part.blob is not None), None)
    return MessageInjected(**said, content="".join(part.text for part in texts), blob=blob, files=files)


# ---
# What there is to say of questions: that a call waits for an answer, and who has given one.


def handed(task: ModelInput, output: ModelOutput, said: dict[str, Any], owner: str) -> Iterator[NewEvent]:
    """The calls of a reply that other workers or a client are to run, and nothing stands between.

    They are handed over with the reply, under the ``owner`` of the model call. Of the others their own activities say
    so: of those that somebody has to approve, that hooks are to see, or that a limit holds back.
    """
    for call in begin_at_once(task, output):
        begins = ToolStarted(**said, call_id=call.id, name=call.name, arguments=_shown(call.arguments))
        yield NewEvent(begins, key=f"tool/{owner}/{call.id}")
        if isinstance(how := call.disposition, AsCallback):
            yield NewEvent(_question_asked(said, call.id, call.name, how, arguments=call.arguments))


def begin_at_once(task: ModelInput, output: ModelOutput) -> Iterator[Call]:
    """The calls that are handed over as soon as the reply is recorded; limits count as the loop does (``admit``)."""
    bounds = [one.tool_calls for one in (output.limits.run, output.limits.turn) if one and one.tool_calls is not None]
    left = task.calls_left if task.calls_left is not None else min(bounds, default=math.inf)
    ways = [call.disposition for call in output.calls]
    left -= sum(isinstance(how, Inline) or (isinstance(how, AsActivity) and how.inline) for how in ways)
    for call in output.calls:
        how = call.disposition
        if isinstance(how, Inline | Refused | Answered) or (isinstance(how, AsActivity) and how.inline):
            continue
        left -= 1
        if left < 0 or call.approval is not None or not isinstance(how, AsRemote | AsCallback):
            continue
        if not how.around.before:
            yield call


def cleared(call: ToolCall, how: Cleared, said: dict[str, Any]) -> NewEvent:
    """A client is to run the call, as nothing stands before it any more."""
    task = call.input
    assert isinstance(task.side, Before), "it is looked at"
    arguments = dict(call.arguments) if how.arguments is None else how.arguments
    event = _question_asked(said, task.call_id, task.name, task.side, arguments=arguments)
    return NewEvent(event, key=f"asked/{call.key}")


def _question_asked(
    said: dict[str, Any],
    call_id: str,
    name: str,
    terms: Question | AsCallback | Before,
    *,
    arguments: dict[str, Any] | None = None,
) -> QuestionAsked:
    what = {"question": terms.text} if isinstance(terms, Question) else {"kind": "callback", "arguments": arguments}
    return QuestionAsked(**said, call_id=call_id, name=name, form=terms.form, expires_in=terms.expires, **what)


def _shown(arguments: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if size(arguments) > INLINE_BYTES else arguments


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


def tool_begins(call: ToolCall) -> list[NewEvent]:
    """The tool begins, or begins again after a lost worker; and who had approved it."""
    task = call.input
    if task.answers:  # it began before it asked
        return [build_question_answered(call, facts(call))]
    if isinstance(task.side, After):  # it has begun elsewhere
        return []
    if task.approval is None:
        return [_tool_started(call)]
    key = result_key(task.scope, task.head, task.call_id)
    return [decided(task.approval, task.call_id, task.name, key, facts(call)), _tool_started(call)]


def _tool_started(call: ToolCall) -> NewEvent:
    task = call.input
    arguments = None if size(dict(call.arguments)) > INLINE_BYTES else dict(call.arguments)
    event = ToolStarted(**facts(call), call_id=task.call_id, name=task.name, arguments=arguments)
    # A call that is run elsewhere begins once, however often the worker looks at it before.
    began = f"began/{result_key(task.scope, task.head, task.call_id)}"
    return NewEvent(event, key=f"tool/{call.owner}" if task.side is None else began)


def tool_ended(call: ToolCall, output: ToolOutput) -> list[NewEvent]:
    """What the call came to: a result, or a question; or it is handed over to whoever runs it."""
    task = call.input
    if output.question is not None:
        return [build_question_asked(call, output.question, facts(call))]
    if output.cleared is not None:
        asked = isinstance(task.side, Before) and task.side.client
        return [cleared(call, output.cleared, facts(call))] if asked else []
    event = ToolCompleted(
        **facts(call),
        call_id=task.call_id,
        name=task.name,
        content=output.content or "",
        blob=output.blob,
        files=output.files,
        is_error=output.is_error,
        answered_by=(task.side.answered_by or None) if isinstance(task.side, After) else None,
    )
    return [NewEvent(event, key=result_key(task.scope, task.head, task.call_id))]


def began(call: ModelCall) -> list[NewEvent]:
    """What is so as soon as the call begins: run and turn are under way, and what the model is told."""
    task, said = call.input, facts(call)
    events: list[NewEvent] = []
    if task.iteration <= 1:
        events.append(NewEvent(RunEvent(**said, state="started", agent=task.agent), key=f"run/{task.scope}"))
        if task.task_id:
            events.append(NewEvent(TurnEvent(**said, state="started"), key=f"turn/{task.task_id}"))
    events += taken_back(task, said)
    events += given(call, said)
    events += branches_ended(task, said)
    if task.limit is not None:
        events.append(_limit(call, task.limit))
    return events


def build_model_started(call: ModelCall, model: str, place: int = 0) -> NewEvent:
    """``model`` is asked; of a chain of models, as number ``place`` from 0."""
    event = ModelStarted(**facts(call), iteration=call.input.iteration, model=model)
    return NewEvent(event, key=f"asked/{call.owner}/{place}")


def retracted(call: ModelCall, reason: str) -> NewEvent:
    """What was streamed so far does not count."""
    return NewEvent(ModelRetracted(**facts(call), iteration=call.input.iteration, reason=reason))


def build_reply_events(call: ModelCall, reply: ModelReply) -> list[NewEvent]:
    """The reply is whole; with an answer the turn has ended, and a session waits."""
    task, output, said = call.input, reply.output, facts(call)
    if task.purpose == "compact":
        return list(_compacted(call, reply))
    if output.branches:
        return list(branches_begun(task, output, said))
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
    steps = [NewEvent(step.model_copy(update=said)) for step in call.steps]
    events = [*steps, *_withheld(call, reply), NewEvent(completed)]
    if task.purpose == "call":  # the loop runs no call of another reply, and none of them waits
        events += _delegated(call, reply)
        events += requested(output, said)
        events += handed(task, output, said, call.owner)
    for one in output.calls:
        if isinstance(one.disposition, Answered) and one.name != FINISH_TOOL:
            how = one.disposition
            told = ToolCompleted(**said, call_id=one.id, name=one.name, content=how.text, is_error=how.is_error)
            events.append(NewEvent(told, key=result_key(task.scope, output.head, one.id)))
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
    events.append(_turn_ended(turn))
    if task.mode == "session":
        events.append(NewEvent(RunEvent(**said, state="waiting", agent=task.agent)))
    return events


def _withheld(call: ModelCall, reply: ModelReply) -> Iterator[NewEvent]:
    """What this reply is the first to be given without."""
    task, now = call.input, reply.message.withheld if reply.message is not None else ()
    before = {one.key for one in withheld_before([*call.prefix, *call.fresh])} if now else ()
    for one in now:
        if one.key not in before:
            event = MessageWithheld(**facts(call), **one.model_dump(exclude={"key"}))
            yield NewEvent(event, key=f"withheld/{task.scope}/{task.op}/{one.key}")


def _delegated(call: ModelCall, reply: ModelReply) -> Iterator[NewEvent]:
    """The calls of other agents, which begin as soon as this is recorded: what happens in them is in their own runs."""
    task = call.input
    for index, one in enumerate(reply.output.calls):
        if isinstance(one.disposition, AsSubagent):
            child = f"{task.context_id}/{task.op + 1 + index}"  # as the loop numbers it (loop/apply.py)
            began = ToolStarted(
                **facts(call),
                call_id=one.id,
                name=one.name,
                arguments=one.arguments,
                child_context_id=child,
                background=one.disposition.background is not None,
            )
            yield NewEvent(began, key=f"tool/{call.owner}/{one.id}")


def _compacted(call: ModelCall, reply: ModelReply) -> Iterator[NewEvent]:
    """The conversation was summed up; nothing where there was nothing to sum up."""
    output = reply.output
    done = output.compacted
    if done is not None:
        counts = done.model_dump(exclude={"replaces"})
        paid: dict[str, Any] = {"model": output.model, "usage": output.usage, "cost_usd": output.cost_usd}
        yield NewEvent(
            ConversationCompacted(**facts(call), **counts, **paid, head=output.head, head_before=done.replaces)
        )


def closed(call: ModelCall) -> list[NewEvent]:
    """How the run, or only its turn, ended, where that is for the loop to say."""
    task, said = call.input, facts(call)
    closing = task.closing
    if closing is None:
        return []
    why: dict[str, Any] = {"error_type": closing.error_type, "error": closing.error}
    response = Response.model_validate(closing.response or {})
    events: list[NewEvent] = []
    if closing.limit is not None:
        events.append(_limit(call, closing.limit))
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
        events.append(_turn_ended(turn, task.op))
    if closing.status != "waiting":
        execution = call.owner.partition("/")[0]
        run = RunEvent(**said, **why, state=closing.status, agent=task.agent)
        events.append(NewEvent(run, key=f"ended/{execution}/{closing.status}"))
    elif state != "waiting":  # else a part of what was said is recorded, and the turn goes on
        events.append(NewEvent(RunEvent(**said, state="waiting", agent=task.agent)))
    return events


def reminded(call: ModelCall) -> Iterator[NewEvent]:
    """The calls that still wait."""
    return asked_again(call.input, facts(call))


def _turn_ended(turn: TurnEvent, op: int = 0) -> NewEvent:
    """The call that gave the answer may have said so already, and a message may have extended the turn since: maybe
    without a model call, and then the ending ``op`` says so once more."""
    more = f"/{op}" if turn.unanswered else ""
    return NewEvent(turn, key=f"ended/{turn.task_id}/{turn.iterations}/{turn.state}/{turn.finish_reason}{more}")


def _limit(call: ModelCall, use: LimitUse) -> NewEvent:
    event = LimitReached(**facts(call), kind=use.name, scope=use.scope, limit=use.allowed, used=use.used)
    return NewEvent(event, key=f"limit/{call.input.task_id}/{use.name}/{use.scope}/{use.allowed}")


def failed(call: ModelCall | ToolCall, found: Verdict) -> list[NewEvent]:
    """The attempt failed; what it streamed does not count, and the run may have to wait for an operator."""
    said, final = facts(call), not found.retry
    tool = call.input if isinstance(call, ToolCall) else None
    error = ErrorEvent(
        **said,
        activity=f"{TOOL_ACTIVITY}{tool.name}" if tool else MODEL_ACTIVITY,
        error_type=found.kind,
        error=found.message,
        final=final and not found.ways,  # the same call is made again with a shorter conversation
        retry_in=None if final else found.delay,
        call_id=tool.call_id if tool else None,
    )
    events = [NewEvent(error)]
    if isinstance(call, ModelCall) and call.input.purpose == "remind":
        return events  # the run waits on
    if isinstance(call, ModelCall):
        events.append(retracted(call, found.kind))
    if final and found.kind in PAUSING:
        reason = f"{found.kind}: {found.message}"
        events.append(NewEvent(RunEvent(**said, state="paused", agent=call.input.agent, reason=reason)))
    return events
