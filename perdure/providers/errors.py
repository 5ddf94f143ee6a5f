"""What an API's error answer means, whichever API it is: one table for all formats.

Each SDK has a thin ``<sdk>_errors.translate`` that takes its exceptions apart and asks here; what lies under the
SDKs is in ``transport``. The original is never chained: it holds the request, and with it the API key.
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
from email.utils import parsedate_to_datetime
from typing import Any

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
    TruncatedStreamError,
)
from .json_values import read_array

# ---
# How long an API asks us to wait, from whichever of its headers says so.


_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)")
_WHOLE_DURATION = re.compile(rf"(?:{_DURATION.pattern.replace('?P<number>', '').replace('?P<unit>', '')})+")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WAIT_IN_MESSAGE = re.compile(r"(?:try again|retry) in (?P<wait>\d[\d.]*\s*(?:ms|s|m|h)[\d.mhs]*)")
_FIRST_TIMESTAMP = 1_000_000_000
"""A number of seconds above this is a moment, not a duration."""


def parse_duration(text: str) -> float | None:
    """Seconds of ``6m0s``, ``20ms``, ``1.5`` or ``1h2m``; None for anything else."""
    text = text.strip().rstrip(".")
    if _WHOLE_DURATION.fullmatch(text):
        found = sum(float(m["number"]) * _UNIT_SECONDS[m["unit"]] for m in _DURATION.finditer(text))
        return found if math.isfinite(found) else None
    return _parse_wait_number(text)


def _parse_wait_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _convert_to_wait(value: float | None, unit: float = 1.0) -> float | None:
    """``value`` as seconds from now, where APIs give a duration or a moment (seconds or milliseconds)."""
    if value is None:
        return None
    value *= unit
    if value > _FIRST_TIMESTAMP * 1000:
        value /= 1000
    return max(0.0, value - time.time()) if value > _FIRST_TIMESTAMP else value


def _parse_retry_after(text: str) -> float | None:
    """Seconds of the header: a duration, a moment, or several where proxies have added theirs (the longest)."""
    numbers = [_convert_to_wait(parse_duration(piece)) for piece in text.split(",")]
    if None not in numbers:
        return max(filter(None, numbers), default=0.0)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, ArithmeticError, LookupError):  # a year, a zone or a field out of range
        return None


def _read_rate_limit_reset(headers: Mapping[str, str]) -> float | None:
    """The longest reset among the limits that are used up; of all, where none says what remains."""
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
    """Seconds to wait. ``headers`` finds names in lower case; ``message`` may say "try again in 20ms"."""
    milliseconds = _parse_wait_number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    seconds = _parse_retry_after(headers.get("retry-after", ""))
    if seconds is not None:
        return seconds
    said = _WAIT_IN_MESSAGE.search(message)
    if said and (wait := parse_duration(said["wait"])) is not None:
        return wait
    return _read_rate_limit_reset(headers)


_CONTEXT_LENGTH_TEXT = re.compile(
    r"context[ _](length|window|size|limit)|maximum context|(prompt|input) is too long|too many (input )?tokens"
    r"|reduce the length of the (messages|input|prompt)|request_too_large"
    r"|exceeds? the maximum number of (input )?tokens"
    r"|exceeds? the (model's |maximum |available )*(context|input)",
    re.IGNORECASE,
)
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
"""OpenAI says so where nobody has paid, and Google also where a minute's requests are used up."""
_ZERO_QUOTA_TEXT = re.compile(r"quota exceeded.{0,200}\blimit: 0\b", re.IGNORECASE | re.DOTALL)
_UNKNOWN_MODEL_TEXT = re.compile(r"model_not_found|model .{0,80}(does not exist|not found)", re.IGNORECASE)
_UNSUPPORTED_LOCATION_TEXT = re.compile(r"location is not supported|country.{0,40}not supported", re.IGNORECASE)
_UNSUPPORTED_MEDIA_TEXT = re.compile(r"support (image|audio|video|file)s? input", re.IGNORECASE)
"""OpenRouter answers 404 where no server of the model takes images."""
_REPLY_BLOCKED_TEXT = re.compile(r"output blocked", re.IGNORECASE)
"""Anthropic answers 400 also where its filter stopped the reply."""
_CONVERSATION_FIELDS = ("messages", "input", "contents")
"""Where requests have the conversation; everything else in them is the agent's."""
_CONVERSATION_PATH = re.compile(r"\b(?:messages|input|contents)(?:\.\d|\.?\[\d)[\w.\[\]]*")
_LEADING_FIELD = re.compile(r"([a-z_]+)[\w.\[\]]*: ")
_MAX_API_TEXT = 600
"""Characters of an API's own message that we pass on."""

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
    503: OverloadedError,
    504: ProviderTimeoutError,
    529: OverloadedError,
}
_STATUS_BY_LABEL: dict[str, int] = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "resource_exhausted": 429,
    "tokens": 429,
    "requests": 429,
    "overloaded_error": 529,
    "unavailable": 503,
    "timeout_error": 504,
    "deadline_exceeded": 504,
    "billing_error": 402,
    "authentication_error": 401,
    "unauthenticated": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "permission_denied": 403,
    "not_found_error": 404,
    "not_found": 404,
    "request_too_large": 413,
    "invalid_request_error": 400,
    "invalid_argument": 400,
    "failed_precondition": 400,
    "badrequesterror": 400,
    "invalid_prompt": 400,
    "data_residency_mismatch": 400,
}
"""Status of an error that came inside the stream, by its code, type or status."""
_PAY_HINT = "The account has no quota left: check its plan and billing, then resume the run."


