"""Which provider a model name means. Importing this loads no SDK; built-ins load when first used."""

from __future__ import annotations

import asyncio
import difflib
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, get_args
from weakref import WeakKeyDictionary

from ..errors import DefinitionError, ProviderError
from ..ports import Completed, ModelRef, Provider, StreamEvent
from ..types.messages import FinishReason, Part, Usage
from .endpoint import Endpoint, build_missing_sdk_error
from .errors import describe_error, translate_transport_error

# ---
# What an author's provider is held to: one async generator method, known events, errors that say what to do.


PROVIDER_HINT = "A provider is one async generator method: async def stream(self, request): yield …"

_DELTA_TEXT_FIELDS = ("text", "id", "name", "arguments")
"""Fields of deltas."""
_STREAM_EVENT_TYPES = get_args(StreamEvent)
_REPLY_PART_TYPES = get_args(get_args(Part)[0])
_FINISH_REASON_VALUES = get_args(FinishReason)


def check_stream(which: str, provider: object) -> None:
    """Whether ``provider`` (an object, or a class) can stream, as far as its method shows. Raises ``DefinitionError``.

    ``which`` names it for people. A plain method may give any async iterator, which shows when it is called.
    """
    stream = getattr(provider, "stream", None)
    if not callable(stream):
        raise DefinitionError(f"{which} has no stream method: {provider!r:.100}.", hint=PROVIDER_HINT)
    if inspect.iscoroutinefunction(stream):
        raise DefinitionError(f"The stream method of {which} is a coroutine: it has no yield.", hint=PROVIDER_HINT)
    if inspect.isgeneratorfunction(stream):
        raise DefinitionError(f"The stream method of {which} is not async.", hint=PROVIDER_HINT)


def check_event(model: ModelRef, event: object) -> None:
    """Whether ``event`` is one that a stream has. Raises ``ProviderError``, which another attempt does not mend."""
    if not isinstance(event, _STREAM_EVENT_TYPES):
        raise _build_contract_error(
            model, f"yielded {event!r:.100}", "Yield TextDelta, ThinkingDelta, ToolCallDelta, last Completed."
        )
    if not isinstance(event, Completed):
        if not all(isinstance(getattr(event, name), str) for name in _DELTA_TEXT_FIELDS if hasattr(event, name)):
            raise _build_contract_error(
                model, f"yielded {event!r:.100}", "What a delta says is text, where there is none an empty one."
            )
        return
    if not isinstance(event.parts, list | tuple) or not all(
        isinstance(part, _REPLY_PART_TYPES) for part in event.parts
    ):
        hint = 'For instance Completed((TextPart(text="Hello."),)).'
        raise _build_contract_error(model, f"completed a reply whose parts are {event.parts!r:.100}", hint)
    if not isinstance(event.usage, Usage):
        raise _build_contract_error(
            model, f"gave {event.usage!r:.100} for usage", "For instance Usage(input_tokens=7)."
        )
    if event.finish_reason not in _FINISH_REASON_VALUES:
        raise _build_contract_error(
            model,
            f"gave {event.finish_reason!r:.100} for finish_reason",
            f"It is one of {', '.join(_FINISH_REASON_VALUES)}.",
        )


def translate_unexpected_error(model: ModelRef, error: Exception, *, begun: bool) -> ProviderError:
    """What an exception means that is no ``PerdureError``: what lies under the SDKs is known, anything else may pass.

    ``begun``: the reply had started.
    """
    found = translate_transport_error(error, begun, str(model))
    if found is None:
        hint = "A provider raises ProviderError alone: its classes say whether to try again (perdure.errors)."
        found = ProviderError(f"the provider of {model} raised {describe_error(error)}", hint=hint)
        found.retryable = True
    return found


def _build_contract_error(model: ModelRef, did: str, hint: str) -> ProviderError:
    return ProviderError(f"the provider of {model} {did}", hint=f"{hint} See perdure.ports.")


ProviderFactory = Callable[[], Provider]

PROVIDER_ALIASES = {"openai-chat": "openai"}
"""Other names of providers."""


@dataclass(frozen=True, slots=True)
class BuiltInProvider:
    """A provider that comes with perdure: its module is loaded when it is first used, or its settings are checked."""

    module: str
    """In this package. It has ``check_settings``, and loads no SDK."""
    class_name: str
    sdk: str
    extra: str

    def __call__(self) -> Provider:
        """The provider. Raises ``RuntimeSetupError`` where the SDK is not installed."""
        if not _is_sdk_installed(self.sdk):
            raise build_missing_sdk_error(self.extra, self.sdk)
        made: Provider = getattr(self.load_module(), self.class_name)()
        return made

    def load_module(self) -> ModuleType:
        """The adapter's module."""
        return import_module(f".{self.module}", __package__)


