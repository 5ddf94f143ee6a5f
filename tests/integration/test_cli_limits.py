"""``perdure show`` and ``resume --limit`` at a limit, in this process."""

from __future__ import annotations

import pytest

from perdure import Agent, Limits
from perdure.testing import ScriptedProvider
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.scripts import calls_then
from tests.support.wait import eventually


async def test_a_limit_is_shown_and_raised(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Commands(engine, monkeypatch)
    model = ScriptedProvider(calls_then(3, "none"))
    agent = Agent("looking", model, limits=Limits(tokens=90_000), max_iterations=2, on_limit="pause")
    async with engine.served(agent) as client:
        run = await client.start("looking", "Go.")

        async def paused() -> bool:
            return (await run.status()).at_limit is not None

        await eventually(paused)
        shown = (await cli("show", run.id)).out
        assert "  the turn has used 2 of 2 iterations (max_iterations)\n" in shown
        assert "of 90,000 tokens (tokens)\n" in shown
        assert f"`perdure resume {run.id} --limit max_iterations=<more>` lets it go on" in shown

        refused = await cli("resume", run.id)
        assert refused.code == 2
        assert "is paused: the turn has used 2 of 2 iterations" in refused.err
        assert f"perdure resume {run.id} --limit max_iterations=<more>" in refused.err

        raised = await cli("resume", run.id, "--limit", "max_iterations=10", "--limit", "turn.tokens=50000")
        assert raised.out == f"{run.id} may use more\n"
        assert (await run.result()).content == "Done."
        told = (await cli("events", run.id)).out
    assert "(at a limit: the turn has used 2 of 2 iterations (max_iterations))" in told
    assert "run paused (the turn has used 2 of 2 iterations (max_iterations))" in told