def truncate_api_text(text: str) -> str:
    """``text`` of an API or an SDK, as much of it as is passed on. The mark shows where a secret may have been cut."""
    return text if len(text) <= _MAX_API_TEXT else text[:_MAX_API_TEXT] + "…"


def build_status_error(
    status: int, body: object, headers: Mapping[str, str], endpoint: str, *, key_name: str = "the key"
) -> ProviderError:
    """The error of an HTTP answer of ``status`` (or of an error in the stream that amounts to it).

    ``body`` is the answer's JSON (or text), ``headers`` find names in lower case, ``endpoint`` names the API for
    people, ``key_name`` what has the key (``Endpoint.key_name``).
    """
    message, labels = _describe_error_body(body)
    wait = _read_retry_delay(body)
    cls, hint = _classify_status(status, f"{labels} {message}", key_name, may_wait=wait is not None)
    text = f"{endpoint} answered {status}" + (f" ({labels})" if labels else "") + (f": {message}" if message else "")
    if not cls.retryable:
        wait = None
    elif wait is None:
        wait = read_retry_after(headers, message)
    error = cls(text, hint=hint, retry_after=wait, status=status)
    error.place = _find_request_place(body, message)
    if cls is ContentFilterError and _REPLY_BLOCKED_TEXT.search(message):
        error.refused = frozenset()
    return error


def mark_refused_content(error: ProviderError, body: bytes | None) -> ProviderError:
    """``error`` itself, with what stands at its ``place`` in the request's ``body`` (``ProviderError.refused``).

    Found by what stands there and not by its index: formats merge messages, part them, and put prompts among them.
    """
    if error.place is None or body is None or error.refused is not None:
        return error
    try:
        at = json.loads(body)
    except (ValueError, RecursionError):
        return error
    names = re.findall(r"\w+", error.place)
    known = {name.replace("_", "").lower() for name in at}
    if names[0] not in _CONVERSATION_FIELDS:
        if names[0].replace("_", "").lower() in known:
            error.refused = frozenset()
        return error
    indexed = False
    for name in names:  # some are kinds of content, and no keys: ``image``, ``base64``
        if isinstance(at, list) and name.isdecimal():
            if int(name) >= len(at):
                return error
            at, indexed = at[int(name)], True
        elif isinstance(at, dict) and name in at:
            at = at[name]
    if indexed:
        error.refused = frozenset(_hash_refused_texts(at))
    return error


def _hash_refused_texts(value: object) -> Iterator[str]:
    """Of each text in ``value``, and of the bytes that are base64 in it."""
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
        with contextlib.suppress(ValueError):  # it is no base64
            yield hashlib.sha256(base64.b64decode(data, validate=True)).hexdigest()


def _find_request_place(body: object, message: str) -> str | None:
    """What of the request an error names: a place in the conversation before anything else."""
    inner = _get_error_object(body)
    param = inner.get("param") if isinstance(inner, Mapping) else None
    violations = [
        violation for detail in _list_error_details(body) for violation in read_array(detail.get("fieldViolations"))
    ]
    fields = [violation.get("field") for violation in violations if isinstance(violation, Mapping)]
    named = [
        text[:_MAX_API_TEXT] for text in (param, *fields) if isinstance(text, str) and re.match(r"\W{0,9}\w", text)
    ]
    for text in (*named, message):
        if found := _CONVERSATION_PATH.search(text):
            return found[0]
    begins = _LEADING_FIELD.match(message)
    return named[0] if named else begins[1] if begins else None


