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
from ..ports import ModelRequest, StreamEvent
from .endpoint import CONNECT_TIMEOUT, Endpoint
from .errors import build_status_error, describe_error, mark_refused_content, translate_transport_error
from .google_reply import GoogleReply
from .google_request import check_settings, encode_continuation, encode_request

if TYPE_CHECKING:
    from aiohttp import ClientSession


# ---
# The translation of what the google-genai SDK raises into ``perdure.errors``.


def translate_error(error: Exception, *, begun: bool, endpoint: str, key_name: str = "the key") -> ProviderError:
    """What ``error`` means. ``begun``: the reply had started; ``endpoint`` and ``key_name`` are for people."""
    from google.genai import errors  # imported with the first call, not with perdure

    if isinstance(error, errors.APIError):
        headers = getattr(error.response, "headers", None)
        status = error.code if isinstance(error.code, int) else 500
        known = headers if isinstance(headers, Mapping) else {}
        return build_status_error(status, _restore_error_body(error.details), known, endpoint, key_name=key_name)
    if isinstance(error, errors.UnknownApiResponseError):
        return MalformedReplyError(f"{endpoint} sent a reply that cannot be read ({describe_error(error)})")
    if isinstance(error, errors.ContinuationInterruptedError):
        return TruncatedStreamError(f"{endpoint} broke off the reply ({describe_error(error)})")
    return translate_transport_error(error, begun, endpoint) or _translate_rare_google_error(error, endpoint)


def _restore_error_body(details: object) -> object:
    """The answer's body. The SDK makes an object of one that is not JSON: its text is what came."""
    if isinstance(details, Mapping) and details.keys() == {"message", "status"}:
        return details["message"]
    return details


def _translate_rare_google_error(error: Exception, endpoint: str) -> ProviderError:
    """Exceptions of Google's packages that no call of ours raises today, and strangers."""
    kinds = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.startswith("google.")}
    if "EphemeralTokenAPIKeyError" in kinds:
        return AuthenticationError(f"{endpoint}: {describe_error(error)}")
    if "TransportError" in kinds:
        return ProviderConnectionError(f"{endpoint} cannot be reached ({describe_error(error)})")
    if "GoogleAuthError" in kinds:
        return AuthenticationError(f"{endpoint}: {describe_error(error)}")
    if kinds:
        return BadRequestError(f"{endpoint}: {describe_error(error)}")
    return ProviderError(f"{endpoint}: unexpected {describe_error(error)}")


# ---
# The official google-genai SDK, as this adapter uses it: we build the body, the SDK does the rest.
#
# Addresses, authentication, connections, the event stream and errors are the SDK's. Its typed
# ``generate_content_stream()`` makes pydantic models of the whole transcript with every call, and of each chunk: 11,
# 44
# and 87 ms of CPU at 20, 100 and 200 tool results of 4 KB. Its public way round (``extra_body``) costs 2.4, 4.3 and
# 5.5 ms and still loses what it does not know of a chunk. Below that is the client that both go through, which takes
# bytes: 1.1, 1.0 and 1.5 ms. It is private, so perdure takes one major version of the SDK alone, and the tests of
# this
# adapter are what says that a newer one still has it.


