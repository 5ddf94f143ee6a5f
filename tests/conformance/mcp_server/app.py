"""Agents with the names that MCP's conformance suite expects of a server's tools."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from perdure import Agent, ToolContext, tool
from perdure.errors import BadRequestError
from perdure.ports import ModelRequest
from perdure.testing import ScriptedProvider, call

SIMPLE = "This is a simple text response for testing."
DRAFT = "https://json-schema.org/draft/2020-12/schema"


class Nothing(BaseModel):
    """No arguments."""


class Asked(BaseModel):
    message: str


class Prompt(BaseModel):
    prompt: str


class address(BaseModel):  # noqa: N801  # the name that the suite expects in $defs
    street: str
    city: str


class Draft2020(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"$schema": DRAFT})
    name: str
    address: address


@tool
async def work(ctx: ToolContext) -> str:
    """Work, and say how far it is."""
    for percent in (0, 50, 100):
        ctx.progress(f"{percent} of 100")
    return "done"


@tool
async def ask(ctx: ToolContext) -> str:
    """Ask the user."""
    return str(await ctx.ask("What is your name?", str))


def fail(_: ModelRequest) -> str:
    raise BadRequestError("This tool intentionally returns an error for testing")


def build_agents() -> list[Agent]:
    """Build one agent for each tool that the suite calls, as far as an agent can be it."""
    texts = ("test_image_content", "test_audio_content", "test_embedded_resource", "test_multiple_content_types",
             "test_tool_with_logging", "test_reconnection")  # fmt: skip
    asking = ("test_elicitation_sep1034_defaults", "test_elicitation_sep1330_enums")
    return [
        Agent("test_simple_text", ScriptedProvider(lambda _: SIMPLE), input=Nothing),
        *(Agent(name, ScriptedProvider(lambda _: SIMPLE), input=Nothing) for name in texts),
        Agent("test_error_handling", ScriptedProvider(fail), input=Nothing),
        Agent("test_tool_with_progress", ScriptedProvider([call("work"), "Done."]), tools=[work], input=Nothing),
        Agent("test_sampling", ScriptedProvider(lambda _: SIMPLE), input=Prompt),
        Agent("test_elicitation", ScriptedProvider([call("ask"), "Hello."]), tools=[ask], input=Asked),
        *(Agent(name, ScriptedProvider([call("ask"), "Hello."]), tools=[ask], input=Nothing) for name in asking),
        Agent("json_schema_2020_12_tool", ScriptedProvider(lambda _: SIMPLE), input=Draft2020),
    ]