_factories: dict[str, ProviderFactory] = {
    "openai": BuiltInProvider("openai_chat", "OpenAIChat", "openai", "openai"),
    "openai-responses": BuiltInProvider("openai_responses", "OpenAIResponses", "openai", "openai"),
    "anthropic": BuiltInProvider("anthropic", "Anthropic", "anthropic", "anthropic"),
    "google": BuiltInProvider("google", "Google", "google.genai", "google"),
}
_providers: dict[str, Provider] = {}
_worker_counts: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""How many workers of an event loop use the providers."""


def register_provider(name: str, provider: Provider | ProviderFactory) -> None:
    """Make ``provider`` known under ``name``, the first part of ``name:model``.

    A factory is called when the provider is first used. Replaces what had the name. Raises
    ``DefinitionError`` for a name that cannot stand before a colon, or an object without an async ``stream``
    method.
    """
    if not name or name.strip() != name or ":" in name:
        raise DefinitionError(f"A provider's name is a text without blanks at its ends and without ':', not {name!r}.")
    if hasattr(provider, "stream"):
        check_stream(f"provider {name!r}", provider)
    _providers.pop(name, None)
    if not isinstance(provider, type) and hasattr(provider, "stream"):
        _factories.pop(name, None)
        _providers[name] = provider
    elif callable(provider):
        _factories[name] = provider
    else:
        raise DefinitionError(
            f"The provider {name!r} has no stream method and is no factory: {provider!r}.",
            hint=PROVIDER_HINT,
        )


def list_providers() -> tuple[str, ...]:
    """Names that a model may begin with, in order."""
    return tuple(sorted({*_factories, *_providers, *PROVIDER_ALIASES}))


def get_provider(name: str) -> Provider:
    """The provider of that name, made when first asked for.

    Raises ``DefinitionError`` for an unknown name, or where the factory gives no provider; ``RuntimeSetupError`` for an
    SDK that is not installed.
    """
    name = _resolve_provider_name(name)
    if name not in _providers:
        made = _factories[name]()
        check_stream(f"provider {name!r}, as its factory made it,", made)
        _providers[name] = made
    return _providers[name]


def wire_format(name: str) -> tuple[str, str]:
    """The wire format of the provider of that name, and the origin of opaque data that it gives (see
    ``endpoint.origin``); the format is empty for one that is no endpoint of a known format.

    Of a built-in provider nothing is loaded: it is taken for the vendor's own API. Raises ``DefinitionError``.
    """
    name = _resolve_provider_name(name)
    if isinstance(_factories.get(name), BuiltInProvider):
        return name, name
    provider = get_provider(name)
    return (provider.format, provider.origin) if isinstance(provider, Endpoint) else ("", "")


def parse_model(model: str) -> tuple[str, str]:
    """``"openai:gpt-5"`` → ``("openai", "gpt-5")``. Raises ``DefinitionError``."""
    provider, colon, name = model.partition(":")
    if not colon or not provider or not name or name != name.strip():
        raise DefinitionError(
            f"A model is named provider:model, for instance 'openai:gpt-5', not {model!r}.",
            hint=f"Known providers: {', '.join(list_providers())}.",
        )
    _resolve_provider_name(provider)
    return provider, name


def check_settings(name: str, settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
    """Let the provider refuse settings that it lacks; one that has no ``check_settings`` takes everything.

    Needs no SDK. Raises ``SettingsError``; ``DefinitionError`` for an unknown provider.
    """
    name = _resolve_provider_name(name)
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], None] | None
    made = _factories.get(name)
    check = getattr(
        made.load_module() if isinstance(made, BuiltInProvider) else get_provider(name), "check_settings", None
    )
    if check is not None:
        check(settings, provider_options)


@asynccontextmanager
async def keep_providers_open() -> AsyncIterator[None]:
    """Keep the providers' connections open for the length of the block.

    Several workers of one event loop share them: the last that leaves closes them, or it would cut the others' replies,
    which were paid for.
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
    """Close those that were used, as far as they can be closed; the next use opens them again."""
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
    close = difflib.get_close_matches(name, list_providers(), 1)
    raise DefinitionError(
        f"Unknown provider {name!r}. Known providers: {', '.join(list_providers())}.",
        hint=f"Did you mean {close[0]!r}?" if close else "register_provider(name, provider) makes one known.",
    )


def _is_sdk_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False  # not even the package around it
