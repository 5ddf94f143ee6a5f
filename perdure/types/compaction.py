"""How a long conversation is kept short: views of it that a model is sent, and rewrites of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DefinitionError


class Compaction:
    """``Agent(compaction=Compaction.window(tokens=100_000))``: one way to keep a conversation short, or a list of ways.

    ``truncate``, ``clear_results`` and ``window`` are views: they change what a model is sent, never the transcript,
    and cost nothing. ``summarise`` rewrites: a model sums up what was said, and the conversation goes on from there;
    what it replaces stays in the store (``run.transcript(full=True)``). Each may be given once.

    All raise ``DefinitionError`` for a number that makes no sense.
    """

    __slots__ = ()

    @staticmethod
    def truncate(*, after: int, keep: int = 200, every: int | None = None) -> Truncate:
        """Once ``after`` replies have followed it, of a reply's thinking and tool-call inputs only the first ``keep``
        characters are sent, marked as cut. What users and assistants said, and results, stay whole.

        A model's cache ends where its input changes. So it is cut for ``every`` replies at once, not at each: by
        default for as many as ``after`` says. ``every=1`` cuts as early as may be.
        """
        return Truncate(after=after, keep=keep, every=every)

    @staticmethod
    def clear_results(*, after: int, every: int | None = None) -> ClearResults:
        """Once ``after`` replies have followed it, a tool's result is sent as a short note of its size.

        ``every``: as for :meth:`truncate`.
        """
        return ClearResults(after=after, every=every)

    @staticmethod
    def window(*, messages: int | None = None, tokens: int | None = None) -> Window:
        """Messages are left out from the front where there are more than ``messages``, or their ``tokens`` (with the
        system prompt and the tools) are more: down to half, so that it happens seldom.

        The conversation's first user message stays, and a call stays with its result.
        """
        return Window(messages=messages, tokens=tokens)

    @staticmethod
    def summarise(*, at: int, keep_last: int = 20, model: Any = None, prompt: str | None = None) -> Summarise:
        """Once a call has come to ``at`` tokens, or is refused as too long, a model sums up all but the ``keep_last``
        messages, before the next call.

        ``model`` (a name, or a ``Provider``) writes the summary instead of the agent's own; ``prompt`` says what it
        has to tell. It is a model call of its own: paid, recorded, and no iteration.
        """
        return Summarise(at=at, keep_last=keep_last, model=model, prompt=prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate(Compaction):
    """See :meth:`Compaction.truncate`."""

    after: int
    keep: int = 200
    every: int | None = None

    def __post_init__(self) -> None:
        _check_compaction_number("truncate", "after", self.after, 1)
        _check_compaction_number("truncate", "keep", self.keep, 0)
        _check_compaction_number("truncate", "every", self.every, 1, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearResults(Compaction):
    """See :meth:`Compaction.clear_results`."""

    after: int
    every: int | None = None

    def __post_init__(self) -> None:
        _check_compaction_number("clear_results", "after", self.after, 1)
        _check_compaction_number("clear_results", "every", self.every, 1, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Compaction):
    """See :meth:`Compaction.window`."""

    messages: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.messages is None and self.tokens is None:
            raise DefinitionError("Compaction.window needs messages=… or tokens=…", hint="For instance messages=100.")
        _check_compaction_number("window", "messages", self.messages, 4, optional=True)
        _check_compaction_number("window", "tokens", self.tokens, 100, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarise(Compaction):
    """See :meth:`Compaction.summarise`."""

    at: int
    keep_last: int = 20
    model: Any = None
    prompt: str | None = None

    def __post_init__(self) -> None:
        _check_compaction_number("summarise", "at", self.at, 100)
        _check_compaction_number("summarise", "keep_last", self.keep_last, 0)
        if self.prompt is not None and (not isinstance(self.prompt, str) or not self.prompt.strip()):
            raise DefinitionError(
                f"Compaction.summarise: prompt must be a text, not {self.prompt!r:.100}",
                hint="Leave it out for the one that perdure has.",
            )


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """What an agent has of each kind."""

    truncate: Truncate | None = None
    clear_results: ClearResults | None = None
    window: Window | None = None
    summarise: Summarise | None = None

    @property
    def has_view(self) -> bool:
        """Whether a model is sent anything else than the transcript."""
        return not (self.truncate is None and self.clear_results is None and self.window is None)


def build_compaction_settings(name: str, given: Any) -> CompactionSettings | None:
    """The ways of agent ``name``, one of a kind; None without any. Raises ``DefinitionError``."""
    if given is None:
        return None
    ways = [given] if isinstance(given, Compaction | str | Mapping) or not isinstance(given, Iterable) else list(given)
    kinds = {Truncate: "truncate", ClearResults: "clear_results", Window: "window", Summarise: "summarise"}
    by_kind: dict[str, Any] = {}
    for way in ways:
        kind = kinds.get(type(way))
        if kind is None:
            raise DefinitionError(
                f"agent {name!r}: compaction must be a Compaction or a list of them, not {way!r:.100}",
                hint="For instance compaction=Compaction.window(tokens=100_000).",
            )
        if kind in by_kind:
            raise DefinitionError(
                f"agent {name!r}: compaction has {kind} twice", hint="Give each kind once; they work together."
            )
        by_kind[kind] = way
    return CompactionSettings(**by_kind) if by_kind else None


def _check_compaction_number(way: str, field: str, value: Any, least: int, *, optional: bool = False) -> None:
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DefinitionError(
            f"Compaction.{way}: {field} must be a whole number of at least {least}, not {value!r:.100}",
            hint=f"For instance {field}={max(least, 20)}.",
        )
