"""The translation of what the google-genai SDK raises into ``perdure.errors``."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import (
    AuthenticationError,
    BadRequestError,
    MalformedReplyError,
    ProviderConnectionError,
    ProviderError,
    TruncatedStreamError,
)
from .classify import by_status
from .transport import transport_error, what


def translate(error: Exception, *, begun: bool, endpoint: str, key_name: str = "the key") -> ProviderError:
    """What ``error`` means. ``begun``: the reply had started; ``endpoint`` and ``key_name`` are for people."""
    from google.genai import errors  # imported with the first call, not with perdure

    if isinstance(error, errors.APIError):
        headers = getattr(error.response, "headers", None)
        status = error.code if isinstance(error.code, int) else 500
        known = headers if isinstance(headers, Mapping) else {}
        return by_status(status, _body(error.details), known, endpoint, key_name=key_name)
    if isinstance(error, errors.UnknownApiResponseError):
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be read ({what(error)})")
    if isinstance(error, errors.ContinuationInterruptedError):
        return TruncatedStreamError(f"{endpoint} broke off the reply ({what(error)})")
    return transport_error(error, begun, endpoint) or _rest(error, endpoint)


def _body(details: object) -> object:
    """The answer's body. The SDK makes an object of one that is not JSON: its text is what came."""
    if isinstance(details, Mapping) and details.keys() == {"message", "status"}:
        return details["message"]
    return details


def _rest(error: Exception, endpoint: str) -> ProviderError:
    """Exceptions of Google's packages that no call of ours raises today, and strangers."""
    kinds = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.startswith("google.")}
    if "EphemeralTokenAPIKeyError" in kinds:
        return AuthenticationError(f"{endpoint}: {what(error)}")
    if "TransportError" in kinds:
        return ProviderConnectionError(f"{endpoint} cannot be reached ({what(error)})")
    if "GoogleAuthError" in kinds:
        return AuthenticationError(f"{endpoint}: {what(error)}")
    if kinds:
        return BadRequestError(f"{endpoint}: {what(error)}")
    return ProviderError(f"{endpoint}: unexpected {what(error)}")
