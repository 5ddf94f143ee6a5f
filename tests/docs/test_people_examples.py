"""The programs under examples/ in which a person or a client answers, as processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.asked import Request, results
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.model_server import Call

pytestmark = pytest.mark.server


async def test_ask(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        done = results(request)
        return f"Done: {done[0]}." if done else Call("pay", {"invoice": "invoice 7"})

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "35_ask.py")).splitlines() == [
        "From which account shall I pay invoice 7, and how much?",
        "Pay 40 EUR from savings?",
        "Done: paid 40 EUR from savings.",
    ]
    assert len(loopback.model.requests) == 2


async def test_callback(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        done = results(request)
        return f"It says {done[0]!r}." if done else Call("open_file", {"path": "setup.py", "line": 3})

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "36_callback.py")).splitlines() == [
        "(the editor opens setup.py at line 3)",
        "It says 'zip_safe=False'.",
    ]


async def test_client_tools(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        done = results(request)
        return f"The page is {done[0]}." if done else Call("open_page", {"path": "/prices"})

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "52_client_tools.py")).splitlines() == [
        "(the browser opens /prices)",
        "The page is opened.",
    ]
