"""Classifies the errors of model APIs, with one table for all formats.

Each adapter has a ``translate_error`` that takes its SDK's exceptions apart and builds the error with these functions;
the last section translates exceptions of the HTTP layers below the SDKs. The original exception is never chained: it
holds the request, and with it the API key.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    MalformedReplyError,
    ModelNotFoundError,
    ModelSlipError,
    OverloadedError,
    PermissionDeniedError,
    ProviderConnectionError,
    ProviderError,
    ProviderServerError,
    ProviderTimeoutError,
    RateLimitError,
    TruncatedStreamError,
)
from .refusals import (
    REFUSING_STATUSES,
    get_error_object,
    is_model_slip,
    is_too_long,
    list_upstream_texts,
    read_error_message,
)
from .reply import find_request_id, read_array, read_object

# ---
# How long an API asks us to wait, in any of its headers.


_DURATION = re.compile(r"(?<!\d)(?P<number>\d++(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)")
_WHOLE_DURATION = re.compile(rf"(?:{_DURATION.pattern.replace('?P<number>', '').replace('?P<unit>', '')})+")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WAIT_IN_MESSAGE = re.compile(r"(?:try again|retry) in (?P<wait>\d[\d.]*\s*(?:ms|s|m|h)[\d.mhs]*)")
_FIRST_TIMESTAMP = 1_000_000_000
"""A number of seconds above this is a point in time, not a duration."""


def parse_duration(text: str) -> float | None:
    """Seconds of ``6m0s``, ``20ms``, ``1.5`` or ``1h2m``; None for anything else."""
    text = text.strip().rstrip(".")
    if _WHOLE_DURATION.fullmatch(text):
        seconds = sum(float(match["number"]) * _UNIT_SECONDS[match["unit"]] for match in _DURATION.finditer(text))
        return seconds if math.isfinite(seconds) else None
    return _parse_wait_number(text)


def _parse_wait_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _convert_to_wait(value: float | None) -> float | None:
    """``value``, a duration in seconds or a point in time in seconds or milliseconds, as seconds from now."""
    if value is None:
        return None
    if value > _FIRST_TIMESTAMP * 1000:
        value /= 1000
    return max(0.0, value - time.time()) if value > _FIRST_TIMESTAMP else value


def _parse_retry_after(text: str) -> float | None:
    """Seconds of the header: a duration, a point in time, or several if proxies have added theirs (the longest)."""
    numbers = [_convert_to_wait(parse_duration(piece)) for piece in text.split(",")]
    if None not in numbers:
        return max(filter(None, numbers), default=0.0)
    from email.utils import parsedate_to_datetime  # here: few replies have a date, and it loads ten modules

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, ArithmeticError, LookupError):  # a year, a zone or a field out of range
        return None


def _read_rate_limit_reset(headers: Mapping[str, str]) -> float | None:
    """The longest reset of the exhausted limits; of all limits, if none says what remains."""
    resets: list[float] = []
    exhausted: list[float] = []
    for name in ("-requests", "-tokens", ""):
        wait = _convert_to_wait(parse_duration(headers.get(f"x-ratelimit-reset{name}", "")))
        if wait is None:
            continue
        resets.append(wait)
        if headers.get(f"x-ratelimit-remaining{name}", "").strip() == "0":
            exhausted.append(wait)
    return max(exhausted or resets, default=None)


def read_retry_after(headers: Mapping[str, str], message: str = "") -> float | None:
    """Seconds to wait. ``headers`` has names in lower case; ``message`` may say "try again in 20ms"."""
    milliseconds = _parse_wait_number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    seconds = _parse_retry_after(headers.get("retry-after", ""))
    if seconds is not None:
        return seconds
    match = _WAIT_IN_MESSAGE.search(message)
    if match and (wait := parse_duration(match["wait"])) is not None:
        return wait
    return _read_rate_limit_reset(headers)


_CONTENT_FILTER_TEXT = re.compile(
    r"content_filter|content_policy|responsible_?ai|moderation|prohibited_content|content filtering policy"
    r"|flagged as potentially violating|bio_policy|policy_violation",
    re.IGNORECASE,
)
_BAD_KEY_TEXT = re.compile(
    r"invalid_api_key|API_KEY_(INVALID|EXPIRED)|unregistered callers|UNAUTHENTICATED"
    r"|(api|authentication)[ _]key.{0,40}(invalid|not valid|incorrect|expired)",
    re.IGNORECASE,
)
_UNPAID_TEXT = re.compile(
    r"insufficient_quota|billing_(hard_limit|error|not_active)|credit balance is too low|credits are depleted"
    r"|BILLING_DISABLED",
    re.IGNORECASE,
)
_QUOTA_TEXT = re.compile(r"exceeded your current quota", re.IGNORECASE)
"""OpenAI says this for an unpaid account, and Google also when a minute's requests are used up."""
_ZERO_QUOTA_TEXT = re.compile(r"quota exceeded.{0,200}\blimit: 0\b", re.IGNORECASE | re.DOTALL)
_UNKNOWN_MODEL_TEXT = re.compile(r"model_not_found|model .{0,80}(does not exist|not found)", re.IGNORECASE)
_UNSUPPORTED_LOCATION_TEXT = re.compile(r"location is not supported|country.{0,40}not supported", re.IGNORECASE)
_UNSUPPORTED_MEDIA_TEXT = re.compile(r"support (image|audio|video|file)s? input", re.IGNORECASE)
"""OpenRouter answers 404 if no server of the model takes images."""
_REPLY_BLOCKED_TEXT = re.compile(r"output blocked", re.IGNORECASE)
"""Anthropic answers 400 also when its filter stopped the reply."""
_CONVERSATION_FIELDS = ("messages", "input", "contents")
"""The field of a request that has the conversation; all others are the agent's."""
_CONVERSATION_PATH = re.compile(r"\b(?:messages|input|contents)(?:\.\d|\.?\[\d)[\w.\[\]]*")
_LEADING_FIELD = re.compile(r"([a-z_]++)[\w.\[\]]*+: ")
_MAX_API_TEXT = 600
"""Characters that an error quotes of an API's message."""
_MAX_READ_TEXT = 4_000
"""Characters of an API's message that are searched for its reasons."""

