"""The programs under examples/ about runs that begin at certain times."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.asked import Request, results
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.model_server import Call

pytestmark = pytest.mark.server


async def test_schedule(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        found = results(request)
        return f"db-1: {found[1]}" if found else [Call("disk", {"host": host}) for host in ("web-1", "db-1")]

    loopback.model.rule = rule
    await loopback.own_namespace()
    first, answer = succeeded(await loopback.python(EXAMPLES / "30_schedule.py")).splitlines()
    assert first.startswith("disks: 0 7 * * 1-5, next on a ")
    assert first.endswith("day")
    assert answer == "db-1: 93 %"
    gone = await loopback.run("perdure", "schedule", "show", "disks")
    assert gone.code == 3
