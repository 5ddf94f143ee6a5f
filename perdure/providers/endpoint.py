"""Where an adapter's requests go: address, key, and an SDK client for each event loop."""

from __future__ import annotations

import asyncio
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from ..errors import AuthenticationError, DefinitionError, MissingExtraError, ProviderError, RuntimeSetupError
from ..types.redaction import Redaction, find_address_secrets, find_option_secrets
from .errors import mark_refused_content
from .reply import find_request_id, keep_headers
from .tool_schemas import WireTools, get_rules, translate_tools

if TYPE_CHECKING:
    from ..ports.model import Completed, ModelRequest, ToolSpec


class SDKClient(Protocol):
    """A client of an SDK."""

    api_key: str

    async def close(self) -> None:
        """Close its connections."""


ClientT = TypeVar("ClientT", bound=SDKClient)

_HTTP_ADDRESS = re.compile(r"https?://[^/?#]", re.IGNORECASE)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_PLACEHOLDERS = frozenset(
    [
        *("-", "api-key", "changeme", "dummy", "empty", "fake", "key", "lm-studio", "local", "localhost", "no-key"),
        *("not-needed", "ollama", "placeholder", "test", "unused", "vllm", "x", "xxx"),
    ]
)
"""Keys that users give to a server that needs none. They are not secrets, and often part of the server's name."""
CONNECT_TIMEOUT = 10.0
"""Seconds that opening a connection may take, whatever ``timeout`` allows the model."""


