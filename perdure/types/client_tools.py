"""Tools that the client of a turn declares, and runs itself: their form in messages and in the store.

A run carries a reference to them, or a few small ones as they are. The same checks are made by the client before it
sends them, by the workflow of those in a message, and by the worker of those in the store.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError

from ..errors import InvalidInputError
from .messages import NAME_PATTERN, BlobRef, Data, clean_text
from .plain_json import JsonObject, find_json_flaw, measure_json
from .validation_errors import describe_validation_error

MAX_CLIENT_TOOLS = 64
"""Most tools that the client of a turn may declare."""
CLIENT_TOOLS_BYTES = 64 * 1024
"""Most bytes of all of them as JSON: every model call of the turn is sent them."""
INLINE_CLIENT_TOOLS_BYTES = 8 * 1024
"""Most bytes of those in a message: the input of every model call has them. The store has larger ones."""
MAX_SCHEMA_LEVELS = 32
"""Most levels of nested objects and arrays in the schema of a tool's arguments."""
_SHOWN_NAME_CHARS = 80


class ClientTool(Data):
    """A tool that the client of a turn runs: a function of the browser, the editor or the program that calls."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """1 to 64 letters, digits, ``_`` and ``-``; names that begin with ``__`` are the engine's."""
    description: str = ""
    """What the model reads."""
    parameters: JsonObject = Field(default={"type": "object", "properties": {}})
    """JSON Schema of the arguments: an object. By default one without fields."""


def build_client_tools_error(agent: str) -> InvalidInputError:
    """Build the error for client tools of an agent that takes none."""
    return InvalidInputError(
        f"client_tools: agent {agent!r} takes no tools of clients",
        hint="Agent(…, client_tools=True) takes them; or send the message without client_tools.",
    )


def _get_form(value: Any) -> str:
    return "blob" if isinstance(value, BlobRef | Mapping) else "tools"


ClientTools = Annotated[
    Annotated[BlobRef, Tag("blob")] | Annotated[tuple[ClientTool, ...], Tag("tools")], Discriminator(_get_form)
]
"""The client tools of a message, a turn or a model call: a reference to the store, or the tools themselves."""

_tools_adapter = TypeAdapter(tuple[ClientTool, ...], config=ConfigDict(defer_build=True))


def parse_client_tools(raw: Any) -> tuple[ClientTool, ...]:
    """Return tools, each a ``ClientTool`` or a mapping with its fields, in the form that is sent.

    Raises ``InvalidInputError`` that names the tool and the reason.
    """
    hint = 'For instance [ClientTool(name="open_page", description="…", parameters={"type": "object", …})].'
    if isinstance(raw, str | bytes | Mapping) or not isinstance(raw, Sequence):
        raise InvalidInputError(f"client_tools: a list of tools is expected, not {type(raw).__name__}", hint=hint)
    if len(raw) > MAX_CLIENT_TOOLS:
        raise InvalidInputError(_describe_count(len(raw)), hint="Declare those that this turn may need.")
    tools = tuple(_parse_tool(index, entry, hint) for index, entry in enumerate(raw))
    if problem := find_client_tools_problem(tools):
        raise InvalidInputError(problem, hint=hint)
    return tuple(_normalize_tool(tool) for tool in tools)


def _parse_tool(index: int, entry: Any, hint: str) -> ClientTool:
    if isinstance(entry, ClientTool):
        entry = entry.model_dump()  # checked again: its schema is a dictionary that may have changed
    if not isinstance(entry, Mapping):
        raise InvalidInputError(f"client_tools.{index}: a tool is a mapping, not {type(entry).__name__}", hint=hint)
    try:
        return ClientTool.model_validate(dict(entry))
    except ValidationError as error:
        name = entry.get("name")
        owner = f" (tool {_show_name(name)})" if isinstance(name, str) else ""
        problem = describe_validation_error(error, "it", prefix=f"client_tools.{index}")
        raise InvalidInputError(f"{problem}{owner}", hint=hint) from None


def _normalize_tool(tool: ClientTool) -> ClientTool:
    parameters = {"type": "object", "properties": {}, **tool.parameters}
    return ClientTool(name=tool.name, description=clean_text(tool.description), parameters=parameters)


def find_client_tools_problem(
    tools: BlobRef | Sequence[ClientTool] | None, most: int = CLIENT_TOOLS_BYTES
) -> str | None:
    """Return why the tools of a message cannot be accepted, with at most ``most`` bytes as JSON; None if they can."""
    if tools is None:
        return None
    if isinstance(tools, BlobRef):
        return _describe_size(tools.size, CLIENT_TOOLS_BYTES) if tools.size > CLIENT_TOOLS_BYTES else None
    if len(tools) > MAX_CLIENT_TOOLS:
        return _describe_count(len(tools))
    names: set[str] = set()
    for tool in tools:
        if (flaw := _find_tool_flaw(tool)) is not None:
            return f"client_tools: tool {_show_name(tool.name)}: {flaw}"
        if tool.name in names:
            return f"client_tools: tool {_show_name(tool.name)} is declared twice"
        names.add(tool.name)
    size = measure_client_tools(tools)
    return _describe_size(size, most) if size > most else None


def measure_client_tools(tools: Sequence[ClientTool]) -> int:
    """Bytes of the tools as JSON."""
    return measure_json([tool.model_dump(mode="json") for tool in tools])


def _find_tool_flaw(tool: ClientTool) -> str | None:
    schema = tool.parameters
    if not NAME_PATTERN.fullmatch(tool.name):
        return f"its name does not match {NAME_PATTERN.pattern}"
    if tool.name.startswith("__"):
        return "names that begin with __ are the engine's own"
    if (flaw := find_json_flaw([tool.description, schema])) is not None:
        return flaw
    if _is_deeper(schema, MAX_SCHEMA_LEVELS):
        return f"its parameters are nested deeper than {MAX_SCHEMA_LEVELS} levels"
    if schema.get("type", "object") != "object":
        return "its parameters are not the schema of an object: arguments have names"
    if not isinstance(schema.get("properties", {}), dict):
        return "the properties of its parameters are not an object"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return "the required parameters are not a list of names"
    return None


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        parts = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = [item for part in parts for item in part]
    return any(isinstance(part, dict | list) for part in level)


def _describe_count(count: int) -> str:
    return f"client_tools: {count:,} tools are declared, and a turn may have {MAX_CLIENT_TOOLS}"


def _describe_size(size: int, most: int) -> str:
    text = f"client_tools: they have {size:,} bytes as JSON and may have {most:,}"
    return f"{text}; perdure's client puts more into the store" if most < CLIENT_TOOLS_BYTES else text


def _show_name(name: str) -> str:
    return repr(name if len(name) <= _SHOWN_NAME_CHARS else name[:_SHOWN_NAME_CHARS] + "…")


def encode_client_tools(tools: Sequence[ClientTool]) -> bytes:
    """Encode the tools for the store. Schemas keep their order: models fill in fields in that order."""
    return json.dumps([tool.model_dump(mode="json") for tool in tools], separators=(",", ":")).encode()


def decode_client_tools(body: str | bytes) -> tuple[ClientTool, ...]:
    """Decode tools from the store, which any client may have put there. Raises ``InvalidInputError``."""
    try:
        tools = _tools_adapter.validate_json(body)
    except ValidationError as error:
        problem = describe_validation_error(error, "they", prefix="client_tools")
        raise InvalidInputError(f"{problem}, as the store has them") from None
    if (flaw := find_client_tools_problem(tools)) is not None:
        raise InvalidInputError(flaw)
    return tools
