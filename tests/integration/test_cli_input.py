"""``perdure run --input``, in this process: an agent with an input type is asked from a shell."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from perdure import Agent
from perdure.testing import ScriptedProvider
from tests.support.commands import Commands
from tests.support.engine import Engine


class Trip(BaseModel):
    city: str
    days: int = 2


planner = Agent("planner", ScriptedProvider(lambda request: request.messages[-1].text), input=Trip)


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(engine, monkeypatch)


async def test_the_value_is_what_the_agent_is_asked(engine: Engine, cli: Commands) -> None:
    """Of a worker that has the type; with ``--file`` it is checked before: test_cli_processes.py."""
    async with engine.served(planner):
        oslo = await cli("run", "planner", "--input", '{"city": "Oslo"}')
        assert (oslo.code, oslo.out.count("<city>Oslo</city>"), oslo.out.count("<days>2</days>")) == (0, 1, 1)
        rome = await cli("run", "planner", "--input", "-", stdin='{"city": "Rome", "days": 3}')
        assert (rome.code, rome.out.count("<days>3</days>")) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give either MESSAGE or --input"),
        (("Hi.", "--input", "{}"), "give either MESSAGE or --input"),
        (("--input", "Oslo"), "--input is not JSON"),
        (("--input", "[]"), "--input must be a JSON object"),
        (("--input", "{}", "--attach", __file__), "--attach cannot be combined with --input"),
    ],
)
async def test_what_it_cannot_be_asked(cli: Commands, arguments: tuple[str, ...], says: str) -> None:
    refused = await cli("run", "planner", *arguments)
    assert (refused.code, says in refused.err) == (2, True)