def build_stream_error(body: Any, message: str, endpoint: str, *, key_name: str = "the key") -> ProviderError:
    """The error of an error object in the stream, whose HTTP status was 200. ``message``: where ``body`` has none."""
    inner = _get_error_object(body)
    if not isinstance(inner, Mapping):
        inner = {"message": inner if isinstance(inner, str) else message}
    status = 500
    for key in ("code", "status", "status_code", "type"):
        value = str(inner.get(key)).lower()
        known = int(value[:4]) if value.isdecimal() else _STATUS_BY_LABEL.get(value, 400 if "image" in value else 0)
        if 400 <= known < 600:
            status = known
            break
    said = " ".join(_describe_error_body(inner))
    if status == 500 and (_UNPAID_TEXT.search(said) or _QUOTA_TEXT.search(said)):
        status = 429
    elif status == 500 and (_CONTEXT_LENGTH_TEXT.search(said) or _CONTENT_FILTER_TEXT.search(said)):
        status = 400
    error = build_status_error(status, inner, {}, endpoint, key_name=key_name)
    error.message = error.message.replace(f"answered {status}", "broke off the reply with an error", 1)
    error.args = (error.message,)
    return error


def _classify_status(
    status: int, said: str, key_name: str, *, may_wait: bool
) -> tuple[type[ProviderError], str | None]:
    if _UNPAID_TEXT.search(said) and status in (400, 402, 403, 429):
        return PermissionDeniedError, _PAY_HINT  # a wait does not help: somebody has to pay
    if status == 429 and ((_QUOTA_TEXT.search(said) and not may_wait) or _ZERO_QUOTA_TEXT.search(said)):
        return PermissionDeniedError, _PAY_HINT
    if status in (400, 413, 422):
        for pattern, cls in ((_CONTEXT_LENGTH_TEXT, ContextLengthError), (_CONTENT_FILTER_TEXT, ContentFilterError)):
            if pattern.search(said):
                return cls, None
    if status == 401 or (status in (400, 403) and _BAD_KEY_TEXT.search(said)):
        return (
            AuthenticationError,
            f"The API key is wrong, or not for this endpoint. Check {key_name} and base_url.",
        )
    if status == 404 and _UNSUPPORTED_MEDIA_TEXT.search(said):
        return BadRequestError, None
    if status == 404 or (status == 400 and _UNKNOWN_MODEL_TEXT.search(said)):
        return ModelNotFoundError, "Check the model's name and base_url."
    if status == 400 and _UNSUPPORTED_LOCATION_TEXT.search(said):
        return PermissionDeniedError, None
    if status in _ERROR_BY_STATUS:
        return _ERROR_BY_STATUS[status], None
    if status >= 500:
        return ProviderServerError, None
    if "'store' is enabled" in said:
        return BadRequestError, "OpenAI keeps metadata with stored completions only: provider_options={'store': True}."
    return BadRequestError, ("Check base_url." if status < 400 or status == 405 else None)


def _get_error_object(body: object) -> object:
    """The error object of a body in any of the usual shapes."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]  # Google wraps its error in a list, in a stream
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping | str):
        body = body["error"]
    return body


def _describe_error_body(body: object) -> tuple[str, str]:
    """Message, and code, type, status and reasons as one text, of an error body; nothing of one that is nested too deep
    to be shown."""
    try:
        return _read_error_body(body)
    except RecursionError:
        return "", ""


def _read_error_body(body: object) -> tuple[str, str]:
    inner = _get_error_object(body)
    if not isinstance(inner, Mapping):
        text = inner if isinstance(inner, str) else ""
        return ("" if text.lstrip().startswith("<") else truncate_api_text(text)), ""
    message = inner.get("message") or inner.get("detail") or ""
    labels = [str(inner[key]) for key in ("code", "type", "status") if inner.get(key) not in (None, "")]
    labels.extend(str(detail["reason"]) for detail in _list_error_details(inner) if detail.get("reason"))
    text = message if isinstance(message, str) else json.dumps(message, default=str)
    return truncate_api_text(text), truncate_api_text(" ".join(labels))


def _list_error_details(body: object) -> Iterator[Mapping[str, Any]]:
    """The typed details of a Google error."""
    inner = _get_error_object(body)
    details = inner.get("details") if isinstance(inner, Mapping) else None
    yield from (detail for detail in (details if isinstance(details, list) else ()) if isinstance(detail, Mapping))


def _read_retry_delay(body: object) -> float | None:
    """Seconds of a Google error's ``retryDelay``."""
    for detail in _list_error_details(body):
        if isinstance(delay := detail.get("retryDelay"), str) and (wait := parse_duration(delay)) is not None:
            return wait
    return None


