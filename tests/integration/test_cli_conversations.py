"""The commands that open, steer, await, fork and end conversations, and their completion, in this process."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, tool
from perdure.errors import AuthenticationError, TranscriptCorruptedError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call, fail
from tests.support.checks import users
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(engine, monkeypatch)


def talk(request: ModelRequest) -> Any:
    """Repeats the last two messages of the user; "wait" calls a tool, "fail" fails."""
    said = users(request.messages)
    if "fail" in said[-1]:
        raise AuthenticationError("the key is wrong")
    if "wait" in said[-1] and request.messages[-1].role != "tool":
        return ["I wait.", call("gate", n=len(said))]
    return f"{len(said)}: " + " | ".join(repr(text) for text in said[-2:])


def talker(gate: Gate | None = None) -> Agent:
    @tool(name="gate")
    async def wait(n: int) -> str:
        """Wait until the test opens it."""
        assert gate is not None
        await gate()
        return f"passed {n}"

    return Agent("talker", ScriptedProvider(talk), tools=[wait])


async def test_send_opens_a_conversation_and_goes_on_with_it(
    engine: Engine, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_USER", "ana")
    async with engine.served(talker()):
        unknown = await cli("send", "chat-1", "Hello")
        assert unknown.code == 3
        first = await cli("send", "chat-1", "Hello", "--agent", "talker", "--wait")
        assert (first.code, first.out) == (0, "1: 'Hello'\n")
        second = await cli("send", "chat", "-", "--message-id", "m-2", "--by", "kim", stdin="Again")
        assert second.code == 0
        task = second.out.strip()
        assert (await cli("wait", "chat-1", "--turn", task)).out == "2: 'Hello' | 'Again'\n"
        repeated = (await cli("send", "chat-1", "Again", "--message-id", "m-2", "-o", "json")).json
        assert repeated == {"id": "chat-1", "task_id": task, "message_id": "m-2"}
        assert (await cli("wait", "chat-1", "-o", "jsonl")).json["content"] == "2: 'Hello' | 'Again'"
        assert (await cli("wait", "chat-1", "--turn", "never")).code == 3
        messages = (await cli("show", "chat-1", "-o", "json")).json["messages"]
        assert [message["by"] for message in messages if message["role"] == "user"] == ["ana", "kim"]


async def test_close_ends_a_session_and_a_message_opens_it_again(engine: Engine, cli: Commands) -> None:
    async with engine.served(talker()):
        await cli("send", "chat", "Hello", "--agent", "talker", "--wait")
        closed = await cli("close", "chat", "--wait", "--by", "kim")
        assert (closed.code, closed.out) == (0, "chat is completed\n")
        assert (await cli("close", "chat")).code == 1
        done = await cli("resume", "chat")
        assert done.code == 1
        assert "has completed" in done.err
        assert (await cli("wait", "chat")).out == "1: 'Hello'\n"
        assert (await cli("send", "chat", "Again", "--wait")).out == "2: 'Hello' | 'Again'\n"


async def test_a_session_that_idles_closes_by_itself(engine: Engine, cli: Commands) -> None:
    async with engine.served(talker()) as client:
        await cli("send", "chat", "Hello", "--agent", "talker", "--idle-timeout", "0.5s", "--wait")

        async def closed() -> bool:
            return (await client.run("chat").status()).state == "completed"

        await eventually(closed)


async def test_interrupt_ends_the_turn_or_goes_on_with_a_message(engine: Engine, cli: Commands) -> None:
    gate = Gate()
    async with engine.served(talker(gate)):
        task = (await cli("send", "chat", "Please wait", "--agent", "talker")).out.strip()
        await eventually(lambda: gate.entered)
        stopped = await cli("interrupt", "chat")
        assert (stopped.code, stopped.out) == (0, "chat stops what it is at; its turn ends\n")
        assert (await cli("wait", "chat", "--turn", task, "-o", "json")).json["finish_reason"] == "interrupted"
        task = (await cli("send", "chat", "Do wait")).out.strip()
        await eventually(lambda: gate.entered == 2)
        assert (await cli("interrupt", "chat", "Go on", "-o", "json")).json == {"id": "chat", "interrupted": True}
        assert (await cli("wait", "chat", "--turn", task)).out == "3: 'Do wait' | 'Go on'\n"


async def test_a_failed_conversation_is_resumed_and_told_who_did_what(engine: Engine, cli: Commands) -> None:
    async with engine.served(talker()):
        failed = await cli("send", "chat", "fail", "--agent", "talker", "--wait")
        assert (failed.code, failed.out) == (1, "")
        assert "the key is wrong" in failed.err
        assert (await cli("wait", "chat")).code == 1
        again = await cli("resume", "chat", "-o", "json", "--by", "kim")
        assert again.json == {"id": "chat", "resumed": True, "was": "failed"}
        assert (await cli("wait", "chat")).code == 1, "it tries the same again, and fails the same way"
        text = await cli("resume", "chat")
        assert text.out == "chat was failed, and goes on from where it ended\n"
        assert (await cli("wait", "chat")).code == 1
        assert (await cli("send", "chat", "Hello", "--wait")).out == "2: 'fail' | 'Hello'\n"


async def test_a_run_is_deleted_when_it_has_ended(engine: Engine, cli: Commands) -> None:
    async with engine.served(talker()) as client:
        await cli("send", "chat", "Hello", "--agent", "talker", "--wait")
        unsure = await cli("delete", "chat")
        assert unsure.code == 2
        assert "perdure delete chat --yes" in unsure.err
        still_open = await cli("delete", "chat", "--yes")
        assert still_open.code != 0
        assert "chat" in still_open.err
        assert (await cli("show", "chat")).code == 0, "nothing of it is gone"
        await cli("close", "chat")
        await client.run("chat").wait_for_close()
        deleted = await cli("delete", "chat", "--yes", "-o", "json")
        # The Temporal of this process deletes no executions; a server does, see tests/acceptance/test_web_lists.py.
        assert deleted.json == {"id": "chat", "runs": 1, "executions": 0}
        assert await (await client.store()).get_run("chat") is None


async def test_a_chat_through_a_pipe(engine: Engine, cli: Commands) -> None:
    """Each line is a message. The agent of a conversation stays."""
    async with engine.served(talker(), Agent("other", ScriptedProvider(talk))):
        done = await cli("chat", "talker", "--id", "chat", stdin="Hello\n\n  And you?  \n")
        assert (done.code, done.out) == (0, "1: 'Hello'\n2: 'Hello' | 'And you?'\n")
        assert "conversation chat\n" in done.err
        whole = await cli("chat", "talker", "-", "--id", "chat", "-o", "json", stdin="one\ntwo\n")
        (response,) = whole.json
        assert response["content"] == r"3: 'And you?' | 'one\ntwo'"
        assert response["context_id"] == "chat"
        other = await cli("chat", "other", "--id", "chat", stdin="Hello\n")
        assert other.code == 2
        assert "conversation 'chat' is with 'talker', not with 'other'" in other.err


async def test_a_failed_turn_in_a_pipe_ends_with_1_and_the_next_is_answered(engine: Engine, cli: Commands) -> None:
    async with engine.served(talker()):
        done = await cli("chat", "talker", "--id", "chat", stdin="fail\nHello\n")
        assert (done.code, done.out) == (1, "2: 'fail' | 'Hello'\n")
        assert "the key is wrong" in done.err
        lines = (await cli("chat", "talker", "--id", "chat", "-o", "jsonl", stdin="fail\nHello\n")).out.splitlines()
        assert '"type": "AuthenticationError"' in lines[0]
        assert "\"content\": \"4: 'fail' | 'Hello'\"" in lines[1]


async def test_a_chat_in_a_pipe_that_pauses_at_a_failure_ends_with_what_it_had(engine: Engine, cli: Commands) -> None:
    """Nobody is there to resume it: a script would wait for ever."""
    replies = ["First.", fail(TranscriptCorruptedError("a node is missing"))]
    async with engine.served(Agent("frail", ScriptedProvider(replies))) as client:
        name = f"frail-{engine.task_queue}"
        done = await cli("chat", "frail", "--id", name, "-o", "json", stdin="one\ntwo\nthree\n")
        first, second = done.json
        assert (done.code, first["content"], second["error"]["type"]) == (1, "First.", "RunStuckError")
        assert "is paused: TranscriptCorruptedError: a node is missing" in done.err
        assert f"perdure resume {name}" in done.err
        assert users(await client.run(name).transcript()) == ["one"], "the third line was not sent"
        assert (await client.run(name).status()).queued == 1
        await client.run(name).terminate()


async def test_completion_knows_runs_and_agents(engine: Engine, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    (engine.folder / "agents.py").write_text('Agent("talker", model)\nperdure.Agent("shower", model)\n')
    monkeypatch.chdir(engine.folder)

    async def completed(line: str) -> list[str]:
        """What a Tab behind ``line`` says."""
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_PERDURE_COMPLETE": "complete_bash"}
        with monkeypatch.context() as patch:
            for name, value in words.items():
                patch.setenv(name, value)
            done = await cli()
        assert done.err == ""
        return done.out.split()

    async with engine.served(talker()):
        await cli("send", "chat-1", "Hello", "--agent", "talker", "--wait")
        assert await completed("perdure show chat") == ["chat-1"]
        assert await completed("perdure chat ta") == ["talker"]
        assert await completed("perdure run --file agents.py s") == ["shower"]
        with monkeypatch.context() as patch:

            async def refuse(target: object) -> None:
                raise ConnectionRefusedError

            patch.setattr("perdure.embedded.address.connect", refuse)
            assert await completed("perdure show chat") == []


async def test_fork_and_diff(engine: Engine, cli: Commands) -> None:
    async with engine.served(talker()):
        assert (await cli("run", "talker", "one", "--id", "talk")).code == 0
        made = await cli("fork", "talk", "left", "--at", "1", "--id", "talk-b")
        assert (made.code, made.out) == (0, "talk-b\n"), made.err
        assert (await cli("wait", "talk-b")).out == "2: 'one' | 'left'\n"
        parted = (await cli("diff", "talk", "talk-b", "-o", "json")).json
        assert (parted["iteration"], parted["left"]) == (1, {"id": "talk", "messages": []})
        assert [message["role"] for message in parted["right"]["messages"]] == ["user", "assistant"]
        said = (await cli("diff", "talk", "talk-b")).out.splitlines()
        assert said[0] == "talk and talk-b part after iteration 1"
        assert said[2:4] == ["- talk", "(nothing more)"]
        assert said[5:] == ["+ talk-b", "user    left", "[2]     2: 'one' | 'left'"]
        assert "say the same" in (await cli("diff", "talk", "talk")).out
        wrong = await cli("fork", "talk", "--result", "x")
        assert (wrong.code, "--result x: it has no text" in wrong.err) == (2, True)
        assert (await cli("fork", "talk", "x", "--at", "9")).code == 2


async def test_run_says_that_its_id_was_used_for_another_message(engine: Engine, cli: Commands) -> None:
    async with engine.served(talker()):
        assert (await cli("run", "talker", "Hello", "--id", "chat-1")).code == 0
        same = await cli("run", "talker", "Hello", "--id", "chat-1")
        other = await cli("run", "talker", "Bye", "--id", "chat-1")
        assert same.code == other.code != 0
        assert "another message" not in same.err
        assert "was started with another message" in other.err
        assert "for that run's answer: perdure wait ID\n" in other.err
        assert "client." not in other.err
