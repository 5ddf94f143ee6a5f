"""Anthropic's Messages API, and every endpoint that speaks it, through the official SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from importlib import import_module
from typing import Any

from ..errors import SettingsError
from ..ports.model import ModelRequest, StreamEvent
from .anthropic_reply import AnthropicReply
from .anthropic_request import RESERVED_OPTIONS, EncodedRequest, encode_request
from .dialects import Dialect, ForcedTool, ThinkingUse, find_signer
from .endpoint import EndpointCall
from .errors import build_stream_error
from .sdk import SDKEndpoint
from .settings import check_all_settings

_MAX_RESUMES = 10
"""How often a reply that the API paused is continued. A pause comes after some ten calls of its own tools."""


class Anthropic(SDKEndpoint):
    """The ``anthropic`` provider.

    ``base_url`` is any endpoint that speaks the Messages API (without the path ``/v1/messages``); by default
    ``ANTHROPIC_BASE_URL`` or Anthropic itself. The key is ``api_key``, or read from the variable ``api_key_env``
    (``ANTHROPIC_API_KEY``) with each call. ``timeout`` is how many seconds the API may be silent. ``headers`` are sent
    with every request, for instance ``anthropic-beta``.

    The API's own tools go in ``provider_options["tools"]``, before the agent's. ``provider_options["cache_control"]``
    is how long the prompt cache keeps the parts that perdure marks; None marks none.

    ``dialect`` says how the server differs from others: the name of a known one (``"deepseek"``), or a ``Dialect``; by
    default it is that of the host of ``base_url``. ``streaming`` and the parameters behind it each replace one
    field of it, see :class:`perdure.providers.dialects.Dialect`.

    An instance may be used from several event loops; each gets an SDK client of its own with its first call.
    """

    format = extra = "anthropic"
    client_class = "AsyncAnthropic"
    key_envs = ("ANTHROPIC_API_KEY",)
    base_url_env = "ANTHROPIC_BASE_URL"
    official_url = "https://api.anthropic.com"
    official_hosts = ("anthropic.com",)
    secret_envs = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS")

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_env: str | None = None,
        *,
        timeout: float = 600.0,
        headers: Mapping[str, str] | None = None,
        dialect: str | Dialect | None = None,
        streaming: bool | None = None,
        thinking: ThinkingUse | None = None,
        forced_tool: ForcedTool | None = None,
        cache_marks: bool | None = None,
    ) -> None:
        super().__init__(base_url, api_key, api_key_env, timeout=timeout, headers=headers)
        self._set_dialect(
            dialect, streaming=streaming, thinking=thinking, forced_tool=forced_tool, cache_marks=cache_marks
        )

    @property
    def base_url(self) -> str:
        """The address that requests are sent to. The SDK's path has ``/v1``, which other SDKs want in the address."""
        return super().base_url.rstrip("/").removesuffix("/v1")

    @staticmethod
    def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """Check the settings and options of an agent. Raises ``SettingsError``."""
        wire_names = {
            "stop": ("stop", "stop_sequences"),
            "reasoning_effort": ("reasoning_effort", "thinking", "output_config"),
        }
        given = check_all_settings("anthropic", settings, provider_options, wire_names, RESERVED_OPTIONS)
        if unknown := sorted(set(given.get("metadata", {})) - {"user_id"}):
            raise SettingsError(
                f"Setting 'metadata' for provider 'anthropic' takes only 'user_id', not {unknown[0]!r}."
            )
        tools = provider_options.get("tools", [])
        if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
            raise SettingsError("provider_options['tools'] for provider 'anthropic' must be a list of objects.")

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also if no key is set.

        A reply that the API paused (its own tools, searches and the like, took long) is continued at once, and its
        pieces are one reply: the loop would take a pause for an answer. Each piece is paid for; a retry asks for all
        again.
        """
        async with self._open_call(request) as call:
            origin = self.origin
            signer = None if origin == self.format else find_signer(request.model)
            reply = AnthropicReply(self.host, origin, self.key_name, signer=signer)

            async def send(dialect: Dialect) -> Any:
                encoded = encode_request(request, origin=origin, paused=reply.build_parts(), dialect=dialect)
                call.body = encoded.body
                return await self._post_request(call, self._build_headers(encoded, call.key))

            for _ in range(_MAX_RESUMES):
                response, _ = await self._post_conceding(call, request, send)
                async with aclosing(response):
                    call.begin_reply(response.headers.items())
                    async for item in self._read_stream(response):
                        for event in reply.feed(item):
                            yield event
                if not reply.is_paused:
                    break
            completed = call.finish(reply.complete())
            yield self.translate_tools(request.model, request.tools).restore(completed)

    def _create_client(self, key: str) -> Any:
        return self._create_sdk_client(key, self._create_http_client())

    async def _post_request(self, call: EndpointCall[Any], headers: Mapping[str, str]) -> Any:
        """The HTTP client's response, its body not read yet. Raises what the SDK raises."""
        stream_class = import_module(self.extra).AsyncStream[object]
        call.requests += 1
        async with asyncio.timeout(self._timeout):
            stream = await call.client.post(
                "/v1/messages",
                cast_to=object,
                content=call.body,
                options={"headers": headers} if headers else {},
                stream=True,
                stream_cls=stream_class,
            )
        return stream.response

    def _parse_event(self, name: str, data: str, endpoint: str) -> Sequence[object]:
        """Errors and pings are known by their names: their data may be anything."""
        if name == "error":
            try:
                body = json.loads(data)
            except (ValueError, RecursionError):
                body = None
            raise build_stream_error(body, data, endpoint, key_name=self.key_name)
        # Without a name, what is not an object is not an event of the API. A broken one is: its text would be missing.
        is_read = name != "ping" and (name or data.lstrip().startswith("{"))
        return super()._parse_event(name, data, endpoint) if is_read else ()

    def _build_headers(self, encoded: EncodedRequest, key: str) -> dict[str, str]:
        """The headers of a request in addition to the SDK's."""
        headers = dict(encoded.headers)
        given = {name.lower(): value for name, value in self._headers.items()}
        if (beta := given.get("anthropic-beta")) and "anthropic-beta" in headers:
            headers["anthropic-beta"] = f"{beta},{headers['anthropic-beta']}"
        if "anthropic-version" in given:
            headers.pop("anthropic-version", None)
        if self.origin != self.format and "x-api-key" not in given:
            headers["x-api-key"] = key  # the SDK's header before 2026, which other servers look for
        return headers
