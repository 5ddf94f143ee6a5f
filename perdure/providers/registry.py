"""Finds the provider of a model's name. Importing this loads no SDK; built-in providers load when first used."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..errors import DefinitionError

if TYPE_CHECKING:
    from ..ports.model import Provider

PROVIDER_HINT = "A provider is one async generator method: async def stream(self, request): yield …"


def check_stream(provider_label: str, provider: object) -> None:
    """Check that ``provider`` (an object, or a class) can stream, by its method. Raises ``DefinitionError``.

    ``provider_label`` names it in the error. A plain method may return any async iterator, which is checked when it is
    called.
    """
    stream = getattr(provider, "stream", None)
    if not callable(stream):
        raise DefinitionError(f"{provider_label} has no stream method: {provider!r:.100}.", hint=PROVIDER_HINT)
    problem = ""
    if inspect.iscoroutinefunction(stream):
        problem = "a coroutine: it has no yield"
    elif inspect.isgeneratorfunction(stream):
        problem = "not async"
    if problem:
        raise DefinitionError(f"The stream method of {provider_label} is {problem}.", hint=PROVIDER_HINT)


ProviderFactory = Callable[[], "Provider"]

PROVIDER_ALIASES = {"openai-chat": "openai"}
"""Other names of providers."""


@dataclass(frozen=True, slots=True)
class BuiltInProvider:
    """A provider of perdure: its module is loaded when it is first used, or its settings are checked."""

    module: str
    """In this package. It loads no SDK."""
    class_name: str
    sdk: str | None
    """None if it needs none."""
    models: tuple[str, ...] = ()
    """All of its models; empty if its API says which there are."""

    def __call__(self) -> Provider:
        """Create the provider. Raises ``RuntimeSetupError`` if the SDK is not installed."""
        if not self.is_installed:
            from .endpoint import build_missing_sdk_error

            raise build_missing_sdk_error(self.load_class().extra, self.sdk)
        provider: Provider = self.load_class()()
        return provider

    @property
    def is_installed(self) -> bool:
        """Whether its SDK can be imported."""
        try:
            return self.sdk is None or find_spec(self.sdk) is not None
        except ModuleNotFoundError:  # the package around it is missing too
            return False

    def load_class(self) -> Any:
        """The adapter."""
        return getattr(import_module(f".{self.module}", __package__), self.class_name)


_factories: dict[str, ProviderFactory] = {
    "openai": BuiltInProvider("openai_chat", "OpenAIChat", "openai"),
    "openai-responses": BuiltInProvider("openai_responses", "OpenAIResponses", "openai"),
    "anthropic": BuiltInProvider("anthropic", "Anthropic", "anthropic"),
    "google": BuiltInProvider("google", "Google", "google.genai"),
    "demo": BuiltInProvider("demo", "Demo", None, ("echo", "tools")),
}
_providers: dict[str, Provider] = {}
_worker_counts: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""The number of workers of an event loop that use the providers."""


def register_provider(name: str, provider: Provider | ProviderFactory) -> None:
    """Register ``provider`` under ``name``, the first part of ``name:model``.

    A factory is called when the provider is first used. Replaces an earlier provider of the name. Raises
    ``DefinitionError`` for a name that cannot stand before a colon, or an object without an async ``stream`` method.
    """
    if not name or name.strip() != name or ":" in name:
        raise DefinitionError(
            f"A provider's name must be a text without ':' and without blanks at its ends, not {name!r}."
        )
    can_stream = hasattr(provider, "stream")
    if can_stream:
        check_stream(f"provider {name!r}", provider)
    _providers.pop(name, None)
    if can_stream and not isinstance(provider, type):
        _factories.pop(name, None)
        _providers[name] = provider  # type: ignore[assignment]  # it has a stream method
    elif callable(provider):
        _factories[name] = provider
    else:
        raise DefinitionError(
            f"The provider {name!r} must have a stream method or be a factory: {provider!r}.", hint=PROVIDER_HINT
        )


def list_providers() -> tuple[str, ...]:
    """Names of providers that a model's name may begin with, sorted."""
    return tuple(sorted({*_factories, *_providers, *PROVIDER_ALIASES}))


