"""What the wire formats of the fake model server share: what a reply says, how a request is refused, common checks."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from tests.servers.http import Request

CORRUPT, MISLABELLED = b"corrupt", b"mislabelled"
"""Ends of images that the fake APIs refuse: the first without saying which one it is, the other by its place."""

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; ``arguments`` as text go out as they are."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = ""
    """Empty: a fresh one. None: left out, as Gemini before 3 does."""
    signature: str | None = None
    """Of Google."""


@dataclass(slots=True)
class Reply:
    """What the fake model does with a request, in any format; a field that a format does not have is ignored there."""

    text: str = ""
    calls: Sequence[Call] = ()
    thinking: str | Sequence[str] = ""
    """Of Responses: the parts of the reasoning's summary."""
    ends: str = ""
    """``length`` or ``filtered``: the reply ends before its time."""
    opaque: bool = False
    """With ``thinking``: all that is opaque in the format too, as signatures, sealed thoughts and searches."""
    usage: Mapping[str, Any] | None = None
    """In the format's words; by default counted, four bytes a token."""
    finish_reason: str | None = None
    """In the format's words, instead of what follows from the rest."""
    content: Sequence[Any] | None = None
    """Blocks of Anthropic (or texts and calls) or items of Responses, instead of all the above, in this order."""
    refusal: str = ""
    reasons: bool = False
    """Of Responses: an item of reasoning also without a summary."""
    phase: str | None = None
    """Of Responses: of the message."""
    failed: Mapping[str, Any] | None = None
    """Of Responses: the error of ``response.failed``, in place of the end."""
    final_output: bool = True
    """Of Responses: give the output with the last event too; some servers leave it empty."""
    signature: str | None = None
    """Of Google: of the text, sent with an empty part at its end."""

    chunks: Sequence[Any] | None = None
    """Instead of all the above: JSON values of the stream, or bytes, which are sent as they are."""
    done: bool = True
    """Send what ends the stream."""
    delay: float = 0.0
    """Seconds before each piece."""
    hang: asyncio.Event | None = None
    """Wait for it before the answer begins."""
    hang_after: int = -1
    """With ``hang``: wait after this many pieces instead."""
    cut_after: int | None = None
    """Reset the connection after this many bytes of the body."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Mapping[str, Any] | Sequence[Any] | None = None
    """Instead of a reply: this, whole."""
    error: RefusedError | None = None
    """Instead of a reply: this, in the words of the format."""


class RefusedError(Exception):
    """An error of the API. ``kind`` is its type or, of Google, its status; by default what fits the format."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        *,
        status: int = 400,
        kind: str | None = None,
        details: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code
        self.status, self.kind, self.details = status, kind, details


def error(
    status: int,
    message: str,
    kind: str = "",
    *details: Mapping[str, Any],
    code: str | None = None,
    **headers: str,
) -> Reply:
    """An error as the API sends it; ``retry_after="2"`` becomes a header."""
    said = RefusedError(message, code=code, status=status, kind=kind, details=details)
    return Reply(status=status, error=said, headers={key.replace("_", "-"): value for key, value in headers.items()})


def as_reply(value: object) -> Reply:
    """A reply from what a rule may return: a ``Reply``, text, a ``Call``, a block, or a list of these."""
    if isinstance(value, Reply):
        return value
    items = list(value) if isinstance(value, list | tuple) else [value]
    if any(isinstance(item, dict) for item in items):
        return Reply(content=items)
    text = "".join(item for item in items if isinstance(item, str))
    return Reply(text, [item for item in items if isinstance(item, Call)])


