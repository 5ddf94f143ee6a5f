"""The store of transcripts, outcomes, runs and events. Importing this package loads no database driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import StoreLocationError
from .chain import Chain

if TYPE_CHECKING:
    from ..ports import Store


__all__ = ["Chain", "open_store"]


def open_store(url: str) -> Store:
    """Create the store at ``url``, not opened yet: ``sqlite:///relative/path``, ``sqlite:////absolute/path`` or
    ``postgresql://user:password@host:port/database``.

    Raises ``StoreLocationError`` for a URL of another scheme or form, and if the driver is not installed.
    """
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
            raise StoreLocationError(
                "a store in PostgreSQL needs the package asyncpg, which is not installed",
                hint='Install it with the extra: pip install "perdure[postgres]".',
            ) from error

        return PostgresStore(url)
    raise StoreLocationError(
        f"no store is known for URLs of the scheme {scheme!r}",  # the URL itself may hold a password
        hint="Set PERDURE_STORE_URL to sqlite:///path or postgresql://user:password@host/database.",
    )