_ERROR_BY_STATUS: dict[int, type[ProviderError]] = {
    401: AuthenticationError,
    402: PermissionDeniedError,
    403: PermissionDeniedError,
    404: ModelNotFoundError,
    408: ProviderTimeoutError,
    409: ProviderServerError,  # a lock that timed out on their side: the SDKs retry it too
    413: ContextLengthError,
    425: OverloadedError,
    429: RateLimitError,
    499: ProviderServerError,  # cancelled on their side
    503: OverloadedError,
    504: ProviderTimeoutError,
    529: OverloadedError,
}
_LABELS_BY_STATUS = {
    400: "invalid_request_error invalid_argument failed_precondition badrequesterror invalid_prompt"
    " data_residency_mismatch",
    401: "authentication_error unauthenticated invalid_api_key",
    402: "billing_error",
    403: "permission_error permission_denied",
    404: "not_found_error not_found",
    413: "request_too_large",
    429: "rate_limit_exceeded rate_limit_error resource_exhausted tokens requests",
    503: "unavailable",
    504: "timeout_error deadline_exceeded",
    529: "overloaded_error",
}
_STATUS_BY_LABEL = {label: status for status, labels in _LABELS_BY_STATUS.items() for label in labels.split()}
"""Status of an error in the stream, by its code, type or status."""
_PAY_HINT = "The account has no quota left: check its plan and billing, then resume the run."


def truncate_api_text(text: str, limit: int = _MAX_API_TEXT) -> str:
    """The part of an API's or SDK's ``text`` that an error quotes. The mark shows where a secret may have been cut."""
    return text if len(text) <= limit else text[:limit] + "…"


