"""``perdure chat`` at a real terminal (a pseudo-terminal) and through a pipe, on a real server."""

from __future__ import annotations

import signal
import stat
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, talking
from tests.support.terminal import CTRL_C, CTRL_D, CTRL_J, ENTER, ESCAPE, UP, Terminal
from tests.support.wait import eventually

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
    chat.type("Again" + ENTER)
    await chat.until("2: 'Hello' | 'Again'")
    chat.type(CTRL_D)
    await chat.until("stays open")
    await chat.until(f"perdure chat talker --id {id} --file agents.py")
    assert await chat.ended() == 0
    assert (await cli("show", id, "-o", "json")).json["status"]["state"] in ("waiting", "running")

    chat = await sit("talker", "--file", "agents.py", "--id", id)
    await chat.at(">")
    await chat.until("[2]     2: 'Hello' | 'Again'")
    chat.type("Third" + ENTER)
    await chat.until("3: 'Again' | 'Third'")
    chat.type(UP)  # the line before, also from the sitting before
    await chat.at("> Third")
    chat.type(UP)
    await chat.at("> Again")
    chat.type(ENTER)
    await chat.until("4: 'Third' | 'Again'")
    await chat.idle()
    chat.type(CTRL_C)
    assert await chat.ended() == 0
    history = cli.folder / "home" / "history" / "talker"
    assert "+Third" in history.read_text()
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


async def test_lines_are_begun_with_a_key_and_come_with_a_paste(sit: Sit, id: str) -> None:
    chat = await sit("talker", "--file", "agents.py", "--id", id)
    await chat.at(">")
    chat.type("one" + CTRL_J + "two" + ESCAPE + ENTER + "three" + ENTER)
    await chat.until(r"1: 'one\ntwo\nthree'")
    chat.paste("four\nfive")
    chat.type(ENTER)
    await chat.until(r"| 'four\nfive'")
    await chat.idle()
    await chat.at(">")
    chat.type("dropped")
    await chat.at("> dropped")
    chat.type(CTRL_C + "kept" + ENTER)
    await chat.until("3: ")
    await chat.until("| 'kept'")


async def test_ctrl_c_interrupts_the_turn_and_gives_the_prompt_back(sit: Sit, cli: Cli, id: str) -> None:
    chat = await sit("talker", "--file", "agents.py", "--id", id)
    await chat.at(">")
    chat.type("Please wait" + ENTER)
    await chat.until("entered the gate")
    await chat.until("tools: gate")
    chat.type(CTRL_C)
    await chat.until("(interrupted)")
    chat.type("And now?" + ENTER)
    await chat.until("2: 'Please wait' | 'And now?'")
    chat.type(CTRL_D)
    assert await chat.ended() == 0
    messages = (await cli("show", id, "-o", "json")).json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user", "assistant"]


async def test_what_is_typed_meanwhile_joins_the_turn(sit: Sit, cli: Cli, id: str) -> None:
    chat = await sit("talker", "--file", "agents.py", "--id", id)
    await chat.at(">")
    chat.type("Please wait" + ENTER)
    await chat.until("tools: gate")
    chat.type("Be quick" + ENTER)
    await chat.until("1 message waiting to be read")
    (cli.folder / "open").touch()
    await chat.until("→ gate(n=1)")
    await chat.until("2: 'Please wait' | 'Be quick'")
    chat.type("Thanks" + ENTER)
    await chat.until("3: 'Be quick' | 'Thanks'")


async def test_a_failed_turn_is_shown_and_the_chat_goes_on(sit: Sit, id: str) -> None:
    chat = await sit("talker", "--file", "agents.py", "--id", id)
    await chat.at(">")
    chat.type("fail" + ENTER)
    await chat.until("error: ")
    await chat.until("the key is wrong")
    chat.type("Hello" + ENTER)
    await chat.until("2: 'fail' | 'Hello'")


async def test_a_turn_that_runs_is_left_and_met_again(sit: Sit, cli: Cli, id: str) -> None:
    worker = await cli.spawn("worker", "agents.py", "--task-queue", id)
    await worker.until("serving")
    chat = await sit("talker", "Please wait", "--task-queue", id, "--id", id)
    await chat.until("tools: gate")
    chat.type(CTRL_D)
    assert await chat.ended() == 0
    chat = await sit("talker", "--task-queue", id, "--id", id)
    await chat.until("tools: gate")
    (cli.folder / "open").touch()
    await chat.until("1: 'Please wait'")


