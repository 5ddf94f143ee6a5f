"""What the engine asks of a model's API, and what it gets back."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..types.messages import FinishReason, Message, Part, Usage

NAME_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of tools, as every provider takes them; of agents and toolsets too, which become names of tools."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments: always an object."""


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
    """More of what the model thinks."""

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
    """The whole reply; the last event of every stream. A stream that ends without it was cut.

    Tool-call ids may be missing (empty), repeated or of any length: the engine then uses its own, and keeps the
    provider's as ``ToolCallPart.provider_id``.
    """

    parts: tuple[Part, ...]
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    """As the API names the model that answered."""
    provider: str = ""
    """Registered name of the provider that answered, where it is not the one that was asked (a chain of models)."""
    origin: str = field(default="", compare=False)
    """What ``provider`` of parts says that go back to this server alone. With it a call whose ``id`` the engine has
    replaced has that ``provider``."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """What was streamed so far does not count: the model that was asked failed, and the next of a chain is asked."""

    model: str
    """``"<provider>:<model>"`` of the one that is asked now."""
    error_type: str
    """What the one before failed with; ``error`` is the message."""
    error: str


StreamEvent = TextDelta | ThinkingDelta | ToolCallDelta | Restarted | Completed


class Provider(Protocol):
    """A model API. One attempt per call: Temporal retries, so the SDK's own retries are off.

    Raises only ``ProviderError`` subclasses; foreign exceptions are translated inside.
    """

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model and yield what arrives, ``Completed`` last."""
        ...


@dataclass(frozen=True, slots=True)
class ModelRef:
    """One model of an agent: ``str()`` of it is ``"<provider>:<model>"``."""

    provider: str
    """Registered name, or the class of ``own``."""
    name: str
    own: Provider | None = None
    """The object that is the model, where the agent was given one."""

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}"
