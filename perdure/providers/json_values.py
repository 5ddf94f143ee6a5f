"""What an API has sent, as far as it is of the type that is looked for: anything may come from a compatible server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..types.plain_json import EXACT_INTEGERS


def read_string(value: object) -> str:
    """``value``; empty where it is no string."""
    return value if isinstance(value, str) else ""


def read_array(value: object) -> list[Any]:
    """``value``; empty where it is no array."""
    return value if isinstance(value, list) else []


def read_object(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under ``key``; empty where there is none."""
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def read_count(values: Mapping[str, Any], key: str) -> int:
    """The number under ``key``, from 0; 0 where there is none, or none that counts anything."""
    value = values.get(key)  # also infinity, which Python's parser takes
    return int(value) if isinstance(value, int | float) and 0 <= value < EXACT_INTEGERS else 0
