"""What there is to say of a model call: the events of its beginning, of its outcome, and of any call's failure.

Keys make attempts say once what is so for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..loop.containment import withheld_before
from ..loop.ending import PAUSING
from ..ports import ModelCall, ModelReply, NewEvent, ToolCall
from ..types.bounds import LimitUse
from ..types.events import (
    CallSaid,
    ConversationCompacted,
    ErrorEvent,
    LimitReached,
    MessageWithheld,
    ModelCompleted,
    ModelRetracted,
    ModelStarted,
    RunEvent,
    ToolCompleted,
    ToolStarted,
    TurnEvent,
)
from ..types.interface import FINISH_TOOL, Response
from ..types.wire import MODEL_ACTIVITY, TOOL_ACTIVITY, Answered, AsSubagent
from .asked import asked_again, requested, taken_back
from .branched import branches_begun, branches_ended
from .given import given
from .occasion import facts, result_key
from .questions import handed
from .verdict import Verdict


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
