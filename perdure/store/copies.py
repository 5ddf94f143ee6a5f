"""Copies a store into another database: SQLite into PostgreSQL, the other way, or into a second one of its kind.

The target has the same ``store_id``, and is marked as unfinished until all rows are compared: no worker opens it. The
source is read in one snapshot; a write to it meanwhile is an error. Rows are copied in the order of their primary keys,
so a copy that was interrupted continues behind the last row of each table. Why it is so: decision 038.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import InvalidInputError, StoreError, StoreMismatchError, StoreVersionError, TranscriptCorruptedError
from . import migrations
from .chain import hash_node
from .objects import decode_pointer
from .schema import TABLES

Row = tuple[Any, ...]

PAGE_ROWS, PAGE_BYTES = 500, 8 * 1024 * 1024
"""Rows that are read and written at once: a page ends with the row that exceeds the bytes."""
COPIED_TABLES = tuple(table for table in TABLES if table != "meta")
_SHOWN_DAMAGES = 10


@dataclass(frozen=True, slots=True)
class Identity:
    """The row of ``meta``, and the version of the schema."""

    store_id: str
    created_at: str
    usable_from: str
    version: str


class CopyEnd(Protocol):
    """One of the two databases of a copy. All methods raise ``StoreError``."""

    place: str

    async def read_identity(self) -> Identity | None:
        """Return the identity of the store; None if there is none. Of a source: begins its snapshot."""
        ...

    async def read_key(self, table: str) -> tuple[str, ...]:
        """Return the columns of the primary key, in their order."""
        ...

    async def read_page(self, table: str, key: Sequence[str], after: Row | None) -> list[Row]:
        """Return the rows of ``table`` behind the one of that key, in the order of keys: all columns of ``TABLES``."""
        ...

    async def find_change(self) -> str | None:
        """End the snapshot of a source, and say what was written since it began; None if nothing was."""
        ...

    async def create(self, identity: Identity) -> None:
        """Create the schema where there is none, and mark an empty store as an unfinished copy of ``identity``. Raises
        ``StoreMismatchError`` for another store that is not empty."""
        ...

    async def find_last_key(self, table: str, key: Sequence[str]) -> Row | None:
        """Return the key of the last row, None for an empty table."""
        ...

    async def write_page(self, table: str, rows: Sequence[Row]) -> None:
        """Insert rows, all or none. Raises ``StoreError`` for a copy that is complete."""
        ...

    async def clear(self, table: str) -> None:
        """Delete all rows. Raises ``StoreError`` for a copy that is complete."""
        ...

    async def finish(self, usable_from: str) -> None:
        """Let workers open the store. Raises ``StoreError`` for a copy that is complete."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table of a complete copy. ``digest``: SHA-256 over all rows in the order of their keys, equal on both sides."""

    rows: int
    bytes: int
    digest: str


@dataclass(slots=True)
class CopyResult:
    """A complete copy."""

    store_id: str
    source: str
    target: str
    tables: dict[str, CopiedTable] = field(default_factory=dict)
    objects: int = 0
    """Large blobs that are objects: their rows were copied, the objects stay where they are."""
    damaged: list[str] = field(default_factory=list)
    """Nodes and blobs whose bytes do not have their hash, in the source as in the target."""


async def copy_rows(
    source: CopyEnd, target: CopyEnd, *, report: Callable[[str], None], keep_damaged: bool = False
) -> CopyResult:
    """Copy the store of ``source`` to ``target``, and compare all rows. ``report`` gets lines of progress.

    Raises ``StoreError`` if the source is written meanwhile; ``StoreMismatchError`` if the target has another store;
    ``TranscriptCorruptedError`` for damaged nodes and blobs, unless ``keep_damaged``. The same call again continues.
    """
    if source.place == target.place:
        raise InvalidInputError(f"FROM and TO are the same store: {source.place}", hint="Name another database as TO.")
    identity = _check_source(source.place, await source.read_identity())
    present = await target.read_identity()
    is_complete = _check_target(target.place, present, identity)
    result = CopyResult(identity.store_id, source.place, target.place)
    if not is_complete:
        await target.create(identity)
        for table in COPIED_TABLES:
            await _copy_rows(source, target, table, report)
    for table in COPIED_TABLES:
        flaw = await _compare_table(source, target, table, result)
        if flaw is not None and not is_complete:  # left by an earlier try, from a source that was written since
            report(f"{table}: {flaw}; copying it anew")
            await target.clear(table)
            await _copy_rows(source, target, table, report)
            flaw = await _compare_table(source, target, table, result)
        if flaw is not None:
            raise StoreError(
                f"{target.place} differs from {source.place}: table {table}, {flaw}",
                hint="One of them was written since they were copied. To copy again, delete the target first.",
            )
        report(f"{table}: {result.tables[table].rows:,} rows are the same")
    if (change := await source.find_change()) is not None:
        raise StoreError(
            f"the store {source.place} was written while it was copied ({change})",
            hint="Stop its workers and clients, then run the same command again: it continues.",
        )
    if result.damaged and not keep_damaged:
        shown = ", ".join(result.damaged[:_SHOWN_DAMAGES])
        raise TranscriptCorruptedError(
            f"{len(result.damaged)} rows of {source.place} are damaged: {shown}",
            hint="Restore them from a backup and run this again, or copy them as they are with --keep-damaged.",
        )
    if not is_complete:
        await target.finish(identity.usable_from)
    return result


