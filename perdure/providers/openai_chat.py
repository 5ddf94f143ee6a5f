"""OpenAI's chat completions, and every endpoint that speaks them, through the official SDK.

We build the body, the SDK does the rest: authentication, connections, the event stream, errors. Its typed
``create()`` walks the whole transcript with every call, and makes a pydantic model of each chunk;
``post(content=…, cast_to=object)`` does neither.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from ..errors import AuthenticationError, MalformedReplyError, RuntimeSetupError
from ..ports import ModelRequest, StreamEvent
from .chat_reply import ChatReply, whole_reply
from .chat_request import RESERVED, encode_request, encode_settings
from .openai_errors import translate
from .settings import check_canonical, check_options

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient

_OWN_HOSTS = ("openai.com", "openai.azure.com")
_CONNECT_TIMEOUT = 10.0


def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
    """Whether chat completions have these ``settings``, and ``provider_options`` do not meet them.

    Needs no SDK, so an agent is checked where it is defined. Raises ``SettingsError``.
    """
    given = check_canonical("openai", settings)
    taken = dict.fromkeys(RESERVED, "perdure")
    for wire in ("max_tokens", "max_completion_tokens"):
        taken |= {key: f"settings[{key!r}]" for key in encode_settings(given, max_tokens_name=wire)}
    if "max_tokens" in given:
        taken["max_completion_tokens"] = "settings['max_tokens']"
    check_options("openai", provider_options, taken)


class OpenAIChat:
    """The ``openai`` provider.

    ``base_url`` is any compatible endpoint; without one ``OPENAI_BASE_URL`` or OpenAI itself. The key is
    ``api_key``, or read from the variable ``api_key_env`` with each call. ``timeout`` is how many seconds the
    API may be silent. ``max_tokens_name`` is the wire name of the setting ``max_tokens``: by default
    ``max_completion_tokens`` at OpenAI and Azure, whose newer models refuse the old name, and ``max_tokens``
    elsewhere, because most compatible servers know no other. ``headers`` are sent with every request.

    An instance may be used from several event loops; each gets an SDK client of its own with its first call.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        *,
        timeout: float = 600.0,
        max_tokens_name: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._api_key_env = api_key_env
        self._timeout = timeout
        self._max_tokens_name = max_tokens_name
        self._headers = dict(headers or {})
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = WeakKeyDictionary()

    def check_settings(self, settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """See :func:`check_settings`."""
        check_settings(settings, provider_options)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also where no key is set."""
        key = self._key()
        endpoint = self._base_url or "the model API"
        begun = False
        try:
            client = await self._client(key)
            endpoint = f"{client.base_url.host}"
            reply = ChatReply(endpoint)
            body = encode_request(request, max_tokens_name=self._max_tokens_wire(endpoint))
            async with await _post(client, body) as stream:
                begun = True
                async for chunk in _chunks(stream, endpoint):
                    for event in reply.feed(chunk):
                        yield event
            yield reply.complete()
        except Exception as error:
            raise translate(error, secret=key, begun=begun, endpoint=endpoint) from None

    async def aclose(self) -> None:
        """Give the connections back: those of this event loop; those of other loops end with their loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _key(self) -> str:
        key = (self._api_key or os.environ.get(self._api_key_env, "")).strip()
        if not key:
            raise AuthenticationError(
                f"No API key: {self._api_key_env} is not set.",
                hint="Set it, or pass OpenAIChat(api_key=…); a server that needs no key takes any text.",
            )
        if not (key.isascii() and key.isprintable()):
            raise AuthenticationError(
                f"The API key ({'api_key' if self._api_key else self._api_key_env}) has characters that no key has.",
                hint="Look for line breaks, blanks or typographic quotes that came along when it was copied.",
            )
        return key

    def _max_tokens_wire(self, host: str) -> str:
        own = any(host == name or host.endswith(f".{name}") for name in _OWN_HOSTS)
        return self._max_tokens_name or ("max_completion_tokens" if own else "max_tokens")

    async def _client(self, key: str) -> AsyncOpenAI:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            # The import takes about a second the first time: not on an event loop that has runs to serve.
            client = await asyncio.to_thread(self._new_client, key)
            client = self._clients.setdefault(loop, client)
        client.api_key = key
        return client

    def _new_client(self, key: str) -> AsyncOpenAI:
        try:
            from openai import AsyncOpenAI, Timeout
        except ModuleNotFoundError as error:
            raise missing_sdk(error.name) from None
        timeout = Timeout(self._timeout, connect=min(_CONNECT_TIMEOUT, self._timeout))
        return AsyncOpenAI(
            api_key=key,
            base_url=self._base_url,
            max_retries=0,
            timeout=timeout,
            default_headers=self._headers,
            http_client=_http_client(),
        )


def _http_client() -> DefaultAsyncHttpxClient | None:
    """The SDK's aiohttp client, whose parser is not Python; its default where aiohttp is not installed."""
    from openai import DefaultAioHttpClient

    return DefaultAioHttpClient() if find_spec("aiohttp") is not None else None


def missing_sdk(name: str | None = "openai") -> RuntimeSetupError:
    """The error for an SDK that is not installed."""
    return RuntimeSetupError(
        f"The provider 'openai' needs the package {name!r}, which is not installed.",
        hint="pip install 'perdure[openai]'",
    )


async def _post(client: AsyncOpenAI, body: bytes) -> AsyncStream[object]:
    from openai import AsyncStream

    return await client.post(
        "/chat/completions",
        cast_to=object,
        content=body,
        options={"security": {"bearer_auth": True}},
        stream=True,
        stream_cls=AsyncStream[object],
    )


async def _chunks(stream: AsyncStream[object], endpoint: str) -> AsyncIterator[object]:
    """The chunks of the reply; one whole reply where the server ignored that a stream was asked for."""
    kind = cast("str", stream.response.headers.get("content-type", "")).partition(";")[0].strip().lower()
    if kind == "application/json":
        yield whole_reply(await stream.response.aread())
    elif kind == "text/html":
        raise MalformedReplyError(f"{endpoint} answered with a web page", hint="Check base_url: it often ends in /v1.")
    else:
        async for chunk in stream:
            yield chunk
