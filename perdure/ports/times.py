"""Times as rows and events have them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def timestamp(at: datetime) -> str:
    """Format ``at`` for rows and events: ISO 8601, UTC, always with microseconds, so texts sort as times do."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def format_utc_now() -> str:
    """Return the current time, formatted by :func:`timestamp`."""
    return timestamp(datetime.now(UTC))


def add_seconds(at: str, seconds: float) -> str:
    """Return the time ``seconds`` after ``at``, formatted as that. Raises ``OverflowError``."""
    return (datetime.fromisoformat(at) + timedelta(seconds=seconds)).isoformat(timespec="microseconds")
