"""Kinds of runs with toolsets whose histories are stored: a list that is taken, kept, changed and taken anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from perdure import Agent, Run, Toolset
from perdure.artifacts import Artifacts
from perdure.ports.toolset import ListedTool
from perdure.testing import ScriptedProvider, call
from perdure.types.approvals import Consent
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.support.engine import Engine
from tests.support.wait import eventually


class Growing(Toolset):
    """It has a tool more each time that it is asked."""

    name = "growing"
    recheck = 0.0

    def __init__(self, **options: Any) -> None:
        self.asked = 0
        vars(self).update(options)

    async def list(self, ctx: Any) -> Sequence[ListedTool]:
        self.asked += 1
        return [ListedTool(f"tool_{n}", f"Number {n}.", {"type": "object"}) for n in range(self.asked)]

    async def call(self, name: str, arguments: Mapping[str, Any], ctx: Any) -> str:
        return name


async def _run(engine: Engine, replies: list[Any], *toolsets: Toolset, **options: Any) -> Run:
    agent = Agent("recorded", ScriptedProvider(replies), tools=TOOLS, toolsets=toolsets)
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.", **options)
        await _end(run)
    return run


@scenario
async def toolset(engine: Engine) -> Run:
    replies = [call("tool_0"), [call("tool_0"), call("add", a=1, b=1), call("tool_9")], "Done."]
    return await _run(engine, replies, Growing())


@scenario
async def toolset_refreshed(engine: Engine) -> Run:
    replies = [call("tool_0"), call("tool_1"), call("tool_2"), "Done."]
    return await _run(engine, replies, Growing(on_change="refresh"))


@scenario
async def toolset_continued_as_new(engine: Engine) -> Run:
    replies = [*(call("tool_0") for _ in range(6)), "Done."]
    return await _run(engine, replies, Growing(), max_history_events=30)


@scenario
async def artifacts(engine: Engine) -> Run:
    replies = [
        [call("artifact_create", name="a", content="one"), call("artifact_append", name="a", content="two")],
        "Done.",
    ]
    return await _run(engine, replies, Artifacts())


class Guarded(Toolset):
    """As an MCP server with OAuth: until somebody has signed in, one tool stands in for the others."""

    name = "guarded"

    def __init__(self) -> None:
        self.is_open = False

    def provisional_tools(self) -> Sequence[ListedTool]:
        return [ListedTool("connect", "Ask for a sign-in.", {"type": "object"}, idempotent=True, provisional=True)]

    async def list(self, ctx: Any) -> Sequence[ListedTool]:
        return [ListedTool("act", "Act.", {"type": "object"})] if self.is_open else self.provisional_tools()

    async def call(self, name: str, arguments: Mapping[str, Any], ctx: Any) -> str:
        if not self.is_open:
            ctx.questions.ask_for_consent("Sign in", Consent(server="https://mcp.example/mcp", scopes=("read",)))
        return name


@scenario
async def toolset_after_a_sign_in(engine: Engine) -> Run:
    """A list that is provisional is taken anew, also with ``on_change="refuse"``; later consent is lost for a call."""
    guarded = Guarded()

    def lose(_: Any) -> Any:
        guarded.is_open = False
        guarded.changed()
        return call("act")

    agent = Agent("recorded", ScriptedProvider([call("connect"), call("act"), lose, "Done."]), toolsets=[guarded])
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.")
        for _ in range(2):

            async def waits() -> str | None:
                return next((one.call_id for one in (await run.status()).approvals if one.consent), None)

            call_id = await eventually(waits)
            guarded.is_open = True
            await run.answer(call_id, True, by="ana")
            await eventually(partial(_has_answered, run, call_id))
        await _end(run)
    return run


async def _has_answered(run: Run, call_id: str) -> bool:
    return call_id not in [one.call_id for one in (await run.status()).approvals]