def build_status_error(
    status: int,
    body: object,
    headers: Mapping[str, str],
    endpoint: str,
    *,
    key_name: str = "the key",
    in_stream: bool = False,
) -> ProviderError:
    """Builds the error of an HTTP answer of ``status``, or of an error ``in_stream`` that amounts to it.

    ``body`` is the answer's JSON (or text); ``headers`` has names in lower case; ``endpoint`` names the API and
    ``key_name`` the source of the key (``Endpoint.key_name``) in the error's text.
    """
    own_message, message, labels = _describe_error_body(body)
    wait = _read_retry_delay(body)
    cls, hint = _classify_status(status, f"{labels} {message}", key_name, may_wait=wait is not None)
    message = truncate_api_text(message)
    text = f"{endpoint} {'broke off the reply with an error' if in_stream else f'answered {status}'}"
    text += (f" ({labels})" if labels else "") + (f": {message}" if message else "")
    if (request_id := find_request_id(headers)) is not None and request_id not in text:
        text += f" (request {request_id})"
    if not cls.retryable:
        wait = None
    elif wait is None:
        wait = read_retry_after(headers, message)
    error = cls(text, hint=hint, retry_after=wait, status=status)
    error.place = _find_request_place(body, own_message)
    if cls is ContentFilterError and _REPLY_BLOCKED_TEXT.search(message):
        error.refused = frozenset()
    return error


def mark_refused_content(error: ProviderError, body: bytes | None) -> ProviderError:
    """Sets ``ProviderError.refused`` to the content at the error's ``place`` in the request's ``body``; returns it.

    Content is marked by its hash and not by its index: formats merge messages, split them, and put prompts among them.
    """
    if error.place is None or body is None or error.refused is not None:
        return error
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return error
    names = re.findall(r"\w+", error.place)
    fields = {name.replace("_", "").lower() for name in value}
    if names[0] not in _CONVERSATION_FIELDS:
        if names[0].replace("_", "").lower() in fields:
            error.refused = frozenset()
        return error
    indexed = False
    for name in names:  # some are types of content instead of keys: ``image``, ``base64``
        if isinstance(value, list) and name.isdecimal():
            if int(name) >= len(value):
                return error
            value, indexed = value[int(name)], True
        elif isinstance(value, dict) and name in value:
            value = value[name]
    if indexed:
        error.refused = frozenset(_hash_refused_texts(value))
    return error


