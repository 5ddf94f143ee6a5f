"""The tools of an agent's toolsets as a run took them: recorded once, and the same for every model call."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Sequence

from pydantic import Field, TypeAdapter

from .messages import Data
from .plain import JsonObject


def _is_none(value: object) -> bool:
    return value is None


class PinnedTool(Data):
    """A tool of a toolset."""

    toolset: str
    tool: str
    """Its name in the toolset; ``name`` is the one that the model calls."""
    name: str
    description: str
    parameters: JsonObject
    timeout: float
    idempotent: bool = Field(default=False, exclude_if=operator.not_)
    inline: bool = Field(default=False, exclude_if=operator.not_)
    retries: int | None = Field(default=None, exclude_if=_is_none)
    task_queue: str | None = Field(default=None, exclude_if=_is_none)

    @property
    def definition(self) -> str:
        """Hash (hexadecimal) of what the model sees and of how a call acts."""
        seen = self.model_dump(mode="json", exclude={"timeout"})
        return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:16]


_Pinned = TypeAdapter(tuple[PinnedTool, ...])


def written(tools: Sequence[PinnedTool]) -> bytes:
    """The list as it is kept in the store. Schemas keep their order: it is the order that models fill in."""
    plain = [tool.model_dump(mode="json") for tool in tools]
    return json.dumps(plain, separators=(",", ":")).encode()


def read_pinned(body: str | bytes) -> tuple[PinnedTool, ...]:
    """The list that :func:`written` wrote. Raises ``ValidationError``."""
    return _Pinned.validate_json(body)
