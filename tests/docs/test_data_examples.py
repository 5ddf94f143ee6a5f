"""The programs under examples/ about whom a run acts for, and about agents that are data."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.asked import Request, results, system
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.model_server import Call

pytestmark = pytest.mark.server


async def test_auth(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        done = results(request)
        return f"({system(request)}) {done[0]}" if done else Call("balance")

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "27_auth.py")).splitlines() == [
        "(You help Ana.) 12.50 euros",
        "'How much do I have?' is in the history: True",
        "'token-of-ana' is in the history: False",
    ]


async def test_agent_file(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        done = results(request)
        return f"({system(request)}) {done[0]}" if done else Call("stock", {"article": "it"})

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "28_agent_file.py")).splitlines() == [
        "serving: shop (shop.toml)",
        "(You sell lamps.) 3 of it",
        "serving: shop (shop.toml)",
        "(You sell chairs.) 3 of it",
    ]
