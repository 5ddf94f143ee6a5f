"""PARITY.md, part D: plugins, which bring tools and prompts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure import Agent, RunContext, ToolContext, Toolset, tool
from perdure.artifacts import Artifacts
from perdure.mcp import MCPServer
from perdure.ports.toolset import ListedTool
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.mcp import COUNTER, ROOT


@tool
def note(what: str) -> str:
    """Note something."""
    return f"noted {what}"


class Plugin(Toolset):
    """A plugin that lists tools with the context of the run, and executes them with the context of the call."""

    name = "plugin"
    prefix = "p_"

    async def list(self, ctx: RunContext) -> Sequence[ListedTool]:
        return [ListedTool(f"read_{ctx.context['tenant']}", "Read.", {"type": "object"}, idempotent=True)]

    async def call(self, name: str, arguments: Mapping[str, Any], ctx: ToolContext) -> str:
        return f"{name} in iteration {ctx.iteration} of {ctx.run_id}"


async def test_d4_plugins_list_and_execute_tools_with_the_iterations_context(engine: Engine) -> None:
    """Local tools beside those of a toolset; the prompt of each iteration is a callable's."""

    async def prompt(ctx: RunContext) -> str:
        return f"Iteration {ctx.iteration} for {ctx.context['tenant']}."

    provider = ScriptedProvider([call("note", what="a"), call("p_read_acme"), "Done."])
    agent = Agent("keeper", provider, instructions=prompt, tools=[note], toolsets=[Plugin()])
    async with engine.served(agent) as client:
        run = await client.start("keeper", "Go.", context={"tenant": "acme"})
        response = await run.result()
    assert results(response.messages) == ["noted a", f"read_acme in iteration 2 of {run.id}"]
    assert [request.system for request in provider.requests] == [f"Iteration {n} for acme." for n in (1, 2, 3)]
    assert {tuple(spec.name for spec in request.tools) for request in provider.requests} == {("note", "p_read_acme")}


async def test_d4_artifacts_are_a_toolset(engine: Engine) -> None:
    calls = [call("artifact_create", name="a.md", content="one"), call("artifact_append", name="a.md", content=", two")]
    provider = ScriptedProvider([calls, call("artifact_read", name="a.md"), "Done."])
    async with engine.served(Agent("keeper", provider, toolsets=[Artifacts()])) as client:
        run = await client.start("keeper", "Go.")
        assert results((await run.result()).messages)[-1] == "one, two"
        assert [(one.name, one.version) for one in await run.artifacts()] == [("a.md", 2)]
        assert (await run.artifact("a.md", 1), await run.artifact("a.md")) == ("one", "one, two")


async def test_d4_an_mcp_server_is_a_toolset(engine: Engine, tmp_path: Path) -> None:
    env = {"MCP_COUNTS": str(tmp_path / "counts")}
    server = MCPServer.stdio(sys.executable, COUNTER, env=env, cwd=ROOT, name="counter")
    provider = ScriptedProvider([call("look", what="here"), "Done."])
    async with engine.served(Agent("keeper", provider, toolsets=[server])) as client:
        response = await (await client.start("keeper", "Go.")).result()
    assert results(response.messages) == ["look 1: here"]
