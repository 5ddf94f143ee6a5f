"""The toolset ``Artifacts`` in real runs: texts beside a conversation, in versions, part of each call's outcome."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, RunContext, Tool, ToolContext, artifacts, hook, tool
from perdure.artifacts import Artifacts
from perdure.errors import InvalidInputError
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import ToolResultPart
from tests.support.checks import results
from tests.support.cli import Cli
from tests.support.engine import Engine


def writer(*replies: object) -> Agent:
    return Agent("writer", ScriptedProvider(list(replies)), toolsets=[Artifacts()])


async def test_create_append_read_and_list(engine: Engine) -> None:
    calls = [
        call("artifact_create", name="report.md", content="# Report\n"),
        call("artifact_append", name="report.md", content="One.\n"),
        call("artifact_append", name="report.md", content="Two.\n"),
        call("artifact_create", name="notes", content=""),
        call("artifact_list"),
        call("artifact_read", name="report.md", begin=9, length=5),
        call("artifact_read", name="report.md", version=2),
        call("artifact_read", name="nothing"),
    ]
    async with engine.served(writer(calls, "Done.", call("artifact_read", name="report.md"), "Read.")) as client:
        turn = await client.send("writer", "Write.", id=engine.task_queue)
        said = results((await turn.result()).messages)
        later = await (await client.send("writer", "Read it.", id=engine.task_queue)).result()
        run = turn.run
        await run.close()
        there = await run.artifacts()
        texts = [await run.artifact("report.md"), await run.artifact("report.md", 1), await run.artifact("notes")]
        with pytest.raises(InvalidInputError, match="no version 9 of artifact 'notes'"):
            await run.artifact("notes", 9)
        assert await client.run("another").artifacts() == []
    assert said[:4] == [
        "report.md: version 1, 9 characters",
        "report.md: version 2, 14 characters",
        "report.md: version 3, 19 characters",
        "notes: version 1, 0 characters",
    ], "calls of one reply happen in their order"
    assert said[4] == "notes: version 1, 0 characters\nreport.md: version 3, 19 characters"
    assert said[5:7] == ["One.\n\n[characters 9 to 14 of 19]", "# Report\nOne.\n"]
    assert said[7].startswith("InvalidInputError: no artifact 'nothing'")
    assert results(later.messages)[-1] == "# Report\nOne.\nTwo.\n"
    assert [(one.name, one.version, one.chars) for one in there] == [("notes", 1, 0), ("report.md", 3, 19)]
    assert texts == ["# Report\nOne.\nTwo.\n", "# Report\n", ""]


async def test_a_long_one_is_kept_in_pieces(engine: Engine) -> None:
    body = "".join(f"line {n} \x01\t✓\n" for n in range(20_000))
    replies = [
        call("artifact_create", name="log", content=body),
        call("artifact_append", name="log", content="end"),
        call("artifact_read", name="log", begin=39_990, length=20),
        "Done.",
    ]
    async with engine.served(writer(*replies)) as client:
        run = await client.start("writer", "Go.")
        response = await run.result()
        whole = await run.artifact("log")
        first = await run.artifact("log", 1)
    assert whole == body + "end"
    assert first == body
    assert results(response.messages)[-1].startswith(body[39_990:40_010])


@pytest.mark.server
async def test_the_command_line_shows_them(engine: Engine, tmp_path: Path) -> None:
    async with engine.served(writer(call("artifact_create", name="a.md", content="text"), "Done.")) as client:
        run = await client.start("writer", "Go.")
        await run.result()
    settings = {"TEMPORAL_ADDRESS": engine.address, "PERDURE_STORE_URL": str(engine.store_url)}
    cli = Cli(tmp_path, {**settings, "PERDURE_HOME": str(tmp_path / "home")})
    assert "artifact a.md: version 1, 4 characters\n" in (await cli("show", run.id)).out
    (shown,) = (await cli("show", run.id, "-o", "json")).json["artifacts"]
    assert shown == {"name": "a.md", "version": 1, "chars": 4}
    await cli.close()


@pytest.mark.parametrize("verb", ["append", "create"])
async def test_none_of_several_changes_at_once_is_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Calls that are activities of their own, and have all read the same version before one of them is recorded. The
    tool of a later one runs again, and the hooks before it do not; those behind it see the result that counts."""
    count = 4
    together, read = asyncio.Barrier(count), []
    before: list[str] = []
    after: list[str] = []

    @hook("before_tool_call")
    async def asks(ctx: ToolContext) -> None:
        before.append(ctx.call_id)
        await ctx.memory.put("asked", ctx.call_id, len(before))

    @hook("after_tool_call")
    def sees(result: ToolResultPart) -> None:
        after.append(result.content)

    async def all_have_read(memory: Any, run_id: str, name: str, version: int | None = None) -> Any:
        found = await unchanged(memory, run_id, name, version)
        if name == "log" and len(read) < count:
            read.append(name)
            await together.wait()
        return found

    class Apart(Artifacts):
        async def list(self, ctx: RunContext[Any]) -> list[Tool]:
            return [tool(one.fn, name=one.name) for one in await super().list(ctx)]

    unchanged = artifacts.find_artifact
    monkeypatch.setattr(artifacts, "find_artifact", all_have_read)
    changes = [call(f"artifact_{verb}", name="log", content=f"{n}.") for n in range(count)]
    replies = [call("artifact_create", name="log", content=""), changes, "Done."]
    agent = Agent("writer", ScriptedProvider(replies), toolsets=[Apart()], hooks=[asks, sees])
    async with engine.served(agent) as client:
        run = await client.start("writer", "Write.")
        said = results((await run.result()).messages)
        (there,) = await run.artifacts()
        assert there.version == count + 1
        assert len(before) == len(set(before)) == len(await client.memory.list("asked")) == count + 1
        assert set(said) <= set(after)
        assert sorted(int(one.split("version ")[1].split(",")[0]) for one in said[1:]) == [2, 3, 4, 5]
        if verb == "append":
            text = await run.artifact("log")
            assert sorted(text.split(".")[:-1]) == ["0", "1", "2", "3"]
