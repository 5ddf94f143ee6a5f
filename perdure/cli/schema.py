"""``perdure schema``: the workflow's interface as JSON Schema, for clients in other languages."""

from __future__ import annotations

import ast
import inspect
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInputError
from .options import OutputFormat, OutputOptions, complete_agents, print_json

if TYPE_CHECKING:
    from ..agent.agent import Agent


class SchemaKind(StrEnum):
    """What has a schema."""

    START = "start"
    MESSAGE = "message"
    STATUS = "status"
    TURN = "turn"
    RESPONSE = "response"


def schema(
    kind: Annotated[
        SchemaKind | None, typer.Argument(help="One of them; all without, by name.", show_default=False)
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="Of an agent in this file instead.", show_default=False)
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="Which agent of the file.", autocompletion=complete_agents, show_default=False),
    ] = None,
    *,
    output: OutputOptions,
) -> None:
    """Print JSON Schemas: of what the workflow takes and answers, or of an agent's tools and context."""
    if file is None and agent is not None:
        raise InvalidInputError(f"where is agent {agent!r}?", hint="Name the file that has it with --file.")
    if file is not None and kind is not None:
        raise InvalidInputError(
            f"{kind.value!r} is the same for all agents", hint="Leave --file out, or the name before it."
        )
    said = _build_interface_schemas(kind) if file is None else build_agent_schema(_load_one_agent(file, agent))
    # JSON is what it is, on one line or on many.
    print_json(said, output=OutputFormat.JSONL if output is OutputFormat.JSONL else OutputFormat.JSON)


def _build_interface_schemas(kind: SchemaKind | None) -> dict[str, Any]:
    from pydantic import TypeAdapter

    from ..types.interface import Response, Start, Status, TurnStatus, UserMessage

    schemas = {
        SchemaKind.START: TypeAdapter(Start).json_schema(),
        SchemaKind.MESSAGE: TypeAdapter(str | UserMessage).json_schema(),
        SchemaKind.STATUS: TypeAdapter(Status).json_schema(mode="serialization"),
        SchemaKind.TURN: TypeAdapter(TurnStatus).json_schema(mode="serialization"),
        SchemaKind.RESPONSE: TypeAdapter(Response).json_schema(mode="serialization"),
    }
    described = {name.value: _add_field_descriptions(found) for name, found in schemas.items()}
    return described[kind.value] if kind is not None else described


def _add_field_descriptions(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` with the fields' docstrings, which pydantic leaves out: they say what is in them."""
    docstrings = _read_field_docstrings()
    for model in (schema, *schema.get("$defs", {}).values()):
        for name, field in model.get("properties", {}).items():
            if (said := docstrings.get((model.get("title", ""), name))) is not None:
                field.setdefault("description", said)
    return schema


@cache
def _read_field_docstrings() -> dict[tuple[str, str], str]:
    """What stands below each field, by class and name."""
    from ..types import interface, messages

    found: dict[tuple[str, str], str] = {}
    for module in (messages, interface):
        for model in ast.parse(inspect.getsource(module)).body:
            if not isinstance(model, ast.ClassDef):
                continue
            for field, below in pairwise(model.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                        found[model.name, name] = inspect.cleandoc(said)
    return found


def _load_one_agent(file: str, name: str | None) -> Agent:
    from .agent_loader import load_agent_module

    loaded = load_agent_module(file)
    if name is not None:
        return loaded.get_agent(name)
    if len(loaded.agents) > 1:
        names = ", ".join(agent.name for agent in loaded.agents)
        raise InvalidInputError(f"{file} has several agents", hint=f"Name one with --agent: {names}.")
    return loaded.agents[0]


def build_agent_schema(agent: Agent) -> dict[str, Any]:
    """Its models, and schemas of its tools, by name, and of its context; None where it takes any object."""
    from pydantic import TypeAdapter

    tools = {tool.name: {"description": tool.description, "parameters": tool.parameters} for tool in agent.toolbox}
    context = None if agent.context is None else TypeAdapter(agent.context).json_schema()
    return {"agent": agent.name, "models": list(agent.models), "context": context, "tools": tools}