async def test_a_second_ctrl_c_leaves_whatever_is_under_way(sit: Sit, cli: Cli, id: str) -> None:
    chat = await sit("talker", "--task-queue", id, "--id", id)
    await chat.at(">")
    chat.type("Is anybody there?" + ENTER)
    await chat.until("Ctrl-C interrupts\n>")
    chat.type(CTRL_C)
    await chat.until("Ctrl-C again leaves")
    chat.type(CTRL_C)
    await chat.until(f"perdure chat talker --id {id} --task-queue {id}")
    assert await chat.ended() == 130


async def test_a_chat_is_with_one_agent(sit: Sit, cli: Cli, id: str) -> None:
    done = await piped(cli, "Hello\n", "talker", "--file", "agents.py", "--id", id)
    assert done.out == "1: 'Hello'\n"
    other = await piped(cli, "Hello\n", "shower", "--id", id)
    assert other.code == 2
    assert f"conversation '{id}' is with 'talker', not with 'shower'" in other.err


async def piped(cli: Cli, stdin: str, *arguments: str) -> Any:
    return await cli("chat", *arguments, stdin=stdin)


async def test_without_a_terminal_each_line_is_a_message(cli: Cli, id: str) -> None:
    done = await piped(cli, "Hello\n\n  And you?  \n", "talker", "--file", "agents.py", "--id", id)
    assert (done.code, done.out) == (0, "1: 'Hello'\n2: 'Hello' | 'And you?'\n")
    assert f"conversation {id}\n" in done.err
    whole = await piped(cli, "one\ntwo\n", "talker", "-", "--file", "agents.py", "--id", id, "-o", "json")
    (response,) = whole.json
    assert response["content"] == r"3: 'And you?' | 'one\ntwo'"
    assert response["context_id"] == id


async def test_without_a_terminal_a_failed_turn_ends_with_1_and_the_next_is_answered(cli: Cli, id: str) -> None:
    arguments = ["talker", "--file", "agents.py", "--id", id]
    done = await piped(cli, "fail\nHello\n", *arguments)
    assert (done.code, done.out) == (1, "2: 'fail' | 'Hello'\n")
    assert "the key is wrong" in done.err
    lines = (await piped(cli, "fail\nHello\n", *arguments, "-o", "jsonl")).out.splitlines()
    assert '"type": "AuthenticationError"' in lines[0]
    assert "\"content\": \"4: 'fail' | 'Hello'\"" in lines[1]


async def test_the_file_has_resources_and_the_context_is_checked(cli: Cli, id: str) -> None:
    arguments = ["shower", "Look", "--file", "agents.py", "--id", id]
    done = await piped(cli, "", *arguments, "--context", '{"name": "Ana"}')
    assert (done.code, done.out) == (0, "the file's resources, Ana\n")
    wrong = await piped(cli, "", *arguments, "--context", '{"nam": "Ana"}')
    assert wrong.code == 2
    assert "name" in wrong.err


async def test_without_a_worker_it_ends_with_4(sit: Sit, cli: Cli, id: str) -> None:
    chat = await sit("talker", "Hello", "--task-queue", id, "--id", id)
    alone = await piped(cli, "Hello\n", "talker", "--task-queue", f"{id}-2")
    assert alone.code == 4
    assert "no worker has polled task queue" in alone.err
    await chat.until("no worker has polled task queue")
    assert await chat.ended() == 4


async def test_an_interrupted_pipe_interrupts_the_turn(cli: Cli, id: str) -> None:
    worker = await cli.spawn("worker", "agents.py", "--task-queue", id)
    await worker.until("serving")
    chat = await cli.spawn("chat", "talker", "Please wait", "--task-queue", id, "--id", id)
    await chat.until("tools: gate")
    chat.send(signal.SIGINT)
    assert await chat.ended() == 130

    async def stopped() -> bool:
        shown = (await cli("show", id, "-o", "json")).json
        return bool(shown["status"]["state"] == "waiting" and shown["messages"])

    await eventually(stopped, every=0.2)
