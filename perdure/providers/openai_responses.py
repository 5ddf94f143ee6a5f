"""OpenAI's Responses API, and every endpoint that speaks it, through the official SDK."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ProviderError, SettingsError
from ..ports import ModelRequest, StreamEvent
from .classify import name_refused
from .endpoint import Endpoint
from .openai_errors import translate
from .openai_sdk import items, new_client, post
from .responses_reply import ResponsesReply
from .responses_request import ENCRYPTED, RESERVED, encode_request, encode_settings
from .settings import check_canonical, check_options

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream

FEWEST_TOKENS = 16
"""The API refuses a smaller ``max_output_tokens``."""

_CLIENT_TOOLS = {
    "function": "a tool of the agent (Agent(tools=[…]))",
    "custom": "a tool of the agent (Agent(tools=[…]))",
    "namespace": "a tool of the agent (Agent(tools=[…]))",
    "computer": "run by the caller",
    "computer_use_preview": "run by the caller",
    "local_shell": "run by the caller",
    "apply_patch": "run by the caller",
}
"""Tools whose calls the API expects us to answer."""

_MERGED = {"include": list, "tools": list, "reasoning": dict}
"""Options that are added to what we send under the same name, and their shape."""

_NO_ENCRYPTION = re.compile(r"encrypted[ _]content is not supported|reasoning\.encrypted_content", re.IGNORECASE)
_UNREADABLE = re.compile(r"invalid_encrypted_content|encrypted content.{0,200} could not be", re.IGNORECASE | re.DOTALL)
_LINGER = 0.5
"""Seconds for the end of the stream behind the end of the reply. With it the connection can be used again."""


def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
    """Whether the Responses API has these ``settings``, and ``provider_options`` do not meet them.

    ``provider_options["tools"]`` are built-in tools that the API runs itself (``{"type": "web_search"}``), beside those
    of the agent; ``["include"]`` is added to ours, and ``["reasoning"]`` (``{"summary": "auto"}``) to
    ``reasoning_effort``. Needs no SDK, so an agent is checked where it is defined. Raises ``SettingsError``.
    """
    given = check_canonical("openai-responses", settings)
    if given.get("max_tokens", FEWEST_TOKENS) < FEWEST_TOKENS:
        raise SettingsError(f"Setting 'max_tokens' for provider 'openai-responses' is at least {FEWEST_TOKENS}.")
    taken = dict(RESERVED) | {key: f"settings[{key!r}]" for key in encode_settings(given) if key not in _MERGED}
    if "max_tokens" in given:
        taken["max_output_tokens"] = "settings['max_tokens']"
    check_options("openai-responses", provider_options, taken)
    _check_merged(given, provider_options)


def _check_merged(given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    about = "for provider 'openai-responses'"
    for key, shape in _MERGED.items():
        if not isinstance(options.get(key, shape()), shape):
            raise SettingsError(f"provider_options[{key!r}] {about} is a {shape.__name__}, not {options[key]!r}.")
    if "reasoning_effort" in given and "effort" in options.get("reasoning", {}):
        raise SettingsError(
            f"provider_options['reasoning']['effort'] {about} collides: settings['reasoning_effort'] sets it."
        )
    for tool in options.get("tools", ()):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if not isinstance(kind, str):
            raise SettingsError(f"provider_options['tools'] {about} has objects with a type, not {tool!r}.")
        if kind in _CLIENT_TOOLS:
            raise SettingsError(
                f"provider_options['tools'] {about}: {kind!r} is {_CLIENT_TOOLS[kind]}.",
                hint="What the API runs itself is given here, for instance {'type': 'web_search'}.",
            )


class OpenAIResponses(Endpoint["AsyncOpenAI"]):
    """The ``openai-responses`` provider.

    ``base_url`` is any compatible endpoint; without one ``OPENAI_BASE_URL`` or OpenAI itself. The key is
    ``api_key``, or read from the variable ``api_key_env`` (``OPENAI_API_KEY``) with each call. ``timeout`` is how many
    seconds the API may be silent. ``headers`` are sent with every request.

    The API stores nothing: reasoning comes encrypted, is kept in the transcript, and goes back to the model that it is
    of. An instance may be used from several event loops; each gets an SDK client of its own with its first call.
    """

    format = "openai-responses"
    extra = "openai"
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
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(base_url, api_key, api_key_env, timeout=timeout, headers=headers)
        self._plain_models: set[str] = set()

    def check_settings(self, settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """See :func:`check_settings`."""
        check_settings(settings, provider_options)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also where no key is set."""
        key, host, begun = self._key(), self.host, False
        bodies: list[bytes] = []
        try:
            client = await self._client(key)
            reply = ResponsesReply(host, origin=self.origin, model=request.model)
            async with await self._post(client, request, bodies) as stream:
                begun = True
                events = items(stream, host)
                async for event in events:
                    for delta in reply.feed(event):
                        yield delta
                    if reply.ended:
                        break
                # The reply is whole and paid for: whatever becomes of the connection now does not matter.
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(_LINGER):
                        async for _ in events:
                            pass
            yield reply.complete()
        except Exception as error:
            found = self._failure(error, request, key, begun)
            raise name_refused(found, bodies[-1] if bodies else None) from None

    def _translate(self, error: Exception, begun: bool) -> ProviderError:
        return translate(error, begun=begun, endpoint=self.host, key_name=self.key_name)

    async def _post(self, client: AsyncOpenAI, request: ModelRequest, bodies: list[bytes]) -> AsyncStream[object]:
        """Ask, and ask once more without what the API refuses before anything is paid for.

        Models that do not reason refuse to be asked for encrypted reasoning, and only they know who they are: they are
        asked without it from then on. Reasoning that cannot be decrypted any more (another organisation's key, a fault
        on their side) would end the conversation for good: it goes on without. ``bodies`` gets what was sent.
        """
        from openai import BadRequestError  # imported by the client before

        origin, encrypted = self.origin, request.model not in self._plain_models
        insists = ENCRYPTED in request.provider_options.get("include", ())
        while True:
            try:
                bodies.append(encode_request(request, origin=origin, encrypted=encrypted))
                return await post(client, "/responses", bodies[-1])
            except BadRequestError as error:
                if encrypted and not insists and _NO_ENCRYPTION.search(str(error)):
                    self._plain_models.add(request.model)
                    encrypted = False
                elif origin and _UNREADABLE.search(str(error)):
                    origin = ""  # nobody's: everything opaque is foreign to it
                else:
                    raise

    def _new_client(self, key: str) -> AsyncOpenAI:
        return new_client(key, self.base_url, self._timeout, self._headers)
