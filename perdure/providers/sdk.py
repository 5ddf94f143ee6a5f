"""The official SDKs of OpenAI and Anthropic, which one generator wrote: we build the body and read the events.

Authentication, connections and errors are the SDK's. Its typed ``create()`` walks the whole transcript with every call,
and makes a pydantic model of each event; ``post(content=…, cast_to=object)`` does neither. Its event stream stands on
five generators, and leaves three of them to tasks that close them once the reply has been read.

Even ``post()`` takes more CPU than sending does: it makes the same headers and the same address for each call.
``OpenAIConnection`` has OpenAI's SDK make them once. Anthropic's SDK is called each time: it opens a span for each
request, and sends its trace context.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, ClassVar

from ..errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    MalformedReplyError,
    ProviderConnectionError,
    ProviderError,
)
from ..ports.model import ModelRequest
from ..types.messages import OpaquePart, ThinkingPart, Usage
from .dialects import Concessions, Dialect, check_fields, find_dialect, get_dialect
from .encoding import parse_reply_json, strip_parameters
from .endpoint import CONNECT_TIMEOUT, Endpoint, EndpointCall, SilenceTimer
from .errors import (
    build_connection_error,
    build_status_error,
    build_stream_error,
    build_timeout_error,
    describe_error,
    translate_transport_error,
)
from .reply import read_count, read_object

_SDK_PACKAGES = ("openai", "anthropic")
_ERROR_BY_CLASS: dict[str, type[ProviderError]] = {
    "APIResponseValidationError": MalformedReplyError,
    "APIWebhookValidationError": BadRequestError,
    "ContentFilterFinishReasonError": ContentFilterError,
    "LengthFinishReasonError": MalformedReplyError,
    "WebSocketConnectionClosedError": ProviderConnectionError,
    "WebSocketQueueFullError": ProviderConnectionError,
    "RetryableError": ProviderConnectionError,
    "SubjectTokenProviderError": AuthenticationError,
    "CredentialsError": AuthenticationError,
    "InvalidWebhookSignatureError": BadRequestError,
    "OpenAIError": BadRequestError,
    "AnthropicError": BadRequestError,
}
"""Classes of the SDKs that have neither a status nor a body; most are raised by no call of ours today."""


def translate_error(
    error: Exception, *, reply_started: bool, endpoint: str, key_name: str = "the key"
) -> ProviderError:
    """Translates an exception of either SDK, or of the HTTP layers below it. The classes are known by their names."""
    sdk_error: Any = error
    for cls in type(error).__mro__:
        name = cls.__name__ if cls.__module__.partition(".")[0] in _SDK_PACKAGES else ""
        match name:
            case "APIStatusError" if sdk_error.status_code >= 300:
                headers = sdk_error.response.headers
                return build_status_error(sdk_error.status_code, sdk_error.body, headers, endpoint, key_name=key_name)
            case "APITimeoutError":
                return build_timeout_error(error, reply_started, endpoint)
            case "APIConnectionError":
                return build_connection_error(error.__cause__ or error, reply_started, endpoint)
            case "APIStatusError" | "APIError":  # an error event within the stream
                return build_stream_error(sdk_error.body, sdk_error.message, endpoint, key_name=key_name)
            case _ if name in _ERROR_BY_CLASS:
                return _ERROR_BY_CLASS[name](f"{endpoint}: {describe_error(error)}")
    return translate_transport_error(error, reply_started, endpoint) or ProviderError(
        f"{endpoint}: unexpected {describe_error(error)}"
    )


# ---
# Server-sent events, of a body that comes in pieces.
#
# https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation


_SSE_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventStreamParser:
    """Parses one event stream. Ids and retry times of events are ignored."""

    def __init__(self) -> None:
        self._line_start: list[bytes] = []  # pieces of a line that has not ended: joined once, at its end
        self._after_cr = False
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[tuple[str, str]]:
        """Name and data, either of which may be "", of the events that end in ``piece``.

        Raises ``UnicodeDecodeError`` for data.
        """
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        elif not piece:
            return
        self._after_cr = piece.endswith(b"\r")
        first, *more = _SSE_LINE_END.split(piece)
        self._line_start.append(first)
        if not more:
            return
        lines = [b"".join(self._line_start), *more[:-1]]
        self._line_start = [more[-1]]
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"event:"):
                self._name = line[6:].removeprefix(b" ")
            elif not line and (self._data or self._name):
                yield self._name.decode(errors="replace"), b"\n".join(self._data).decode()
                self._name, self._data = b"", []


_BODY_END_TIMEOUT = 0.1
"""Seconds for the body to end after the reply has: only then can the connection be used again."""


async def drain_stream(pieces: AsyncIterator[object], timeout: float = _BODY_END_TIMEOUT) -> None:
    """Read what follows a reply that is complete: whatever happens to the connection now does not matter."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(timeout):
            async for _ in pieces:
                pass


