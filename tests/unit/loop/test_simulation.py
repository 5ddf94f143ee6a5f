"""Any sequence of replies and events: the run ends, every call gets one result, no message is lost or doubled."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perdure.loop.approvals import revoke_standing_approval
from perdure.loop.decide import CallModel, RecordClosing, RunBranches, RunToolCalls, StopChildren, Wait, decide
from perdure.loop.finish import build_response
from perdure.loop.lifecycle import close_run, resume_run
from perdure.loop.status import build_status, build_waiting_key, build_waiting_memo
from perdure.types.approvals import ApprovalTerms
from perdure.types.subagents import CollectCall, TellCall
from perdure.types.tool_calls import (
    ActivityCall,
    AnsweredCall,
    Call,
    CallbackCall,
    ExternalCallHooks,
    InlineCall,
    RefusedCall,
    RemoteCall,
    SubagentCall,
)
from perdure.types.wire import AgentLimits, FinalAnswer, ModelOutput, TurnFailure

from .build import open_as_child
from .simulation import Simulation

DISPOSITIONS = st.sampled_from(
    [
        ActivityCall(timeout=9),
        ActivityCall(timeout=9, idempotent=True, retries=2, inline=True),
        RefusedCall(text="tool not found"),
        InlineCall(key="k", content="42"),
        InlineCall(key="k", content="no", is_error=True),
        SubagentCall(agent="b", message="go"),
        CallbackCall(),
        SubagentCall(agent="b", message="go", background=2),
        CollectCall(handle="b1"),
        CollectCall(handle="b2", wait=False),
        TellCall(handle="b1", message="more"),
        CallbackCall(around=ExternalCallHooks()),
        CallbackCall(around=ExternalCallHooks(before=True, after=True)),
        RemoteCall(task_queue="far", timeout=9, around=ExternalCallHooks()),
        RemoteCall(task_queue="far", timeout=9, around=ExternalCallHooks(before=True, errors=True)),
        RemoteCall(task_queue="far", timeout=9, around=ExternalCallHooks(after=True)),
    ]
)
ASKED = ActivityCall | SubagentCall | CallbackCall | RemoteCall
LIMITS = st.builds(
    AgentLimits,
    max_iterations=st.integers(1, 4),
    on_limit=st.sampled_from(["finish", "return", "error"]),
    protocol=st.sampled_from(["text", "tag", "tool"]),
)
LINEAGE = {"root": "parent-1", "agent": "above", "path": [{"agent": "a", "call_id": "c"}]}
PARENT = {"context_id": "parent-1", "call_id": "c", "scope": "s", "depth": 1, "background": True, "lineage": LINEAGE}
"""Of a run that works in background itself."""
TERMS = st.builds(
    ApprovalTerms,
    hash=st.just("h"),
    expires=st.sampled_from([None, 5, 12]),
    on_expiry=st.sampled_from(["deny", "approve"]),
    remind=st.sampled_from([None, 2, 3]),
)
IDS = st.sampled_from([None, None, "m1", "m2", "m3", ""])


def flying(kind):
    return precondition(lambda self: isinstance(self.run.flying, kind))


def _waits(run, *kinds):
    return any(one.kind in kinds for one in build_status(run.state).approvals)


alive = precondition(lambda self: self.run.ended is None)


class Loop(RuleBasedStateMachine):
    """Every rule is something that may happen to a run at that moment."""

    waiting = None, None
    """The name of what waited when it was looked at last, and what the memo had then."""

    @initialize(
        mode=st.sampled_from(["run", "session"]),
        limits=LIMITS,
        message=st.sampled_from([None, "first"]),
        habit=st.sampled_from(["calls", "empty", "answer"]),
        at_once=st.sampled_from([1, 2, 500]),
        parent=st.sampled_from([None, PARENT]),
    )
    def open(self, mode, limits, message, habit, at_once, parent):
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr("perdure.loop.payload_limits.CALLS_AT_ONCE", at_once)
        start = {"agent": "a", "mode": mode, "message": message, "parent": parent}
        self.run = Simulation(open_as_child(start, "context-1", "scope-1"))
        self.limits = limits
        self.habit = habit
        self.said = 0
        if message:
            self.run.accepted.append(message)

    @alive
    @rule(id=IDS)
    def message(self, id):
        self.said += 1
        self.run.message(f"message {self.said}", id or None)

    @precondition(lambda self: self.run.ended is None and self.run.flying is None)
    @rule()
    def advance(self):
        self.run.advance()

    @flying(CallModel)
    @rule(
        dispositions=st.lists(DISPOSITIONS, max_size=4),
        answers=st.booleans(),
        fits=st.booleans(),
        limits=st.none() | LIMITS,
        asks=st.dictionaries(st.integers(0, 3), TERMS),
    )
    def reply(self, dispositions, answers, fits, limits, asks):
        if limits and answers:  # a deploy changed the agent
            self.limits = limits
        self._reply(dispositions, answers, fits, asks)

    def _reply(self, dispositions, answers, fits=True, asks=MappingProxyType({})):
        """``asks``: places of calls that a person is to approve, where they run at all, and on what terms. ``fits``: an
        answer by the finish tool is of the output type; else it goes back to the model, twice."""
        tool = self.limits.protocol == "tool"
        rejected = tool and (not fits if answers else self.run.flying.limit is not None)
        failed = rejected and self.run.state.turn.rejected >= 2
        answers = answers and not rejected
        if tool and (answers or failed):
            dispositions = [AnsweredCall(text="not run") for _ in dispositions]
        calls = [
            Call(
                id=f"c{self.run.replies}-{n}",
                name="look",
                disposition=how,
                approval=asks.get(n) if isinstance(how, ASKED) else None,
            )
            for n, how in enumerate(dispositions)
        ]
        output = ModelOutput(
            head=f"h{self.run.replies}",
            store_id="s",
            text="so far",
            calls=tuple(calls),
            finish=FinalAnswer(content="42", called=tool, typed=tool) if answers else None,
            rejected=rejected,
            reminder="Once more." if rejected and not calls else None,
            failed=TurnFailure(type="ParseError", message="no output") if failed else None,
            limits=self.limits,
        )
        self.run.reply(calls, output)

    @precondition(lambda self: isinstance(self.run.flying, CallModel) and self.run.state.turn.iteration)
    @rule(count=st.integers(1, 3))
    def branch(self, count):
        self.run.branch(count)

    @flying(RunBranches)
    @rule(data=st.data())
    def branch_ended(self, data):
        self.run.branch_ended(data.draw(st.integers(0, len(self.run.running) - 1)))

    @flying(RunToolCalls)
    @rule(data=st.data())
    def result(self, data):
        self.run.result(data.draw(st.integers(0, len(self.run.running) - 1)))

    @flying(RunToolCalls)
    @rule(data=st.data())
    def left_off(self, data):
        self.run.left_off(data.draw(st.integers(0, len(self.run.running) - 1)))

    @flying(RunToolCalls)
    @rule()
    def join(self):
        self.run.join()

    @flying(RunToolCalls)
    @rule(data=st.data())
    def ask(self, data):
        self.run.ask(data.draw(st.integers(0, len(self.run.running) - 1)))

    @precondition(lambda self: self.run.ended is None and _waits(self.run, "question", "callback"))
    @rule(declined=st.booleans())
    def answer(self, declined):
        if not self.run.state.cancelled and self.run.state.turn.failure is None:
            self.run.answer(declined=declined)

    @precondition(lambda self: self.run.ended is None and _waits(self.run, "approval"))
    @rule(decision=st.sampled_from(["approve", "deny", "always"]))
    def decided(self, decision):
        if not self.run.state.cancelled and self.run.state.turn.failure is None:
            self.run.approval(decision)

    @precondition(lambda self: self.run.ended is None and bool(self.run.state.background_runs))
    @rule(index=st.integers(0, 9), state=st.sampled_from(["completed", "failed", "cancelled", "lost"]))
    def child_ends(self, index, state):
        self.run.child_ends(index, state)

    @flying(StopChildren)
    @rule()
    def children_stopped(self):
        self.run.children_stopped()

    @precondition(lambda self: self.run.state.standing)
    @rule()
    def revoke(self):
        assert revoke_standing_approval(self.run.state, {"tool": "look"}, self.run.now)
        assert not self.run.state.standing

    @alive
    @rule(seconds=st.integers(1, 7))
    def time_passes(self, seconds):
        self.run.later(seconds)

    @flying(RecordClosing)
    @rule(head=st.sampled_from(["closed", None]))
    def closed(self, head):
        self.run.closed(head)

    @alive
    @rule(rarely=st.integers(0, 5))
    def cancel(self, rarely):
        if rarely == 5 and not self.run.state.cancelled:
            self.run.cancel()

    @alive
    @rule(says=st.booleans(), id=IDS, finished=st.booleans())
    def interrupt(self, says, id, finished):
        self.said += 1
        self.run.interrupt(f"interrupt {self.said}" if says else None, id or None, finished)

    @precondition(lambda self: self.run.ended is None and decide(self.run.state) == Wait("message"))
    @rule()
    def turn_without_a_message(self):
        self.run.bare_turn()

    @flying(CallModel)
    @rule(rarely=st.integers(0, 3))
    def fail(self, rarely):
        if rarely == 3:
            self.run.fail()

    @flying(CallModel)
    @rule()
    def pause(self):
        self.run.pause()

    @alive
    @rule(by=st.sampled_from(["ana", "bob"]))
    def request_pause(self, by):
        self.run.request_pause(by)

    @alive
    @rule()
    def resume(self):
        resume_run(self.run.state, {"by": "kim"}, self.run.now)
        assert not self.run.state.is_pause_requested

    @alive
    @rule()
    def close(self):
        close_run(self.run.state)

    @alive
    @rule()
    def continue_as_new(self):
        self.run.continue_as_new()

    @rule()
    def look(self):
        """A query, which also an ended run answers."""
        build_response(self.run.state)

    @invariant()
    def promises(self):
        if hasattr(self, "run"):
            self.run.decided()
            self.run.check()
            self._memo()

    def _memo(self):
        """The memo is written when what waits has another name: under the same one it is the same."""
        now, waits = build_waiting_key(self.run.state), build_waiting_memo(self.run.state)
        if now is not None and now == self.waiting[0]:
            assert waits == self.waiting[1], "the memo would be out of date"
        if now is not None:
            assert bool(now) == bool(build_status(self.run.state).approvals)
            self.waiting = now, waits

    def teardown(self):
        """Nothing new happens any more: the run ends, whatever the model's habit."""
        if not hasattr(self, "run"):
            return
        try:
            self._run_out(self.run)
        finally:
            self.patched.undo()

    def _run_out(self, run):
        close_run(run.state)
        run.since_message = 0
        while run.ended is None:
            if run.state.turn is None and run.state.mode == "run" and not run.state.inbox:
                break
            self._settle()
            run.check()
            assert run.since_message <= self.limits.max_iterations + 5, "the loop does not end"

    def _settle(self):
        run = self.run
        match run.flying:
            case CallModel():
                self._reply([ActivityCall(timeout=9)] if self.habit == "calls" else [], self.habit == "answer")
            case RunToolCalls():
                run.result(0)
            case RunBranches():
                run.branch_ended(0)
            case RecordClosing():
                run.closed("closed")
            case StopChildren():
                run.children_stopped()
            case None:
                step = run.advance()
                if isinstance(step, Wait) and step.until == "approval" and _waits(run, "approval"):
                    run.approval("approve")
                elif isinstance(step, Wait) and step.until == "approval":
                    run.answer(declined=False)
                elif step == Wait("child"):
                    run.child_ends(
                        next(n for n, row in enumerate(run.state.background_runs) if row.is_running), "completed"
                    )
                elif isinstance(step, Wait):
                    resume_run(run.state, None, run.now)


TestLoop = Loop.TestCase
TestLoop.settings = settings(
    max_examples=2 * settings.default.max_examples,  # each is one way through many
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