# ---
# What the layers under the SDKs raise (httpx, httpx2, aiohttp, ssl, sockets), as ``perdure.errors``.
#
# The classes are known by name and package, so nothing is imported: an SDK brings its own layers, and another SDK
# others.


_TRANSPORT_PACKAGES = ("httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2", "anyio", "aiohttp")
"""httpx does not wrap all that the others raise below it."""
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
"""In what the JSON parser raises for a number of more digits than Python reads: a plain ValueError."""


def describe_error(error: BaseException) -> str:
    """The error's class and text, for people."""
    text = truncate_api_text(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def translate_transport_error(error: Exception, begun: bool, endpoint: str) -> ProviderError | None:
    """What an exception means that no SDK has wrapped; None for one that does not come from the layers below.

    ``begun``: the reply had started; ``endpoint`` names the API for people.
    """
    kinds = _list_transport_classes(error)
    response: Any = getattr(error, "response", None)
    if "HTTPStatusError" in kinds and response is not None:
        return build_status_error(response.status_code, None, response.headers, endpoint)
    if "ClientResponseError" in kinds and not kinds & {"ContentTypeError", "TooManyRedirects"}:
        status, headers = getattr(error, "status", 0), getattr(error, "headers", None)
        return build_status_error(status, None, headers if isinstance(headers, Mapping) else {}, endpoint)
    if isinstance(error, TimeoutError) or kinds & _TIMEOUT_CLASSES:
        return build_timeout_error(error, begun, endpoint)
    if isinstance(error, json.JSONDecodeError | UnicodeError | RecursionError) or _TOO_MANY_DIGITS in str(error):
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be read ({describe_error(error)})")
    return build_connection_error(error, begun, endpoint) if kinds or isinstance(error, OSError | EOFError) else None


def build_timeout_error(error: Exception, begun: bool, endpoint: str) -> ProviderError:
    """What an exception means that its SDK calls a timeout."""
    if (lost := _find_lost_connection(error)) is not None:
        return build_connection_error(lost, begun, endpoint)
    return ProviderTimeoutError(f"{endpoint} did not answer in time ({describe_error(error)})")


def build_connection_error(cause: BaseException, begun: bool, endpoint: str) -> ProviderError:
    """What became of the connection, by the exception that lies at the bottom of it."""
    kinds = _list_transport_classes(cause)
    if kinds & _UNSENDABLE_CLASSES:
        # The request cannot be sent as it stands: a bad base_url, or a key with a line break in it.
        return BadRequestError(
            f"The request to {endpoint} cannot be sent ({describe_error(cause)})",
            hint="Check base_url and the API key.",
        )
    if kinds & _DECODING_CLASSES:
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be decoded ({describe_error(cause)})")
    if "TooManyRedirects" in kinds:
        return BadRequestError(f"{endpoint} redirects without end", hint="Check base_url.")
    if begun:
        return TruncatedStreamError(
            f"{endpoint} broke the connection in the middle of the reply ({describe_error(cause)})"
        )
    hint = "Check base_url, the network and the proxy variables."
    if isinstance(cause, ssl.SSLError) or "CERTIFICATE" in str(cause).upper():
        hint = "The TLS certificate is not trusted here: SSL_CERT_FILE names a bundle with the right authority."
    return ProviderConnectionError(f"{endpoint} cannot be reached ({describe_error(cause)})", hint=hint)


def _list_transport_classes(error: BaseException) -> set[str]:
    """Names of its classes that belong to the layers below."""
    return {cls.__name__ for cls in type(error).__mro__ if cls.__module__.partition(".")[0] in _TRANSPORT_PACKAGES}


def _find_lost_connection(error: BaseException | None) -> BaseException | None:
    """The aiohttp error behind one that is called a timeout.

    The SDKs' aiohttp transport takes all that happens to a connection for one, also a refusal; the difference is
    whether the call may have been paid for.
    """
    while error is not None:
        if type(error).__module__.startswith("aiohttp.") and not isinstance(error, TimeoutError):
            return error
        error = error.__cause__
    return None