def list_used_fields(request: ModelRequest) -> list[str]:
    """The fields of a dialect that ``request`` makes use of."""
    used = ["streaming", "strict_roles", "cache_marks"]
    replies = [message for message in request.messages if message.role == "assistant"]
    if any(message.tool_calls for message in replies):
        used += ["short_call_ids", "call_signatures", "thinking"]
    if any(isinstance(part, ThinkingPart | OpaquePart) for message in replies for part in message.parts):
        used.append("thinking")
    if request.provider_options.get("stream_options", {}) is not None:
        used.append("stream_usage")
    if request.tool_choice:
        used.append("forced_tool")
    if request.settings.get("max_tokens") is not None:
        used.append("max_tokens_name")
    return used


class SDKEndpoint(Endpoint[Any]):
    """An adapter that calls its API through such an SDK; ``extra`` is the name of the package."""

    client_class: ClassVar[str]

    _translate_error = staticmethod(translate_error)
    _given_dialect: str | Dialect | None = None
    _given_fields: Mapping[str, Any] = MappingProxyType({})

    @property
    def dialect(self) -> Dialect:
        """How the server differs from others, as far as that is known before a request."""
        given = self._given_dialect
        if given is None:
            given = find_dialect(self.format, self.host)
        elif isinstance(given, str):
            given = get_dialect(self.format, given)
        return replace(given, **self._given_fields)

    @cached_property
    def _learned_dialects(self) -> dict[str, Dialect]:
        """The dialects of models whose refusals changed them."""
        return {}

    def _set_dialect(self, dialect: str | Dialect | None, **fields: object) -> None:
        """Take the author's dialect, and ``fields`` of it that are not None. Raises ``DefinitionError``."""
        self._given_fields = check_fields(self.format, type(self).__name__, dialect, fields)
        self._given_dialect = dialect

    async def _post_conceding(
        self, call: EndpointCall[Any], request: ModelRequest, send: Callable[[Dialect], Awaitable[Any]]
    ) -> tuple[Any, Dialect]:
        """The response of ``send``, and the dialect that the server took.

        A refusal that means another dialect is no error yet: the request is sent again as the server wants it, and
        once that has worked the model's requests are sent so from the beginning.
        """
        dialect = self._learned_dialects.get(request.model, self.dialect)
        concessions = Concessions(self.format, dialect, dialect)
        while True:
            try:
                response = await send(concessions.dialect)
            except Exception as error:
                refusal = error
                if not isinstance(error, ProviderError):
                    refusal = translate_error(error, reply_started=False, endpoint=self.host, key_name=self.key_name)
                if not concessions.concede(refusal, list_used_fields(request)):  # type: ignore[arg-type]  # a ProviderError by now
                    raise
            else:
                if concessions.lasting != dialect:
                    self._learned_dialects[request.model] = concessions.lasting
                return response, concessions.dialect

    def _create_sdk_client(self, key: str, http_client: Any) -> Any:
        sdk = import_module(self.extra)
        return getattr(sdk, self.client_class)(
            api_key=key,
            base_url=self.base_url,
            max_retries=0,
            # How long a read may take is limited below: aiohttp sets a timer for each piece of a stream.
            timeout=sdk.Timeout(self._timeout, connect=min(CONNECT_TIMEOUT, self._timeout), read=None),
            default_headers=self._headers,
            http_client=http_client,
        )

    def _create_http_client(self) -> Any:
        """The SDK's HTTP client: that on aiohttp, where it is installed, as the other parses responses in Python."""
        sdk = import_module(self.extra)
        return sdk.DefaultAioHttpClient() if find_spec("aiohttp") is not None else sdk.DefaultAsyncHttpxClient()

    async def _read_stream(self, response: Any, on_done: Callable[[], None] = lambda: None) -> AsyncIterator[object]:
        """The JSON values of the response's stream; the one whole reply of a server that does not stream. ``on_done``
        is called where the server says that they are all: with ``[DONE]``, or by a body that is not a stream.

        Raises ``MalformedReplyError`` for a web page, and for JSON that cannot be parsed; ``TimeoutError`` after a
        silence.
        """
        endpoint = self.host
        content_type = strip_parameters(response.headers.get("content-type", ""))
        if content_type == "application/json":
            async with asyncio.timeout(self._timeout):
                body = await response.aread()
            yield parse_reply_json(body, endpoint)
            on_done()
            return
        if content_type == "text/html":
            hint = f"Check base_url. The vendor's own is {self.official_url}."
            raise MalformedReplyError(f"{endpoint} answered with a web page", hint=hint)
        parser, pieces, silence = EventStreamParser(), response.aiter_bytes(), SilenceTimer(self._timeout)
        try:
            while True:
                with silence:
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                for name, data in parser.feed(piece):
                    if data.startswith("[DONE]"):
                        on_done()
                        await drain_stream(pieces)
                        return
                    for value in self._parse_event(name, data, endpoint):
                        yield value
        finally:
            silence.close()

    def _parse_event(self, name: str, data: str, endpoint: str) -> Sequence[object]:
        """The JSON value of a server-sent event; none if there is nothing to read."""
        # Some servers send events without data to keep the connection open.
        return (parse_reply_json(data, endpoint),) if data else ()


