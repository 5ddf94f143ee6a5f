"""The official openai SDK, as both of its formats use it: we build the body and read the events.

Authentication, connections and errors are the SDK's. Its typed ``create()`` walks the whole transcript with every call,
and makes a pydantic model of each chunk; ``post(content=…, cast_to=object)`` does neither. Its event stream stands on
five generators, and leaves three of them to tasks that close them once the reply has been read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from ..errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    MalformedReplyError,
    ProviderConnectionError,
    ProviderError,
)
from .encoding import EventData, parse_answer
from .endpoint import CONNECT_TIMEOUT
from .errors import by_status, connection, in_stream, timed_out, transport_error, what

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient


# ---
# The translation of what the openai SDK raises into ``perdure.errors``, for both of its formats.


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


_REST = 0.1
"""Seconds that the body has to end behind the last event: then the connection may be used again."""


def new_client(key: str, base_url: str, timeout: float, headers: Mapping[str, str]) -> AsyncOpenAI:
    """A client that does not retry. Imports the SDK: call it in a thread."""
    from openai import AsyncOpenAI, Timeout

    return AsyncOpenAI(
        api_key=key,
        base_url=base_url,
        max_retries=0,
        timeout=Timeout(timeout, connect=min(CONNECT_TIMEOUT, timeout)),
        default_headers=headers,
        http_client=_http_client(),
    )


def _http_client() -> DefaultAsyncHttpxClient | None:
    """The SDK's aiohttp client, whose parser is not Python; its default where aiohttp is not installed."""
    from openai import DefaultAioHttpClient

    return DefaultAioHttpClient() if find_spec("aiohttp") is not None else None


async def post(client: AsyncOpenAI, path: str, body: bytes) -> AsyncStream[object]:
    """The stream of the answer, its items plain JSON values. Raises what the SDK raises."""
    from openai import AsyncStream

    return await client.post(
        path,
        cast_to=object,
        content=body,
        options={"security": {"bearer_auth": True}},
        stream=True,
        stream_cls=AsyncStream[object],
    )


async def items(stream: AsyncStream[object], endpoint: str) -> AsyncIterator[object]:
    """The stream's items; the one whole reply where the server ignored that a stream was asked for.

    Raises ``MalformedReplyError`` for a web page, and for JSON that cannot be read.
    """
    kind = cast("str", stream.response.headers.get("content-type", "")).partition(";")[0].strip().lower()
    if kind == "application/json":
        yield parse_answer(await stream.response.aread(), endpoint)
    elif kind == "text/html":
        raise MalformedReplyError(f"{endpoint} answered with a web page", hint="Check base_url: it often ends in /v1.")
    else:
        events, body = EventData(), stream.response.aiter_bytes()
        async for piece in body:
            for data in events.feed(piece):
                if data.startswith("[DONE]"):
                    await _read_to_end(body)
                    return
                yield parse_answer(data, endpoint)


async def _read_to_end(body: AsyncIterator[bytes]) -> None:
    """The reply is whole: whatever becomes of the connection now does not matter."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_REST):
            async for _ in body:
                pass
