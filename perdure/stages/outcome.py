"""Recorded outcomes, read back."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import TranscriptCorruptedError

M = TypeVar("M", bound=BaseModel)


def read_outcome(kind: type[M], body: bytes, key: str) -> M:
    """The outcome of journal entry ``key``. Raises ``TranscriptCorruptedError``, by which the run waits."""
    try:
        return kind.model_validate_json(body)
    except ValidationError:
        raise TranscriptCorruptedError(
            f"the outcome in journal entry {key} was altered, or a newer perdure wrote it: it cannot be read",
            hint="Restore the entry from a backup, or run workers of the newer version; then resume the run.",
        ) from None
