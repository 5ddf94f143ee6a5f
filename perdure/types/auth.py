"""On whose behalf a run acts, as it travels: a token that only workers with the key can read, or a reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

FORM = "perdure1"
"""What a token begins with: ``perdure1:<key id>:<fingerprint of the key>:<base64>``."""
TOKEN_CHARS = 16 * 1024
"""Of a token; every activity is told it."""
REF_CHARS = 1000


def is_token(given: Any) -> bool:
    """Whether ``given`` looks like a token of ours. It may not open."""
    return isinstance(given, str) and given.startswith(f"{FORM}:") and given.count(":") == 3


def _sealed(given: Any) -> Any:
    """Temporal has what comes in the clear already. Refused all the same, so that nobody gets used to it."""
    if given is None or is_token(given):
        return given
    raise PydanticCustomError(
        "auth_context_in_the_clear",
        "it is readable in Temporal's history, where no secret may be: send an auth_ref, which the worker resolves, "
        "or use perdure's client, which encrypts it",
    )


# A bound on the length stands at the text: at `str | None` pydantic raises TypeError for an explicit null.
Token = Annotated[Annotated[str, Field(max_length=TOKEN_CHARS)] | None, BeforeValidator(_sealed)]
Ref = Annotated[str, Field(min_length=1, max_length=REF_CHARS)] | None


def one_auth(raw: Any) -> Any:
    """For a validator before the others: of the two, one."""
    if isinstance(raw, Mapping) and raw.get("auth_context") is not None and raw.get("auth_ref") is not None:
        raise PydanticCustomError("auth_context_and_ref", "there is auth_context or auth_ref, not both")
    return raw
