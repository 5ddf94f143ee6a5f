"""Drives the loop as the workflow does, keeps the transcript that a store would have, and checks every promise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from perdure.loop import background, external_calls
from perdure.loop.apply import apply_closing, apply_external_result, apply_model, apply_result, finish_call
from perdure.loop.approvals import answer_call, decide_approval, drop_recorded_revocations, update_approval_waits
from perdure.loop.background import answer_collect_calls, apply_child_ended
from perdure.loop.children import build_child_run_id
from perdure.loop.decide import (
    CallModel,
    EndRun,
    NextStep,
    RecordClosing,
    ReportToParent,
    RunBranches,
    RunToolCalls,
    SendReminders,
    StopChildren,
    Wait,
    decide,
    select_joining_calls,
)
from perdure.loop.finish import REMINDER_ID, build_response
from perdure.loop.lifecycle import (
    apply_interrupt,
    cancel_run,
    end_turn_at_budget,
    fail_run,
    pause_run,
    request_interrupt,
    request_pause,
)
from perdure.loop.limits import update_work_time
from perdure.loop.messages import accept_message, receive_message
from perdure.loop.questions import apply_clearance, apply_question
from perdure.loop.status import build_status
from perdure.loop.subagents import ChildOutcome, apply_branch_outcome, build_branch_start
from perdure.loop.waits import find_next_deadline, list_calls_to_remind, take_due_reminders
from perdure.types.interface import Response
from perdure.types.state import RunState, ToolCallState
from perdure.types.subagents import BranchRequest, CollectCall, TellCall
from perdure.types.tool_calls import (
    AnsweredCall,
    Call,
    CallbackCall,
    Clearance,
    Disposition,
    InlineCall,
    Question,
    RemoteCall,
    SubagentCall,
)
from perdure.types.wire import FinalAnswer, ModelOutput, NewItem, NewMessage, NewResult

from .build import carried_over


class Simulation:
    """A run. ``flying`` is the step that was decided and has not come back; anything may happen meanwhile."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.flying: CallModel | RunToolCalls | RunBranches | RecordClosing | StopChildren | None = None
        self.plain: set[str] = set()
        """Calls about subagents in background, and those that others have answered: their results are texts."""
        self.hooked: set[str] = set()
        """Calls whose answers hooks see."""
        self.running: list[int] = []
        self.transcript: list[tuple[str, str]] = []
        self.accepted: list[str] = []
        self.finished: dict[str, str] = {}
        """Calls that came back with a result of their own, and its key."""
        self.spent: set[int] = set()
        self.sent: set[int] = set()
        """Operations of calls that other workers were given."""
        self.again: set[int] = set()
        """Those of calls that are run again when the run is resumed."""
        self.ended: str | None = None
        self.reported: str | None = None
        """How it ends, as a run in background told its parent last."""
        self.unrecorded = False
        """A Close failed: what it carried is in no store."""
        self.since_message = 0
        """Model calls that came back since the last message."""
        self.replies = 0
        self.bare = False
        """A turn without a message was asked for."""
        self.told: tuple[NewItem, ...] | None = None
        """What the step was given that waits for branches: it is given the same again."""
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def message(self, content: str, id: str | None) -> None:
        """A client injects a message. ``content`` is never the same twice."""
        fresh = id is None or id not in self.state.turn_by_message_id
        assert receive_message(self.state, {"content": content, "id": id}) == fresh
        if fresh:
            self.accepted.append(content)
            self.since_message = 0

    def advance(self) -> NextStep:
        """Begin the next step."""
        assert self.flying is None
        apply_interrupt(self.state)
        update_work_time(self.state, self.now)
        end_turn_at_budget(self.state)
        update_approval_waits(self.state, self.now)
        answer_collect_calls(self.state)
        step = self.decided()
        if self.state.is_pause_requested:
            assert not isinstance(step, CallModel | RunToolCalls | RunBranches | SendReminders), "work begins"
            assert self.state.cancelled or step not in (Wait("message"), Wait("child")), "it waits for something else"
        match step:
            case CallModel():
                self._spend(self.state.op, keep=True)
                assert step.new or self.bare, "a model call with nothing new"
                self._check_told(step)
                self.flying = step
            case RecordClosing():
                self._spend(self.state.op)
                self.flying = step
            case RunToolCalls(calls=calls):
                assert calls
                assert not any(isinstance(one.call.disposition, CollectCall) for one in calls), "nothing is to be run"
                self.running = [pending.op for pending in calls]
                for pending in calls:
                    self._begin(pending)
                self.flying = step
            case StopChildren():
                assert any(row.is_running for row in self.state.background_runs)
                self.flying = step
            case RunBranches(branches=branches):
                assert branches
                self.running = [branch.op for branch in branches]
                for op in self.running:
                    self._spend(op)
                self.flying = step
            case ReportToParent(status=status):
                assert background.build_child_ended(self.state, status).state in (status, "cancelled")
                self.reported, self.state.reported = status, self.state.op
            case SendReminders():
                self._remind()
            case EndRun(status=status):
                self.ended = status
                self._check_end()
            case Wait():
                pass
        return step

    def _spend(self, op: int, *, keep: bool = False, again: bool = False) -> None:
        assert again == (op in self.spent), f"operation {op} is used {'for the first time' if again else 'again'}"
        if not keep:  # a model call that pauses the run is the same operation when it is tried again
            self.spent.add(op)

    def decided(self) -> NextStep:
        """The next step: there always is one, and to ask for it changes nothing."""
        before = self.state.model_dump_json()
        step = decide(self.state)
        assert decide(self.state) == step
        build_status(self.state)
        assert self.state.model_dump_json() == before
        return step

    def reply(self, calls: list[Call], output: ModelOutput) -> None:
        """The model call comes back."""
        step = self.flying
        assert isinstance(step, CallModel)
        self.replies += 1
        self.bare = False
        self.since_message += 1
        self.spent.add(self.state.op)
        self._write(step.new)
        self.finished |= {call.id: how.key for call in calls if isinstance(how := call.disposition, InlineCall)}
        self.plain |= {call.id for call in calls if _is_text(call.disposition)}
        self.hooked |= {call.id for call in calls if _hooked(call.disposition)}
        self.transcript.append(("assistant", ",".join(call.id for call in calls)))
        self.transcript += [("result", call.id) for call in calls if isinstance(call.disposition, AnsweredCall)]
        drop_recorded_revocations(self.state, tuple(self.state.revoked))
        apply_model(self.state, step, output)
        self.flying = None

    def branch(self, count: int) -> None:
        """The step policy asks for branches, and nothing else has happened."""
        step = self.flying
        assert isinstance(step, CallModel)
        self.spent.add(self.state.op)
        before = self.state.model_dump(exclude={"op", "branching", "store_id"})
        asked = tuple(BranchRequest(key=f"k{n}", label="?", agent="b") for n in range(count))
        apply_model(self.state, step, ModelOutput(head=self.state.head, store_id="s", branches=asked))
        assert self.state.model_dump(exclude={"op", "branching", "store_id"}) == before
        self.told = step.new
        self.flying = None

    def branch_ended(self, index: int) -> None:
        """One of the branches in flight comes back."""
        op = self.running.pop(index)
        assert isinstance(self.flying, RunBranches)
        assert self.state.branching is not None
        branch = next(one for one in self.state.branching.branches if one.op == op)  # another execution has its own
        assert isinstance(build_branch_start(self.state, branch), dict)
        apply_branch_outcome(self.state, branch, ChildOutcome(Response(content="42")), stopping=False)
        if not self.running:
            self.flying = None

    def _check_told(self, step: CallModel) -> None:
        branching = self.state.branching
        if branching is None or self.told is None:
            return
        assert all(branch.outcome is not None for branch in branching.branches), "a branch has not ended"
        if step.limit is None:
            assert step.new == self.told, "the policy would see something else"

    def result(self, index: int) -> None:
        """One of the calls in flight comes back."""
        op = self.running.pop(index)
        pending = next(pending for pending in self.state.calls if pending.op == op)
        if self._elsewhere(pending):
            self.running.insert(index, op)
            return
        if pending.result is None and not self._handed(pending) and not self._background(pending):
            apply_result(self.state, op, NewResult(call_id=pending.call.id, name="look", key=f"key-{op}"))
            self.finished[pending.call.id] = f"key-{op}"
        if not self.running:
            self.flying = None

    def _elsewhere(self, pending: ToolCallState) -> bool:
        """One more step of a call that is run elsewhere; whether another one follows at once."""
        how = pending.call.disposition
        around = how.around if isinstance(how, RemoteCall | CallbackCall) else None
        if around is None or external_calls.needs_after_activity(pending):
            return False
        if external_calls.needs_before_activity(pending):
            assert pending.clearance is None, "it is looked at once"
            apply_clearance(self.state, pending.op, Clearance(around=around), self.now)
            return isinstance(how, RemoteCall) and external_calls.can_begin_external_call(self.state, pending)
        assert isinstance(how, RemoteCall)
        assert pending.op not in self.sent, "it is sent once"
        self.sent.add(pending.op)
        failed = pending.op % 2 == 0
        result = NewResult(call_id=pending.call.id, name="look", text="far", is_error=failed)
        apply_external_result(self.state, pending.op, result, "KeyError" if failed else "")
        if pending.result is not None:
            assert not around.after
            self.plain.add(pending.call.id)
        return external_calls.needs_after_activity(pending)

    def _handed(self, pending: ToolCallState) -> bool:
        """Whether others have it now, or it is not to be sent any more."""
        how = pending.call.disposition
        return isinstance(how, RemoteCall | CallbackCall) and not external_calls.needs_after_activity(pending)

    def left_off(self, index: int) -> None:
        """A call in flight fails in a way that an operator can mend: it is run again when the run is resumed."""
        op = self.running.pop(index)
        pause_run(self.state, "TranscriptCorruptedError: gone", "2026-01-01")
        self.again.add(op)
        if not self.running:
            self.flying = None

    def _background(self, pending: ToolCallState) -> bool:
        """Run the call, if it starts a subagent in background or tells it something."""
        how = pending.call.disposition
        if isinstance(how, TellCall):
            if background.find_tell_target(self.state, pending, how.handle) is not None:
                finish_call(self.state, pending, "delivered")
        elif isinstance(how, SubagentCall) and how.background is not None:
            if (begun := background.prepare_background_run(self.state, pending)) is not None:
                background.mark_background_started(self.state, pending, begun[0])
        else:
            return False
        return True

    def child_ends(self, index: int, state: str) -> None:
        """A subagent in background says how it ended, maybe once more; or it is found closed without a word."""
        row = self.state.background_runs[index % len(self.state.background_runs)]
        before, collected = row.state, row.collected
        if state == "lost":
            background.apply_background_outcome(
                self.state, row, ChildOutcome(error="TerminatedError: Terminated", lost=True)
            )
        else:
            told = {"context_id": build_child_run_id(self.state, row), "scope": row.scope, "state": state}
            apply_child_ended(self.state, {**told, "content": f"of {row.handle}", "error": "no"})
        assert not row.is_running
        if collected or (before != "running" and state != "completed"):
            assert row.state == before, "what is said of it once stays"
        assert not self.state.refused

    def children_stopped(self) -> None:
        """They are no longer waited for."""
        background.abandon_background_runs(self.state)
        self.flying = None

    def join(self) -> None:
        """What was decided meanwhile begins beside the calls in flight."""
        for pending in select_joining_calls(self.state, set(self.running)):
            self._begin(pending)
            self.running.append(pending.op)

    def _begin(self, pending: ToolCallState) -> None:
        """A call that was answered is run again: the same operation, and another effect."""
        how = pending.call.disposition
        again = pending.op in self.again or bool(pending.answers)
        self.again.discard(pending.op)
        if isinstance(how, RemoteCall | CallbackCall):
            due = external_calls.needs_before_activity(pending) or external_calls.needs_after_activity(pending)
            assert due or isinstance(how, RemoteCall), "nothing is to be run"
            assert due or pending.op not in self.sent, "it is sent once"
            again = pending.op in self.spent
        self._spend(pending.op, again=again)

    def ask(self, index: int) -> None:
        """One of the calls in flight comes back with a question."""
        op = self.running.pop(index)
        apply_question(self.state, op, Question(text="Sure?", form={"type": "boolean"}), self.now)
        if not self.running:
            self.flying = None

    def answer(self, *, declined: bool) -> None:
        """A client answers the first call that waits for it."""
        waits = next(one for one in build_status(self.state).approvals if one.kind != "approval")
        said: dict[str, Any] = {"error": "no"} if declined else {"value": True}
        answer_call(self.state, {"call_id": waits.call_id, "by": "ana", **said, "hash": waits.hash}, self.now)
        if waits.kind == "callback" and not declined and waits.call_id not in self.hooked:
            self.plain.add(waits.call_id)

    def approval(self, decision: str) -> None:
        """A client decides on the first call that still waits; ``"always"`` approves all of its tool."""
        update_approval_waits(self.state, self.now)
        waits = [one for one in build_status(self.state).approvals if one.kind == "approval"]
        if not waits:
            return
        always = {"always": True} if decision == "always" else {}
        said = {
            "call_id": waits[0].call_id,
            "decision": "deny" if decision == "deny" else "approve",
            "by": "ana",
            "hash": waits[0].hash,
        }
        decided = decide_approval(self.state, said | always, self.now)
        before = self.state.model_dump_json()
        assert decide_approval(self.state, said | always, self.now) == decided
        assert self.state.model_dump_json() == before, "the same decision changes nothing"
        if decision != "approve":
            assert bool(self.state.standing) == (decision == "always")
        if always:
            left = [one for one in build_status(self.state).approvals if one.kind == "approval"]
            assert not left, "all are of this tool"

    def later(self, seconds: float) -> None:
        """Time goes by; what is due is looked for beside the calls in flight."""
        self.now += timedelta(seconds=seconds)
        if isinstance(self.flying, RunToolCalls) and find_next_deadline(self.state) is not None:
            update_approval_waits(self.state, self.now)
            if list_calls_to_remind(self.state):
                self._remind()

    def _remind(self) -> None:
        before = {one.call_id: one.reminded for one in build_status(self.state).approvals}
        told = take_due_reminders(self.state, self.now)
        assert told.reminders
        assert not self.state.is_pause_requested
        assert told.has_waiting_call()
        assert list_calls_to_remind(self.state) == ()
        self._spend(told.op)
        for one in told.reminders:
            assert one.number == before[one.call_id] + 1

    def closed(self, head: str | None) -> None:
        """The ending was recorded, or could not be."""
        step = self.flying
        assert isinstance(step, RecordClosing)
        if head is None and step.closing.pause is not None:  # the next model call is given what it carried
            apply_closing(self.state, step, None)
            self.flying = None
            return
        if head is None:
            self.unrecorded = True
        elif step.closing.status == "paused" and self.told is not None:
            self.told = self.told[len(step.new) :]  # it is in the transcript now
        self._write(step.new)
        if step.closing.pause is not None and step.new:
            self.bare = True  # the next model call may have nothing new
        drop_recorded_revocations(self.state, tuple(self.state.revoked))
        apply_closing(self.state, step, head)
        self.flying = None

    def cancel(self) -> None:
        """The run is cancelled; what is in flight never comes back, a Close does."""
        if isinstance(self.flying, CallModel):
            self.spent.add(self.state.op)
        late, self.running = self.running, []
        if isinstance(self.flying, RecordClosing):
            self.closed("closed")
        elif isinstance(self.flying, StopChildren):
            self.children_stopped()
        else:
            self.flying = None
        cancel_run(self.state)
        for op in late:
            apply_result(self.state, op, NewResult(call_id="late", name="look", text="late"))

    def request_pause(self, by: str) -> None:
        """A client pauses the run: what is in flight comes back, and nothing else begins."""
        before = self.state.requested_pause
        request_pause(self.state, {"by": by}, self.now)
        if before is not None and before.resumed is None:
            assert self.state.requested_pause is before, "the first counts"

    def bare_turn(self) -> None:
        """A client asks for a turn without a message."""
        accept_message(self.state, {"content": None})
        self.bare, self.since_message = True, 0

    def interrupt(self, content: str | None, id: str | None, finished: bool) -> None:
        """A client interrupts. What is in flight comes back without an outcome, or (``finished``) with its own."""
        fresh = content is not None and (id is None or id not in self.state.turn_by_message_id)
        request_interrupt(self.state, None if content is None else {"content": content, "id": id})
        if fresh:
            assert content is not None
            self.accepted.append(content)
            self.since_message = 0
        if self.state.interrupt is None or isinstance(self.flying, RecordClosing | StopChildren):
            return
        if isinstance(self.flying, CallModel) and finished:
            self.reply([], ModelOutput(head="h", store_id="s", text="42", finish=FinalAnswer(content="42")))
        elif isinstance(self.flying, CallModel):
            self.spent.add(self.state.op)
        while finished and len(self.running) > 1:
            self.branch_ended(0) if isinstance(self.flying, RunBranches) else self.result(0)
        self.flying, self.running = None, []
        apply_interrupt(self.state)
        assert self.state.interrupt is None

    def fail(self) -> None:
        """The model call fails for good."""
        self.spent.add(self.state.op)
        self.flying = None
        fail_run(self.state, "ProviderError", "no")

    def pause(self) -> None:
        """The model call fails in a way that an operator can mend."""
        self.flying = None
        pause_run(self.state, "TranscriptCorruptedError: gone", "2026-01-01")

    def continue_as_new(self) -> None:
        """Another execution takes over."""
        again = carried_over(self.state)
        assert again == self.state
        self.state = again

    def _write(self, new: tuple[NewItem, ...]) -> None:
        for item in new:
            if isinstance(item, NewResult):
                self._check_result(item)
                self.transcript.append(("result", item.call_id))
            elif item.id == REMINDER_ID:
                self.transcript.append(("engine", ""))
            else:
                assert isinstance(item, NewMessage)
                self.transcript.append(("user", str(item.content)))

    def _check_result(self, item: NewResult) -> None:
        """No finished work is lost, and nothing unfinished is given out as done."""
        assert item.key == self.finished.get(item.call_id), "the result is not the call's own"
        if item.key is None:
            assert item.is_error or item.call_id in self.plain
            assert item.text, "a call that did not come back says why"

    def check(self) -> None:
        """What holds at every moment."""
        assert self.state.tool_calls >= 0, "more is given back than was counted"
        given = [text for kind, text in self.transcript if kind == "user"]
        stopped = [item for item in self.state.unsent if isinstance(item, NewMessage) and item.id != REMINDER_ID]
        waiting = [item.content for item in (*stopped, *self.state.inbox)]
        assert given + waiting == self.accepted, "lost, doubled or out of order"
        open_calls: list[str] = []
        for kind, text in self.transcript:
            if kind == "result":
                assert open_calls, "a result that no call asked for"
                assert text == open_calls.pop(0), "out of the order of the calls"
                continue
            assert not open_calls, f"{kind} stands between a call and its result"
            if kind == "assistant":
                open_calls = text.split(",") if text else []
        results = [item for item in self.state.unsent if isinstance(item, NewResult)]
        owed = [pending.call.id for pending in self.state.calls]
        owed += [item.call_id for item in results]
        assert owed == open_calls, "every call is owed exactly one result"

    def _check_end(self) -> None:
        assert [*self.state.inbox, *self.state.unsent, *self.state.calls] == []
        assert not any(row.is_running for row in self.state.background_runs), "a subagent outlives its parent"
        waited = self.state.parent is not None and self.state.parent.background
        assert self.reported == (self.ended if waited else None)
        interrupted = build_response(self.state).finish_reason == "interrupted"
        if self.transcript and not self.unrecorded and self.ended == "completed" and not interrupted:
            assert self.transcript[-1][0] in ("assistant", "result")


def _hooked(how: Disposition) -> bool:
    """Whether hooks see what a client answers."""
    return isinstance(how, CallbackCall) and how.around is not None and how.around.after


def _is_text(how: Disposition) -> bool:
    return isinstance(how, CollectCall | TellCall) or (isinstance(how, SubagentCall) and how.background is not None)
