"""Google's Gemini API (``generateContent``), and every endpoint that speaks it, through the official SDK."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..errors import (
    AuthenticationError,
    BadRequestError,
    MalformedReplyError,
    ProviderConnectionError,
    ProviderError,
    TruncatedStreamError,
)
from ..ports.model import ModelRequest, StreamEvent
from .encoding import strip_parameters
from .endpoint import CONNECT_TIMEOUT, Endpoint, SilenceTimer
from .errors import build_status_error, describe_error, translate_transport_error
from .google_reply import GoogleReply
from .google_request import check_settings, encode_continuation, encode_request

if TYPE_CHECKING:
    from aiohttp import ClientSession

_ERROR_BY_CLASS: dict[str, type[ProviderError]] = {
    "UnknownApiResponseError": MalformedReplyError,
    "ContinuationInterruptedError": TruncatedStreamError,
    "EphemeralTokenAPIKeyError": AuthenticationError,
    "TransportError": ProviderConnectionError,
    "GoogleAuthError": AuthenticationError,
}
"""Classes of Google's packages besides ``APIError``; most are raised by no call of ours today."""


def translate_error(
    error: Exception, *, reply_started: bool, endpoint: str, key_name: str = "the key"
) -> ProviderError:
    """Translates an exception of the google-genai SDK, or of the layers below it."""
    from google.genai import errors  # imported with the first call, not with perdure

    if isinstance(error, errors.APIError):
        headers = getattr(error.response, "headers", None)
        status = error.code if isinstance(error.code, int) else 500
        body: object = error.details
        if isinstance(body, Mapping) and body.keys() == {"message", "status"}:
            body = body["message"]  # the SDK's object for an answer that is not JSON: its text
        known_headers = headers if isinstance(headers, Mapping) else {}
        return build_status_error(status, body, known_headers, endpoint, key_name=key_name)
    class_names = [cls.__name__ for cls in type(error).__mro__ if cls.__module__.startswith("google.")]
    error_class = next((_ERROR_BY_CLASS[name] for name in class_names if name in _ERROR_BY_CLASS), None)
    if error_class is None and (transport_error := translate_transport_error(error, reply_started, endpoint)):
        return transport_error
    if class_names:
        return (error_class or BadRequestError)(f"{endpoint}: {describe_error(error)}")
    return ProviderError(f"{endpoint}: unexpected {describe_error(error)}")


# ---
# The official google-genai SDK: we build the body, the SDK does the rest.
#
# Addresses, authentication, connections, the event stream and errors are the SDK's. Its typed
# ``generate_content_stream()`` makes pydantic models of the whole transcript with every call, and of each chunk: 11,
# 44 and 87 ms of CPU at 20, 100 and 200 tool results of 4 KB. Its public alternative (``extra_body``) costs 2.4, 4.3
# and 5.5 ms and still loses unknown fields of a chunk. Below is the client that both use, which takes bytes: 1.1, 1.0
# and 1.5 ms. It is private, so perdure takes one major version of the SDK alone, and the tests of this adapter show
# whether a newer one still has it.