def _hash_refused_texts(value: object) -> Iterator[str]:
    """The hash of each text in ``value``, and of the bytes of each base64 text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in ("type", "role"):
                yield from _hash_refused_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _hash_refused_texts(inner)
    elif isinstance(value, str):
        yield hashlib.sha256(value.encode(errors="replace")).hexdigest()
        data = value.partition(";base64,")[2] if value.startswith("data:") else value
        with contextlib.suppress(ValueError):  # not base64
            yield hashlib.sha256(base64.b64decode(data, validate=True)).hexdigest()


def _find_request_place(body: object, message: str) -> str | None:
    """The place in the request that an error names: one in the conversation before any other."""
    violations = [
        violation for detail in _list_error_details(body) for violation in read_array(detail.get("fieldViolations"))
    ]
    named = [
        read_object(get_error_object(body)).get("param"),
        *(read_object(each).get("field") for each in violations),
    ]
    places = [text[:_MAX_API_TEXT] for text in named if isinstance(text, str) and re.match(r"\W{0,9}\w", text)]
    for text in (*places, message):
        if match := _CONVERSATION_PATH.search(text):
            return match[0]
    field = _LEADING_FIELD.match(message)
    return places[0] if places else field[1] if field else None


def build_stream_error(body: Any, message: str, endpoint: str, *, key_name: str = "the key") -> ProviderError:
    """Builds the error of an error object in a stream whose HTTP status was 200. ``message``: if ``body`` has none."""
    inner = get_error_object(body)
    if not isinstance(inner, Mapping):
        inner = {"message": inner if isinstance(inner, str) else message}
    status = 500
    for key in ("code", "status", "status_code", "type"):
        value = str(inner.get(key)).lower()
        known = int(value[:4]) if value.isdecimal() else _STATUS_BY_LABEL.get(value, 400 if "image" in value else 0)
        if 400 <= known < 600:
            status = known
            break
    text = " ".join(_describe_error_body(inner)[1:])
    if status == 500 and (_UNPAID_TEXT.search(text) or _QUOTA_TEXT.search(text)):
        status = 429
    elif status == 500 and (is_too_long(400, text) or is_model_slip(400, text) or _CONTENT_FILTER_TEXT.search(text)):
        status = 400
    return build_status_error(status, inner, {}, endpoint, key_name=key_name, in_stream=True)


def _classify_status(
    status: int, text: str, key_name: str, *, may_wait: bool
) -> tuple[type[ProviderError], str | None]:
    """The class of an error and its hint."""
    if _UNPAID_TEXT.search(text) and status in (400, 402, 403, 429):
        return PermissionDeniedError, _PAY_HINT  # waiting does not help, paying does
    if status == 429 and ((_QUOTA_TEXT.search(text) and not may_wait) or _ZERO_QUOTA_TEXT.search(text)):
        return PermissionDeniedError, _PAY_HINT
    if is_model_slip(status, text):
        return ModelSlipError, None  # the request is right: another attempt often succeeds
    if is_too_long(status, text):
        return ContextLengthError, None
    if status in REFUSING_STATUSES and _CONTENT_FILTER_TEXT.search(text):
        return ContentFilterError, None
    if status == 401 or (status in (400, 403) and _BAD_KEY_TEXT.search(text)):
        return AuthenticationError, f"The API key is wrong, or not for this endpoint. Check {key_name} and base_url."
    if status == 404 and _UNSUPPORTED_MEDIA_TEXT.search(text):
        return BadRequestError, None
    if status == 404 or (status == 400 and _UNKNOWN_MODEL_TEXT.search(text)):
        return ModelNotFoundError, "Check the model's name and base_url."
    if status == 400 and _UNSUPPORTED_LOCATION_TEXT.search(text):
        return PermissionDeniedError, None
    if status in _ERROR_BY_STATUS:
        return _ERROR_BY_STATUS[status], None
    if status >= 500:
        return ProviderServerError, None
    if "'store' is enabled" in text:
        return BadRequestError, "OpenAI keeps metadata with stored completions only: provider_options={'store': True}."
    return BadRequestError, ("Check base_url." if status < 400 or status == 405 else None)


def _describe_error_body(body: object) -> tuple[str, str, str]:
    """The message of an error body; the same with what servers behind it said; its code, type, status and reasons."""
    inner = get_error_object(body)
    if not isinstance(inner, Mapping):
        text = inner if isinstance(inner, str) else ""
        text = "" if text.lstrip().startswith("<") else text[:_MAX_READ_TEXT]
        return text, text, ""
    try:
        labels = [str(inner[key]) for key in ("code", "type", "status") if inner.get(key) not in (None, "")]
        labels.extend(str(detail["reason"]) for detail in _list_error_details(inner) if detail.get("reason"))
        own_message = read_error_message(inner)[:_MAX_READ_TEXT]
    except RecursionError:  # nested too deep to be shown
        return "", "", ""
    texts = [own_message, *list_upstream_texts(inner, own_message)]
    return own_message, ": ".join(filter(None, texts))[:_MAX_READ_TEXT], truncate_api_text(" ".join(labels))


def _list_error_details(body: object) -> Iterator[Mapping[str, Any]]:
    """The typed details of a Google error."""
    details = read_array(read_object(get_error_object(body)).get("details"))
    return (detail for detail in details if isinstance(detail, Mapping))


def _read_retry_delay(body: object) -> float | None:
    """Seconds of a Google error's ``retryDelay``."""
    delays = (detail.get("retryDelay") for detail in _list_error_details(body))
    waits = (parse_duration(delay) for delay in delays if isinstance(delay, str))
    return next((wait for wait in waits if wait is not None), None)


# ---
# Translates exceptions of the layers below the SDKs (httpx, httpx2, aiohttp, ssl, sockets).
#
# The classes are recognized by name and package, so nothing is imported: each SDK has layers of its own.


