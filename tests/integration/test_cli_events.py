"""``perdure events``, ``perdure run --follow`` and ``perdure chat``: what happens is shown as it happens."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.terminal import CTRL_D, ENTER, Terminal

pytestmark = pytest.mark.server

AGENTS = '''
import asyncio
import os
from pathlib import Path

from perdure import Agent, tool
from perdure.errors import AuthenticationError
from perdure.ports import Completed, TextDelta
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import TextPart

FOLDER = Path(os.environ["CLI_TEST_FOLDER"])


@tool
def look(where: str) -> str:
    """Look."""
    return f"nothing in {where}"


class Slow:
    """Writes a line, and the other when the test lets it."""

    async def stream(self, request):
        yield TextDelta("Line 1.\\n")
        while not (FOLDER / "open").exists():
            await asyncio.sleep(0.02)
        yield TextDelta("Line 2.")
        yield Completed((TextPart(text="Line 1.\\nLine 2."),), model=request.model)


def look_then_answer(request):
    if request.messages[-1].role == "user":
        return ["I look.", call("look", where="the box")]
    return "It is empty."


def fail(request):
    raise AuthenticationError("the key is wrong")


slow = Agent("slow", Slow())
looker = Agent("looker", ScriptedProvider(look_then_answer), tools=[look])
failing = Agent("failing", ScriptedProvider(fail))
'''


@pytest.fixture
async def cli(temporal_address: str, tmp_path: Path) -> AsyncIterator[Cli]:
    """Commands in a folder with ``agents.py``, and a worker that serves it."""
    (tmp_path / "agents.py").write_text(AGENTS)
    env = {
        "TEMPORAL_ADDRESS": temporal_address,
        "PERDURE_HOME": str(tmp_path / "home"),
        "PERDURE_STORE_URL": f"sqlite:///{tmp_path / 'store.db'}",
        "PERDURE_TASK_QUEUE": f"cli-{uuid.uuid4().hex[:8]}",
        "CLI_TEST_FOLDER": str(tmp_path),
    }
    cli = Cli(tmp_path, env)
    worker = await cli.spawn("worker", "agents.py")
    await worker.until("serving failing, looker, slow on queue ")
    yield cli
    await cli.close()


@pytest.fixture
def id() -> str:  # noqa: A001  # the name of the option
    return f"seen-{uuid.uuid4().hex[:8]}"


def proceed(cli: Cli) -> None:
    (cli.folder / "open").touch()


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


async def test_events_of_a_run_that_has_ended(cli: Cli, id: str) -> None:
    assert (await cli("run", "looker", "Go.", "--id", id)).code == 0
    text = await cli("events", id[:-2])  # what is unique of an id is enough
    assert text.code == 0
    told = [line.partition(" (")[0] for line in text.out.splitlines()]
    assert [line for line in told if not line.startswith("user ")] == [
        "run started",
        "turn started",
        "I look.",
        '→ look(where="the box")',
        "← look: nothing in the box",
        "It is empty.",
        "turn completed",
        "run completed",
    ]
    listed = (await cli("events", id, "-o", "json")).json
    assert [event["type"] for event in listed][-3:] == ["model.completed", "turn", "run"]
    assert {event["context_id"] for event in listed} == {id}
    lines = await cli("events", id, "-o", "jsonl")
    assert objects(lines.out) == listed
    after = await cli("events", id, "--after", str(listed[4]["seq"]), "--json")
    assert after.json == listed[5:]
    turn = await cli("events", id, "--turn", listed[1]["task_id"], "--json")
    assert turn.json == [event for event in listed if event.get("task_id") == listed[1]["task_id"]]


async def test_events_of_what_nobody_knows(cli: Cli, id: str) -> None:
    unknown = await cli("events", id)
    assert (unknown.code, unknown.out) == (3, "")
    assert id in unknown.err
    assert (await cli("run", "looker", "Go.", "--id", id)).code == 0
    turn = await cli("events", id, "--turn", "other")
    assert turn.code == 3
    assert "has no turn 'other'" in turn.err


async def test_events_are_followed_to_the_end_of_the_run(cli: Cli, id: str) -> None:
    assert (await cli("run", "slow", "Go.", "--id", id, "-d")).code == 0
    following = await cli.spawn("events", id, "-f")
    await following.until("Line 1.")
    so_far = await cli("events", id)
    assert so_far.out.splitlines()[-1] == "Line 1."
    proceed(cli)
    assert await following.ended() == 0
    assert following.output.count("Line 1.") == 1
    assert "Line 2." in following.output
    assert following.output.splitlines()[-1] == "run completed"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
async def test_who_was_cut_off_goes_on_behind_the_last_number(cli: Cli, id: str, by: signal.Signals) -> None:
    assert (await cli("run", "slow", "Go.", "--id", id, "-d")).code == 0
    following = await cli.spawn("events", id, "-f", "-o", "jsonl")
    await following.until("model.delta")
    following.send(by)
    assert await following.ended() == (130 if by is signal.SIGINT else -by)
    seen = objects(following.output)
    again = await cli.spawn("events", id, "-f", "-o", "jsonl", "--after", str(seen[-1]["seq"]))
    proceed(cli)
    assert await again.ended() == 0
    rest = objects(again.output)
    assert seen[-1]["seq"] < rest[0]["seq"]
    whole = (await cli("events", id, "-o", "json")).json
    assert [event for event in [*seen, *rest] if event["type"] != "model.delta"] == whole


async def test_run_follow_writes_replies_as_they_come(cli: Cli, id: str) -> None:
    following = await cli.spawn("run", "slow", "Go.", "--id", id, "--follow")
    await following.until("Line 1.")
    proceed(cli)
    assert await following.ended() == 0
    assert following.output == f"run {id}\nLine 1.\nLine 2.\n"


async def test_run_follow_tells_calls_beside_the_text(cli: Cli, id: str) -> None:
    text = await cli("run", "looker", "Go.", "--id", id, "--follow")
    assert (text.code, text.out) == (0, "I look.\nIt is empty.\n")
    assert text.err == f'run {id}\n→ look(where="the box")\n← look: nothing in the box\n'


async def test_run_follow_as_json(cli: Cli, id: str) -> None:
    answer = await cli("run", "looker", "Go.", "--id", id, "--follow", "-o", "json")
    assert (answer.code, answer.json["content"]) == (0, "It is empty.")
    assert "I look." in answer.err
    lines = await cli("run", "looker", "Go.", "--id", f"{id}-2", "--follow", "-o", "jsonl")
    told = [event for event in objects(lines.out) if event["type"] != "model.delta"]
    assert told == objects((await cli("events", f"{id}-2", "-o", "jsonl")).out)
    assert (told[0]["type"], told[-1]["state"]) == ("run", "completed")


async def test_run_follow_of_a_run_that_fails(cli: Cli, id: str) -> None:
    failed = await cli("run", "failing", "Go.", "--id", id, "--follow")
    assert (failed.code, failed.out) == (1, "")
    assert "the key is wrong" in failed.err


async def test_ctrl_c_leaves_a_followed_run_running(cli: Cli, id: str) -> None:
    following = await cli.spawn("run", "slow", "Go.", "--id", id, "--follow")
    await following.until("Line 1.")
    following.send(signal.SIGINT)
    assert await following.ended() == 130
    assert f"run {id} goes on" in following.output
    proceed(cli)
    assert (await cli("wait", id)).out == "Line 1.\nLine 2.\n"


async def test_chat_shows_a_reply_while_it_is_written(cli: Cli, id: str) -> None:
    chat = await Terminal.start("chat", "slow", "--id", id, cwd=cli.folder, env=cli.env)
    try:
        await chat.at(">")
        chat.type("Go." + ENTER)
        await chat.until("Line 1.")
        assert not (cli.folder / "open").exists()
        proceed(cli)
        await chat.until("Line 1.\nLine 2.")
        await chat.idle()
        assert chat.shown.count("Line 1.") == 1
        chat.type(CTRL_D)
        assert await chat.ended() == 0
    finally:
        await chat.close()
