"""The programs under examples/ about forks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.asked import Request, results, users
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.model_server import Call

pytestmark = pytest.mark.server


async def test_fork(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        found = results(request)
        if not found:
            return [Call("price", {"city": "Oslo"}), Call("price", {"city": "Rome"})]
        return f"{' and '.join(found)} for {len(users(request))} question(s)"

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "31_fork.py")).splitlines() == [
        "as it is: 140 euros and 95 euros for 1 question(s)",
        "what if:  20 euros and 95 euros for 1 question(s)",
        "and then: 140 euros and 95 euros for 2 question(s)",
        "they part after iteration 1: 20 euros",
    ]
