"""Declared types of what a run is given (its context, its input): checked where it is given, read where it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..errors import DefinitionError, InvalidInputError
from ..types.plain_json import find_json_flaw
from ..types.validation_errors import describe_validation_error

_NON_OBJECT_TYPES = {
    "call",
    "int",
    "float",
    "str",
    "bool",
    "bytes",
    "list",
    "set",
    "frozenset",
    "tuple",
    "none",
    "date",
    "datetime",
}


class ContextType:
    """A type that pydantic can take, built once. Values travel as JSON objects, and are read as such."""

    def __init__(self, agent: str, kind: Any, field: str = "context") -> None:
        """``field`` is the agent's that declares it. Raises ``DefinitionError`` for what pydantic cannot take, and for
        what no JSON object can be."""
        self._agent = agent
        self._kind = kind
        self._field = field
        self._name = getattr(kind, "__name__", None) or repr(kind)
        if isinstance(kind, BaseModel | Mapping):
            raise self._build_context_type_error("is a value", f"Give its type: {field}={type(kind).__name__}.")
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
            self._adapter.rebuild(raise_errors=True)  # a name that is missing in it is said now
            shape = self._adapter.core_schema.get("type")
        except Exception as error:  # a type's own schema hook may raise anything
            why = str(error).strip().partition("\n")[0]
            raise self._build_context_type_error(
                f"is no type that pydantic can take: {why}",
                "A pydantic model, a dataclass or a TypedDict of plain types, defined before the agent.",
            ) from error
        if shape in _NON_OBJECT_TYPES:
            raise self._build_context_type_error(
                "cannot be a JSON object", "A pydantic model, a dataclass or a TypedDict can."
            )

    @property
    def adapter(self) -> TypeAdapter[Any]:
        """Pydantic's own for the type."""
        return self._adapter

    def read(self, raw: Mapping[str, Any] | None) -> Any:
        """The validated object. Raises ``InvalidInputError`` that names each wrong field."""
        try:
            return self._adapter.validate_json(json.dumps(raw or {}, allow_nan=False))
        except ValidationError as error:
            raise self._build_input_error(describe_validation_error(error, self._field, max_problems=10)) from error
        except Exception as error:  # a validator of the author's, or values that are not JSON
            raise self._build_input_error(f"{type(error).__name__}: {error}") from error

    def check(self, value: Any) -> dict[str, Any]:
        """``value``, a mapping or an instance, as the JSON object that a worker reads back.

        Raises ``InvalidInputError`` as :meth:`read`, and for an instance that JSON does not carry whole.
        """
        if value is None or isinstance(value, Mapping):
            plain = self._dump_plain(lambda: to_jsonable_python(dict(value or {})))
            self.read(plain)
            return plain
        try:
            instance = self._adapter.validate_python(value)
        except ValidationError as error:
            raise self._build_input_error(describe_validation_error(error, self._field, max_problems=10)) from error
        dump = self._adapter.dump_python
        plain = self._dump_plain(lambda: dump(instance, mode="json", by_alias=True, round_trip=True, warnings="error"))
        if dump(self.read(plain), round_trip=True) != dump(instance, round_trip=True):
            raise self._build_input_error(
                "as JSON it comes back changed (a SecretStr, for instance, comes back as asterisks)"
            )
        return plain

    def _dump_plain(self, dump: Any) -> dict[str, Any]:
        try:
            plain = dump()
        except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
            raise self._build_input_error(f"it cannot be written as JSON: {error}") from error
        if why := find_json_flaw(plain):
            raise self._build_input_error(f"it must be plain JSON: {why}")
        if not isinstance(plain, dict):
            raise self._build_input_error(f"as JSON it is no object but a {type(plain).__name__}")
        return plain

    def _build_input_error(self, why: str) -> InvalidInputError:
        named = getattr(self._kind, "model_fields", None) or getattr(self._kind, "__annotations__", {})
        fields = [getattr(field, "alias", None) or name for name, field in named.items()]
        return InvalidInputError(
            f"the {self._field} does not fit agent {self._agent!r}: {why}",
            hint=f"Its type is {self._name}" + (f", with {', '.join(fields)}." if fields else "."),
        )

    def _build_context_type_error(self, why: str, hint: str) -> DefinitionError:
        return DefinitionError(f"agent {self._agent!r}: {self._field}={self._name:.100} {why}", hint=hint)


def validate_plain_context(agent: str, value: Any) -> dict[str, Any]:
    """The context of an agent that declares no type: a dictionary of plain JSON. Raises ``InvalidInputError``."""
    if isinstance(value, Mapping):
        plain = dict(value)
        if why := find_json_flaw(plain):
            raise InvalidInputError(
                f"the context of a run is a dictionary of plain JSON: {why}",
                hint="Give ids, numbers and texts; tools load the rest.",
            )
        return plain
    kind = type(value).__name__
    raise InvalidInputError(
        f"the context of a run is a dictionary of plain JSON, not {value!r:.100}",
        hint=f"Agent {agent!r} can declare its type, Agent(…, context={kind}), and then takes instances.",
    )
