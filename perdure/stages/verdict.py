"""What becomes of a call that failed: tried again or not, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import (
    AgentNotFoundError,
    ContextLengthError,
    PerdureError,
    ProviderError,
    ProviderTimeoutError,
    ToolsetError,
)
from ..types.messages import clean

AGENT_SECONDS = 60.0
"""How long an unknown agent is looked for, from the first attempt that did not find it: a deploy may be under way."""
TOOLSET_ATTEMPTS = 7
"""How often a toolset is asked for its tools: a minute, with the delays of workflows/options.py, for a server may be
starting anew."""
SILENT_ATTEMPTS = 3
"""How often a model may fall silent before the run fails with it: every attempt may have been paid for."""
UNEXPECTED_ATTEMPTS = 5
"""How often an attempt may fail with something that is no ``PerdureError``, or that an author's provider has raised
and nobody knows, before the run fails with it."""
FAILURE_CHARS = 1000
"""Of an error's message. Temporal replaces a failure of more than about 4 KB, traceback and causes counted, by
"Failure exceeds size limit", and nobody can see any more what a run is stuck on. So causes stay in the log, too."""

LONGEST_DELAY = 100 * 365 * 86400.0
"""Seconds that Temporal can be told. ``Limits.retry_wait`` bounds what a provider asks for long before."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failed attempt means."""

    kind: str
    """Class name of the error."""
    message: str
    retry: bool
    delay: float | None = None
    """Seconds until the next attempt, where the provider said so."""
    ways: tuple[str, ...] = ()
    """What the loop may do before it asks again: ``ContextLengthError.ways``."""

    @property
    def details(self) -> tuple[dict[str, list[str]], ...]:
        """For the loop, as details of the failure that Temporal is told."""
        return ({"compaction": list(self.ways)},) if self.ways else ()


def verdict(error: Exception, attempt: int, missing: float = 0.0) -> Verdict:
    """Of attempt number ``attempt`` (from 1) that failed with ``error``. ``missing``: seconds without the agent.

    What is no ``PerdureError`` is a fault in the engine, or in an author's prompt function: tried again, but not for
    ever.
    """
    most = {
        ProviderError: UNEXPECTED_ATTEMPTS,  # nobody knows what it is
        ProviderTimeoutError: SILENT_ATTEMPTS,
        ToolsetError: TOOLSET_ATTEMPTS,
    }.get(type(error))
    if not isinstance(error, PerdureError):
        return Verdict(type(error).__name__, _short(str(error)), attempt < UNEXPECTED_ATTEMPTS)
    retry = error.retryable and (most is None or attempt < most)
    if isinstance(error, AgentNotFoundError):
        retry = missing < AGENT_SECONDS
    delay = error.retry_after if isinstance(error, ProviderError) else None
    delay = None if delay is None else min(delay, LONGEST_DELAY)
    ways = error.ways if isinstance(error, ContextLengthError) else ()
    return Verdict(type(error).__name__, _short(str(error)), retry, delay, ways)


def _short(text: str) -> str:
    text = clean(text)  # else Temporal's client could not send it, nor say whether to try again
    return text if len(text) <= FAILURE_CHARS else text[:FAILURE_CHARS] + "… (cut)"
