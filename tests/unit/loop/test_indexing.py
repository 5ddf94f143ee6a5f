"""What visibility is told of a run."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import loop
from perdure.loop import CallModel, RunCalls, Wait
from perdure.types.approval import Asks
from perdure.types.indexing import AGENT, ATTRIBUTES, PENDING, STATUS
from perdure.types.state import PendingCall, RunState
from perdure.types.wire import AsActivity, Call

ALL = list(ATTRIBUTES)
STARTED = {AGENT: "support"}
INDEXED = {**STARTED, STATUS: "running", PENDING: 0}


def asking(count: int, **more: Any) -> RunState:
    calls = [
        PendingCall(
            call=Call(
                id=f"call_{n}",
                name="refund",
                disposition=AsActivity(timeout=1),
                approval=Asks(hash="h", on_expiry="deny"),
            ),
            op=n,
        )
        for n in range(count)
    ]
    return RunState(context_id="c", agent="support", scope="s", calls=calls, **{"indexed": ALL, **more})


MODEL, TOOLS = CallModel((), 0), RunCalls(())
FOR_PERSON, FOR_MESSAGE, PAUSED = Wait("approval"), Wait("message"), Wait("resumed")


@pytest.mark.parametrize(
    ("waits", "step", "shown", "changed"),
    [
        # Nothing of a run that has not waited yet.
        (0, None, {}, {}),
        (0, MODEL, {}, {}),
        (0, TOOLS, STARTED, {}),
        # All of it at the first wait, for whatever; of a run that others have started the agent too.
        (0, FOR_MESSAGE, STARTED, {STATUS: "running", PENDING: 0}),
        (0, FOR_MESSAGE, {}, INDEXED),
        (2, FOR_PERSON, {}, {AGENT: "support", STATUS: "waiting", PENDING: 2}),
        (1, FOR_PERSON, STARTED, {STATUS: "waiting", PENDING: 1}),
        (0, PAUSED, STARTED, {STATUS: "paused", PENDING: 0}),
        # What waits is told while other calls run.
        (1, TOOLS, STARTED, {STATUS: "waiting", PENDING: 1}),
        (1, FOR_PERSON, {**INDEXED, STATUS: "waiting", PENDING: 2}, {PENDING: 1}),
        (0, TOOLS, {**INDEXED, STATUS: "waiting", PENDING: 1}, {STATUS: "running", PENDING: 0}),
        (0, MODEL, {**INDEXED, STATUS: "paused"}, {STATUS: "running"}),
        (1, PAUSED, {**INDEXED, STATUS: "waiting", PENDING: 1}, {STATUS: "paused"}),
        # Between two turns and in one it is the same.
        (0, FOR_MESSAGE, INDEXED, {}),
        (0, MODEL, INDEXED, {}),
    ],
)
def test_what_is_told(waits: int, step: Any, shown: dict[str, Any], changed: dict[str, Any]) -> None:
    assert loop.to_index(asking(waits), step, shown) == changed


@pytest.mark.parametrize("names", [None, [], [STATUS], [PENDING, AGENT]])
def test_nothing_but_what_the_namespace_has(names: list[str] | None) -> None:
    told = loop.to_index(asking(1, indexed=names), FOR_PERSON, {})
    assert set(told) == set(names or ())


def test_what_a_worker_has_said_survives_continue_as_new() -> None:
    state = asking(1)
    again = loop.open_state(loop.carry_over(state), "c", "s")
    assert again.indexed == ALL
    assert "indexed" not in loop.carry_over(asking(0, indexed=None))["state"]