def _check_source(place: str, identity: Identity | None) -> Identity:
    if identity is None:
        raise StoreError(f"there is no store at {place}", hint="Correct FROM; `perdure store status` looks at a store.")
    _check_version(place, identity)
    migrations.check_usable(identity.version, identity.usable_from)
    return identity


def _check_version(place: str, identity: Identity) -> None:
    if identity.version != migrations.CURRENT_VERSION:
        raise StoreVersionError(
            f"the store {place} has schema {identity.version}, and copies are made of {migrations.CURRENT_VERSION}",
            hint="Run `perdure store migrate` on it, or use the perdure that made it.",
        )


def _check_target(place: str, present: Identity | None, source: Identity) -> bool:
    """Whether the target is a complete copy already. Raises ``StoreMismatchError`` for another store."""
    if present is None:
        return False
    _check_version(place, present)
    if present.store_id != source.store_id and present.usable_from == migrations.UNFINISHED_COPY:
        raise StoreMismatchError(
            f"{place} has an unfinished copy of store {present.store_id}, and FROM is store {source.store_id}",
            hint="Finish that copy, or delete it (the file, or the database) and copy again.",
        )
    return present.store_id == source.store_id and present.usable_from != migrations.UNFINISHED_COPY


async def _copy_rows(source: CopyEnd, target: CopyEnd, table: str, report: Callable[[str], None]) -> None:
    key = await source.read_key(table)
    after = await target.find_last_key(table, key)
    indexes = [TABLES[table].index(column) for column in key]
    copied = 0
    while rows := await source.read_page(table, key, after):
        await target.write_page(table, rows)
        copied += len(rows)
        after = tuple(rows[-1][index] for index in indexes)
        report(f"{table}: {copied:,} rows copied")


async def _iterate_rows(end: CopyEnd, table: str) -> AsyncIterator[Row]:
    key = await end.read_key(table)
    indexes = [TABLES[table].index(column) for column in key]
    after: Row | None = None
    while rows := await end.read_page(table, key, after):
        for row in rows:
            yield row
        after = tuple(rows[-1][index] for index in indexes)


async def _compare_table(source: CopyEnd, target: CopyEnd, table: str, result: CopyResult) -> str | None:
    """Compare all rows of both sides, and check hashes. Return the first difference, or None."""
    digest, count, size = hashlib.sha256(), 0, 0
    objects, damaged = 0, []
    others = _iterate_rows(target, table)
    async for row in _iterate_rows(source, table):
        other = await anext(others, None)
        if row != other:
            return f"row {count + 1:,} in the order of keys"
        for value in row:
            encoded = _encode_value(value)
            digest.update(encoded)
            size += len(encoded)
        count += 1
        if (damage := _find_damage(table, row)) is not None:
            damaged.append(damage)
        objects += table == "blobs" and decode_pointer(row[0], row[1]) is not None
    if await anext(others, None) is not None:
        return f"more than the {count:,} rows of the source"
    result.tables[table] = CopiedTable(count, size, digest.hexdigest())
    result.objects += objects
    result.damaged += damaged
    return None


def build_occupied_error(place: str, store_id: str) -> StoreMismatchError:
    """Build the error for a target that has another store."""
    return StoreMismatchError(
        f"{place} has another store already ({store_id})",
        hint="Name an empty database or a new file as TO, or delete what is there.",
    )


def build_finished_error(place: str) -> StoreError:
    """Build the error for a target that another command has completed meanwhile: workers may use it."""
    return StoreError(
        f"another `perdure store copy` has completed the copy at {place}", hint="`perdure store status` shows it."
    )


def _encode_value(value: Any) -> bytes:
    """Encode a value with its type and length, so that no two rows give the same bytes."""
    content = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    return f"{type(value).__name__} {len(content)}\n".encode() + content


def _find_damage(table: str, row: Row) -> str | None:
    """Return what is wrong with the row of a node or blob: its name must be the hash of its content."""
    if table == "nodes" and hash_node(row[1], row[2]) != row[0]:
        return f"node {row[0]}"
    if table == "blobs" and hashlib.sha256(row[1]).hexdigest() != row[0] and decode_pointer(row[0], row[1]) is None:
        return f"blob {row[0]}"
    return None
