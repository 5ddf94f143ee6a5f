"""The audit trail: who has steered what, when and from where; the address is the filter. Also as a download."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response, StreamingResponse

from ..client.pages import MAX_PAGE
from ..errors import InvalidInputError
from ..types.visible_text import show_controls
from ..web.auth import Resource
from ..web.operations import validate
from ..web.records import AuditEntry, AuditList, AuditQuery, list_audit
from .inbox import count_pending
from .pages import HEADERS, Page, PageRoute

ROWS = 50
MAX_EXPORT_ROWS = 50_000
"""Most rows of a download."""
_CHECKED_PAGES = 10
"""After so many pages of a download its visitor is looked at again."""
_NAMES = ("by", "verb", "subject", "tenant")
VERBS = (
    *("approve", "deny", "answer", "revoke", "send", "inject", "interrupt", "pause", "resume", "cancel", "terminate"),
    *("close", "fork", "delete", "schedule.*", "webhook.*", "token.*"),
)
"""Verbs that the filter offers."""


def read_day(page: Page, name: str) -> date | None:
    """Return the day that the address has under ``name``; None without one. Raises ``InvalidInputError``."""
    text = page.request.query_params.get(name, "").strip()
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(f"{name}: {text!r:.40} is not a day", hint="A day is 2026-11-25.") from None


def get_start(day: date) -> datetime:
    """Return the beginning of ``day``, in UTC."""
    return datetime.combine(day, time(), UTC)


def get_end(day: date) -> datetime:
    """Return the end of ``day``, in UTC. Raises ``InvalidInputError`` for the last day that there is."""
    try:
        return get_start(day) + timedelta(days=1)
    except OverflowError:
        raise InvalidInputError("to: there is no day after it") from None


def _read_filters(page: Page) -> dict[str, str]:
    """Return what the address asks for, without its page."""
    given = page.request.query_params
    filters = {name: text for name in (*_NAMES, "from", "to") if (text := given.get(name, "").strip())}
    return filters | ({"refused": "1"} if given.get("refused") == "1" else {})


def _build_query(page: Page, limit: int) -> AuditQuery:
    filters = _read_filters(page)
    fields: dict[str, Any] = {name: filters[name] for name in _NAMES if name in filters}
    fields |= {"limit": limit, "refused": "refused" in filters, "cursor": page.request.query_params.get("cursor")}
    first, last = read_day(page, "from"), read_day(page, "to")
    fields |= {
        "since": None if first is None else get_start(first),
        "until": None if last is None else get_end(last),
    }
    return validate(AuditQuery, fields, "the address")


async def _read(page: Page, query: AuditQuery) -> AuditList:
    return await list_audit(replace(page.call, query=query))


AUTH_WORDS = (
    ("token:…", "By the API token whose id begins so. The pointer over it shows the whole id."),
    ("proxy", "A proxy in front of the service, which is trusted, has said so."),
    ("os-user", "The user of the operating system who ran the program or command there."),
    ("given", "The program gave this name. It was not checked."),
    ("dev", "The service ran with --dev, without a login."),
)
"""What the words under a name mean."""


async def show_audit(page: Page) -> Response:
    """Show the requests that the address asks for, the newest first."""
    await page.call.authorize("operate", "list_audit", Resource("audit"))
    filters = _read_filters(page)
    listed, count = await asyncio.gather(_read(page, _build_query(page, ROWS)), count_pending(page))
    return page.render(
        "audit.html",
        entries=listed.data,
        cursor=listed.cursor,
        filters=filters,
        query=urlencode(filters),
        verbs=VERBS,
        auth_words=AUTH_WORDS,
        today=datetime.now(UTC).date(),
        yesterday=datetime.now(UTC).date() - timedelta(days=1),
        max_rows=MAX_EXPORT_ROWS,
        count=count,
    )


# ---
# Downloads.


async def export_csv(page: Page) -> Response:
    """Send the requests that the address asks for, for a spreadsheet."""
    return await _export(page, "csv", "text/csv; charset=utf-8", _format_csv)


async def export_lines(page: Page) -> Response:
    """Send the requests that the address asks for, one JSON object a line."""
    return await _export(page, "jsonl", "application/jsonl", _format_line)


async def _export(page: Page, suffix: str, media_type: str, format_row: Any) -> Response:
    """Send the rows page by page, as they are read: memory does not grow with them."""
    await page.call.authorize("operate", "list_audit", Resource("audit"))
    query = _build_query(page, MAX_PAGE)
    first = await _read(page, query)  # what is wrong is said by a page, not by half a file

    async def iterate() -> AsyncGenerator[bytes]:
        listed, count, pages = first, 0, 0
        yield format_row(None)
        while True:
            rows = listed.data[: MAX_EXPORT_ROWS - count]
            count, pages = count + len(rows), pages + 1
            yield b"".join(format_row(row) for row in rows)
            if listed.cursor is None or count >= MAX_EXPORT_ROWS:
                break
            if pages % _CHECKED_PAGES == 0 and not await page.is_current():
                raise PermissionError("the visitor may not read the audit trail any longer")
            listed = await _read(page, query.model_copy(update={"cursor": listed.cursor}))
        if listed.cursor is not None or len(listed.data) > len(rows):
            yield format_row(f"There are more requests: this file has the newest {count:,}. Narrow the time.")

    name = f"audit-{datetime.now(UTC):%Y-%m-%d}.{suffix}"
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(iterate(), headers=headers, media_type=media_type)


_COLUMNS = tuple(name for name in AuditEntry.model_fields if name != "id")


def _format_csv(row: AuditEntry | str | None) -> bytes:
    """Return a line of the file: None is its head, a text a remark at its end."""
    cells: list[str]
    match row:
        case None:
            cells = list(_COLUMNS)
        case str():
            cells = [row]
        case _:
            cells = [defuse_cell(_read_cell(row, name)) for name in _COLUMNS]
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().encode(errors="replace")


def _read_cell(row: AuditEntry, name: str) -> str | None:
    value = getattr(row, name)
    return str(value) if isinstance(value, int) else value


def _format_line(row: AuditEntry | str | None) -> bytes:
    match row:
        case None:
            return b""
        case str():
            return _encode_line({"remark": row})
        case _:
            return _encode_line(row.model_dump(exclude_none=True))


def _encode_line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"  # ASCII: characters that hide others are escapes


_FORMULA = tuple("=+-@|%＝＋－＠")
"""What spreadsheets take a cell for a formula by."""


def defuse_cell(value: str | None) -> str:
    """Return a cell that no spreadsheet takes for a formula: such a text gets an apostrophe before it."""
    given = value or ""
    is_risky = given.lstrip().startswith(_FORMULA) or given[:1] in ("\t", "\r", "\n")
    return f"'{show_controls(given)}" if is_risky else show_controls(given)


PAGES = (
    PageRoute("GET", "/audit", show_audit, "audit"),
    PageRoute("GET", "/audit.csv", export_csv, "audit_csv"),
    PageRoute("GET", "/audit.jsonl", export_lines, "audit_lines"),
)
