"""The port of a model's API: ``Provider``, its request and its stream events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..types.messages import FinishReason, Message, Part, Usage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments: always an object."""
    _wire_forms: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def get_wire_form(self, key: str, build: Callable[[ToolSpec], Any]) -> Any:
        """Return what ``build`` makes of the tool; ``key`` names the wire format, and each is built once."""
        if key not in self._wire_forms:
            self._wire_forms[key] = build(self)
        return self._wire_forms[key]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of a model. The messages are in order, without the system prompt; results follow their calls."""

    model: str
    """Name at the provider, without the prefix."""
    messages: Sequence[Message]
    system: str | None = None
    tools: Sequence[ToolSpec] = ()
    tool_choice: str | None = None
    """Name of the one tool that must be called; None leaves the choice to the model."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Canonical settings (temperature, max_tokens, …), checked when the agent was defined."""
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    """Sent unchanged."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The bytes of every file in ``messages`` that is kept as a blob, by the blob's hash."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a tool call's arguments (raw JSON text)."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The complete reply; the last event of every stream. A stream that ends without it was cut off.

    Tool-call ids may be missing (empty), repeated or of any length: the engine then uses its own, and keeps the
    provider's as ``ToolCallPart.provider_id``.
    """

    parts: tuple[Part, ...]
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    """The API's name of the model that answered."""
    provider: str = ""
    """Registered name of the provider that answered, if it is not the requested one (a chain of models)."""
    origin: str = field(default="", compare=False)
    """``provider`` of parts that may be sent back to this server only. A call whose ``id`` the engine has replaced gets
    it as its ``provider``."""
    requests: int = field(default=1, compare=False)
    """How many requests the reply took: all count towards ``provider_limits``."""
    request_id: str | None = field(default=None, compare=False)
    """The API's id of the last request, which its support asks for."""
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What the last response's headers say of the request and of the account's limits: ids, rate limits, times. Names
    are in lower case."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The deltas streamed so far are void: the model failed, and the next one of a chain is called."""

    model: str
    """``"<provider>:<model>"`` of the model that is called now."""
    error_type: str
    """Class of the previous model's error; ``error`` is its message, ``status`` the HTTP status of the answer."""
    error: str
    status: int | None = None


StreamEvent = TextDelta | ThinkingDelta | ToolCallDelta | Restarted | Completed


class Provider(Protocol):
    """A model API. One attempt per call: Temporal retries, so the SDK's own retries are off.

    Raises only ``ProviderError`` subclasses; foreign exceptions are translated inside.
    """

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model and yield its stream events, ``Completed`` last."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """One model of an agent: ``str()`` of it is ``"<provider>:<model>"``."""

    provider: str
    """Registered name, or the class of ``own``."""
    name: str
    own: Provider | None = None
    """The provider object, if the agent was given one as its model."""

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}"
