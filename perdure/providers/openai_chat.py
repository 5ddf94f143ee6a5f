"""OpenAI's chat completions, and every endpoint that speaks them, through the official SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ProviderError
from ..ports import ModelRequest, StreamEvent
from .chat_reply import ChatReply
from .chat_request import RESERVED, encode_request, encode_settings
from .classify import name_refused
from .endpoint import Endpoint, is_host_of
from .openai_errors import translate
from .openai_sdk import items, new_client, post
from .settings import check_canonical, check_options

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_NEW_NAMES = ("openai.com", "openai.azure.com")
"""Where newer models refuse ``max_tokens``."""


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


class OpenAIChat(Endpoint["AsyncOpenAI"]):
    """The ``openai`` provider.

    ``base_url`` is any compatible endpoint; without one ``OPENAI_BASE_URL`` or OpenAI itself. The key is
    ``api_key``, or read from the variable ``api_key_env`` (``OPENAI_API_KEY``) with each call. ``timeout`` is how many
    seconds the API may be silent. ``max_tokens_name`` is the wire name of the setting ``max_tokens``: by default
    ``max_completion_tokens`` at OpenAI and Azure, whose newer models refuse the old name, and ``max_tokens``
    elsewhere, because most compatible servers know no other. ``headers`` are sent with every request.

    An instance may be used from several event loops; each gets an SDK client of its own with its first call.
    """

    format = extra = "openai"
    key_envs = ("OPENAI_API_KEY",)
    base_url_env = "OPENAI_BASE_URL"
    official_url = "https://api.openai.com/v1"
    official_hosts = ("openai.com",)

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_env: str | None = None,
        *,
        timeout: float = 600.0,
        max_tokens_name: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(base_url, api_key, api_key_env, timeout=timeout, headers=headers)
        self._max_tokens_name = max_tokens_name

    def check_settings(self, settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """See :func:`check_settings`."""
        check_settings(settings, provider_options)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also where no key is set."""
        key, host, begun = self._key(), self.host, False
        body: bytes | None = None
        try:
            client, origin = await self._client(key), self.origin
            reply = ChatReply(host, origin)
            body = encode_request(request, origin=origin, max_tokens_name=self._max_tokens_wire(host))
            async with await post(client, "/chat/completions", body) as stream:
                begun = True
                async for chunk in items(stream, host):
                    for event in reply.feed(chunk):
                        yield event
            yield reply.complete()
        except Exception as error:
            raise name_refused(self._failure(error, request, key, begun), body) from None

    def _translate(self, error: Exception, begun: bool) -> ProviderError:
        return translate(error, begun=begun, endpoint=self.host, key_name=self.key_name)

    def _max_tokens_wire(self, host: str) -> str:
        return self._max_tokens_name or ("max_completion_tokens" if is_host_of(host, _NEW_NAMES) else "max_tokens")

    def _new_client(self, key: str) -> AsyncOpenAI:
        return new_client(key, self.base_url, self._timeout, self._headers)
