"""The translation of what the openai SDK raises into ``perdure.errors``, for both of its formats."""

from __future__ import annotations

from ..errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    MalformedReplyError,
    ProviderConnectionError,
    ProviderError,
)
from .classify import by_status, in_stream
from .transport import connection, timed_out, transport_error, what


def translate(error: Exception, *, begun: bool, endpoint: str, key_name: str = "the key") -> ProviderError:
    """What ``error`` means. ``begun``: the reply had started; ``endpoint`` and ``key_name`` are for people."""
    import openai  # imported with the first call, not with perdure

    if isinstance(error, openai.APIResponseValidationError):
        return MalformedReplyError(f"{endpoint} sent a reply of the wrong shape: {error.message}")
    if isinstance(error, openai.APIStatusError):
        return by_status(error.status_code, error.body, error.response.headers, endpoint, key_name=key_name)
    if isinstance(error, openai.APITimeoutError):
        return timed_out(error, begun, endpoint)
    if isinstance(error, openai.APIConnectionError):
        return connection(error.__cause__ or error, begun, endpoint)
    if isinstance(error, openai.APIError):
        return in_stream(error.body, error.message, endpoint, key_name=key_name)
    if isinstance(error, openai.ContentFilterFinishReasonError):
        return ContentFilterError(f"{endpoint}: the content filter refused the reply")
    if isinstance(error, openai.LengthFinishReasonError):
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be read ({what(error)})")
    return transport_error(error, begun, endpoint) or _rest(error, endpoint)


def _rest(error: Exception, endpoint: str) -> ProviderError:
    """Exceptions of the SDK that no call of ours raises today, and strangers."""
    import openai  # see above

    if isinstance(error, openai.WebSocketConnectionClosedError | openai.WebSocketQueueFullError):
        return ProviderConnectionError(f"{endpoint}: {what(error)}")
    if type(error).__name__ == "SubjectTokenProviderError":
        return AuthenticationError(f"{endpoint}: {what(error)}")
    if isinstance(error, openai.OpenAIError | openai.InvalidWebhookSignatureError):
        return BadRequestError(f"{endpoint}: {what(error)}")
    return ProviderError(f"{endpoint}: unexpected {what(error)}")
