"""What an author's provider is held to: one async generator method, known events, errors that say what to do."""

from __future__ import annotations

import inspect
from typing import get_args

from ..errors import DefinitionError, ProviderError
from ..ports import Completed, ModelRef, StreamEvent
from ..types.messages import FinishReason, Part, Usage
from .transport import transport_error, what

METHOD = "A provider is one async generator method: async def stream(self, request): yield …"

_TEXTS = ("text", "id", "name", "arguments")
"""Fields of deltas."""
_EVENTS = get_args(StreamEvent)
_PARTS = get_args(get_args(Part)[0])
_REASONS = get_args(FinishReason)


def check_stream(which: str, provider: object) -> None:
    """Whether ``provider`` (an object, or a class) can stream, as far as its method shows. Raises ``DefinitionError``.

    ``which`` names it for people. A plain method may give any async iterator, which shows when it is called.
    """
    stream = getattr(provider, "stream", None)
    if not callable(stream):
        raise DefinitionError(f"{which} has no stream method: {provider!r:.100}.", hint=METHOD)
    if inspect.iscoroutinefunction(stream):
        raise DefinitionError(f"The stream method of {which} is a coroutine: it has no yield.", hint=METHOD)
    if inspect.isgeneratorfunction(stream):
        raise DefinitionError(f"The stream method of {which} is not async.", hint=METHOD)


def check_event(model: ModelRef, event: object) -> None:
    """Whether ``event`` is one that a stream has. Raises ``ProviderError``, which another attempt does not mend."""
    if not isinstance(event, _EVENTS):
        raise _misfit(
            model, f"yielded {event!r:.100}", "Yield TextDelta, ThinkingDelta, ToolCallDelta, last Completed."
        )
    if not isinstance(event, Completed):
        if not all(isinstance(getattr(event, name), str) for name in _TEXTS if hasattr(event, name)):
            raise _misfit(
                model, f"yielded {event!r:.100}", "What a delta says is text, where there is none an empty one."
            )
        return
    if not isinstance(event.parts, list | tuple) or not all(isinstance(part, _PARTS) for part in event.parts):
        hint = 'For instance Completed((TextPart(text="Hello."),)).'
        raise _misfit(model, f"completed a reply whose parts are {event.parts!r:.100}", hint)
    if not isinstance(event.usage, Usage):
        raise _misfit(model, f"gave {event.usage!r:.100} for usage", "For instance Usage(input_tokens=7).")
    if event.finish_reason not in _REASONS:
        raise _misfit(
            model, f"gave {event.finish_reason!r:.100} for finish_reason", f"It is one of {', '.join(_REASONS)}."
        )


def unexpected(model: ModelRef, error: Exception, *, begun: bool) -> ProviderError:
    """What an exception means that is no ``PerdureError``: what lies under the SDKs is known, anything else may pass.

    ``begun``: the reply had started.
    """
    found = transport_error(error, begun, str(model))
    if found is None:
        hint = "A provider raises ProviderError alone: its classes say whether to try again (perdure.errors)."
        found = ProviderError(f"the provider of {model} raised {what(error)}", hint=hint)
        found.retryable = True
    return found


def _misfit(model: ModelRef, did: str, hint: str) -> ProviderError:
    return ProviderError(f"the provider of {model} {did}", hint=f"{hint} See perdure.ports.")
