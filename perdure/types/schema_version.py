"""The version of what a run passes on: its state, the input of its subagents, and the inputs and outputs of activities.

Apart because the modules of all these types need it. Workers of two versions of perdure may serve one task queue while
they are replaced. An unknown field is ignored, so a version that writes what an older one must not ignore counts
``SCHEMA_VERSION`` up: the older one then refuses it, and Temporal retries until a newer worker takes it.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ..errors import NewerStateError

SCHEMA_VERSION = 1


def _is_first(version: int) -> bool:
    return version == 1


def schema_version_field() -> Any:
    """Return the field ``schema_version`` of a type: the version of perdure that made the value. Left out for 1."""
    return Field(default_factory=lambda: SCHEMA_VERSION, ge=1, exclude_if=_is_first)


def check_schema_version(raw: Any, what: str) -> None:
    """Raise ``NewerStateError`` if ``raw``, a JSON object, was written by a perdure that this one cannot replace.
    ``what`` names it in the error."""
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if type(version) is int and version > SCHEMA_VERSION:
        raise NewerStateError(
            f"{what} has schema version {version}, this engine reads up to {SCHEMA_VERSION}",
            hint="Run workers of the newer perdure on this task queue.",
        )
