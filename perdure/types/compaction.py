"""Settings that keep long conversations short: views of what a model is sent, and rewrites of the conversation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from ..errors import DefinitionError
from .limits import Amount, Count, Definition

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 text that count as one token."""


class Compaction(Definition):
    """``Agent(compaction=Compaction.window(tokens=100_000))``: one way to keep a conversation short, or a list of
    several.

    ``truncate``, ``clear_results`` and ``window`` are views: they change what a model is sent, not the transcript, and
    cost nothing. ``summarise`` rewrites the conversation: a model summarises it, and it continues from the summary;
    what the summary replaces stays in the store (``run.transcript(full=True)``). Each may be given once.

    All raise ``DefinitionError`` for a number out of range.
    """

    _kind: ClassVar[str] = ""
    """Name of the method that creates it."""

    @staticmethod
    def truncate(*, after: int, keep: int = 200, every: int | None = None) -> "Truncate":
        """Send only the first ``keep`` characters of a reply's thinking and tool-call inputs, marked as cut, once
        ``after`` replies have followed it. Messages of users and the assistant, and results, are not cut.

        A change of a model's input invalidates its cache from that place on. So ``every`` replies are cut at once, not
        each by itself: by default as many as ``after``. ``every=1`` cuts each reply as soon as possible.
        """
        return Truncate(after=after, keep=keep, every=every)

    @staticmethod
    def clear_results(*, after: int, every: int | None = None) -> "ClearResults":
        """Send a short note of its size in place of a tool's result, once ``after`` replies have followed it.

        ``every``: as for :meth:`truncate`.
        """
        return ClearResults(after=after, every=every)

    @staticmethod
    def window(*, messages: int | None = None, tokens: int | None = None) -> "Window":
        """Leave out messages from the front if there are more than ``messages``, or if they have more than ``tokens``
        (with the system prompt and the tools): down to half, so that it is seldom necessary.

        The conversation's first user message stays, and a call stays with its result.
        """
        return Window(messages=messages, tokens=tokens)

    @staticmethod
    def summarise(*, at: int, keep_last: int = 20, model: Any = None, prompt: str | None = None) -> "Summarise":
        """Have a model summarise all but the ``keep_last`` messages before the next call, once a call has used ``at``
        tokens or was refused as too long.

        ``model`` (a name, or a ``Provider``) writes the summary instead of the agent's own; ``prompt`` are its
        instructions. The summary is a model call of its own: paid, recorded, and not an iteration.
        """
        return Summarise(at=at, keep_last=keep_last, model=model, prompt=prompt)


class Truncate(Compaction, title="Compaction.truncate"):
    """See :meth:`Compaction.truncate`."""

    _kind = "truncate"
    after: Count
    keep: Amount = 200
    every: Count | None = None


class ClearResults(Compaction, title="Compaction.clear_results"):
    """See :meth:`Compaction.clear_results`."""

    _kind = "clear_results"
    after: Count
    every: Count | None = None


class Window(Compaction, title="Compaction.window"):
    """See :meth:`Compaction.window`."""

    _kind = "window"
    messages: Annotated[Count, Field(ge=4)] | None = None
    tokens: Annotated[Count, Field(ge=100)] | None = None

    def model_post_init(self, context: Any) -> None:
        if self.messages is None and self.tokens is None:
            raise ValueError("it needs messages=… or tokens=…, for instance messages=100")


_LEAST_MESSAGE_TOKENS = 8
"""Tokens that the shortest message takes."""


class Summarise(Compaction, title="Compaction.summarise"):
    """See :meth:`Compaction.summarise`."""

    _kind = "summarise"
    at: Annotated[Count, Field(ge=100)]
    keep_last: Amount = 20
    model: Any = None
    prompt: str | None = None

    def model_post_init(self, context: Any) -> None:
        if self.keep_last * _LEAST_MESSAGE_TOKENS >= self.at:
            raise ValueError(
                f"at={self.at:,} tokens is less than the last {self.keep_last:,} messages have alone, and each call "
                "would be preceded by a summary: raise at, or lower keep_last"
            )

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: str | None) -> str | None:
        if prompt is not None and not prompt.strip():
            raise ValueError("it is blank: leave it out for perdure's own prompt")
        return prompt


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """An agent's settings, by kind."""

    truncate: Truncate | None = None
    clear_results: ClearResults | None = None
    window: Window | None = None
    summarise: Summarise | None = None

    @property
    def has_view(self) -> bool:
        """Whether the model is sent something other than the transcript."""
        return not (self.truncate is None and self.clear_results is None and self.window is None)


COMPACTION_KINDS = {kind._kind: kind for kind in (Truncate, ClearResults, Window, Summarise)}


def build_compaction_settings(name: str, given: Any) -> CompactionSettings | None:
    """Return what agent ``name`` was given, by kind; None without any. Raises ``DefinitionError``."""
    if given is None:
        return None
    is_single = isinstance(given, Compaction | str | Mapping) or not isinstance(given, Iterable)
    by_kind: dict[str, Any] = {}
    for compaction in [given] if is_single else given:
        if not isinstance(compaction, Compaction) or not compaction._kind:
            problem = f"agent {name!r}: compaction must be a Compaction or a list of them, not {compaction!r:.100}"
            raise DefinitionError(problem, hint="For instance compaction=Compaction.window(tokens=100_000).")
        if compaction._kind in by_kind:
            hint = "Give each kind once; they work together."
            raise DefinitionError(f"agent {name!r}: compaction has {compaction._kind} twice", hint=hint)
        by_kind[compaction._kind] = compaction
    return CompactionSettings(**by_kind) if by_kind else None
