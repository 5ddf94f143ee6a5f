"""The program under examples/ that evaluates an agent with pydantic-evals."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.docs.asked import Request, system, users
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.model_server import Call

pytestmark = pytest.mark.server


def triage(request: Request) -> Any:
    """Takes a fee for shipping for a matter of shipping, unless it is told better."""
    is_money = "charged" in users(request)[0] or "money" in system(request)
    return Call("__finish__", {"value": "billing" if is_money else "shipping"})


@pytest.mark.slow
async def test_evals(loopback: Loopback) -> None:
    loopback.model.rule = triage
    await loopback.own_namespace()
    out = succeeded(await loopback.python(EXAMPLES / "49_evals.py"))
    assert "Evaluation Diff: v1 → v2" in out
    [fee] = [line for line in out.splitlines() if "fee" in line and "│" in line]
    assert "shipping → billing" in fee
    assert "✗ → ✔" in fee
    assert re.search(r"cost_usd: 0\.0\d+", out)
    assert re.search(r"tokens: \d+", out)
    parted = "fee: other replies after iteration 0: perdure diff eval-v1-fee eval-v2-fee"
    assert out.splitlines()[-1] == parted
    assert len(loopback.model.requests) == 4

    assert succeeded(await loopback.python(EXAMPLES / "49_evals.py")).splitlines()[-1] == parted
    assert len(loopback.model.requests) == 4, "the runs are kept, and nothing is paid for twice"
    compared = await loopback.run("perdure", "diff", "eval-v1-fee", "eval-v2-fee")
    assert "shipping" in compared.out
    assert "billing" in compared.out
