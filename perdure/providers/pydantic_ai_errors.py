"""The one translation of what pydantic-ai raises into ``perdure.errors``. Imported with the first call."""

from __future__ import annotations

from pydantic_ai import exceptions as theirs

from ..errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    MalformedReplyError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    ProviderConnectionError,
    ProviderError,
    ProviderServerError,
    ProviderTimeoutError,
    RateLimitError,
    RuntimeSetupError,
    TruncatedStreamError,
)
from .classify import by_status
from .transport import transport_error, what

_BY_CLASS: tuple[tuple[type[Exception], type[ProviderError]], ...] = (
    (theirs.ModelRateLimitError, RateLimitError),
    (theirs.ModelQuotaExceededError, PermissionDeniedError),
    (theirs.ModelUnavailableError, OverloadedError),
    (theirs.ModelServerError, ProviderServerError),
    (theirs.ModelTimeoutError, ProviderTimeoutError),
    (theirs.ModelRequestTimeout, ProviderTimeoutError),
    (theirs.ModelConnectionError, ProviderConnectionError),
    (theirs.ModelContextWindowExceededError, ContextLengthError),
    (theirs.ModelAuthenticationError, AuthenticationError),
    (theirs.ModelNotFoundError, ModelNotFoundError),
    (theirs.ModelRequestRejectedError, BadRequestError),
    (theirs.ModelAPIError, ProviderServerError),
    (theirs.ContentFilterError, ContentFilterError),
    (theirs.OutputTokenLimitExceeded, MalformedReplyError),
    (theirs.UnexpectedModelBehavior, MalformedReplyError),
    (theirs.ConcurrencyLimitExceeded, OverloadedError),
)
"""The first that fits. Errors with an HTTP status are classified as every adapter's are, by :func:`by_status`."""


def translate(error: Exception, *, begun: bool, endpoint: str) -> ProviderError | RuntimeSetupError:
    """What ``error`` means. ``begun``: the reply had started; ``endpoint`` names the API for people."""
    return error if isinstance(error, ProviderError | RuntimeSetupError) else _translate(error, begun, endpoint)


def _translate(error: Exception, begun: bool, endpoint: str) -> ProviderError:
    if isinstance(error, theirs.FallbackExceptionGroup):
        return _of_several(error, begun, endpoint)
    if isinstance(error, theirs.ModelHTTPError):
        return _http(error, endpoint)
    if begun and type(error) is theirs.ModelConnectionError:
        return TruncatedStreamError(f"{endpoint} broke the connection in the middle of the reply ({what(error)})")
    for kind, ours in _BY_CLASS:
        if isinstance(error, kind):
            wait = getattr(error, "retry_after", None) if ours.retryable else None
            return ours(f"{endpoint}: {what(error)}", retry_after=wait)
    if not isinstance(error, UnicodeEncodeError) and (found := transport_error(error, begun, endpoint)) is not None:
        return found  # before what follows: an SDK's parser raises ValueError
    if isinstance(error, ImportError):
        return BadRequestError(f"{endpoint}: {what(error)}", hint="Install the SDK that this pydantic-ai model needs.")
    if isinstance(error, theirs.UserError | theirs.AgentRunError | NotImplementedError | ValueError | TypeError):
        return BadRequestError(f"{endpoint}: pydantic-ai does not take the request ({what(error)})")
    unexpected = ProviderError(f"{endpoint}: unexpected {what(error)}")
    unexpected.retryable = True  # pydantic-ai reads the beginning of a reply before it gives the stream
    return unexpected


def _http(error: theirs.ModelHTTPError, endpoint: str) -> ProviderError:
    found = by_status(error.status_code, error.body, error.headers or {}, endpoint)
    if found.retryable and found.retry_after is None:
        found.retry_after = error.retry_after
    if isinstance(error, theirs.ModelContextWindowExceededError) and not isinstance(found, ContextLengthError):
        return ContextLengthError(found.message, status=error.status_code)
    if isinstance(error, theirs.ModelQuotaExceededError) and found.retryable:
        return PermissionDeniedError(found.message, status=error.status_code)
    return found


def _of_several(error: theirs.FallbackExceptionGroup, begun: bool, endpoint: str) -> ProviderError:
    """Of a pydantic-ai ``FallbackModel`` whose models all failed: the one that may pass, else the first."""
    found = [_translate(one, begun, endpoint) for one in error.exceptions if isinstance(one, Exception)]
    return next((one for one in found if one.retryable), found[0] if found else ProviderError(f"{endpoint}: {error}"))
