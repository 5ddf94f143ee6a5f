"""Limits that an author sets: what one model call may take, and how fast a provider may be called."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import DefinitionError
from .duration import seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``Agent(limits=Limits(attempts=3, call_timeout="10m"))``: what a model call may take before its run fails.

    None is no limit. Raises ``DefinitionError`` that names the field.
    """

    attempts: int | None = None
    """Attempts of one model call that may fail: the run fails with the error of the last. With a chain of models an
    attempt has failed when all of them have. One that the provider said when to repeat (429 with Retry-After) does not
    count, nor does one whose worker was lost, or that the store failed."""
    call_timeout: float | str | None = None
    """How long one model call may take with all its attempts and the waits between them, from the moment that the first
    was scheduled: seconds, or text like ``"10m"``; a number of seconds from then on."""

    def __post_init__(self) -> None:
        _whole("Limits", "attempts", self.attempts, "3")
        if self.call_timeout is not None:
            try:
                object.__setattr__(self, "call_timeout", seconds(self.call_timeout))
            except ValueError as error:
                raise DefinitionError(
                    f"Limits: call_timeout: {error}", hint='For instance call_timeout="10m"; leave it out for no limit.'
                ) from None

    @property
    def call_seconds(self) -> float | None:
        """``call_timeout`` in seconds."""
        return None if self.call_timeout is None else float(self.call_timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """``Worker(…, provider_limits={"anthropic": RateLimit(concurrent=8, per_minute=50)})``: of one worker process.

    None is no limit. Raises ``DefinitionError`` that names the field.
    """

    concurrent: int | None = None
    """Calls of the provider that may be under way at once."""
    per_minute: int | None = None
    """Calls that may begin within any 60 seconds."""

    def __post_init__(self) -> None:
        _whole("RateLimit", "concurrent", self.concurrent, "8")
        _whole("RateLimit", "per_minute", self.per_minute, "50")


def _whole(owner: str, field: str, value: object, example: str) -> None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return
    raise DefinitionError(
        f"{owner}: {field} must be a whole number of at least 1, not {value!r:.100}",
        hint=f"For instance {field}={example}; leave it out for no limit.",
    )
