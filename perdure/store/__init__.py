"""The store of transcripts, outcomes, runs and events. Importing this package loads no database driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import StoreLocationError
from .chain import Chain

if TYPE_CHECKING:
    from ..ports.store import Store


__all__ = ["Chain", "open_store"]


def open_store(
    url: str,
    *,
    blob_url: str | None = None,
    blob_bytes: int | None = None,
    outbox: Mapping[str, Sequence[str]] | None = None,
) -> Store:
    """Create the store at ``url``, not opened yet: ``sqlite:///relative/path``, ``sqlite:////absolute/path`` or
    ``postgresql://user:password@host:port/database``.

    With ``blob_url``, blobs of more than ``blob_bytes`` bytes (64 KiB) are objects there: ``s3://bucket/prefix``,
    ``gs://``, ``az://`` or ``file:///absolute/path``.

    ``outbox`` says which events get an outbox row: by target, types of events (``approval.*``).

    Raises ``StoreLocationError`` for a URL of another scheme or form, and if the driver or obstore is not installed.
    """
    from ..ports.outbox import WriteOptions

    store = _create_database_store(url)
    if outbox:
        store.write_options = WriteOptions(outbox=outbox)
    if blob_url is None:
        return store
    from .objects import add_object_store

    return add_object_store(store, blob_url, blob_bytes)


def is_sqlite_url(url: str) -> bool:
    """Whether ``url`` is that of a SQLite file; else it is PostgreSQL's. Raises ``StoreLocationError`` as
    :func:`open_store`."""
    _create_database_store(url)
    return url.startswith("sqlite")


def _create_database_store(url: str) -> Store:
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme == "sqlite":
        from .sqlite import SqliteStore

        return SqliteStore(url)
    if scheme in ("postgresql", "postgres"):
        try:
            from .postgres import PostgresStore
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            from .._installation import build_missing_extra_error

            raise build_missing_extra_error("a store in PostgreSQL", "postgres", module="asyncpg") from error

        return PostgresStore(url)
    raise StoreLocationError(
        f"no store is known for URLs of the scheme {scheme!r}",  # the URL itself may hold a password
        hint="Set PERDURE_STORE_URL to sqlite:///path or postgresql://user:password@host/database.",
    )
