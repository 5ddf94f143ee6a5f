"""The translation of what the anthropic SDK raises into ``perdure.errors``."""

from __future__ import annotations

from ..errors import (
    AuthenticationError,
    BadRequestError,
    MalformedReplyError,
    ProviderConnectionError,
    ProviderError,
)
from .classify import by_status, in_stream
from .transport import connection, timed_out, transport_error, what


def translate(error: Exception, *, begun: bool, endpoint: str, key_name: str = "the key") -> ProviderError:
    """What ``error`` means. ``begun``: the reply had started; ``endpoint`` and ``key_name`` are for people."""
    import anthropic  # imported with the first call, not with perdure

    if isinstance(error, anthropic.APIResponseValidationError):
        return MalformedReplyError(f"{endpoint} sent a reply of the wrong shape: {error.message}")
    if isinstance(error, anthropic.APIStatusError):
        if error.status_code < 300:
            # An error event in the stream comes as one with the status of the stream.
            return in_stream(error.body, error.message, endpoint, key_name=key_name)
        return by_status(error.status_code, error.body, error.response.headers, endpoint, key_name=key_name)
    if isinstance(error, anthropic.APITimeoutError):
        return timed_out(error, begun, endpoint)
    if isinstance(error, anthropic.APIConnectionError):
        return connection(error.__cause__ or error, begun, endpoint)
    if isinstance(error, anthropic.APIError) and not isinstance(error, anthropic.APIWebhookValidationError):
        return in_stream(error.body, error.message, endpoint, key_name=key_name)
    return transport_error(error, begun, endpoint) or _rest(error, endpoint)


def _rest(error: Exception, endpoint: str) -> ProviderError:
    """Exceptions of the SDK that no call of ours raises today, and strangers."""
    import anthropic  # see above

    if isinstance(error, anthropic.CredentialsError):
        return AuthenticationError(f"{endpoint}: {what(error)}")
    if isinstance(error, anthropic.RetryableError):
        return ProviderConnectionError(f"{endpoint}: {what(error)}")
    if isinstance(error, anthropic.AnthropicError):
        return BadRequestError(f"{endpoint}: {what(error)}")
    return ProviderError(f"{endpoint}: unexpected {what(error)}")
