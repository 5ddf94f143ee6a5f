"""``perdure events`` and ``perdure run --follow``, in this process: what happens is shown as it happens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.errors import AuthenticationError
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import TextPart
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.scripts import Gate


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(engine, monkeypatch)


@tool
def look(where: str) -> str:
    """Look."""
    return f"nothing in {where}"


class Slow:
    """Writes a line, and the other when the test lets it."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        yield TextDelta("Line 1.\n")
        await self.gate()
        yield TextDelta("Line 2.")
        yield Completed((TextPart(text="Line 1.\nLine 2."),), model=request.model)


def look_then_answer(request: ModelRequest) -> Any:
    if request.messages[-1].role == "user":
        return ["I look.", call("look", where="the box")]
    return "It is empty."


def fail(request: ModelRequest) -> str:
    raise AuthenticationError("the key is wrong")


looker = Agent("looker", ScriptedProvider(look_then_answer), tools=[look])
failing = Agent("failing", ScriptedProvider(fail))


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


async def test_events_of_a_run_that_has_ended(engine: Engine, cli: Commands) -> None:
    async with engine.served(looker):
        assert (await cli("run", "looker", "Go.", "--id", "seen-1")).code == 0
        text = await cli("events", "seen")  # what is unique of an id is enough
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
        listed = (await cli("events", "seen-1", "-o", "json")).json
        assert [event["type"] for event in listed][-3:] == ["model.completed", "turn", "run"]
        assert {event["context_id"] for event in listed} == {"seen-1"}
        assert objects((await cli("events", "seen-1", "-o", "jsonl")).out) == listed
        after = await cli("events", "seen-1", "--after", str(listed[4]["seq"]), "--json")
        assert after.json == listed[5:]
        task_id = listed[1]["task_id"]
        turn = await cli("events", "seen-1", "--turn", task_id, "--json")
        assert turn.json == [event for event in listed if event.get("task_id") == task_id]

        other_turn = await cli("events", "seen-1", "--turn", "other")
        assert other_turn.code == 3
        assert "has no turn 'other'" in other_turn.err
        unknown = await cli("events", "never-seen")
        assert (unknown.code, unknown.out) == (3, "")
        assert "never-seen" in unknown.err


async def test_events_are_followed_to_the_end_of_the_run(engine: Engine, cli: Commands) -> None:
    slow = Slow()
    async with engine.served(Agent("slow", slow)):
        assert (await cli("run", "slow", "Go.", "--id", "seen", "-d")).code == 0
        following = await cli.spawn("events", "seen", "-f")
        await following.until("Line 1.")
        so_far = await cli("events", "seen")
        assert so_far.out.splitlines()[-1] == "Line 1."
        slow.gate.open()
        assert await following.ended() == 0
    assert following.output.count("Line 1.") == 1
    assert "Line 2." in following.output
    assert following.output.splitlines()[-1] == "run completed"


async def test_a_follower_goes_on_behind_the_last_number_that_it_saw(engine: Engine, cli: Commands) -> None:
    slow = Slow()
    async with engine.served(Agent("slow", slow)):
        assert (await cli("run", "slow", "Go.", "--id", "seen", "-d")).code == 0
        first = await cli.spawn("events", "seen", "-f", "-o", "jsonl")
        await first.until("model.delta")
        seen = objects(first.output)
        again = await cli.spawn("events", "seen", "-f", "-o", "jsonl", "--after", str(seen[-1]["seq"]))
        slow.gate.open()
        assert (await first.ended(), await again.ended()) == (0, 0)
        rest = objects(again.output)
        assert seen[-1]["seq"] < rest[0]["seq"]
        whole = (await cli("events", "seen", "-o", "json")).json
    assert [event for event in [*seen, *rest] if event["type"] != "model.delta"] == whole


async def test_run_follow_writes_replies_as_they_come(engine: Engine, cli: Commands) -> None:
    slow = Slow()
    async with engine.served(Agent("slow", slow)):
        following = await cli.spawn("run", "slow", "Go.", "--id", "seen", "--follow")
        await following.until("Line 1.")
        slow.gate.open()
        assert await following.ended() == 0
    assert following.output == "run seen\nLine 1.\nLine 2.\n"


async def test_run_follow_tells_calls_beside_the_text_or_all_as_json(engine: Engine, cli: Commands) -> None:
    async with engine.served(looker, failing):
        text = await cli("run", "looker", "Go.", "--id", "seen-1", "--follow")
        assert (text.code, text.out) == (0, "I look.\nIt is empty.\n")
        assert text.err == 'run seen-1\n→ look(where="the box")\n← look: nothing in the box\n'

        answer = await cli("run", "looker", "Go.", "--id", "seen-2", "--follow", "-o", "json")
        assert (answer.code, answer.json["content"]) == (0, "It is empty.")
        assert "I look." in answer.err

        lines = await cli("run", "looker", "Go.", "--id", "seen-3", "--follow", "-o", "jsonl")
        told = [event for event in objects(lines.out) if event["type"] != "model.delta"]
        assert told == objects((await cli("events", "seen-3", "-o", "jsonl")).out)
        assert (told[0]["type"], told[-1]["state"]) == ("run", "completed")

        failed = await cli("run", "failing", "Go.", "--follow")
        assert (failed.code, failed.out) == (1, "")
        assert "the key is wrong" in failed.err
