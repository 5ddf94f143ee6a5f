"""Google's Gemini API (``generateContent``), and every endpoint that speaks it, through the official SDK."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from ..errors import ProviderError
from ..ports import ModelRequest, StreamEvent
from .classify import name_refused
from .endpoint import Endpoint
from .google_errors import translate
from .google_reply import GoogleReply
from .google_request import continued, encode_request
from .google_sdk import Connection
from .google_settings import check_settings

__all__ = ["Google", "check_settings"]

_VERSIONED = re.compile(r"(?P<base>.*)/(?P<version>v\d+(?:(?:alpha|beta)\d*)?)/*\Z")


class Google(Endpoint[Connection]):
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
        key, host, begun = self._key(), self.host, False
        body: bytes | None = None
        try:
            connection = await self._client(key)
            reply = GoogleReply(host, self.origin, key_name=self.key_name)
            first = body = encode_request(request, origin=self.origin)
            while True:
                answer = await connection.post(request.model, body)
                begun = True
                async with aclosing(connection.items(answer, host)) as items:
                    async for chunk in items:
                        for event in reply.feed(chunk):
                            yield event
                # A long reply may reach the limit of one request, and says how to ask for the rest of it.
                token = reply.continuation()
                if token is None:
                    break
                body = continued(first, token)
            yield reply.complete()
        except Exception as error:
            raise name_refused(self._failure(error, request, key, begun), body) from None

    def _translate(self, error: Exception, begun: bool) -> ProviderError:
        return translate(error, begun=begun, endpoint=self.host, key_name=self.key_name)

    def _new_client(self, key: str) -> Connection:
        base_url, version = self.base_url, os.environ.get("GOOGLE_GENAI_API_VERSION", "").strip()
        if (found := _VERSIONED.match(base_url)) is not None:
            base_url, version = found["base"], found["version"]
        if version in ("", "beta"):  # "beta": as the SDK calls it
            version = "v1beta"
        return Connection(key, base_url, version, self._timeout, self._headers)
