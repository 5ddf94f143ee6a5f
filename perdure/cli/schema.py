"""``perdure schema``: prints the workflow's interface as JSON Schema, for clients in other languages."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import InvalidInputError
from .options import complete_agents
from .output import OutputOptions

if TYPE_CHECKING:
    from ..agent.spec import AgentSpec

SchemaKind = Literal["start", "message", "status", "turn", "response"]
"""The parts of the interface."""


def schema(
    kind: Annotated[SchemaKind | None, typer.Argument(help="Which schema; by default all of them, by name.")] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", help="Schemas of an agent in this file instead.")] = None,
    agent: Annotated[str | None, typer.Option(help="Which agent of the file.", autocompletion=complete_agents)] = None,
    *,
    output: OutputOptions,
) -> None:
    """Print JSON Schemas of what the workflow takes and returns, or of an agent's tools and context."""
    if file is None and agent is not None:
        raise InvalidInputError("--agent needs --file", hint=f"Name the file of agent {agent!r} with --file.")
    if file is not None and kind is not None:
        hint = f"Leave out --file, or {kind!r}."
        raise InvalidInputError(f"{kind!r} is the same for all agents", hint=hint)
    schemas = _build_interface_schemas(kind) if file is None else build_agent_schema(_load_one_agent(file, agent))
    output.print_json(schemas)  # text is JSON, too


def _build_interface_schemas(kind: SchemaKind | None) -> dict[str, Any]:
    from pydantic import TypeAdapter

    from ..types.interface import Response, Start, Status, TurnStatus, UserMessage

    types: dict[SchemaKind, tuple[Any, Literal["validation", "serialization"]]] = {
        "start": (Start, "validation"),
        "message": (str | UserMessage, "validation"),
        "status": (Status, "serialization"),
        "turn": (TurnStatus, "serialization"),
        "response": (Response, "serialization"),
    }
    schemas: dict[str, Any] = {
        name: _add_field_descriptions(TypeAdapter(type_).json_schema(mode=mode))
        for name, (type_, mode) in types.items()
        if kind in (None, name)
    }
    return schemas[kind] if kind is not None else schemas


def _add_field_descriptions(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` with the fields' docstrings as descriptions, which pydantic leaves out."""
    docstrings = _read_field_docstrings()
    for model in (schema, *schema.get("$defs", {}).values()):
        for name, field in model.get("properties", {}).items():
            if (docstring := docstrings.get((model.get("title", ""), name))) is not None:
                field.setdefault("description", docstring)
    return schema


@cache
def _read_field_docstrings() -> dict[tuple[str, str], str]:
    """The docstring below each field, by class and name."""
    from ..types import interface, messages

    docstrings: dict[tuple[str, str], str] = {}
    for module in (messages, interface):
        for model in ast.parse(inspect.getsource(module)).body:
            if not isinstance(model, ast.ClassDef):
                continue
            for field, below in pairwise(model.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                        docstrings[model.name, name] = inspect.cleandoc(docstring)
    return docstrings


def _load_one_agent(file: str, name: str | None) -> AgentSpec:
    from .agent_loader import load_agent_module

    loaded = load_agent_module(file)
    if name is not None:
        return loaded.get_agent(name)
    if len(loaded.agents) > 1:
        names = ", ".join(agent.name for agent in loaded.agents)
        raise InvalidInputError(f"{file} has several agents", hint=f"Name one with --agent: {names}.")
    return loaded.agents[0]


def build_agent_schema(agent: AgentSpec) -> dict[str, Any]:
    """The agent's models, the schemas of its tools by name, and of its context; None if that may be any object."""
    from pydantic import TypeAdapter

    tools = {tool.name: {"description": tool.description, "parameters": tool.parameters} for tool in agent.toolbox}
    context = None if agent.context is None else TypeAdapter(agent.context).json_schema()
    return {"agent": agent.name, "models": list(agent.models), "context": context, "tools": tools}
