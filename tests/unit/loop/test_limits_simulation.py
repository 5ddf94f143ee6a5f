"""Any sequence of replies, raises and hours: no limit is exceeded by more than is in flight, and every run ends."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from perdure.loop.apply import apply_closing
from perdure.loop.decide import CallModel, RecordClosing, Wait, decide
from perdure.loop.finish import build_response
from perdure.loop.lifecycle import close_run, resume_run
from perdure.loop.limits import compute_remaining_budget, count_calls_left, find_exceeded_limit, update_work_time
from perdure.loop.status import build_status
from perdure.types.limits import Bounds
from perdure.types.messages import Usage
from perdure.types.tool_calls import ActivityCall, Call, InlineCall
from perdure.types.wire import AgentLimits, FinalAnswer, ModelOutput

from .build import open_as_child
from .simulation import Simulation
from .test_simulation import DISPOSITIONS, Loop, alive, flying

BOUNDS = st.none() | st.builds(
    Bounds,
    iterations=st.none() | st.integers(1, 5),
    tokens=st.none() | st.integers(1, 60),
    cost_usd=st.none() | st.sampled_from([0.25, 0.5, 2.0]),
    wall_time=st.none() | st.sampled_from([10.0, 60.0]),
    tool_calls=st.none() | st.integers(1, 6),
)
LIMITS = st.builds(
    AgentLimits,
    max_iterations=st.integers(1, 6),
    on_limit=st.sampled_from(["finish", "return", "error", "pause"]),
    run=BOUNDS,
    turn=BOUNDS.map(lambda bounds: bounds and bounds.model_copy(update={"iterations": None})),
)
RAISED = st.dictionaries(st.sampled_from(["iterations", "tokens", "cost_usd", "tool_calls"]), st.integers(1, 90))
PLENTY = {"iterations": 10**6, "tokens": 10**9, "cost_usd": 10**6, "wall_time": 10**6, "tool_calls": 10**6}


class Counting(Simulation):
    """Counts for itself what is used, and looks at each step that begins."""

    def __init__(self, state, limits):
        super().__init__(state)
        self.known = AgentLimits()
        """The loop knows limits by replies alone."""
        self.limits = limits
        self.used = {"run": Counter()}
        self.raised = {"run": {}}
        self.forced = Counter()
        self.begun = set()
        self.closed_over = False
        """It was over a budget when it decided to close: who raises the limit then comes too late."""

    def of_turn(self):
        return self.state.turn.task_id

    def over(self):
        """Limits that are used up, of run and turn."""
        found = set()
        for scope, bounds in (("run", self.known.run), (self.of_turn(), self.known.turn)):
            for name, allowed in bounds.model_dump(exclude_none=True).items() if bounds else ():
                allowed = max(allowed, self.raised.get(scope, {}).get(name, 0))
                if name != "wall_time" and self.used.get(scope, {}).get(name, 0) >= allowed:
                    found.add((scope, name))
        return found

    def advance(self):
        step = super().advance()
        self.count_calls()
        if isinstance(step, CallModel):
            budgets = {name for _, name in self.over()} - {"tool_calls"}
            if step.limit is None:
                assert not budgets, "another model call behind a limit"
            elif budgets:
                assert self.state.turn.iteration, "a turn that must not begin"
                self.forced[self.of_turn()] += 1
                assert self.forced[self.of_turn()] == 1, "the model is told to finish once"
        if isinstance(step, RecordClosing):
            self.closed_over = self.over_budget()
        if step == Wait("resumed") and self.state.pause is None and not self.state.is_pause_requested:
            assert self.state.limits.on_limit == "pause"
            assert "raises the limit" in build_status(self.state).reason
        return step

    def pause(self, *args):
        self.nothing_came()
        super().pause(*args)

    def interrupt(self, content, id, finished):
        if not finished:  # who says something now or later is to have an answer
            self.nothing_came()
        super().interrupt(content, id, finished)

    def nothing_came(self):
        """The model was told to finish, and is told once more."""
        if isinstance(self.flying, CallModel) and self.flying.limit is not None:
            self.forced[self.of_turn()] = 0

    def over_budget(self):
        late = (use := find_exceeded_limit(self.state)) is not None and use.name in ("wall_time", "tool_calls")
        return late or (self.state.turn is not None and bool({name for _, name in self.over()} - {"tool_calls"}))

    def _check_end(self):
        """A message that came while the last call of a budget was under way is recorded, and has no answer."""
        if self.closed_over or self.over_budget():
            assert [*self.state.inbox, *self.state.unsent, *self.state.calls] == []
            self._check_unanswered()
        else:
            super()._check_end()

    def _check_unanswered(self):
        response = build_response(self.state)
        if self.unrecorded or self.ended != "completed" or response.finish_reason != "limit":
            return
        last = next((at for at, (kind, _) in enumerate(reversed(self.transcript)) if kind == "assistant"), None)
        late = [kind for kind, _ in self.transcript[-last:] if kind == "user"] if last else []
        assert len(response.unanswered) <= len(late), "it is answered after all"
        if self.state.mode == "run" and last is not None:
            assert bool(response.unanswered) == bool(late), "the ending does not say what has no answer"

    def spend(self, name, amount):
        for scope in ("run", self.of_turn()):
            self.used.setdefault(scope, Counter())[name] += amount

    def reply(self, calls, output):
        self.spend("iterations", 1)
        self.spend("tokens", output.usage.total_tokens)
        self.spend("cost_usd", output.cost_usd or 0)
        forced = self.flying.limit is not None
        self.known = output.limits
        super().reply(calls, output)
        if not forced:
            self.count_calls(sum(isinstance(call.disposition, InlineCall) for call in calls))

    def count_calls(self, inline=0):
        """Those that ran, or are to run, are no more than allowed."""
        begun = {pending.op for pending in self.state.calls if pending.result is None and not pending.held}
        new = inline + len(begun - self.begun)
        self.begun |= begun
        if not new:
            return
        self.spend("tool_calls", new)
        assert self.used["run"]["tool_calls"] == self.state.tool_calls
        for scope, bounds in (("run", self.known.run), (self.of_turn(), self.known.turn)):
            if bounds and bounds.tool_calls is not None:
                allowed = max(bounds.tool_calls, self.raised.get(scope, {}).get("tool_calls", 0))
                assert self.used[scope]["tool_calls"] <= allowed

    def closed(self, head):
        step = self.flying
        if step.closing.status != "paused" or step.closing.pause is not None:
            super().closed(head)
        elif head is None:  # nothing of it is in the store: the next call is given it
            apply_closing(self.state, step, None)
            self.flying = None
        else:
            super().closed(head)
            self.bare = True

    def raise_limits(self, limits, turn):
        given = {**limits, **({"turn": turn} if turn else {})}
        held = {pending.op for pending in self.state.calls if pending.held}
        resume_run(self.state, {"limits": given, "by": "ana"})
        for scope, more in (("run", limits), (self.state.turn and self.of_turn(), turn)):
            mine = self.raised.setdefault(scope, {})
            mine |= {name: max(value, mine.get(name, 0)) for name, value in more.items()}
        assert {pending.op for pending in self.state.calls if pending.held} == held, "released by the loop alone"


class Limited(Loop):
    """The machine of test_simulation with budgets."""

    @initialize(
        mode=st.sampled_from(["run", "session"]),
        limits=LIMITS,
        message=st.sampled_from([None, "first"]),
        habit=st.sampled_from(["calls", "empty", "answer"]),
    )
    def open(self, mode, limits, message, habit):
        self.patched = pytest.MonkeyPatch()
        start = {"agent": "a", "mode": mode, "message": message}
        self.run = Counting(open_as_child(start, "context-1", "scope-1"), limits)
        self.limits, self.habit, self.said, self.price = limits, habit, 0, (5, 0.125)
        if message:
            self.run.accepted.append(message)

    @flying(CallModel)
    @rule(
        dispositions=st.lists(DISPOSITIONS, max_size=4),
        answers=st.booleans(),
        limits=st.none() | LIMITS,
        price=st.tuples(st.integers(0, 40), st.sampled_from([None, 0.125, 1.5])),
    )
    def reply(self, dispositions, answers, limits, price):
        if limits and answers:
            self.limits = limits
        self.price = price
        self._reply(dispositions, answers)

    def _reply(self, dispositions, answers):
        allowed = count_calls_left(self.run.state)
        calls = [
            Call(id=f"c{self.run.replies}-{n}", name="look", disposition=how) for n, how in enumerate(dispositions)
        ]
        calls = list(self._allowed_inline(calls, allowed))
        tokens, cost = self.price
        output = ModelOutput(
            head=f"h{self.run.replies}",
            store_id="s",
            text="so far",
            calls=tuple(calls),
            finish=FinalAnswer(content="42") if answers else None,
            limits=self.limits,
            usage=Usage(input_tokens=tokens, output_tokens=1),
            cost_usd=cost,
        )
        self.run.reply(calls, output)

    def _allowed_inline(self, calls, allowed):
        """As the inline stage leaves them."""
        room = 10**6 if allowed is None else allowed
        for bounds, scope in ((self.limits.run, "run"), (self.limits.turn, self.run.of_turn())):
            if bounds and bounds.tool_calls is not None:
                most = max(bounds.tool_calls, self.run.raised.get(scope, {}).get("tool_calls", 0))
                room = min(room, max(0, most - self.run.used.get(scope, {}).get("tool_calls", 0)))
        for call in calls:
            if isinstance(call.disposition, InlineCall):
                room -= 1
                call = (
                    call if room >= 0 else call.model_copy(update={"disposition": ActivityCall(timeout=9, inline=True)})
                )
            yield call

    @alive
    @rule(limits=RAISED, turn=RAISED)
    def raise_limits(self, limits, turn):
        self.run.raise_limits(limits, turn)

    @alive
    @rule(hours=st.integers(0, 3))
    def time_passes(self, hours):
        state, before = self.run.state, self.run.state.worked
        self.run.now += timedelta(seconds=7 * hours)
        if self.run.flying is None:
            update_work_time(state, self.run.now, working=False)
            assert state.worked == before, "waiting is not work"

    @alive
    @rule()
    def look_at_limits(self):
        state = self.run.state
        rest = compute_remaining_budget(state)
        for name, value in rest.model_dump(exclude_none=True).items() if rest else ():
            assert value >= 0
            if name == "tokens":
                assert value <= max(use.allowed for use in build_status(state).limits if use.name == name)

    def _run_out(self, run):
        """What has been raised ends some time; a run that waits for a person gets plenty, and then an answer."""
        close_run(run.state)
        for _ in range(600):
            if run.ended is not None or (run.state.turn is None and run.state.mode == "run" and not run.state.inbox):
                return
            at_limit = run.state.pause is None and not run.state.is_pause_requested
            if run.flying is None and decide(run.state) == Wait("resumed") and at_limit:
                run.raise_limits(PLENTY, PLENTY)
                self.habit = "answer"
            self._settle()
            run.check()
        raise AssertionError("the run does not end")


TestLimits = Limited.TestCase
TestLimits.settings = settings(
    max_examples=2 * settings.default.max_examples,  # each is one way through many
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
