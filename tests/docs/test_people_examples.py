"""The programs under examples/ in which a person or a client answers, as processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.asked import Request, results
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.chat_wire import Call

pytestmark = pytest.mark.server


def _lines(out: str) -> list[str]:
    # It is asked how it stands until it waits; of a question that came too late the SDK says so.
    return [line for line in out.splitlines() if "temporalio_sdk_core" not in line]


async def test_ask(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        done = results(request)
        return f"Done: {done[0]}." if done else Call("pay", {"invoice": "invoice 7"})

    loopback.model.rule = rule
    assert _lines(succeeded(await loopback.python(EXAMPLES / "35_ask.py"))) == [
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
    assert _lines(succeeded(await loopback.python(EXAMPLES / "36_callback.py"))) == [
        "(the editor opens setup.py at line 3)",
        "It says 'zip_safe=False'.",
    ]