# ---
# OpenAI's two formats.


class _RequestTaken(BaseException):
    """Ends a call of the SDK in place of sending its ``request``. No ``Exception``: the SDK would make it its own."""

    def __init__(self, request: Any) -> None:
        self.request = request


async def _take_request(request: Any) -> None:
    """An event hook of an HTTP client that sends nothing."""
    raise _RequestTaken(request)


class OpenAIConnection:
    """The SDK, which makes one request for each key and path, and the HTTP client that sends copies of it."""

    _MAX_REQUESTS = 64

    def __init__(self, sdk_client: Any, http_client: Any) -> None:
        """``sdk_client`` has an HTTP client whose event hook is ``_take_request``."""
        self.api_key: str = sdk_client.api_key
        self._sdk_client = sdk_client
        self._http_client = http_client
        self._requests: dict[tuple[str, str], Any] = {}

    async def post(self, path: str, body: bytes | None) -> Any:
        """The response, its body not read yet. Raises what the SDK raises for a request that it cannot make, and what
        the HTTP client raises."""
        place = self.api_key, path
        original = self._requests.get(place)
        if original is None:
            original = await self._make_request(*place)
            if len(self._requests) >= self._MAX_REQUESTS:
                self._requests.clear()  # a key that was replaced does not come back
            self._requests[place] = original
        request = type(original)(
            original.method,
            original.url,
            headers=original.headers,
            cookies=self._http_client.cookies,
            content=body,
            extensions=original.extensions,
        )
        return await self._http_client.send(request, stream=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._sdk_client.close()
        await self._http_client.aclose()

    async def _make_request(self, key: str, path: str) -> Any:
        """The request that the SDK would send, without a body."""
        try:
            await self._sdk_client.with_options(api_key=key).post(
                path, cast_to=object, content=b"", options={"security": {"bearer_auth": True}}
            )
        except _RequestTaken as taken:
            taken.request.headers.pop("content-length", None)
            return taken.request
        raise AssertionError("an HTTP client that takes requests has sent one")


class OpenAIEndpoint(SDKEndpoint):
    """What the adapters of OpenAI's two formats have in common."""

    extra = "openai"
    client_class = "AsyncOpenAI"
    key_envs = ("OPENAI_API_KEY",)
    base_url_env = "OPENAI_BASE_URL"
    official_url = "https://api.openai.com/v1"
    official_hosts = ("openai.com",)
    secret_envs = ("OPENAI_CUSTOM_HEADERS",)

    def _create_client(self, key: str) -> OpenAIConnection:
        sdk = import_module(self.extra)
        taker = sdk.DefaultAsyncHttpxClient(event_hooks={"request": [_take_request]}, verify=False, trust_env=False)
        return OpenAIConnection(self._create_sdk_client(key, taker), self._create_http_client())

    async def _post_request(self, call: EndpointCall[Any], path: str) -> Any:
        """The HTTP client's response, its body not read yet. Raises ``ProviderError`` for an error of the API, and what
        the SDK and the HTTP client raise."""
        call.requests += 1
        async with asyncio.timeout(self._timeout):
            response = await call.client.post(path, call.body)
            if response.is_success:
                return response
            async with contextlib.aclosing(response):
                await response.aread()
        body = response.text.strip()
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(body)
        raise build_status_error(response.status_code, body, response.headers, self.host, key_name=self.key_name)


def read_openai_usage(usage: Mapping[str, Any], input_name: str, output_name: str) -> Usage:
    """Usage of chat completions (``prompt``, ``completion``) or Responses (``input``, ``output``)."""
    input_details = read_object(usage.get(f"{input_name}_tokens_details"))
    output_details = read_object(usage.get(f"{output_name}_tokens_details"))
    return Usage(
        input_tokens=read_count(usage, f"{input_name}_tokens"),
        output_tokens=read_count(usage, f"{output_name}_tokens"),
        cached_tokens=read_count(input_details, "cached_tokens") or read_count(usage, "prompt_cache_hit_tokens"),
        reasoning_tokens=read_count(output_details, "reasoning_tokens"),
        cache_write_tokens=read_count(input_details, "cache_write_tokens"),
    )