class WireFormat:
    """One format of the server. It remembers what it said, to know it again when it comes back."""

    name: ClassVar[str]
    path: ClassVar[re.Pattern[str]]
    base: ClassVar[str] = ""
    """The path of the address that a provider takes."""
    ends: ClassVar[tuple[str, str]]
    """Its finish reasons of ``length`` and ``filtered``."""

    def authenticate(self, headers: Mapping[str, str], right: str | None) -> None:
        """Refuse a request without a key, and one with another key than ``right``."""
        raise NotImplementedError

    def parse(self, request: Request, model: str | None) -> dict[str, Any]:
        """The request's JSON, checked whole. ``model`` stands in the path or nowhere."""
        raise NotImplementedError

    def check_model(self, asked: dict[str, Any], known: set[str] | None, plain: set[str]) -> None:
        """Refuse a model that is not one of the ``known``; those that are ``plain`` do not reason."""

    def whole(self, reply: Reply, asked: dict[str, Any], size: int) -> dict[str, Any]:
        """A reply that is not streamed."""
        raise NotImplementedError

    def stream(self, reply: Reply, asked: dict[str, Any], size: int) -> Iterator[bytes]:
        """The pieces of a reply that is."""
        raise NotImplementedError

    def error_body(self, error: RefusedError) -> dict[str, Any]:
        """The body of an error."""
        raise NotImplementedError

    def finish_reason(self, reply: Reply, default: str) -> str:
        """The reply's finish reason."""
        early = dict(zip(("length", "filtered"), self.ends, strict=True))
        return reply.finish_reason or early.get(reply.ends, default)


def check(
    condition: object, message: str, param: str | None = None, code: str | None = "invalid_value", **more: Any
) -> None:
    """Refuse the request unless ``condition``."""
    if not condition:
        raise RefusedError(message, param, code, **more)


def check_bearer(headers: Mapping[str, str], right: str | None, missing: str, wrong: str, **more: Any) -> None:
    """Refuse another authorization than ``Bearer`` with the ``right`` key, and another body than JSON."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    check(scheme == "Bearer" and key, missing, code=None, status=401, **more)
    check(right in (None, key), wrong.format(key=key), code="invalid_api_key", status=401, **more)
    check_json(headers)


def check_json(headers: Mapping[str, str]) -> None:
    """Refuse another body than JSON."""
    kind = headers.get("content-type", "").partition(";")[0]
    check(kind == "application/json", "Unsupported content type: send application/json.", code=None)


def read_json(body: bytes, message: str) -> dict[str, Any]:
    """The JSON object of a request, without duplicate names and what is no JSON."""
    try:
        request = json.loads(body.decode("utf-8", "strict"), parse_constant=_no_constant, object_pairs_hook=_once)
    except ValueError as error:
        raise RefusedError(f"{message} {error}") from None
    check(isinstance(request, dict), "The body must be a JSON object.")
    return dict(request)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"Unexpected token: {name}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("Duplicate field")
    return dict(pairs)


def words(text: str) -> set[str]:
    """The words of ``text``."""
    return set(text.split())


def is_text(value: object) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def in_range(value: object, low: float, high: float) -> bool:
    """Whether it is a number from ``low`` to ``high``."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def is_object(text: object) -> bool:
    """Whether it is the JSON of an object."""
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def decoded(text: object) -> bytes:
    """The bytes of base64; none for anything else."""
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        return b""


def fresh(prefix: str) -> str:
    """A new id."""
    return f"{prefix}_{next(_ids):012x}"


def pieces(text: str) -> list[str]:
    """A text as it is streamed."""
    return re.findall(r"\S+\s*|\s+", text)


def slices(text: str) -> list[str]:
    """JSON as it is streamed."""
    return [text[at : at + 16] for at in range(0, len(text), 16)]


def written(reply: Reply) -> int:
    """Tokens of a reply."""
    return len(pieces(reply.text)) + sum(4 + len(str(call.arguments)) // 4 for call in reply.calls)


def sse(value: object, end: bytes = b"\n\n", *, named: bool = False) -> bytes:
    """One event of a stream; bytes are sent as they are."""
    if isinstance(value, bytes):
        return value
    head = f"event: {value.get('type') if isinstance(value, dict) else ''}\n".encode() if named else b""
    return head + b"data: " + json.dumps(value, separators=(",", ":")).encode() + end