class GoogleConnection:
    """The SDK's client, and the connections that it uses in its event loop. ``api_key`` is sent with each request."""

    def __init__(self, key: str, base_url: str, version: str, timeout: float, headers: Mapping[str, str]) -> None:
        """Import the SDK, and read certificates: create it in a thread."""
        from google.genai import Client
        from google.genai.types import HttpOptions, HttpRetryOptions

        options = HttpOptions(
            base_url=base_url,
            api_version=version,
            headers=dict(headers),
            # One attempt, which is not the default: without options the SDK waits some seconds after a lost connection
            # and tries again.
            retry_options=HttpRetryOptions(attempts=1),
        )
        self.api_key = key
        self._timeout = timeout
        self._sdk = Client(vertexai=False, api_key=key, http_options=options)
        self._api_client: Any = self._sdk._api_client
        self._session: ClientSession | None = None

    async def post_request(self, model: str, body: bytes) -> Any:
        """The answer of ``model`` to ``body``, its stream not yet read. Raises what the SDK raises."""
        self._open_session()
        name = model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
        path = f"{quote(name, safe='/:@')}:streamGenerateContent?alt=sse"
        request = self._api_client._build_request("post", path, {}, None)
        request.headers["x-goog-api-key"] = self.api_key
        request.data = body
        async with asyncio.timeout(self._timeout):
            return await self._api_client._async_request(request, None, True)

    async def read_stream(self, answer: Any, endpoint: str) -> AsyncGenerator[object, None]:
        """The JSON values of the answer's stream. Raises ``MalformedReplyError`` for a web page, ``TimeoutError``
        after a silence, and what the SDK raises."""
        response, segments, silence = answer.response_stream, None, SilenceTimer(self._timeout)
        try:
            content_type = next((value for name, value in answer.headers.items() if name.lower() == "content-type"), "")
            if strip_parameters(content_type) == "text/html":
                hint = "Check base_url: it ends before the version, or with it (…/v1beta)."
                raise MalformedReplyError(f"{endpoint} answered with a web page", hint=hint)
            segments = answer.async_segments()
            while True:
                with silence:  # the SDK has only a limit for the whole reply
                    try:
                        item = await anext(segments, self)
                    except Exception as error:
                        if str(error).endswith(_DONE_ERROR):  # a gateway ends the stream as OpenAI does
                            return
                        raise
                if item is self:
                    return
                yield item
        finally:
            silence.close()
            if segments is not None:
                await segments.aclose()
            # A caller that stops reading must close the connection, or the rest would be paid for.
            await response.aclose() if hasattr(response, "aclose") else response.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
        await self._sdk.aio.aclose()
        self._sdk.close()

    def _open_session(self) -> None:
        """Use connections of our own, if aiohttp is installed: the SDK would use it too, but without a limit for the
        time that a connection takes to open."""
        if self._session is not None or find_spec("aiohttp") is None:
            return
        import aiohttp

        limit = min(CONNECT_TIMEOUT, self._timeout)

        class Connector(aiohttp.TCPConnector):
            async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
                return await super().connect(req, traces, aiohttp.ClientTimeout(sock_connect=limit))

        self._session = aiohttp.ClientSession(connector=Connector(limit=0), trust_env=True, read_bufsize=1 << 18)
        self._api_client._http_options.aiohttp_client = self._session


_DONE_ERROR = "Raw response: [DONE]"
"""End of the SDK's error for a stream's ``[DONE]``."""
_VERSIONED_URL = re.compile(r"(?P<base>.*)/(?P<version>v\d+(?:(?:alpha|beta)\d*)?)/*\Z")


class Google(Endpoint[GoogleConnection]):
    """The ``google`` provider.

    ``base_url`` is any endpoint of the Gemini API, with or without the version at its end; by default
    ``GOOGLE_GEMINI_BASE_URL`` or Google itself. The version is ``v1beta``, which has every field that perdure sends,
    unless ``base_url`` or ``GOOGLE_GENAI_API_VERSION`` names another. The key is ``api_key``, or read with each call
    from ``GEMINI_API_KEY`` or ``GOOGLE_API_KEY``. The rest is as in :class:`Endpoint`.
    """

    format = "google"
    extra = "google"
    key_envs = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    base_url_env = "GOOGLE_GEMINI_BASE_URL"
    official_url = "https://generativelanguage.googleapis.com"
    official_hosts = ("generativelanguage.googleapis.com",)

    check_settings = staticmethod(check_settings)
    _translate_error = staticmethod(translate_error)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also if no key is set."""
        async with self._open_call(request) as call:
            reply = GoogleReply(self.host, self.origin, self.key_name)
            tools = self.translate_tools(request.model, request.tools)
            first = call.body = encode_request(request, origin=self.origin)
            while True:
                call.requests += 1
                answer = await call.client.post_request(request.model, call.body)
                call.begin_reply(answer.headers.items())
                async with aclosing(call.client.read_stream(answer, self.host)) as items:
                    async for chunk in items:
                        for event in reply.feed(chunk):
                            yield tools.restore(event)
                # A long reply may reach the limit of one request, and gives a token for the rest.
                token = reply.take_continuation_token()
                if token is None:
                    break
                call.body = encode_continuation(first, token)
            yield tools.restore(call.finish(reply.complete()))

    def _create_client(self, key: str) -> GoogleConnection:
        base_url, version = self.base_url, os.environ.get("GOOGLE_GENAI_API_VERSION", "").strip()
        if (match := _VERSIONED_URL.match(base_url)) is not None:
            base_url, version = match["base"], match["version"]
        if version in ("", "beta"):  # "beta": as the SDK calls it
            version = "v1beta"
        return GoogleConnection(key, base_url, version, self._timeout, self._headers)
