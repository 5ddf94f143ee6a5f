"""What an API's error answer means, whichever API it is: one table for all formats.

Each SDK has a thin ``<sdk>_errors.translate`` that takes its exceptions apart and asks here; what lies under the
SDKs is in ``transport``. The original is never chained: it holds the request, and with it the API key.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    ProviderError,
    ProviderServerError,
    ProviderTimeoutError,
    RateLimitError,
)
from .plain import array
from .retry_after import duration, retry_after

_CONTEXT = re.compile(
    r"context[ _](length|window|size|limit)|maximum context|(prompt|input) is too long|too many (input )?tokens"
    r"|reduce the length of the (messages|input|prompt)|request_too_large"
    r"|exceeds? the maximum number of (input )?tokens"
    r"|exceeds? the (model's |maximum |available )*(context|input)",
    re.IGNORECASE,
)
_FILTER = re.compile(
    r"content_filter|content_policy|responsible_?ai|moderation|prohibited_content|content filtering policy"
    r"|flagged as potentially violating|bio_policy|policy_violation",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(
    r"invalid_api_key|API_KEY_(INVALID|EXPIRED)|unregistered callers|UNAUTHENTICATED"
    r"|(api|authentication)[ _]key.{0,40}(invalid|not valid|incorrect|expired)",
    re.IGNORECASE,
)
_UNPAID = re.compile(
    r"insufficient_quota|billing_(hard_limit|error|not_active)|credit balance is too low|credits are depleted"
    r"|BILLING_DISABLED",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"exceeded your current quota", re.IGNORECASE)
"""OpenAI says so where nobody has paid, and Google also where a minute's requests are used up."""
_NO_QUOTA_AT_ALL = re.compile(r"quota exceeded.{0,200}\blimit: 0\b", re.IGNORECASE | re.DOTALL)
_NO_MODEL = re.compile(r"model_not_found|model .{0,80}(does not exist|not found)", re.IGNORECASE)
_WRONG_PLACE = re.compile(r"location is not supported|country.{0,40}not supported", re.IGNORECASE)
_NO_MEDIA = re.compile(r"support (image|audio|video|file)s? input", re.IGNORECASE)
"""OpenRouter answers 404 where no server of the model takes images."""
_ABOUT_REPLY = re.compile(r"output blocked", re.IGNORECASE)
"""Anthropic answers 400 also where its filter stopped the reply."""
_CONVERSATION = ("messages", "input", "contents")
"""Where requests have the conversation; everything else in them is the agent's."""
_IN_CONVERSATION = re.compile(r"\b(?:messages|input|contents)(?:\.\d|\.?\[\d)[\w.\[\]]*")
_AT_START = re.compile(r"([a-z_]+)[\w.\[\]]*: ")
_LONGEST = 600
"""Characters of an API's own message that we pass on."""

