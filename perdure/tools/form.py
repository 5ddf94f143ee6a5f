"""Types as forms: what a person is shown of them, and what is made of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from perdure.tools.schema import PlainSchema, untitled
from perdure.types.form import checked_form


def form_of(kind: Any) -> dict[str, Any] | None:
    """The JSON Schema of ``kind``, a type or a schema; None of None. Raises ``TypeError``, ``ValueError``."""
    if kind is None:
        return None
    if isinstance(kind, Mapping):
        return checked_form(kind)
    return checked_form(untitled(adapter_of(kind).json_schema(schema_generator=PlainSchema)))


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Pydantic's own for ``kind``. Raises ``TypeError`` for what is no type that it can take."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        adapter.rebuild(raise_errors=True)
    except Exception as error:  # a type's own schema hook may raise anything
        why = str(error).strip().partition("\n")[0]
        raise TypeError(f"{kind!r:.100} is no type that pydantic can take: {why}") from error
    return adapter
