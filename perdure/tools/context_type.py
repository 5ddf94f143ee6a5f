"""The declared types of a run's context and input: values are checked by the client, and read by the worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..errors import DefinitionError, InvalidInputError
from ..types.plain_json import find_json_flaw
from ..types.validation_errors import describe_validation_error
from .json_schema import build_type_adapter

_SCALARS = ("int", "float", "str", "bool", "bytes", "none", "date", "datetime")
_NON_OBJECT_TYPES = {*_SCALARS, "call", "list", "set", "frozenset", "tuple"}


class ContextType:
    """A type that pydantic can take, built once. Values travel as JSON objects."""

    def __init__(self, agent: str, kind: Any, field: str = "context") -> None:
        """``field`` is the agent's field that declares the type. Raises ``DefinitionError`` for a type that pydantic
        cannot take, and for one whose values cannot be JSON objects."""
        self._agent = agent
        self._kind = kind
        self._field = field
        self._name = getattr(kind, "__name__", None) or repr(kind)
        if isinstance(kind, BaseModel | Mapping):
            raise self._build_type_error("is a value", f"Give its type: {field}={type(kind).__name__}.")
        try:
            self.adapter: TypeAdapter[Any] = build_type_adapter(kind)
            """The pydantic adapter of the type."""
        except TypeError as error:
            hint = "A pydantic model, a dataclass or a TypedDict of plain types, defined before the agent."
            raise self._build_type_error(f"cannot be used: {error}", hint) from error
        if self.adapter.core_schema.get("type") in _NON_OBJECT_TYPES:
            hint = "A pydantic model, a dataclass or a TypedDict can."
            raise self._build_type_error("cannot be a JSON object", hint)

    def read(self, raw: Mapping[str, Any] | None) -> Any:
        """Validate ``raw`` and return the object. Raises ``InvalidInputError`` that names each wrong field."""
        try:
            return self.adapter.validate_json(json.dumps(raw or {}, allow_nan=False))
        except ValidationError as error:
            raise self._build_input_error(describe_validation_error(error, self._field, max_problems=10)) from error
        except Exception as error:  # a validator of the author's, or values that are not JSON
            raise self._build_input_error(f"{type(error).__name__}: {error}") from error

    def check(self, value: Any) -> dict[str, Any]:
        """Convert ``value``, a mapping or an instance, to the JSON object that a worker reads back.

        Raises ``InvalidInputError`` as :meth:`read`, and for an instance that changes on its way through JSON.
        """
        if value is None or isinstance(value, Mapping):
            plain = self._dump_plain(lambda: to_jsonable_python(dict(value or {})))
            self.read(plain)
            return plain
        try:
            instance = self.adapter.validate_python(value)
        except ValidationError as error:
            raise self._build_input_error(describe_validation_error(error, self._field, max_problems=10)) from error
        dump = self.adapter.dump_python
        plain = self._dump_plain(lambda: dump(instance, mode="json", by_alias=True, round_trip=True, warnings="error"))
        if dump(self.read(plain), round_trip=True) != dump(instance, round_trip=True):
            why = "as JSON it comes back changed (a SecretStr, for instance, comes back as asterisks)"
            raise self._build_input_error(why)
        return plain

    def _dump_plain(self, dump: Callable[[], Any]) -> dict[str, Any]:
        try:
            plain = dump()
        except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
            raise self._build_input_error(f"it cannot be written as JSON: {error}") from error
        if why := find_json_flaw(plain):
            raise self._build_input_error(f"it must be plain JSON: {why}")
        if not isinstance(plain, dict):
            raise self._build_input_error(f"as JSON it is not an object but a {type(plain).__name__}")
        return plain

    def _build_input_error(self, why: str) -> InvalidInputError:
        named = getattr(self._kind, "model_fields", None) or getattr(self._kind, "__annotations__", {})
        fields = [getattr(field, "alias", None) or name for name, field in named.items()]
        hint = f"Its type is {self._name}" + (f", with {', '.join(fields)}." if fields else ".")
        return InvalidInputError(f"the {self._field} does not fit agent {self._agent!r}: {why}", hint=hint)

    def _build_type_error(self, why: str, hint: str) -> DefinitionError:
        return DefinitionError(f"agent {self._agent!r}: {self._field}={self._name:.100} {why}", hint=hint)


def validate_plain_context(agent: str, value: Any) -> dict[str, Any]:
    """Check the context of an agent that declares no type: a dictionary of plain JSON. Raises ``InvalidInputError``."""
    rule = "the context of a run is a dictionary of plain JSON"
    if not isinstance(value, Mapping):
        kind, hint = type(value).__name__, "Give a dictionary, such as {'user_id': '7'}."
        if type(value).__module__ != "builtins":
            hint = f"Agent {agent!r} can declare its type, Agent(…, context={kind}), and then takes instances."
        raise InvalidInputError(f"{rule}, not {kind}", hint=hint)  # not its text, which may be a secret
    plain = dict(value)
    if why := find_json_flaw(plain):
        raise InvalidInputError(f"{rule}: {why}", hint="Give ids, numbers and texts; tools load the rest.")
    return plain