_BY_STATUS: dict[int, type[ProviderError]] = {
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
_BY_LABEL: dict[str, int] = {
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
_PAY = "The account has no quota left: check its plan and billing, then resume the run."


def shortened(text: str) -> str:
    """``text`` of an API or an SDK, as much of it as is passed on. The mark shows where a secret may have been cut."""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def by_status(
    status: int, body: object, headers: Mapping[str, str], endpoint: str, *, key_name: str = "the key"
) -> ProviderError:
    """The error of an HTTP answer of ``status`` (or of an error in the stream that amounts to it).

    ``body`` is the answer's JSON (or text), ``headers`` find names in lower case, ``endpoint`` names the API for
    people, ``key_name`` what has the key (``Endpoint.key_name``).
    """
    message, labels = _said(body)
    wait = _delay(body)
    cls, hint = _classify(status, f"{labels} {message}", key_name, may_wait=wait is not None)
    text = f"{endpoint} answered {status}" + (f" ({labels})" if labels else "") + (f": {message}" if message else "")
    if not cls.retryable:
        wait = None
    elif wait is None:
        wait = retry_after(headers, message)
    error = cls(text, hint=hint, retry_after=wait, status=status)
    error.place = _place(body, message)
    if cls is ContentFilterError and _ABOUT_REPLY.search(message):
        error.refused = frozenset()
    return error


def name_refused(error: ProviderError, body: bytes | None) -> ProviderError:
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
    if names[0] not in _CONVERSATION:
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
        error.refused = frozenset(_digests(at))
    return error


def _digests(value: object) -> Iterator[str]:
    """Of each text in ``value``, and of the bytes that are base64 in it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in ("type", "role"):
                yield from _digests(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _digests(inner)
    elif isinstance(value, str):
        yield hashlib.sha256(value.encode(errors="replace")).hexdigest()
        data = value.partition(";base64,")[2] if value.startswith("data:") else value
        with contextlib.suppress(ValueError):  # it is no base64
            yield hashlib.sha256(base64.b64decode(data, validate=True)).hexdigest()


def _place(body: object, message: str) -> str | None:
    """What of the request an error names: a place in the conversation before anything else."""
    inner = _inner(body)
    param = inner.get("param") if isinstance(inner, Mapping) else None
    violations = [violation for detail in _details(body) for violation in array(detail.get("fieldViolations"))]
    fields = [violation.get("field") for violation in violations if isinstance(violation, Mapping)]
    named = [text[:_LONGEST] for text in (param, *fields) if isinstance(text, str) and re.match(r"\W{0,9}\w", text)]
    for text in (*named, message):
        if found := _IN_CONVERSATION.search(text):
            return found[0]
    begins = _AT_START.match(message)
    return named[0] if named else begins[1] if begins else None


def in_stream(body: Any, message: str, endpoint: str, *, key_name: str = "the key") -> ProviderError:
    """The error of an error object in the stream, whose HTTP status was 200. ``message``: where ``body`` has none."""
    inner = _inner(body)
    if not isinstance(inner, Mapping):
        inner = {"message": inner if isinstance(inner, str) else message}
    status = 500
    for key in ("code", "status", "status_code", "type"):
        value = str(inner.get(key)).lower()
        known = int(value[:4]) if value.isdecimal() else _BY_LABEL.get(value, 400 if "image" in value else 0)
        if 400 <= known < 600:
            status = known
            break
    said = " ".join(_said(inner))
    if status == 500 and (_UNPAID.search(said) or _QUOTA.search(said)):
        status = 429
    elif status == 500 and (_CONTEXT.search(said) or _FILTER.search(said)):
        status = 400
    error = by_status(status, inner, {}, endpoint, key_name=key_name)
    error.message = error.message.replace(f"answered {status}", "broke off the reply with an error", 1)
    error.args = (error.message,)
    return error


def _classify(status: int, said: str, key_name: str, *, may_wait: bool) -> tuple[type[ProviderError], str | None]:
    if _UNPAID.search(said) and status in (400, 402, 403, 429):
        return PermissionDeniedError, _PAY  # a wait does not help: somebody has to pay
    if status == 429 and ((_QUOTA.search(said) and not may_wait) or _NO_QUOTA_AT_ALL.search(said)):
        return PermissionDeniedError, _PAY
    if status in (400, 413, 422):
        for pattern, cls in ((_CONTEXT, ContextLengthError), (_FILTER, ContentFilterError)):
            if pattern.search(said):
                return cls, None
    if status == 401 or (status in (400, 403) and _BAD_KEY.search(said)):
        return (
            AuthenticationError,
            f"The API key is wrong, or not for this endpoint. Check {key_name} and base_url.",
        )
    if status == 404 and _NO_MEDIA.search(said):
        return BadRequestError, None
    if status == 404 or (status == 400 and _NO_MODEL.search(said)):
        return ModelNotFoundError, "Check the model's name and base_url."
    if status == 400 and _WRONG_PLACE.search(said):
        return PermissionDeniedError, None
    if status in _BY_STATUS:
        return _BY_STATUS[status], None
    if status >= 500:
        return ProviderServerError, None
    if "'store' is enabled" in said:
        return BadRequestError, "OpenAI keeps metadata with stored completions only: provider_options={'store': True}."
    return BadRequestError, ("Check base_url." if status < 400 or status == 405 else None)


def _inner(body: object) -> object:
    """The error object of a body in any of the usual shapes."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]  # Google wraps its error in a list, in a stream
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping | str):
        body = body["error"]
    return body


def _said(body: object) -> tuple[str, str]:
    """Message, and code, type, status and reasons as one text, of an error body; nothing of one that is nested too deep
    to be shown."""
    try:
        return _read(body)
    except RecursionError:
        return "", ""


def _read(body: object) -> tuple[str, str]:
    inner = _inner(body)
    if not isinstance(inner, Mapping):
        text = inner if isinstance(inner, str) else ""
        return ("" if text.lstrip().startswith("<") else shortened(text)), ""
    message = inner.get("message") or inner.get("detail") or ""
    labels = [str(inner[key]) for key in ("code", "type", "status") if inner.get(key) not in (None, "")]
    labels.extend(str(detail["reason"]) for detail in _details(inner) if detail.get("reason"))
    text = message if isinstance(message, str) else json.dumps(message, default=str)
    return shortened(text), shortened(" ".join(labels))


def _details(body: object) -> Iterator[Mapping[str, Any]]:
    """The typed details of a Google error."""
    inner = _inner(body)
    details = inner.get("details") if isinstance(inner, Mapping) else None
    yield from (detail for detail in (details if isinstance(details, list) else ()) if isinstance(detail, Mapping))


def _delay(body: object) -> float | None:
    """Seconds of a Google error's ``retryDelay``."""
    for detail in _details(body):
        if isinstance(delay := detail.get("retryDelay"), str) and (wait := duration(delay)) is not None:
            return wait
    return None
