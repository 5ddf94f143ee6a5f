"""Where an adapter's requests go: address, key, and an SDK client for each event loop."""

from __future__ import annotations

import asyncio
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies_environment
from weakref import WeakKeyDictionary

from ..errors import AuthenticationError, DefinitionError, ProviderError, RuntimeSetupError
from ..ports import ModelRequest
from ..types.redaction import Redaction, find_address_secrets, find_option_secrets

ClientT = TypeVar("ClientT")
"""The SDK's client."""

_HTTP_ADDRESS = re.compile(r"https?://[^/?#]", re.IGNORECASE)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_PLACEHOLDERS = frozenset(
    [
        "-",
        "api-key",
        "changeme",
        "dummy",
        "empty",
        "fake",
        "key",
        "lm-studio",
        "local",
        "localhost",
        "no-key",
        "not-needed",
        "ollama",
        "placeholder",
        "test",
        "unused",
        "vllm",
        "x",
        "xxx",
    ]
)
"""What people give for a key to a server that needs none. It is no secret, and often a word of the server's name."""
CONNECT_TIMEOUT = 10.0
"""Seconds that a connection may take to open, whatever ``timeout`` allows the model."""


def is_host_of(host: str, domains: Iterable[str]) -> bool:
    """Whether ``host`` is one of ``domains`` or lies under one."""
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def build_origin(format: str, host: str, official_hosts: Iterable[str]) -> str:
    """What a part's ``provider`` says of where its opaque data came from, and may go back to.

    ``"anthropic"`` for the vendor's own API, else ``"anthropic@<host>"`` (without the port): a signature that one
    server gave is noise to another, even where both speak the same format.
    """
    return format if is_host_of(host, official_hosts) else f"{format}@{host}"


def build_missing_sdk_error(extra: str, name: str | None = None) -> RuntimeSetupError:
    """The error for an SDK that is not installed: ``extra`` is ours, ``name`` the package that was not found."""
    return RuntimeSetupError(
        f"Models of {extra!r} need the package {name or extra!r}, which is not installed.",
        hint=f"pip install 'perdure[{extra}]'",
    )