def get_provider(name: str) -> Provider:
    """The provider of that name, created with the first call.

    Raises ``DefinitionError`` for an unknown name, or a factory that does not return a provider; ``RuntimeSetupError``
    for an SDK that is not installed.
    """
    name = _resolve_provider_name(name)
    if name not in _providers:
        provider = _factories[name]()
        check_stream(f"provider {name!r}, as its factory made it,", provider)
        _providers[name] = provider
    return _providers[name]


def get_wire_format(name: str) -> tuple[str, str]:
    """The wire format of the provider of that name, and the origin of its opaque data (``endpoint.build_origin``).

    The format is empty for a provider that is not an endpoint of a known format. A built-in provider is not loaded: its
    origin is the vendor's own API. Raises ``DefinitionError``.
    """
    name = _resolve_provider_name(name)
    if isinstance(_factories.get(name), BuiltInProvider):
        return ("", "") if runs_in_process(name) else (name, name)
    from .endpoint import Endpoint

    provider = get_provider(name)
    return (provider.format, provider.origin) if isinstance(provider, Endpoint) else ("", "")


def runs_in_process(name: str) -> bool:
    """Whether the provider of that name is of perdure and calls no API, so that its models cost nothing."""
    factory = _factories.get(name)
    return isinstance(factory, BuiltInProvider) and factory.sdk is None


def find_missing_extra(name: str) -> str | None:
    """The extra that brings the SDK of the provider of that name, if it is not installed. Loads no SDK."""
    factory = _factories.get(PROVIDER_ALIASES.get(name, name))
    if not isinstance(factory, BuiltInProvider) or factory.is_installed:
        return None
    extra: str = factory.load_class().extra
    return extra


def parse_model(model: str) -> tuple[str, str]:
    """``"openai:gpt-5"`` → ``("openai", "gpt-5")``. Raises ``DefinitionError``."""
    provider, colon, name = model.partition(":")
    if not colon or not provider or not name or name != name.strip():
        problem = f"A model is named provider:model, for instance 'openai:gpt-5', not {model!r}."
        raise DefinitionError(problem, hint=f"Known providers: {', '.join(list_providers())}.")
    factory = _factories.get(_resolve_provider_name(provider))
    if isinstance(factory, BuiltInProvider) and factory.models and name not in factory.models:
        known = ", ".join(f"{provider}:{model}" for model in factory.models)
        raise DefinitionError(f"The provider {provider!r} has no model {name!r}.", hint=f"It has: {known}.")
    return provider, name


def check_settings(name: str, settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
    """Let the provider check settings; a provider without ``check_settings`` takes all.

    Needs no SDK. Raises ``SettingsError``; ``DefinitionError`` for an unknown provider.
    """
    name = _resolve_provider_name(name)
    factory = _factories.get(name)
    provider: object = factory.load_class() if isinstance(factory, BuiltInProvider) else get_provider(name)
    check = getattr(provider, "check_settings", None)
    if check is not None:
        check(settings, provider_options)


@asynccontextmanager
async def keep_providers_open() -> AsyncIterator[None]:
    """Keep the providers' connections open within the block.

    Several workers of one event loop share them: the last one closes them, because an earlier end would cut off the
    others' replies, which were paid for.
    """
    loop = asyncio.get_running_loop()
    _worker_counts[loop] = _worker_counts.get(loop, 0) + 1
    try:
        yield
    finally:
        _worker_counts[loop] -= 1
        if not _worker_counts[loop]:
            del _worker_counts[loop]
            await close_providers()


async def close_providers() -> None:
    """Close the providers that have ``aclose``; the next use opens them again."""
    for provider in list(_providers.values()):
        close = getattr(provider, "aclose", None)
        if close is not None:
            closing = close()
            if inspect.isawaitable(closing):
                await closing


def _resolve_provider_name(name: str) -> str:
    if name in _factories or name in _providers:
        return name
    if name in PROVIDER_ALIASES:
        return PROVIDER_ALIASES[name]
    import difflib

    close = difflib.get_close_matches(name, list_providers(), 1)
    hint = f"Did you mean {close[0]!r}?" if close else "register_provider(name, provider) makes one known."
    raise DefinitionError(f"Unknown provider {name!r}. Known providers: {', '.join(list_providers())}.", hint=hint)
