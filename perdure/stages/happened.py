"""What there is to say of a call: the events of its beginning, of its outcome and of its failure.

Keys make attempts say once what is so for all of them. A message or result is known by the head that it comes behind
and its place there: a call that failed, or was stopped, leaves both as they were for the next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from ..loop.ending import PAUSING
from ..loop.finish import REMINDER_ID
from ..ports import ModelCall, ModelReply, NewEvent, ToolCall
from ..structured import to_xml
from ..types.bounds import LimitUse
from ..types.elsewhere import After, Before
from ..types.events import (
    CallSaid,
    ConversationCompacted,
    ErrorEvent,
    LimitReached,
    MessageInjected,
    ModelCompleted,
    ModelRetracted,
    ModelStarted,
    RunEvent,
    ToolCompleted,
    ToolStarted,
    TurnEvent,
)
from ..types.interface import FINISH_TOOL, Response, plain_output
from ..types.messages import FilePart, TextPart
from ..types.wire import (
    INLINE_BYTES,
    MODEL_ACTIVITY,
    TOOL_ACTIVITY,
    Answered,
    AsSubagent,
    NewMessage,
    NewResult,
    ToolOutput,
)
from . import questions
from .asked import asked_again, decided, requested, taken_back
from .branched import branches_begun, branches_ended
from .questions import handed
from .sent import by_reference
from .verdict import Verdict


def facts(call: ModelCall | ToolCall) -> dict[str, Any]:
    """What every event of ``call`` has."""
    task = call.input
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    return {"context_id": task.context_id, "task_id": task.task_id or None, "at": now, "attempt": call.attempt}


# --- a model call


def began(call: ModelCall) -> list[NewEvent]:
    """What is so as soon as the call begins: run and turn are under way, and what the model is told."""
    task, said = call.input, facts(call)
    events: list[NewEvent] = []
    if task.iteration <= 1:
        events.append(NewEvent(RunEvent(**said, state="started", agent=task.agent), key=f"run/{task.scope}"))
        if task.task_id:
            events.append(NewEvent(TurnEvent(**said, state="started"), key=f"turn/{task.task_id}"))
    events += taken_back(task, said)
    events += _given(call, said)
    events += branches_ended(task, said)
    if task.purpose == "force_finish":
        events.append(_limit(call, task.iteration, task.limit))
    return events


def asked(call: ModelCall, model: str, place: int = 0) -> NewEvent:
    """``model`` is asked; of a chain of models, as number ``place`` from 0."""
    event = ModelStarted(**facts(call), iteration=call.input.iteration, model=model)
    return NewEvent(event, key=f"asked/{call.owner}/{place}")


def retracted(call: ModelCall, reason: str) -> NewEvent:
    """What was streamed so far does not count."""
    return NewEvent(ModelRetracted(**facts(call), iteration=call.input.iteration, reason=reason))


def answered(call: ModelCall, reply: ModelReply) -> list[NewEvent]:
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
    events = [*(NewEvent(step.model_copy(update=said)) for step in call.steps), NewEvent(completed)]
    if task.purpose == "call":  # the loop runs no call of another reply, and none of them waits
        events += _delegated(call, reply)
        events += requested(output, said)
        events += handed(task, output, said, call.owner)
    for one in output.calls:
        if isinstance(one.disposition, Answered) and one.name != FINISH_TOOL:
            how = one.disposition
            told = ToolCompleted(**said, call_id=one.id, name=one.name, content=how.text, is_error=how.is_error)
            events.append(NewEvent(told, key=_result_key(task.scope, output.head, one.id)))
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
    if closing.limit or closing.error_type == "MaxIterationsError" or response.finish_reason == "limit":
        events.append(_limit(call, response.iterations, closing.limit))
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
        )
        events.append(_turn_ended(turn))
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


def _turn_ended(turn: TurnEvent) -> NewEvent:
    """The call that gave the answer may have said so already, and a message may have extended the turn since."""
    return NewEvent(turn, key=f"ended/{turn.task_id}/{turn.iterations}/{turn.state}/{turn.finish_reason}")


def _limit(call: ModelCall, iterations: int, use: LimitUse | None) -> NewEvent:
    """``use`` is not known where an engine before this one asked for the call."""
    use = use or LimitUse(name="max_iterations", scope="turn", used=iterations, allowed=iterations)
    event = LimitReached(**facts(call), kind=use.name, scope=use.scope, limit=use.allowed, used=use.used)
    return NewEvent(event, key=f"limit/{call.input.task_id}/{use.name}/{use.scope}/{use.allowed}")


def _given(call: ModelCall, said: dict[str, Any]) -> Iterator[NewEvent]:
    """The messages that join the conversation, and results that no tool recorded: of refused or stopped calls."""
    task, count = call.input, 0
    head = task.head if task.behind is None else task.behind or None  # as the first of these calls said it
    for item in task.new:
        if isinstance(item, NewResult):
            if item.decided is not None:
                key = _result_key(task.scope, head, item.call_id)
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
                yield NewEvent(result, key=_result_key(task.scope, head, item.call_id))
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


# --- a tool call


def tool_begins(call: ToolCall) -> list[NewEvent]:
    """The tool begins, or begins again after a lost worker; and who had approved it."""
    task = call.input
    if task.answers:  # it began before it asked
        return [questions.answered(call, facts(call))]
    if isinstance(task.side, After):  # it has begun elsewhere
        return []
    if task.approval is None:
        return [_tool_started(call)]
    key = _result_key(task.scope, task.head, task.call_id)
    return [decided(task.approval, task.call_id, task.name, key, facts(call)), _tool_started(call)]


def _tool_started(call: ToolCall) -> NewEvent:
    task = call.input
    arguments = None if len(json.dumps(dict(call.arguments))) > INLINE_BYTES else dict(call.arguments)
    event = ToolStarted(**facts(call), call_id=task.call_id, name=task.name, arguments=arguments)
    # A call that is run elsewhere begins once, however often the worker looks at it before.
    began = f"began/{_result_key(task.scope, task.head, task.call_id)}"
    return NewEvent(event, key=f"tool/{call.owner}" if task.side is None else began)


def tool_ended(call: ToolCall, output: ToolOutput) -> list[NewEvent]:
    """What the call came to: a result, or a question; or it is handed over to whoever runs it."""
    task = call.input
    if output.question is not None:
        return [questions.asked(call, output.question, facts(call))]
    if output.cleared is not None:
        asked = isinstance(task.side, Before) and task.side.client
        return [questions.cleared(call, output.cleared, facts(call))] if asked else []
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
    return [NewEvent(event, key=_result_key(task.scope, task.head, task.call_id))]


def _result_key(scope: str, head: str | None, call_id: str) -> str:
    """The same for the tool and for the model call that is given the result: a call has one, whoever says it first."""
    return f"result/{scope}/{head}/{call_id}"


# --- failures


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
