"""Agents with the names that MCP's conformance suite expects of a server's tools."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from perdure import Agent, ToolContext, tool
from perdure.errors import BadRequestError
from perdure.ports.model import ModelRequest
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


class Contact(BaseModel):
    """What the suite's client answers."""

    username: str
    email: str


class Profile(BaseModel):
    """Fields with defaults."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


def titled(*values: str) -> list[dict[str, str]]:
    return [{"const": value, "title": value.upper()} for value in values]


ENUM = {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]}


class Choices(BaseModel):
    """Choices in each of the forms of MCP."""

    untitledSingle: Literal["option1", "option2", "option3"]  # noqa: N815  # the suite's names
    titledSingle: Annotated[str, WithJsonSchema({"type": "string", "oneOf": titled("value1", "value2")})]  # noqa: N815
    legacyEnum: Annotated[str, WithJsonSchema(ENUM)]  # noqa: N815
    untitledMulti: list[Literal["option1", "option2", "option3"]]  # noqa: N815
    titledMulti: Annotated[  # noqa: N815
        list[str], WithJsonSchema({"type": "array", "items": {"anyOf": titled("value1", "value2")}})
    ]


@tool
async def ask_profile(ctx: ToolContext) -> str:
    """Ask for a profile."""
    return str(await ctx.ask("Who are you?", Profile))


@tool
async def ask_choices(ctx: ToolContext) -> str:
    """Ask for choices."""
    return str(await ctx.ask("Which ones?", Choices))


@tool
async def work(ctx: ToolContext) -> str:
    """Work, and say how far it is."""
    for percent in (0, 50, 100):
        ctx.progress(f"{percent} of 100")
    return "done"


@tool
async def ask(ctx: ToolContext) -> str:
    """Ask the user."""
    return str(await ctx.ask("Who are you?", Contact))


def fail(_: ModelRequest) -> str:
    raise BadRequestError("This tool intentionally returns an error for testing")


def build_agents() -> list[Agent]:
    """Build one agent for each tool that the suite calls, as far as an agent can be it."""
    texts = ("test_image_content", "test_audio_content", "test_embedded_resource", "test_multiple_content_types",
             "test_tool_with_logging", "test_reconnection")  # fmt: skip
    asking = {"test_elicitation_sep1034_defaults": ask_profile, "test_elicitation_sep1330_enums": ask_choices}
    return [
        Agent("test_simple_text", ScriptedProvider(lambda _: SIMPLE), input=Nothing),
        *(Agent(name, ScriptedProvider(lambda _: SIMPLE), input=Nothing) for name in texts),
        Agent("test_error_handling", ScriptedProvider(fail), input=Nothing),
        Agent("test_tool_with_progress", ScriptedProvider([call("work"), "Done."]), tools=[work], input=Nothing),
        Agent("test_sampling", ScriptedProvider(lambda _: SIMPLE), input=Prompt),
        Agent("test_elicitation", ScriptedProvider([call("ask"), "Hello."]), tools=[ask], input=Asked),
        *(
            Agent(name, ScriptedProvider([call(asks.name), "Hello."]), tools=[asks], input=Nothing)
            for name, asks in asking.items()
        ),
        Agent("json_schema_2020_12_tool", ScriptedProvider(lambda _: SIMPLE), input=Draft2020),
    ]
