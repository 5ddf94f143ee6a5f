"""The official google-genai SDK, as this adapter uses it: we build the body, the SDK does the rest.

Addresses, authentication, connections, the event stream and errors are the SDK's. Its typed
``generate_content_stream()`` makes pydantic models of the whole transcript with every call, and of each chunk: 11, 44
and 87 ms of CPU at 20, 100 and 200 tool results of 4 KB. Its public way round (``extra_body``) costs 2.4, 4.3 and
5.5 ms and still loses what it does not know of a chunk. Below that is the client that both go through, which takes
bytes: 1.1, 1.0 and 1.5 ms. It is private, so perdure takes one major version of the SDK alone, and the tests of this
adapter are what says that a newer one still has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..errors import MalformedReplyError
from .endpoint import CONNECT_TIMEOUT

if TYPE_CHECKING:
    from aiohttp import ClientSession


class Connection:
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
        self._api: Any = self._sdk._api_client
        self._session: ClientSession | None = None

    async def post(self, model: str, body: bytes) -> Any:
        """The answer of ``model`` to ``body``, its stream not yet read. Raises what the SDK raises."""
        self._open()
        name = model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
        path = f"{quote(name, safe='/:@')}:streamGenerateContent?alt=sse"
        request = self._api._build_request("post", path, {}, None)
        request.headers["x-goog-api-key"] = self.api_key
        request.data = body
        async with asyncio.timeout(self._timeout):
            return await self._api._async_request(request, None, True)

    async def items(self, answer: Any, endpoint: str) -> AsyncGenerator[object, None]:
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

    def _open(self) -> None:
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
        self._api._http_options.aiohttp_client = self._session
