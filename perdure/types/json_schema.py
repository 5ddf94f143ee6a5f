"""JSON Schemas of tools for models, and of forms for people: short and stable, with errors that a model can act on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from .forms import normalize_form
from .messages import clean_text

_MAX_ARGUMENT_ERRORS = 10
_MAX_VALUE_CHARS = 200


class PlainSchema(GenerateJsonSchema):
    """Schemas without titles and warnings, the same in every process: their hash is compared."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own attribute

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(sorted(dft, key=repr) if isinstance(dft, set | frozenset) else dft)
        try:
            json.dumps(encoded, allow_nan=False)
        except ValueError as error:  # infinity is not JSON: leave the default out, as pydantic does for others
            raise PydanticSerializationError(str(error)) from error
        return encoded


_NAME_MAP_KEYWORDS = {"properties", "$defs", "patternProperties", "dependentSchemas"}
_DATA_KEYWORDS = {"default", "examples", "example", "enum", "const"}


def remove_titles(schema: Any) -> Any:
    """Copy ``schema`` without titles; a property or data that is called "title" stays."""
    if isinstance(schema, list):
        return [remove_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _DATA_KEYWORDS:
            copy[key] = value
        elif key in _NAME_MAP_KEYWORDS and isinstance(value, dict):
            copy[key] = {name: remove_titles(item) for name, item in value.items()}
        elif key != "title":
            copy[key] = remove_titles(value)
    return copy


def runs_code(schema: Any) -> bool:
    """Whether a core schema calls Python functions (validators, ``__init__``, default factories)."""
    if isinstance(schema, Mapping):
        kind = schema.get("type")
        is_call = isinstance(kind, str) and (kind.startswith("function-") or kind == "call")
        has_code = schema.get("custom_init") or schema.get("post_init") or "default_factory" in schema
        return bool(is_call or has_code) or any(map(runs_code, schema.values()))
    return isinstance(schema, list | tuple) and any(map(runs_code, schema))


def explain_validation_error(error: ValidationError, title: str, fields: Iterable[str]) -> str:
    """Explain ``error`` to a model: ``title``, and a line for each of the first problems. ``fields`` are the names that
    the model may give."""
    details = error.errors(include_url=False, include_context=False)
    names = ", ".join(fields) or "none"
    lines = [f"- {_explain_error_detail(detail, names)}" for detail in details[:_MAX_ARGUMENT_ERRORS]]
    if len(details) > _MAX_ARGUMENT_ERRORS:
        lines.append(f"- and {len(details) - _MAX_ARGUMENT_ERRORS} more")
    return clean_text("\n".join([title, *lines]))


def _explain_error_detail(detail: ErrorDetails, names: str) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in detail["loc"])
    path = "".join(steps).removeprefix(".") or "arguments"
    if detail["type"] == "missing":
        return f"{path}: missing, and it has no default"
    if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
        return f"{path}: there is no such argument; the arguments are: {names}"
    value = to_json(detail["input"], serialize_unknown=True, inf_nan_mode="constants").decode()
    if len(value) > _MAX_VALUE_CHARS:
        value = value[:_MAX_VALUE_CHARS] + "…"
    return f"{path}: {detail['msg']}; given: {value}"


# ---
# Forms: the JSON Schemas of answers that people give.


def build_form(kind: Any) -> dict[str, Any] | None:
    """Build the JSON Schema of ``kind``, a type or a schema; None for None. Raises ``TypeError``, ``ValueError``."""
    if kind is None:
        return None
    if not isinstance(kind, Mapping):
        kind = remove_titles(build_type_adapter(kind).json_schema(schema_generator=PlainSchema))
    return normalize_form(kind)


def build_type_adapter(kind: Any) -> TypeAdapter[Any]:
    """Build pydantic's adapter of ``kind``. Raises ``TypeError`` for what pydantic cannot take as a type."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        adapter.rebuild(raise_errors=True)
    except Exception as error:  # a type's own schema hook may raise anything
        why = str(error).strip().partition("\n")[0]
        raise TypeError(f"{kind!r:.100} is not a type that pydantic can take: {why}") from error
    return adapter
