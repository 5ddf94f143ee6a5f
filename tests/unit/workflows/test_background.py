"""How often a run in background looks whether its parent is there."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.loop.decide import Wait
from perdure.loop.lifecycle import create_run_state
from perdure.types.state import RunState
from perdure.workflows.child_workflows import BackgroundChildren
from perdure.workflows.guard import Guard
from perdure.workflows.host import use_host
from tests.unit.loop.build import carried_over

HOUR = 3600.0
LINEAGE = {"root": "p", "agent": "above", "path": [{"agent": "a", "call_id": "c"}]}
PARENT = {"context_id": "p", "call_id": "c", "scope": "s", "depth": 1, "background": True, "lineage": LINEAGE}


class Host:
    """Counts the looks."""

    def __init__(self) -> None:
        self.looks = 0

    async def signal_external(self, id: str, signal: str, arguments: Any) -> None:
        assert (id, signal) == ("p", "probe")
        self.looks += 1

    async def wait(self, tasks: Any) -> None:
        for task in tasks:
            await task


def child() -> RunState:
    return create_run_state({"agent": "a", "message": "hi", "parent": PARENT}, "p/1", "s", "p")


async def hours(state: RunState, host: Any, until: float) -> list[float]:
    """When it looks, while it waits for a person: hours from its beginning."""
    children, now = BackgroundChildren(state, Guard()), 0.0
    found: list[float] = []
    with use_host(host):
        while (at := children.compute_next_probe(Wait("approval"), now)) is not None and at <= until * HOUR:
            now = at
            await children.send_due_probes(now)
            found.append(at / HOUR)
    assert host.looks == len(found)
    return found


async def test_looks_get_rarer_to_one_a_day() -> None:
    state = child()
    assert await hours(state, Host(), 24 * 5) == [1, 3, 7, 15, 31, 55, 79, 103]
    carried = carried_over(state)
    assert carried.parent_checks == state.parent_checks == 8
    assert len(await hours(child(), Host(), 24 * 30)) == 33  # and not 720


@pytest.mark.parametrize("sought", [30, 10_000])
async def test_many_looks_are_no_number_too_large(sought: int) -> None:
    state = child()
    state.parent_checks, state.parent_seen_at = sought, 0.0
    assert await hours(state, Host(), 50) == [24, 48]
