"""``perdure chat`` at a terminal (a pseudo-terminal), on a real server. Through a pipe: test_cli_conversations.py."""

from __future__ import annotations

import signal
import stat
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.cli import Cli, talking
from tests.support.terminal import CTRL_C, CTRL_D, CTRL_J, CTRL_U, ENTER, ESCAPE, UP, Terminal

pytestmark = pytest.mark.server

Sit = Callable[..., Awaitable[Terminal]]


@pytest.fixture
async def cli(temporal_address: str, tmp_path: Path) -> AsyncIterator[Cli]:
    """Commands in a folder with the talker's ``agents.py``."""
    async with talking(temporal_address, tmp_path) as cli:
        yield cli


@pytest.fixture
async def sit(cli: Cli) -> AsyncIterator[Sit]:
    """Sits down at a terminal and starts ``perdure chat`` there."""
    terminals: list[Terminal] = []

    async def start(*arguments: str) -> Terminal:
        terminals.append(await Terminal.start("chat", *arguments, cwd=cli.folder, env=cli.env))
        return terminals[-1]

    yield start
    for terminal in terminals:
        await terminal.close()


@pytest.fixture
def id() -> str:  # noqa: A001  # the name of the option
    return f"talk-{uuid.uuid4().hex[:8]}"


async def test_a_conversation_is_left_and_taken_up_again(sit: Sit, cli: Cli, id: str) -> None:
    chat = await sit("talker", "--file", "agents.py", "--id", id)
    await chat.at(">")
    chat.type("Hello" + ENTER)
    await chat.until("1: 'Hello'")
    chat.type("one" + CTRL_J + "two" + ESCAPE + ENTER + "three" + ENTER)
    await chat.until(r"2: 'Hello' | 'one\ntwo\nthree'")
    chat.paste("four\nfive")
    chat.type(ENTER)
    await chat.until(r"| 'four\nfive'")
    await chat.idle()
    chat.type("dropped")
    await chat.at("> dropped")
    chat.type(CTRL_C + "kept" + ENTER)
    await chat.until(r"4: 'four\nfive' | 'kept'")
    chat.type(CTRL_D)
    await chat.until("stays open")
    await chat.until(f"perdure chat talker --id {id} --file agents.py")
    assert await chat.ended() == 0
    assert (await cli("show", id, "-o", "json")).json["status"]["state"] in ("idle", "running")

    chat = await sit("talker", "--file", "agents.py", "--id", id)
    await chat.at(">")
    await chat.until(r"[4]     4: 'four\nfive' | 'kept'")
    chat.type("fail" + ENTER)
    await chat.until("error: ")
    await chat.until("the key is wrong")
    chat.type("Again" + ENTER)
    await chat.until("6: 'fail' | 'Again'")
    chat.type(UP)  # the lines before, also from the sitting before
    await chat.at("> Again")
    chat.type(UP)
    await chat.at("> fail")
    chat.type(UP)
    await chat.at("> kept")
    chat.type(ENTER)
    await chat.until("7: 'Again' | 'kept'")
    await chat.idle()
    chat.type(CTRL_C)
    assert await chat.ended() == 0
    history = cli.folder / "home" / "history" / "talker"
    assert "+Again" in history.read_text()
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


async def test_a_turn_is_interrupted_by_ctrl_c_and_joined_by_what_is_typed(sit: Sit, cli: Cli, id: str) -> None:
    chat = await sit("talker", "--file", "agents.py", "--id", id)
    await chat.at(">")
    chat.type("Please wait" + ENTER)
    await chat.until("entered the gate")
    await chat.until("tools: gate")
    chat.type(CTRL_C)
    await chat.until("(interrupted)")
    chat.type("And now?" + ENTER)
    await chat.until("2: 'Please wait' | 'And now?'")
    await chat.idle()
    messages = (await cli("show", id, "-o", "json")).json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user", "assistant"]

    chat.type("Do wait" + ENTER)
    await chat.until("tools: gate")
    chat.type("Be quick" + ENTER)
    await chat.until("1 message waiting to be read")
    (cli.folder / "open").touch()
    await chat.until("→ gate(n=3)")
    await chat.until("4: 'Do wait' | 'Be quick'")
    chat.type("Thanks" + ENTER)
    await chat.until("5: 'Be quick' | 'Thanks'")