_TRANSPORT_PACKAGES = ("httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2", "anyio", "aiohttp")
"""httpx does not wrap every exception of the layers below it."""
_TIMEOUT_CLASSES = {"TimeoutException", "ServerTimeoutError", "PoolTimeout"}
_UNSENDABLE_CLASSES = {
    "UnsupportedProtocol",
    "InvalidURL",
    "LocalProtocolError",
    "CookieConflict",
    "NonHttpUrlClientError",
}
_DECODING_CLASSES = {"DecodingError", "ContentTypeError", "ContentEncodingError", "DecompressSizeError"}
_TOO_MANY_DIGITS = "for integer string conversion"
"""The JSON parser raises a plain ValueError with this text for a number of more digits than Python parses."""


def describe_error(error: BaseException) -> str:
    """The error's class and text, for messages."""
    text = truncate_api_text(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def translate_transport_error(error: Exception, reply_started: bool, endpoint: str) -> ProviderError | None:
    """Translates an exception that no SDK has wrapped; None for one that is not of the layers below the SDKs."""
    class_names = _list_transport_classes(error)
    response: Any = getattr(error, "response", None)
    if "HTTPStatusError" in class_names and response is not None:
        return build_status_error(response.status_code, None, response.headers, endpoint)
    if "ClientResponseError" in class_names and not class_names & {"ContentTypeError", "TooManyRedirects"}:
        status, headers = getattr(error, "status", 0), getattr(error, "headers", None)
        return build_status_error(status, None, headers if isinstance(headers, Mapping) else {}, endpoint)
    if isinstance(error, TimeoutError) or class_names & _TIMEOUT_CLASSES:
        return build_timeout_error(error, reply_started, endpoint)
    if isinstance(error, json.JSONDecodeError | UnicodeError | RecursionError) or _TOO_MANY_DIGITS in str(error):
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be read ({describe_error(error)})")
    if class_names or isinstance(error, OSError | EOFError):
        return build_connection_error(error, reply_started, endpoint)
    return None


def build_timeout_error(error: Exception, reply_started: bool, endpoint: str) -> ProviderError:
    """Builds the error of an exception that its SDK calls a timeout."""
    if (lost := _find_lost_connection(error)) is not None:
        return build_connection_error(lost, reply_started, endpoint)
    return ProviderTimeoutError(f"{endpoint} did not answer in time ({describe_error(error)})")


def build_connection_error(cause: BaseException, reply_started: bool, endpoint: str) -> ProviderError:
    """Builds the error of a lost or refused connection. ``cause`` is the exception of the lowest layer."""
    class_names = _list_transport_classes(cause)
    if class_names & _UNSENDABLE_CLASSES:
        # A bad base_url, or a key with a line break in it.
        return BadRequestError(
            f"The request to {endpoint} cannot be sent ({describe_error(cause)})",
            hint="Check base_url and the API key.",
        )
    if class_names & _DECODING_CLASSES:
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be decoded ({describe_error(cause)})")
    if "TooManyRedirects" in class_names:
        return BadRequestError(f"{endpoint} redirects endlessly", hint="Check base_url.")
    if reply_started:
        return TruncatedStreamError(
            f"{endpoint} broke the connection in the middle of the reply ({describe_error(cause)})"
        )
    hint = "Check base_url, the network and the proxy variables."
    if isinstance(cause, ssl.SSLError) or "CERTIFICATE" in str(cause).upper():
        hint = "The TLS certificate is not trusted: set SSL_CERT_FILE to a bundle with its certificate authority."
    return ProviderConnectionError(f"{endpoint} cannot be reached ({describe_error(cause)})", hint=hint)


def _list_transport_classes(error: BaseException) -> set[str]:
    """Names of the error's classes that belong to the layers below the SDKs."""
    return {cls.__name__ for cls in type(error).__mro__ if cls.__module__.partition(".")[0] in _TRANSPORT_PACKAGES}


def _find_lost_connection(error: BaseException | None) -> BaseException | None:
    """The aiohttp error behind an apparent timeout.

    The SDKs' aiohttp transport reports every error of a connection as a timeout, also a refusal; the difference is
    whether the call may have been paid for.
    """
    while error is not None:
        if type(error).__module__.startswith("aiohttp.") and not isinstance(error, TimeoutError):
            return error
        error = error.__cause__
    return None