class Endpoint(ABC, Generic[ClientT]):
    """Base of the adapters. An adapter sets the class variables, and has ``_create_client``, ``_translate_error``,
    ``stream``::

        class Anthropic(Endpoint["AsyncAnthropic"]):
            format, extra = "anthropic", "anthropic"
            key_envs, base_url_env = ("ANTHROPIC_API_KEY",), "ANTHROPIC_BASE_URL"
            official_url, official_hosts = "https://api.anthropic.com", ("anthropic.com",)

            def _new_client(self, key):            # in a thread: the place to import the SDK
                from anthropic import AsyncAnthropic
                return AsyncAnthropic(api_key=key, base_url=self.base_url, max_retries=0, …)

            def _translate(self, error, begun):
                return translate(error, begun=begun, endpoint=self.host, key_name=self.key_name)

            async def stream(self, request):
                key, begun = self._key(), False
                try:
                    client = await self._client(key)
                    body = encode_request(request, origin=self.origin)
                    …
                except Exception as error:
                    raise self._failure(error, request, key, begun) from None

    Every error leaves an adapter through ``_build_provider_error``, which removes the endpoint's secrets from its text:
    the key, the values of ``headers``, credentials in addresses (``base_url``, proxies) and in the request's
    ``provider_options``.

    ``base_url`` is where a server speaks the format; without one the variable ``base_url_env``, or the vendor
    itself. The key is ``api_key``, or read with each call from the variable ``api_key_env``. ``timeout`` is how many
    seconds the API may be silent. ``headers`` are sent with every request. Raises ``DefinitionError`` for an address, a
    name of a variable or a timeout that is none.

    An instance may be used from several event loops; each gets an SDK client of its own with its first call.
    """

    format: ClassVar[str]
    """Name of the wire format, which is the built-in provider's name too."""
    extra: ClassVar[str]
    """Of ``pip install 'perdure[extra]'``."""
    key_envs: ClassVar[tuple[str, ...]]
    """Variables that may have the key; the first one is named to people."""
    base_url_env: ClassVar[str]
    official_url: ClassVar[str]
    official_hosts: ClassVar[tuple[str, ...]]
    """Domains of the vendor's own API."""
    secret_envs: ClassVar[tuple[str, ...]] = ()
    """Further variables from which the SDK takes credentials or headers (lines ``Name: value``)."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_env: str | None = None,
        *,
        timeout: float = 600.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        made = type(self).__name__
        if base_url and not (isinstance(base_url, str) and _HTTP_ADDRESS.match(base_url)):
            raise DefinitionError(
                f"{made}: base_url is an address that begins with http:// or https://.",
                hint=f"For instance {made}(base_url={self.official_url!r}); a key goes to api_key.",
            )
        if api_key_env and not (isinstance(api_key_env, str) and _VARIABLE_NAME.fullmatch(api_key_env)):
            raise DefinitionError(  # it may be a key: what is given here is said to nobody
                f"{made}: api_key_env is the name of an environment variable, of letters, digits and underscores.",
                hint=f"For instance {made}(api_key_env={self.key_envs[0]!r}); a key itself goes to api_key.",
            )
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise DefinitionError(f"{made}: timeout is a number of seconds above 0, not {timeout!r:.100}.")
        self._base_url = base_url
        self._api_key = api_key
        self._api_key_envs = (api_key_env,) if api_key_env else self.key_envs
        self._timeout = timeout
        self._headers = dict(headers or {})
        for name, value in self._headers.items():
            if not (isinstance(name, str) and isinstance(value, str | bytes)):
                raise DefinitionError(  # the value may be a credential: it is not shown
                    f"{made}: the value of header {name!r:.100} is of {type(value).__name__}; "
                    "names of headers are texts, and their values texts or bytes.",
                    hint="Leave out what has no value.",
                )
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, ClientT] = WeakKeyDictionary()

    @property
    def base_url(self) -> str:
        """Where requests go."""
        return self._base_url or os.environ.get(self.base_url_env, "").strip() or self.official_url

    @property
    def host(self) -> str:
        """Names the API in errors, and in the origin of what it gave."""
        try:
            host = urlsplit(self.base_url).hostname
        except ValueError:
            host = None
        # No address: the SDK refuses it with the first request. Its credentials are not part of a name.
        return host or re.split(r"[?#]", self.base_url)[0].rpartition("@")[2]

    @property
    def origin(self) -> str:
        """See :func:`origin`."""
        return build_origin(self.format, self.host, self.official_hosts)

    @property
    def key_name(self) -> str:
        """What people look at when the key is refused: a variable's name, or the argument's."""
        if self._api_key:
            return "api_key"
        return next((name for name in self._api_key_envs if os.environ.get(name)), self._api_key_envs[0])

    async def aclose(self) -> None:
        """Give the connections back: those of this event loop; those of other loops end with their loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await self._close_client(client)

    @abstractmethod
    def _create_client(self, key: str) -> ClientT:
        """An SDK client. Called in a thread, because the first import of an SDK takes a second."""

    @abstractmethod
    def _translate_error(self, error: Exception, begun: bool) -> ProviderError:
        """What ``error`` of the SDK means. ``begun``: the reply had started."""

    def _build_provider_error(self, error: Exception, request: ModelRequest, key: str, begun: bool) -> ProviderError:
        """The error that leaves the adapter, its text without the endpoint's secrets."""
        found = error if isinstance(error, ProviderError) else self._translate_error(error, begun)
        if begun and type(found) is ProviderError:
            found.retryable = True  # what no table knows was raised while a reply was read: another may be readable
        host = self.host
        secrets = (key, *self._list_secrets(request))
        redaction = Redaction(
            one
            for one in secrets
            if isinstance(one, bytes) or not (one.strip() in host or one.strip().lower() in _KEY_PLACEHOLDERS)
        )
        hint, found.hint = found.hint, None  # our own words, which quote nothing of an API
        redaction.redact_error(found).hint = hint
        return found

    def _list_secrets(self, request: ModelRequest) -> Iterator[str | bytes]:
        """Besides the key that the request had: the variables may have others by now."""
        for name in (*self._api_key_envs, *self.secret_envs):
            for line in os.environ.get(name, "").splitlines():
                yield line
                yield line.partition(":")[2]
        yield from self._headers.values()
        for address in (self.base_url, *getproxies_environment().values()):
            yield from find_address_secrets(address)
        yield from find_option_secrets(request.provider_options)

    async def _close_client(self, client: Any) -> None:
        await client.close()

    def _set_client_key(self, client: Any, key: str) -> None:
        """Give a client of earlier calls the key of this one."""
        client.api_key = key

    def _read_key(self) -> str:
        """The key. Raises ``AuthenticationError`` where there is none, or what is there cannot be one."""
        key = (self._api_key or next(filter(None, map(os.environ.get, self._api_key_envs)), "")).strip()
        if not key:
            raise AuthenticationError(
                f"No API key: {self._api_key_envs[0]} is not set.",
                hint=f"Set it, or pass {type(self).__name__}(api_key=…); a server that needs no key takes any text.",
            )
        if not (key.isascii() and key.isprintable()):
            raise AuthenticationError(
                f"The API key ({self.key_name}) has characters that no key has.",
                hint="Look for line breaks, blanks or typographic quotes that came along when it was copied.",
            )
        return key

    async def _get_client(self, key: str) -> ClientT:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            # The import takes about a second the first time: not on an event loop that has runs to serve.
            client = await asyncio.to_thread(self._load_client, key)
            client = self._clients.setdefault(loop, client)
        self._set_client_key(client, key)
        return client

    def _load_client(self, key: str) -> ClientT:
        try:
            return self._create_client(key)
        except ModuleNotFoundError as error:
            raise build_missing_sdk_error(self.extra, error.name) from None