class GoogleConnection:
    """The SDK's client, and for its event loop the connections that it uses. ``api_key`` goes with each request."""

    def __init__(self, key: str, base_url: str, version: str, timeout: float, headers: Mapping[str, str]) -> None:
        """Imports the SDK, and reads certificates: make it in a thread."""
        from google.genai import Client
        from google.genai.types import HttpOptions, HttpRetryOptions

        options = HttpOptions(
            base_url=base_url,
            api_version=version,
            headers=dict(headers),
            # One attempt is said, not left to the default: without options the SDK waits some seconds after a lost
            # connection and tries again.
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
        response, segments = answer.response_stream, None
        try:
            kind = next((value for name, value in answer.headers.items() if name.lower() == "content-type"), "")
            if kind.partition(";")[0].strip().lower() == "text/html":
                hint = "Check base_url: it ends before the version, or with it (…/v1beta)."
                raise MalformedReplyError(f"{endpoint} answered with a web page", hint=hint)
            segments = answer.async_segments()
            while True:
                # The SDK knows only a limit for the whole reply, or none.
                async with asyncio.timeout(self._timeout):
                    item = await anext(segments, self)
                if item is self:
                    return
                yield item
        finally:
            if segments is not None:
                await segments.aclose()
            # Whoever stops listening hangs up, or the rest would be paid for.
            await response.aclose() if hasattr(response, "aclose") else response.close()

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()
        await self._sdk.aio.aclose()
        self._sdk.close()

    def _open_session(self) -> None:
        """Connections of our own, where aiohttp is installed: the SDK would then use it too, but without a limit for
        the time that a connection takes to open."""
        if self._session is not None or find_spec("aiohttp") is None:
            return
        import aiohttp

        limit = min(CONNECT_TIMEOUT, self._timeout)

        class Connector(aiohttp.TCPConnector):
            async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
                return await super().connect(req, traces, aiohttp.ClientTimeout(sock_connect=limit))

        self._session = aiohttp.ClientSession(connector=Connector(limit=0), trust_env=True, read_bufsize=1 << 18)
        self._api_client._http_options.aiohttp_client = self._session


__all__ = ["Google", "check_settings"]

_VERSIONED_URL = re.compile(r"(?P<base>.*)/(?P<version>v\d+(?:(?:alpha|beta)\d*)?)/*\Z")


class Google(Endpoint[GoogleConnection]):
    """The ``google`` provider.

    ``base_url`` is any endpoint of the Gemini API, with or without the version at its end; without one
    ``GOOGLE_GEMINI_BASE_URL`` or Google itself. The version is ``v1beta``, which has all that is sent here, unless
    ``base_url`` or ``GOOGLE_GENAI_API_VERSION`` names another. The key is ``api_key``, or read with each call from
    ``GEMINI_API_KEY`` or ``GOOGLE_API_KEY``. The rest is as :class:`Endpoint` says.
    """

    format = "google"
    extra = "google"
    key_envs = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    base_url_env = "GOOGLE_GEMINI_BASE_URL"
    official_url = "https://generativelanguage.googleapis.com"
    official_hosts = ("generativelanguage.googleapis.com",)

    def check_settings(self, settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """See :func:`check_settings`."""
        check_settings(settings, provider_options)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also where no key is set."""
        key, host, begun = self._read_key(), self.host, False
        body: bytes | None = None
        try:
            connection = await self._get_client(key)
            reply = GoogleReply(host, self.origin, key_name=self.key_name)
            first = body = encode_request(request, origin=self.origin)
            while True:
                answer = await connection.post_request(request.model, body)
                begun = True
                async with aclosing(connection.read_stream(answer, host)) as items:
                    async for chunk in items:
                        for event in reply.feed(chunk):
                            yield event
                # A long reply may reach the limit of one request, and says how to ask for the rest of it.
                token = reply.take_continuation_token()
                if token is None:
                    break
                body = encode_continuation(first, token)
            yield reply.complete()
        except Exception as error:
            raise mark_refused_content(self._build_provider_error(error, request, key, begun), body) from None

    def _translate_error(self, error: Exception, begun: bool) -> ProviderError:
        return translate_error(error, begun=begun, endpoint=self.host, key_name=self.key_name)

    def _create_client(self, key: str) -> GoogleConnection:
        base_url, version = self.base_url, os.environ.get("GOOGLE_GENAI_API_VERSION", "").strip()
        if (found := _VERSIONED_URL.match(base_url)) is not None:
            base_url, version = found["base"], found["version"]
        if version in ("", "beta"):  # "beta": as the SDK calls it
            version = "v1beta"
        return GoogleConnection(key, base_url, version, self._timeout, self._headers)
