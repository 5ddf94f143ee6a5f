"""Plain JSON: checks every value that a client, a model, a tool, a hook or a policy gives.

A value that passes is written and read back unchanged by Temporal's converter, by pydantic, by the store and by every
provider, also as part of larger data. Parsers count the levels around a value, too, and pydantic's accepts 200 of them,
so ``MAX_LEVELS`` is less.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError, to_json, to_jsonable_python

from .messages import clean_text

MAX_LEVELS = 150
"""Most levels of nested arrays and objects in a value."""
MAX_VALUE_CHARS = 4 * 1024 * 1024
"""Most characters in the texts of a value, counting two for each value in it. Values in Temporal have a lower limit of
their own; this one ends the walk through a value that contains itself."""
EXACT_INTEGERS = 2**53
"""Below this, a double represents every integer."""
_TOO_DEEP = f"it is nested deeper than {MAX_LEVELS} levels"
_LONE_SURROGATE = "a text in it has a lone surrogate, which UTF-8 cannot carry"
_MAX_INTEGER_BITS = sys.float_info.max_exp - 1
"""Bits of an integer that is certainly in the range of a double, the only number type of many parsers."""


def is_none(value: object) -> bool:
    """For ``exclude_if``: a field that is left out when it is None."""
    return value is None


def find_json_flaw(value: Any, largest: int = MAX_VALUE_CHARS) -> str | None:
    """Return why ``value`` is not plain JSON, as the end of a sentence; None if it is.

    Plain are null, booleans, texts without lone surrogates, finite numbers in the range of a double, and lists (or
    tuples) and dictionaries of these whose keys are such texts, in at most ``MAX_LEVELS`` levels. Accepts any depth.
    ``largest`` is as :data:`MAX_VALUE_CHARS`.
    """
    level, walked = [value], 0
    for above in range(MAX_LEVELS + 1):
        below: list[Any] = []
        for part in level:
            if isinstance(part, str):
                walked += len(part)
                if not part.isascii() and _has_lone_surrogate(part):
                    return _LONE_SURROGATE
            elif isinstance(part, dict):
                for key in part:
                    if not isinstance(key, str):
                        return f"a key in it is not text but {type(key).__name__}"
                    walked += len(key)
                    if not key.isascii() and _has_lone_surrogate(key):
                        return _LONE_SURROGATE
                below += part.values()
            elif isinstance(part, list | tuple):
                below += part
            elif isinstance(part, float):
                if part - part != 0.0:  # an infinity or NaN
                    return f"a number in it is not finite: {part}"
            elif isinstance(part, int):
                if part.bit_length() > _MAX_INTEGER_BITS:
                    return "an integer in it is beyond the range of a double (1.8e308)"
            elif part is not None:
                return f"a value in it is of type {type(part).__name__}, which JSON does not have"
        if not below:
            if above == MAX_LEVELS and any(isinstance(part, dict | list | tuple) for part in level):  # empty ones
                return _TOO_DEEP
            return None if walked <= largest else _too_large(largest)
        walked += 2 * len(below)
        if walked > largest:
            return _too_large(largest)
        level = below
    return _TOO_DEEP


def _too_large(largest: int) -> str:
    return f"it is larger than {largest:,} characters"


def to_plain_json(value: Any) -> Any:
    """Convert a Python value (tuples, dates, models) into plain JSON. Raises ``ValueError`` with the reason."""
    try:
        plain = to_jsonable_python(value, by_alias=True)
    except UnicodeEncodeError:
        raise ValueError(_LONE_SURROGATE) from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:  # PydanticSerializationError too
        raise ValueError(_TOO_DEEP if "depth exceeded" in str(error) else str(error)) from None
    if why := find_json_flaw(plain):
        raise ValueError(why)
    return plain


def parse_json(text: str | bytes) -> Any:
    """Parse ``text``. Raises ``ValueError`` that says why it is not plain JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if why := find_json_flaw(value):
        raise ValueError(why)
    return value


def measure_json(value: Any) -> int:
    """Bytes of ``value``, plain JSON, in Temporal, whose converter writes ASCII: six bytes a ``ж``."""
    return len(json.dumps(value))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _require_plain_json(value: Any) -> Any:
    if why := find_json_flaw(value):
        raise PydanticCustomError("plain_json", "must be plain JSON: {why}", {"why": why})
    return value


Json = Annotated[Any, AfterValidator(_require_plain_json)]
"""Type of a field that holds plain JSON from outside."""
JsonObject = Annotated[dict[str, Any], AfterValidator(_require_plain_json)]
"""The same for a JSON object."""


def dump_json_value(value: Any) -> str:
    """Convert ``value`` to JSON that can be stored. Raises ``ValueError``, or what the serialiser of a type raises."""
    for bytes_mode in ("utf8", "base64"):
        try:
            return to_json(value, inf_nan_mode="strings", bytes_mode=bytes_mode).decode()
        except ValueError as error:
            if "utf-8" not in str(error).lower():
                raise
    # The cause was not bytes: some text holds a lone surrogate.
    plain = to_jsonable_python(value, bytes_mode="base64")
    cleaned = json.loads(clean_text(json.dumps(plain, ensure_ascii=False)))
    return to_json(cleaned, inf_nan_mode="strings").decode()