@pytest.mark.slow
async def test_a_turn_that_runs_is_left_met_again_and_interrupted(sit: Sit, cli: Cli, id: str) -> None:
    worker = await cli.spawn("worker", "agents.py", "--task-queue", id)
    await worker.until("serving")
    there = ("--task-queue", id, "--id", id)
    chat = await sit("talker", "Please wait", *there)
    await chat.until("tools: gate")
    chat.type(CTRL_D)
    assert await chat.ended() == 0
    chat = await sit("talker", *there)
    await chat.until("tools: gate")
    (cli.folder / "open").touch()
    await chat.until("1: 'Please wait'")
    chat.type(CTRL_D)
    assert await chat.ended() == 0

    (cli.folder / "open").unlink()
    chat = await sit("talker", "Please wait again", *there)
    await chat.until("tools: gate")
    assert (await cli("pause", id, "--by", "bea", "--reason", "the gate is repaired")).code == 0
    chat.type(CTRL_D)
    assert await chat.ended() == 0
    (cli.folder / "open").touch()
    chat = await sit("talker", *there)
    await chat.until(f"paused by bea: the gate is repaired; `perdure resume {id}` lets it go on")
    assert (await cli("resume", id)).code == 0
    await chat.until("2: 'Please wait' | 'Please wait again'")
    assert (await cli("pause", id, "--by", "bea")).code == 0
    chat.type(CTRL_D)
    assert await chat.ended() == 0
    chat = await sit("talker", *there)
    await chat.until(f"paused by bea; `perdure resume {id}` lets it go on\n")
    await chat.at(">")
    chat.type(CTRL_D)
    assert await chat.ended() == 0
    assert (await cli("resume", id)).code == 0

    (cli.folder / "open").unlink()
    piped = await cli.spawn("chat", "talker", "Do wait", *there)
    await piped.until("tools: gate")
    piped.send(signal.SIGINT)
    assert await piped.ended() == 130
    assert (await cli("wait", id, "-o", "json")).json["finish_reason"] == "interrupted"

    chat = await sit("slow", "--task-queue", id, "--id", f"{id}-slow")
    await chat.at(">")
    chat.type("Go." + ENTER)
    await chat.until("Line 1.")
    assert not (cli.folder / "open").exists(), "it is shown while it is written"
    (cli.folder / "open").touch()
    await chat.until("Line 1.\nLine 2.")
    await chat.idle()
    assert chat.shown.count("Line 1.") == 1


@pytest.mark.slow
async def test_without_a_worker_a_second_ctrl_c_leaves_and_patience_ends(sit: Sit, id: str) -> None:
    patient = await sit("talker", "Hello", "--task-queue", id, "--id", f"{id}-2")
    chat = await sit("talker", "--task-queue", id, "--id", id)
    await chat.at(">")
    chat.type("Is anybody there?" + ENTER)
    await chat.until("Ctrl-C interrupts\n>")
    chat.type(CTRL_C)
    await chat.until("Ctrl-C again leaves")
    chat.type(CTRL_C)
    await chat.until(f"perdure chat talker --id {id} --task-queue {id}")
    assert await chat.ended() == 130
    await patient.until("no worker has polled task queue")
    assert await patient.ended() == 4


async def test_calls_are_decided_and_questions_answered_in_place(sit: Sit, cli: Cli, id: str) -> None:
    chat = await sit("desk", "--file", "agents.py", "--id", id, "--by", "ana")
    await chat.at(">")
    chat.type("Please refund" + ENTER)
    await chat.until("(1 of 3)")
    for order in "abc":
        await chat.until(f'? refund(order="{order}")')
    first, second, third = [one["call_id"] for one in (await cli("approvals", "--json")).json if one["run_id"] == id]
    chat.type("y" + ENTER)
    await chat.until(f"(refund ({first}): approved by ana at ")
    await chat.until("(1 of 2)")
    assert (await cli("deny", id, second, "--by", "bea", "-m", "too late")).code == 0
    await chat.until(f"(refund ({second}): denied by bea at ")
    chat.type("n: no more" + ENTER)
    await chat.until(f"(refund ({third}): denied by ana at ")
    await chat.until('"city": "refunded a and Denied by bea: too late and Denied by ana: no more"')
    await chat.idle()
    assert chat.shown.count('→ refund(order="a")') == 1
    assert "__finish__" not in chat.shown
    assert "waits no longer" not in chat.shown

    chat.type("Now ask" + ENTER)
    await chat.until("): Which account?\n  1) savings\n  2) checking")
    chat.type("/say one moment" + ENTER)
    await chat.until("> one moment")
    chat.type("none of them" + ENTER)
    await chat.until("error: the answer does not fit: ")
    await chat.at("> none of them")
    chat.type(CTRL_U + "2" + ENTER)
    await chat.until(": answered by ana at ")
    await chat.until('"city": "checking"')
    users = [one for one in (await cli("show", id, "-o", "json")).json["messages"] if one["role"] == "user"]
    assert [one["parts"][0]["text"] for one in users] == ["Please refund", "Now ask", "one moment"]


@pytest.mark.slow
async def test_what_waits_is_left_and_decided_when_the_chat_is_back(sit: Sit, cli: Cli, id: str) -> None:
    chat = await sit("desk", "Please refund", "--file", "agents.py", "--id", id)
    await chat.until("(1 of 3)")
    chat.type(CTRL_D)
    await chat.until(") still waits: perdure approve " + id)
    assert await chat.ended() == 0
    chat = await sit("desk", "--file", "agents.py", "--id", id)
    await chat.until("(1 of 3)")
    chat.type("a" + ENTER)
    await chat.until('"city": "refunded a and refunded b and refunded c"')
    await chat.idle()
    assert chat.shown.count('→ refund(order="a")') == 1, "as one of the past turns"
    chat.type("Please refund" + ENTER)
    await chat.until('"city": "refunded a and refunded b and refunded c"\n}\n\n> Please refund')
    await chat.idle()
    chat.type("Now ask" + ENTER)
    await chat.until("Which account?")
    chat.type(CTRL_C)
    await chat.until("(interrupted)")
    await chat.idle()
