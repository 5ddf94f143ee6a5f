"""``auth_context`` as it is sent: encrypted, for one conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from temporalio.client import Client as TemporalClient

from .encryption import Keys
from .errors import InvalidInputError
from .types.auth import REF_CHARS

AUTH_BYTES = 8 * 1024
"""Of an ``auth_context`` as JSON. Every step of the run is told it, encrypted."""

Auth = Mapping[str, Any]


def sealed(
    temporal: TemporalClient, context_id: str, auth_context: Auth | None, auth_ref: str | None
) -> dict[str, str]:
    """The fields of a start or a message that say on whose behalf conversation ``context_id`` acts; none without any.

    Raises ``InvalidInputError`` for what cannot be sent, ``AuthContextUnavailableError`` where there is no key.
    """
    if auth_context is not None and auth_ref is not None:
        raise InvalidInputError("there is auth_context or auth_ref, not both", hint="Leave one out.")
    if auth_ref is not None:
        if not isinstance(auth_ref, str) or not 0 < len(auth_ref) <= REF_CHARS:
            raise InvalidInputError(f"an auth_ref is a text of 1 to {REF_CHARS:,} characters")
        return {"auth_ref": auth_ref}
    if auth_context is None:
        return {}
    plain = _plain(auth_context)
    key = Keys.given().encrypting(temporal.service_client.config.target_host)
    return {"auth_context": key.seal(plain, context_id)}


def resealed(temporal: TemporalClient, token: str, parent_id: str, context_id: str) -> str:
    """``token`` of a subagent's run, which may be sealed for a run above it, for its conversation ``context_id`` alone.

    ``parent_id`` is the run that started it, as Temporal's history says. Raises ``AuthContextUnavailableError`` where
    the key is not here, ``AuthContextError``.
    """
    above = [parent_id[:end] for end, character in enumerate(parent_id) if character == "/"]
    keys = Keys.given()
    plain = keys.open(token, [context_id, parent_id, *above])
    return keys.encrypting(temporal.service_client.config.target_host).seal(plain, context_id)


def _plain(auth_context: Auth) -> bytes:
    """Its JSON. What is wrong is said without its values."""
    wants = "Give names and plain values: what the tools need to act for the user."
    if not isinstance(auth_context, Mapping) or not all(isinstance(name, str) for name in auth_context):
        raise InvalidInputError("an auth_context is a dictionary of plain JSON", hint=wants)
    try:
        plain = json.dumps(dict(auth_context), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"an auth_context is a dictionary of plain JSON: {type(error).__name__} in one of its values", hint=wants
        ) from None
    if len(plain) > AUTH_BYTES:
        raise InvalidInputError(
            f"the auth_context has {len(plain):,} bytes as JSON; it may have {AUTH_BYTES:,}",
            hint="Keep it elsewhere and send an auth_ref, which the worker resolves.",
        )
    return plain
