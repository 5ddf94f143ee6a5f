"""What JSON Schemas have in common, whoever they are for: short ones, and errors that a model can act on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from ..types.forms import normalize_form
from ..types.messages import clean_text

_MAX_ARGUMENT_ERRORS = 10
_MAX_VALUE_CHARACTERS = 200  # characters


class PlainSchema(GenerateJsonSchema):
    """Without what costs tokens, without warnings, and the same in every process (its hash is compared)."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own attribute

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(sorted(dft, key=repr) if isinstance(dft, set | frozenset) else dft)
        try:
            json.dumps(encoded, allow_nan=False)
        except ValueError as error:  # infinity is no JSON: leave the default out, as pydantic does for others
            raise PydanticSerializationError(str(error)) from error
        return encoded


_NAME_MAP_KEYWORDS = {"properties", "$defs", "patternProperties", "dependentSchemas"}
_DATA_KEYWORDS = {"default", "examples", "example", "enum", "const"}


def remove_titles(schema: Any) -> Any:
    """``schema`` without titles; a property, or data, that happens to be called "title" stays."""
    if isinstance(schema, list):
        return [remove_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _DATA_KEYWORDS:
            kept[key] = value
        elif key in _NAME_MAP_KEYWORDS and isinstance(value, dict):
            kept[key] = {name: remove_titles(item) for name, item in value.items()}
        elif key != "title":
            kept[key] = remove_titles(value)
    return kept


def runs_code(schema: Any) -> bool:
    """Whether a core schema calls Python functions (validators, ``__init__``, default factories)."""
    if isinstance(schema, Mapping):
        kind = schema.get("type")
        called = isinstance(kind, str) and (kind.startswith("function-") or kind == "call")
        custom = schema.get("custom_init") or schema.get("post_init") or "default_factory" in schema
        return bool(called or custom) or any(map(runs_code, schema.values()))
    return isinstance(schema, list | tuple) and any(map(runs_code, schema))


def explain_validation_error(error: ValidationError, title: str, takes: Iterable[str]) -> str:
    """What a model is told of ``error``: a line for each of the first problems. ``takes`` are the fields there are."""
    details = error.errors(include_url=False, include_context=False)
    fields = ", ".join(takes) or "none"
    lines = [f"- {_explain_error_detail(detail, fields)}" for detail in details[:_MAX_ARGUMENT_ERRORS]]
    if len(details) > _MAX_ARGUMENT_ERRORS:
        lines.append(f"- and {len(details) - _MAX_ARGUMENT_ERRORS} more")
    return clean_text("\n".join([title, *lines]))


def _explain_error_detail(detail: ErrorDetails, takes: str) -> str:
    path = _format_argument_path(detail["loc"])
    if detail["type"] == "missing":
        return f"{path}: missing, and it has no default"
    if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
        return f"{path}: there is no such argument; the arguments are: {takes}"
    given = to_json(detail["input"], serialize_unknown=True, inf_nan_mode="constants").decode()
    if len(given) > _MAX_VALUE_CHARACTERS:
        given = given[:_MAX_VALUE_CHARACTERS] + "…"
    return f"{path}: {detail['msg']}; given: {given}"


def _format_argument_path(loc: Sequence[str | int]) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc)
    return path.removeprefix(".") or "arguments"


# ---
# Types as forms: what a person is shown of them, and what is made of an answer.


def build_form(kind: Any) -> dict[str, Any] | None:
    """The JSON Schema of ``kind``, a type or a schema; None of None. Raises ``TypeError``, ``ValueError``."""
    if kind is None:
        return None
    if isinstance(kind, Mapping):
        return normalize_form(kind)
    return normalize_form(remove_titles(build_type_adapter(kind).json_schema(schema_generator=PlainSchema)))


def build_type_adapter(kind: Any) -> TypeAdapter[Any]:
    """Pydantic's own for ``kind``. Raises ``TypeError`` for what is no type that it can take."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        adapter.rebuild(raise_errors=True)
    except Exception as error:  # a type's own schema hook may raise anything
        why = str(error).strip().partition("\n")[0]
        raise TypeError(f"{kind!r:.100} is no type that pydantic can take: {why}") from error
    return adapter
