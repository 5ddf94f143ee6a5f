"""A schedule as it is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..printing import print_line, printable

if TYPE_CHECKING:
    from ..schedule import ScheduleStatus


def plain(status: ScheduleStatus) -> dict[str, Any]:
    """As JSON."""

    def values(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: values(one) for name, one in value.items()}
        if isinstance(value, tuple | list):
            return [values(one) for one in value]
        return value.isoformat() if isinstance(value, datetime) else value

    found: dict[str, Any] = values(asdict(status))
    return found


def facts(status: ScheduleStatus) -> list[tuple[str, str]]:
    """A line each: what it is called, and what it is."""
    found = [("id", status.id), ("agent", status.agent), ("says", _said(status.start)), ("when", _when(status))]
    found += [("overlap", status.overlap), ("next", due(status))]
    found += [("note", status.note)] if status.note else []
    found += [("begun", f"{status.begun}, {len(status.running)} of them not over; {status.skipped} skipped")]
    return found + [("run", one.id) for one in reversed(status.recent)]


def _said(start: dict[str, Any]) -> str:
    """What its runs are asked, in a line."""
    message = start.get("message")
    if not isinstance(message, dict):
        return str(message or "")
    content = message.get("content") if message.get("input") is None else message["input"]
    text = " ".join((content if isinstance(content, str) else str(content)).split())
    return text if len(text) <= 200 else text[:200] + "…"


def _when(status: ScheduleStatus) -> str:
    return "; ".join(status.when) + (f" ({status.timezone})" if status.timezone else "")


def due(status: ScheduleStatus) -> str:
    """When it is due next."""
    if status.paused:
        return "paused"
    return f"{status.next[0]:%Y-%m-%d %H:%M:%S} UTC" if status.next else "never"


def table(found: Sequence[ScheduleStatus]) -> None:
    """A line each, under headings."""
    told = [tuple(map(printable, (one.id, one.agent, _when(one), due(one)))) for one in found]
    rows = [("ID", "AGENT", "WHEN", "NEXT"), *told]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
