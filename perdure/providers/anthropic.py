"""Anthropic's Messages API, and every endpoint that speaks it, through the official SDK.

We build the body, the SDK does the rest: authentication, connections, the event stream, errors. Its typed
``create()`` walks the whole transcript with every call, and makes a pydantic model of each event;
``post(content=…, cast_to=object)`` does neither.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from ..errors import (
    AuthenticationError,
    BadRequestError,
    MalformedReplyError,
    ProviderConnectionError,
    ProviderError,
    SettingsError,
)
from ..ports import ModelRequest, StreamEvent
from .anthropic_reply import AnthropicReply
from .anthropic_request import RESERVED_OPTIONS, EncodedRequest, encode_request, encode_settings
from .encoding import parse_reply_json
from .endpoint import CONNECT_TIMEOUT, Endpoint
from .errors import (
    build_connection_error,
    build_status_error,
    build_stream_error,
    build_timeout_error,
    describe_error,
    mark_refused_content,
    translate_transport_error,
)
from .settings import check_canonical_settings, check_provider_options

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream, DefaultAsyncHttpxClient


# ---
# The translation of what the anthropic SDK raises into ``perdure.errors``.


def translate_error(error: Exception, *, begun: bool, endpoint: str, key_name: str = "the key") -> ProviderError:
    """What ``error`` means. ``begun``: the reply had started; ``endpoint`` and ``key_name`` are for people."""
    import anthropic  # imported with the first call, not with perdure

    if isinstance(error, anthropic.APIResponseValidationError):
        return MalformedReplyError(f"{endpoint} sent a reply of the wrong shape: {error.message}")
    if isinstance(error, anthropic.APIStatusError):
        if error.status_code < 300:
            # An error event in the stream comes as one with the status of the stream.
            return build_stream_error(error.body, error.message, endpoint, key_name=key_name)
        return build_status_error(error.status_code, error.body, error.response.headers, endpoint, key_name=key_name)
    if isinstance(error, anthropic.APITimeoutError):
        return build_timeout_error(error, begun, endpoint)
    if isinstance(error, anthropic.APIConnectionError):
        return build_connection_error(error.__cause__ or error, begun, endpoint)
    if isinstance(error, anthropic.APIError) and not isinstance(error, anthropic.APIWebhookValidationError):
        return build_stream_error(error.body, error.message, endpoint, key_name=key_name)
    return translate_transport_error(error, begun, endpoint) or _translate_rare_anthropic_error(error, endpoint)


def _translate_rare_anthropic_error(error: Exception, endpoint: str) -> ProviderError:
    """Exceptions of the SDK that no call of ours raises today, and strangers."""
    import anthropic  # see above

    if isinstance(error, anthropic.CredentialsError):
        return AuthenticationError(f"{endpoint}: {describe_error(error)}")
    if isinstance(error, anthropic.RetryableError):
        return ProviderConnectionError(f"{endpoint}: {describe_error(error)}")
    if isinstance(error, anthropic.AnthropicError):
        return BadRequestError(f"{endpoint}: {describe_error(error)}")
    return ProviderError(f"{endpoint}: unexpected {describe_error(error)}")


_MAX_RESUMES = 10
"""How often a reply that the API paused goes on. A pause comes after some ten calls of its own tools."""


def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
    """Whether the Messages API has these ``settings``, and ``provider_options`` do not meet them.

    Needs no SDK, so an agent is checked where it is defined. Raises ``SettingsError``.
    """
    given = check_canonical_settings("anthropic", settings)
    if unknown := sorted(set(given.get("metadata", {})) - {"user_id"}):
        raise SettingsError(f"Setting 'metadata' for provider 'anthropic' has 'user_id' alone, not {unknown[0]!r}.")
    taken = dict.fromkeys(RESERVED_OPTIONS, "perdure") | {key: f"settings[{key!r}]" for key in given}
    taken |= {key: f"settings[{key!r}]" for key in encode_settings(given) if key not in RESERVED_OPTIONS}
    if "reasoning_effort" in given:
        taken |= dict.fromkeys(("thinking", "output_config"), "settings['reasoning_effort']")
    check_provider_options("anthropic", provider_options, taken)
    tools = provider_options.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise SettingsError("provider_options['tools'] for provider 'anthropic' is a list of objects.")


class Anthropic(Endpoint["AsyncAnthropic"]):
    """The ``anthropic`` provider.

    ``base_url`` is any endpoint that speaks the Messages API (without the path ``/v1/messages``); without one
    ``ANTHROPIC_BASE_URL`` or Anthropic itself. The key is ``api_key``, or read from the variable ``api_key_env``
    (``ANTHROPIC_API_KEY``) with each call. ``timeout`` is how many seconds the API may be silent. ``headers`` are sent
    with every request, for instance ``anthropic-beta``.

    The API's own tools go in ``provider_options["tools"]``, before the agent's. ``provider_options["cache_control"]``
    is how long the prompt cache keeps what we mark; None marks nothing.

    An instance may be used from several event loops; each gets an SDK client of its own with its first call.
    """

    format = extra = "anthropic"
    key_envs = ("ANTHROPIC_API_KEY",)
    base_url_env = "ANTHROPIC_BASE_URL"
    official_url = "https://api.anthropic.com"
    official_hosts = ("anthropic.com",)
    secret_envs = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS")

    @property
    def base_url(self) -> str:
        """Where requests go. The SDK's path has ``/v1``, which other SDKs want in the address."""
        return super().base_url.rstrip("/").removesuffix("/v1")

    def check_settings(self, settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """See :func:`check_settings`."""
        check_settings(settings, provider_options)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also where no key is set.

        A reply that the API paused (its own tools, searches and the like, took long) goes on at once, and the pieces
        are one reply: the loop would take a pause for an answer. Each piece is paid for; a retry asks for all again.
        """
        key, host, begun = self._read_key(), self.host, False
        body: bytes | None = None
        try:
            client = await self._get_client(key)
            reply = AnthropicReply(host, self.origin)
            for _ in range(_MAX_RESUMES):
                encoded = encode_request(request, origin=self.origin, paused=reply.build_parts())
                body = encoded.body
                async with await _post_messages_request(client, encoded, self._build_headers(encoded, key)) as stream:
                    begun = True
                    async for item in _read_messages_stream(stream, host):
                        for event in reply.feed(item):
                            yield event
                if not reply.is_paused:
                    break
            yield reply.complete()
        except Exception as error:
            raise mark_refused_content(self._build_provider_error(error, request, key, begun), body) from None

    def _translate_error(self, error: Exception, begun: bool) -> ProviderError:
        return translate_error(error, begun=begun, endpoint=self.host, key_name=self.key_name)

    def _build_headers(self, encoded: EncodedRequest, key: str) -> dict[str, str]:
        """What this request's headers are besides the SDK's."""
        headers = dict(encoded.headers)
        given = {name.lower(): value for name, value in self._headers.items()}
        if (beta := given.get("anthropic-beta")) and "anthropic-beta" in headers:
            headers["anthropic-beta"] = f"{beta},{headers['anthropic-beta']}"
        if "anthropic-version" in given:
            headers.pop("anthropic-version", None)
        if self.origin != self.format and "x-api-key" not in given:
            headers["x-api-key"] = key  # what the SDK sent before 2026, and other servers look for
        return headers

    def _create_client(self, key: str) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic, Timeout

        return AsyncAnthropic(
            api_key=key,
            base_url=self.base_url,
            max_retries=0,
            timeout=Timeout(self._timeout, connect=min(CONNECT_TIMEOUT, self._timeout)),
            default_headers=self._headers,
            http_client=_build_anthropic_http_client(),
        )


def _build_anthropic_http_client() -> DefaultAsyncHttpxClient | None:
    """The SDK's aiohttp client, whose parser is not Python; its default where aiohttp is not installed."""
    from anthropic import DefaultAioHttpClient

    return DefaultAioHttpClient() if find_spec("aiohttp") is not None else None


async def _post_messages_request(
    client: AsyncAnthropic, encoded: EncodedRequest, headers: dict[str, str]
) -> AsyncStream[object]:
    from anthropic import AsyncStream

    return await client.post(
        "/v1/messages",
        cast_to=object,
        content=encoded.body,
        options={"headers": headers},
        stream=True,
        stream_cls=AsyncStream[object],
    )


async def _read_messages_stream(stream: AsyncStream[object], endpoint: str) -> AsyncIterator[object]:
    """The events of the stream; one whole message where the server ignored that a stream was asked for."""
    kind = cast("str", stream.response.headers.get("content-type", "")).partition(";")[0].strip().lower()
    if kind == "application/json":
        yield parse_reply_json(await stream.response.aread(), endpoint)
    elif kind == "text/html":
        raise MalformedReplyError(f"{endpoint} answered with a web page", hint="Check base_url.")
    else:
        async for item in stream:
            yield item
