"""``perdure run --input``: an agent with an input type is asked from a shell."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cli import Cli

pytestmark = pytest.mark.server

AGENTS = """
from pydantic import BaseModel
from perdure import Agent
from perdure.testing import ScriptedProvider


class Trip(BaseModel):
    city: str
    days: int = 2


planner = Agent("planner", ScriptedProvider(lambda request: request.messages[-1].text), input=Trip)
"""


@pytest.fixture
async def cli(temporal_address: str, tmp_path: Path) -> AsyncIterator[Cli]:
    (tmp_path / "agents.py").write_text(AGENTS)
    env = {
        "TEMPORAL_ADDRESS": temporal_address,
        "PERDURE_HOME": str(tmp_path / "home"),
        "PERDURE_STORE_URL": f"sqlite:///{tmp_path / 'store.db'}",
        "PERDURE_TASK_QUEUE": f"cli-{uuid.uuid4().hex[:8]}",
    }
    cli = Cli(tmp_path, env)
    yield cli
    await cli.close()


async def test_the_value_is_what_the_agent_is_asked(cli: Cli) -> None:
    """By the file that has the type, and by a worker alone."""
    here = await cli("run", "planner", "--input", '{"city": "Oslo"}', "-f", "agents.py")
    assert (here.code, here.out.count("<city>Oslo</city>"), here.out.count("<days>2</days>")) == (0, 1, 1)
    wrong = await cli("run", "planner", "--input", '{"town": "Oslo"}', "-f", "agents.py")
    assert (wrong.code, "city" in wrong.err) == (2, True)
    worker = await cli.spawn("worker", "agents.py")
    await worker.until("serving planner on queue ")
    far = await cli("run", "planner", "--input", '{"city": "Rome", "days": 3}')
    assert (far.code, far.out.count("<days>3</days>")) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "a run is asked a message, or an --input"),
        (("Hi.", "--input", "{}"), "a run is asked a message, or an --input"),
        (("--input", "Oslo"), "--input is not JSON"),
        (("--input", "[]"), "--input must be a JSON object"),
        (("--input", "{}", "--attach", "agents.py"), "an --input has no files beside it"),
    ],
)
async def test_what_it_cannot_be_asked(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    refused = await cli("run", "planner", *arguments)
    assert (refused.code, says in refused.err) == (2, True)
