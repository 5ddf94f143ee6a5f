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
from .encoding import EventStreamParser, parse_reply_json
from .endpoint import CONNECT_TIMEOUT
from .errors import (
    build_connection_error,
    build_status_error,
    build_stream_error,
    build_timeout_error,
    describe_error,
    translate_transport_error,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient


# ---
# The translation of what the openai SDK raises into ``perdure.errors``, for both of its formats.


def translate_error(error: Exception, *, begun: bool, endpoint: str, key_name: str = "the key") -> ProviderError:
    """What ``error`` means. ``begun``: the reply had started; ``endpoint`` and ``key_name`` are for people."""
    import openai  # imported with the first call, not with perdure

    if isinstance(error, openai.APIResponseValidationError):
        return MalformedReplyError(f"{endpoint} sent a reply of the wrong shape: {error.message}")
    if isinstance(error, openai.APIStatusError):
        return build_status_error(error.status_code, error.body, error.response.headers, endpoint, key_name=key_name)
    if isinstance(error, openai.APITimeoutError):
        return build_timeout_error(error, begun, endpoint)
    if isinstance(error, openai.APIConnectionError):
        return build_connection_error(error.__cause__ or error, begun, endpoint)
    if isinstance(error, openai.APIError):
        return build_stream_error(error.body, error.message, endpoint, key_name=key_name)
    if isinstance(error, openai.ContentFilterFinishReasonError):
        return ContentFilterError(f"{endpoint}: the content filter refused the reply")
    if isinstance(error, openai.LengthFinishReasonError):
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be read ({describe_error(error)})")
    return translate_transport_error(error, begun, endpoint) or _translate_rare_openai_error(error, endpoint)


def _translate_rare_openai_error(error: Exception, endpoint: str) -> ProviderError:
    """Exceptions of the SDK that no call of ours raises today, and strangers."""
    import openai  # see above

    if isinstance(error, openai.WebSocketConnectionClosedError | openai.WebSocketQueueFullError):
        return ProviderConnectionError(f"{endpoint}: {describe_error(error)}")
    if type(error).__name__ == "SubjectTokenProviderError":
        return AuthenticationError(f"{endpoint}: {describe_error(error)}")
    if isinstance(error, openai.OpenAIError | openai.InvalidWebhookSignatureError):
        return BadRequestError(f"{endpoint}: {describe_error(error)}")
    return ProviderError(f"{endpoint}: unexpected {describe_error(error)}")


_BODY_END_TIMEOUT = 0.1
"""Seconds that the body has to end behind the last event: then the connection may be used again."""


def create_client(key: str, base_url: str, timeout: float, headers: Mapping[str, str]) -> AsyncOpenAI:
    """A client that does not retry. Imports the SDK: call it in a thread."""
    from openai import AsyncOpenAI, Timeout

    return AsyncOpenAI(
        api_key=key,
        base_url=base_url,
        max_retries=0,
        timeout=Timeout(timeout, connect=min(CONNECT_TIMEOUT, timeout)),
        default_headers=headers,
        http_client=_build_openai_http_client(),
    )


def _build_openai_http_client() -> DefaultAsyncHttpxClient | None:
    """The SDK's aiohttp client, whose parser is not Python; its default where aiohttp is not installed."""
    from openai import DefaultAioHttpClient

    return DefaultAioHttpClient() if find_spec("aiohttp") is not None else None


async def post_request(client: AsyncOpenAI, path: str, body: bytes) -> AsyncStream[object]:
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


async def read_stream(stream: AsyncStream[object], endpoint: str) -> AsyncIterator[object]:
    """The stream's items; the one whole reply where the server ignored that a stream was asked for.

    Raises ``MalformedReplyError`` for a web page, and for JSON that cannot be read.
    """
    kind = cast("str", stream.response.headers.get("content-type", "")).partition(";")[0].strip().lower()
    if kind == "application/json":
        yield parse_reply_json(await stream.response.aread(), endpoint)
    elif kind == "text/html":
        raise MalformedReplyError(f"{endpoint} answered with a web page", hint="Check base_url: it often ends in /v1.")
    else:
        events, body = EventStreamParser(), stream.response.aiter_bytes()
        async for piece in body:
            for data in events.feed(piece):
                if data.startswith("[DONE]"):
                    await _drain_body(body)
                    return
                yield parse_reply_json(data, endpoint)


async def _drain_body(body: AsyncIterator[bytes]) -> None:
    """The reply is whole: whatever becomes of the connection now does not matter."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_BODY_END_TIMEOUT):
            async for _ in body:
                pass
