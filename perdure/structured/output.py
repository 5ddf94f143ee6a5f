"""The type of an agent's answers: the ``__finish__`` tool that a model gives them by, and what it gave as a value."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import to_json

from ..errors import DefinitionError, ParseError
from ..ports import ToolSpec
from ..tools.schema import PlainSchema, explained, runs_code, untitled
from ..types.interface import FINISH_TOOL
from ..types.messages import clean
from ..types.plain import flaw
from ..types.wire import Finish
from .xml import template
from .xml_reader import filled_in

TEMPLATE = "finish"
"""Root of the XML that a model may give its answer in, instead of a call."""
_ENDS = (
    "Ends the task with your answer. Call it alone, when everything else is done: "
    "only what you give here is returned, and other calls beside it are not run."
)


class OutputError(ValueError):
    """What a model gave is not of the type; the message is written for the model."""


class OutputType:
    """A type that pydantic can take, built once. What is no object is wrapped into one: every tool takes an object."""

    def __init__(self, agent: str, kind: Any) -> None:
        """Raises ``DefinitionError`` for what pydantic cannot take."""
        self._agent = agent
        self._name = getattr(kind, "__name__", None) or repr(kind)
        self.is_text = kind is str
        """Whether an answer is text, and no JSON."""
        if kind is None or isinstance(kind, BaseModel | Mapping | list | str) or inspect.isroutine(kind):
            raise self._wrong("is a value", "Give a type: a pydantic model, a dataclass, list[str], int, …")
        try:
            tool = _of_text() if self.is_text else _tool(kind)
        except Exception as error:  # a type's own schema hook may raise anything
            why = str(error).strip().partition("\n")[0]
            raise self._wrong(
                f"has no JSON Schema: {why}", "A pydantic model, a dataclass, a TypedDict, or a plain type has one."
            ) from error
        self._adapter, self._given = tool.adapter, tool.given
        self.inside = tool.inside
        """The one argument that is the answer; None where all arguments together are."""
        self.schema = tool.schema
        """JSON Schema of the tool's arguments."""
        self.runs_code = runs_code(self._adapter.core_schema)
        """Whether reading it may run a function of the author's, which must not block the worker's loop."""
        self.spec = ToolSpec(FINISH_TOOL, _ENDS, self.schema)
        """The tool, as the model sees it."""

    def read(self, arguments: Mapping[str, Any]) -> Any:
        """The value that a model gave. Validators of the author's run in it. Raises ``OutputError``."""
        try:
            found = self._given.validate_json(_encoded(arguments))
        except ValidationError as error:
            title = f"the arguments of {FINISH_TOOL} are not valid:"
            raise OutputError(explained(error, title, self.schema.get("properties", {}))) from error
        except Exception as error:  # a validator of the author's, or values that are not JSON
            raise OutputError(
                f"the arguments of {FINISH_TOOL} could not be read: {type(error).__name__}: {error}"
            ) from error
        return getattr(found, "inside") if self.inside else found  # noqa: B009  # a field made at run time

    def read_xml(self, text: str) -> dict[str, Any] | None:
        """The arguments that a model wrote into the template; None where ``text`` has nothing of it."""
        try:
            found = filled_in(text, self.schema, TEMPLATE)
        except RecursionError:  # hundreds of elements in each other
            return None
        return found if isinstance(found, dict) else ({} if found is not None else None)

    @property
    def template(self) -> str:
        """What a model without ``tool_choice`` is to fill in."""
        return template(self.schema, TEMPLATE)

    def changed(self, value: Any) -> Any:
        """``value``, which code of the author's gave, as one of the type. Raises ``OutputError``."""
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            raise OutputError(explained(error, f"it is no {self._name}:", self.schema.get("properties", {}))) from error
        except Exception as error:  # a validator of the author's
            raise OutputError(f"it is no {self._name}: {type(error).__name__}: {error}") from error

    def finish(self, value: Any) -> Finish:
        """``value`` as the answer of a turn. Raises ``OutputError`` for what no JSON can carry."""
        if self.is_text:
            return Finish(content=clean(value), called=True)
        try:
            plain = self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)
        except Exception as error:  # a serializer of the author's
            raise OutputError(f"the answer cannot be written as JSON: {type(error).__name__}: {error}") from error
        if why := flaw(plain):
            raise OutputError(f"the answer must be plain JSON: {why}")
        return Finish(content=json.dumps(plain, ensure_ascii=False), called=True, typed=True)

    def load(self, plain: Any) -> Any:
        """A ``Response.output``, plain JSON, as a value of the type. Raises ``ParseError``."""
        if plain is None or self.is_text:
            return plain  # without output: the turn was stopped, or ended at a limit
        try:
            return self._adapter.validate_json(json.dumps(plain), by_alias=True, by_name=True)  # as it was written
        except Exception as error:  # a validator of the author's may raise anything
            raise ParseError(
                f"the output does not fit the type {self._name} of agent {self._agent!r}: {error}",
                hint="The run may have been served by other code. client.run(id).result() gives it as plain JSON.",
            ) from error

    def _wrong(self, why: str, hint: str) -> DefinitionError:
        return DefinitionError(f"agent {self._agent!r}: output={self._name:.100} {why}", hint=hint)


@dataclass(frozen=True, slots=True)
class _Tool:
    adapter: TypeAdapter[Any]
    """Of the type; ``given`` reads the arguments, ``schema`` is theirs."""
    given: TypeAdapter[Any]
    schema: dict[str, Any]
    inside: str | None


def _tool(kind: Any) -> _Tool:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    adapter.rebuild(raise_errors=True)  # a name that is missing in it is said now
    schema = _at_top(untitled(adapter.json_schema(schema_generator=PlainSchema)))
    if schema.get("type") == "object" and "properties" in schema:
        json.dumps(schema, allow_nan=False)
        return _Tool(adapter, adapter, schema, None)
    name = "content" if kind is str else "value"
    wrapper: type[BaseModel] = create_model(
        "Finish",
        __config__=ConfigDict(extra="forbid"),
        inside=(kind, Field(alias=name, description="The answer")),
    )
    wrapped: TypeAdapter[Any] = TypeAdapter(wrapper)
    schema = untitled(wrapped.json_schema(schema_generator=PlainSchema))
    json.dumps(schema, allow_nan=False)
    return _Tool(adapter, wrapped, schema, name)


@cache
def _of_text() -> _Tool:
    """Most agents answer with text: one for all of them."""
    return _tool(str)


def _at_top(schema: dict[str, Any]) -> dict[str, Any]:
    """A type that holds itself is a reference into its own definitions; APIs want an object at the top."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    defs = schema.get("$defs", {})
    return {**defs.get(reference.rpartition("/")[2], {}), "$defs": defs}


def _encoded(arguments: Mapping[str, Any]) -> bytes:
    try:
        return to_json(arguments)
    except ValueError:  # a lone surrogate
        return clean(json.dumps(arguments, ensure_ascii=False)).encode()