class SilenceTimer:
    """Limits each of many waits that follow each other, as for the pieces of a stream, with one timer for all of them.

    ``with timer: await …`` raises ``TimeoutError`` when that takes more than ``seconds``. One wait at a time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = math.inf
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self.has_expired = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        assert self._task is not None, "timers need a task, which they can cancel"
        self._cancelling = self._task.cancelling()
        self._deadline = loop.time() + self._seconds
        if self._handle is None:
            self._handle = loop.call_at(self._deadline, self._check, loop)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._deadline = math.inf
        if self.has_expired and self._task is not None:
            is_ours = self._task.uncancel() <= self._cancelling
            if is_ours and kind is asyncio.CancelledError:
                raise TimeoutError(f"nothing came for {self._seconds:g} s") from error

    def close(self) -> None:
        """Forget the timer."""
        if self._handle is not None:
            self._handle.cancel()

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = None
        if self._deadline == math.inf:
            return  # the next wait sets it again
        if self._deadline > loop.time():
            self._handle = loop.call_at(self._deadline, self._check, loop)
        elif self._task is not None:
            self.has_expired = True
            self._task.cancel()


def is_host_of(host: str, domains: Iterable[str]) -> bool:
    """Whether ``host`` is one of ``domains`` or lies under one."""
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


@lru_cache(maxsize=64)
def _read_host(address: str) -> str:
    try:
        host = urlsplit(address).hostname
    except ValueError:
        host = None
    # An invalid address, which the SDK refuses with the first request: shown without its credentials.
    return host or re.split(r"[?#]", address)[0].rpartition("@")[2]


def build_origin(format: str, host: str, official_hosts: Iterable[str]) -> str:
    """Builds the origin of opaque data (``provider`` of a part): the only server that the data may be sent back to.

    ``"anthropic"`` for the vendor's own API, else ``"anthropic@<host>"`` (without the port): another server cannot
    read a signature, even if both speak the same format.
    """
    return format if is_host_of(host, official_hosts) else f"{format}@{host}"


def build_missing_sdk_error(extra: str, name: str | None = None) -> MissingExtraError:
    """Builds the error for an SDK that is not installed: the extra of perdure, the module that was not found."""
    from .._installation import build_missing_extra_error

    return build_missing_extra_error(f"A model of {extra!r}", extra, module=name or extra)


def _import_price_list() -> None:
    """Import what prices the replies, which happens on the event loop. Without it they have no price."""
    with suppress(Exception):
        import genai_prices  # noqa: F401


@dataclass(slots=True, repr=False)  # it has the key
class EndpointCall(Generic[ClientT]):
    """One call of a model. The adapter notes here what its errors depend on."""

    key: str
    client: ClientT = field(init=False)
    body: bytes | None = None
    """The request that was sent last."""
    requests: int = 0
    """How many were sent."""
    reply_started: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    """Those of the last response that are kept."""

    def begin_reply(self, headers: Iterable[tuple[str, str]]) -> None:
        """Note that a reply begins, with these headers of its response."""
        self.reply_started = True
        self.headers = keep_headers(headers)

    def finish(self, completed: Completed) -> Completed:
        """The reply, with what the call knows of its requests."""
        request_id = find_request_id(self.headers)
        return replace(completed, requests=max(1, self.requests), request_id=request_id, headers=self.headers)


class Endpoint(ABC, Generic[ClientT]):
    """Base of the adapters. An adapter sets the class variables, and has ``_create_client``, ``_translate_error`` and
    ``stream``::

        class Anthropic(Endpoint["AsyncAnthropic"]):
            format, extra = "anthropic", "anthropic"
            key_envs, base_url_env = ("ANTHROPIC_API_KEY",), "ANTHROPIC_BASE_URL"
            official_url, official_hosts = "https://api.anthropic.com", ("anthropic.com",)

            def _create_client(self, key):         # in a thread: the place to import the SDK
                from anthropic import AsyncAnthropic
                return AsyncAnthropic(api_key=key, base_url=self.base_url, max_retries=0, …)

            def _translate_error(self, error, *, reply_started, endpoint, key_name):
                return ProviderServerError(…)

            async def stream(self, request):
                async with self._open_call(request) as call:
                    call.body = encode_request(request, origin=self.origin)
                    …
                    call.begin_reply(response.headers.items())
                    …
                    yield call.finish(reply.complete())

    Every error leaves an adapter through ``_open_call``, which removes the endpoint's secrets from its text: the key,
    the values of ``headers``, credentials in addresses (``base_url``, proxies) and in the request's
    ``provider_options``.

    ``base_url`` is the address of a server that speaks the format; by default that of the variable ``base_url_env``, or
    the vendor's own. The key is ``api_key``, or read with each call from the variable ``api_key_env``. ``timeout`` is
    how many seconds the API may be silent. ``headers`` are sent with every request. Raises ``DefinitionError`` for an
    invalid address, variable name, timeout or header.

    An instance may be used from several event loops; each gets an SDK client of its own with its first call.
    """

    format: ClassVar[str]
    """Name of the wire format, and of the built-in provider."""
    extra: ClassVar[str]
    """The extra of perdure that brings the SDK."""
    key_envs: ClassVar[tuple[str, ...]]
    """Variables that may have the key; error messages name the first."""
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
        adapter_name = type(self).__name__
        if base_url and not (isinstance(base_url, str) and _HTTP_ADDRESS.match(base_url)):
            raise DefinitionError(
                f"{adapter_name}: base_url must be an address that begins with http:// or https://.",
                hint=f"For instance {adapter_name}(base_url={self.official_url!r}); a key goes to api_key.",
            )
        if api_key_env and not (isinstance(api_key_env, str) and _VARIABLE_NAME.fullmatch(api_key_env)):
            raise DefinitionError(  # the value may be a key: never show it
                f"{adapter_name}: api_key_env must be the name of an environment variable (letters, digits, _).",
                hint=f"For instance {adapter_name}(api_key_env={self.key_envs[0]!r}); a key itself goes to api_key.",
            )
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise DefinitionError(f"{adapter_name}: timeout must be a number of seconds above 0, not {timeout!r:.100}.")
        self._base_url = base_url
        self._api_key = api_key
        self._api_key_envs = (api_key_env,) if api_key_env else self.key_envs
        self._timeout = timeout
        self._headers = dict(headers or {})
        for name, value in self._headers.items():
            if not (isinstance(name, str) and isinstance(value, str | bytes)):
                raise DefinitionError(  # the value may be a credential: never show it
                    f"{adapter_name}: the value of header {name!r:.100} is of {type(value).__name__}; "
                    "names of headers must be str, values str or bytes.",
                    hint="Leave out headers without a value.",
                )
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, ClientT] = WeakKeyDictionary()

    @property
    def base_url(self) -> str:
        """The address that requests are sent to."""
        return self._base_url or os.environ.get(self.base_url_env, "").strip() or self.official_url

    @property
    def host(self) -> str:
        """The host of ``base_url``: names the API in errors and in :attr:`origin`."""
        return _read_host(self.base_url)

    @property
    def origin(self) -> str:
        """See :func:`build_origin`."""
        return build_origin(self.format, self.host, self.official_hosts)

    @property
    def key_name(self) -> str:
        """Where the key comes from: the name of a variable, or ``api_key``. For error messages."""
        if self._api_key:
            return "api_key"
        return next((name for name in self._api_key_envs if os.environ.get(name)), self._api_key_envs[0])

    def check_key(self) -> None:
        """Raise ``AuthenticationError`` if the key is missing or malformed."""
        self._read_key()

    def translate_tools(self, model: str, tools: Iterable[ToolSpec]) -> WireTools:
        """The tools of a request as the format takes them, and those that it cannot take."""
        return translate_tools(get_rules(self.format, model), tools)

    async def aclose(self) -> None:
        """Close the connections of this event loop; those of other loops end with their loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    @abstractmethod
    def _create_client(self, key: str) -> ClientT:
        """Create an SDK client. Called in a thread, because the first import of an SDK takes a second."""

    @abstractmethod
    def _translate_error(self, error: Exception, *, reply_started: bool, endpoint: str, key_name: str) -> ProviderError:
        """Translate an exception of the SDK. ``endpoint`` and ``key_name`` are for the error's text."""

    @asynccontextmanager
    async def _open_call(self, request: ModelRequest) -> AsyncIterator[EndpointCall[ClientT]]:
        """Open a call of the model. Every exception within it becomes a ``ProviderError`` without secrets.

        Raises ``AuthenticationError`` if no key is set, ``RuntimeSetupError`` if the SDK is not installed.
        """
        call: EndpointCall[ClientT] = EndpointCall(self._read_key())
        try:
            call.client = await self._get_client(call.key)
            yield call
        except RuntimeSetupError:
            raise
        except Exception as error:
            provider_error = self._build_provider_error(error, request, call.key, call.reply_started)
            provider_error.requests = max(1, call.requests)
            raise mark_refused_content(provider_error, call.body) from None

    def _build_provider_error(
        self, error: Exception, request: ModelRequest, key: str, reply_started: bool
    ) -> ProviderError:
        """The error that leaves the adapter, its text without the endpoint's secrets."""
        host = self.host
        if isinstance(error, ProviderError):
            provider_error = error
        else:
            provider_error = self._translate_error(
                error, reply_started=reply_started, endpoint=host, key_name=self.key_name
            )
        if reply_started and type(provider_error) is ProviderError:
            provider_error.retryable = True  # an unknown error while a reply was read: the next reply may be readable
        redaction = Redaction(
            secret
            for secret in (key, *self._list_secrets(request))
            if isinstance(secret, bytes) or not (secret.strip() in host or secret.strip().lower() in _KEY_PLACEHOLDERS)
        )
        hint, provider_error.hint = provider_error.hint, None  # our own words: they quote nothing of an API
        redaction.redact_error(provider_error).hint = hint
        return provider_error

    def _list_secrets(self, request: ModelRequest) -> Iterator[str | bytes]:
        """The secrets besides the request's key; also the keys that the variables have by now."""
        from urllib.request import getproxies_environment  # here: it loads an HTTP client, in no other program

        for name in (*self._api_key_envs, *self.secret_envs):
            for line in os.environ.get(name, "").splitlines():
                yield line
                yield line.partition(":")[2]
        yield from self._headers.values()
        for address in (self.base_url, *getproxies_environment().values()):
            yield from find_address_secrets(address)
        yield from find_option_secrets(request.provider_options)

    def _read_key(self) -> str:
        """The key. Raises ``AuthenticationError`` for a missing or malformed one."""
        key = (self._api_key or next(filter(None, map(os.environ.get, self._api_key_envs)), "")).strip()
        if not key:
            hint = f"Set it, or pass {type(self).__name__}(api_key=…); any text does for a server that needs no key."
            raise AuthenticationError(f"No API key: {self._api_key_envs[0]} is not set.", hint=hint)
        if not (key.isascii() and key.isprintable()):
            raise AuthenticationError(
                f"The API key ({self.key_name}) has characters that a key cannot have.",
                hint="Look for line breaks, blanks or typographic quotes that were copied with it.",
            )
        return key

    async def _get_client(self, key: str) -> ClientT:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            try:
                # The first imports take about a second: they must not block an event loop that serves runs.
                created = await asyncio.to_thread(self._create_client, key)
                await asyncio.to_thread(_import_price_list)
            except ModuleNotFoundError as error:
                raise build_missing_sdk_error(self.extra, error.name) from None
            client = self._clients.setdefault(loop, created)
        client.api_key = key
        return client
