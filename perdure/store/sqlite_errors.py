"""Every way in which SQLite fails, as a ``StoreError`` that names the file and the way out."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from ..errors import StoreError

Failure = sqlite3.Error | sqlite3.Warning | SQLAlchemyError | OSError
FAILURES = (sqlite3.Error, sqlite3.Warning, SQLAlchemyError, OSError)
"""What work on a SQLite file may raise."""

_LOCKED = (
    "the store {path} is locked by another process",
    "Close the program that holds it (a database browser?); the work is tried again.",
)
_FULL = (
    "the disk of the store {path} is full",
    "Free space there; nothing is half-written, and the work is tried again.",
)
_READ_ONLY = (
    "the store {path} is read-only",
    "Make the file and its directory writable for this user (SQLite also writes {name}-wal and -shm).",
)
_CANNOT_OPEN = (
    "the store {path} cannot be opened",
    "Make the file and its directory readable and writable, or set PERDURE_STORE_URL to another place.",
)
_NO_DIRECTORY = (
    "the store {path} cannot be opened: there is no directory {directory}",
    "Create the directory, or set PERDURE_STORE_URL to another place.",
)
_IS_DIRECTORY = ("the store {path} is a directory", "Set PERDURE_STORE_URL to the path of a file.")
_REMOVED = (
    "the store {path} was removed while it was in use",
    "Put the file back (with its -wal file, if it has one); the work goes on with it.",
)
_NOT_A_DATABASE = (
    "{path} is not a SQLite database",
    "Set PERDURE_STORE_URL to another file, or restore this one from a backup.",
)
_CORRUPTED = (
    "the store {path} is damaged",
    "Stop the workers; restore the file from a backup, or save what is left by `sqlite3 {path} .recover`.",
)
_IO = (
    "the disk of the store {path} fails to read or write",
    "Check the disk and the system's log; the work is tried again.",
)
_FOREIGN = (
    "{path} is not laid out as a perdure store",
    "Another program changed it? Restore it from a backup, or set PERDURE_STORE_URL to another file.",
)
_TOO_LARGE = (
    "a value is too large for the store {path}",
    "SQLite takes up to 1 GB in one value.",
)
_OTHER = ("the store {path} fails", "Run `perdure doctor`, and `sqlite3 {path} 'PRAGMA integrity_check'`.")

_BY_CODE = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: _LOCKED,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _CANNOT_OPEN,
    sqlite3.SQLITE_AUTH: _CANNOT_OPEN,
    sqlite3.SQLITE_CANTOPEN: _CANNOT_OPEN,
    sqlite3.SQLITE_NOTADB: _NOT_A_DATABASE,
    sqlite3.SQLITE_FORMAT: _NOT_A_DATABASE,
    sqlite3.SQLITE_CORRUPT: _CORRUPTED,
    sqlite3.SQLITE_IOERR: _IO,
    sqlite3.SQLITE_NOLFS: _IO,
    sqlite3.SQLITE_ERROR: _FOREIGN,  # for instance a table that is not there: the statements are right
    sqlite3.SQLITE_SCHEMA: _FOREIGN,
    sqlite3.SQLITE_CONSTRAINT: _FOREIGN,
    sqlite3.SQLITE_MISMATCH: _FOREIGN,
    sqlite3.SQLITE_TOOBIG: _TOO_LARGE,
}


def translate(error: Failure, path: Path) -> StoreError:
    """The ``StoreError`` for ``error``, whatever it is. Total: the unknown is one too."""
    message, hint = _explain(error, path)
    names = {"path": path, "name": path.name, "directory": path.parent}
    return StoreError(f"{message.format(**names)} ({_detail(error)})", hint=hint.format(**names))


def _explain(error: Failure, path: Path) -> tuple[str, str]:
    original = getattr(error, "orig", None) or error
    if isinstance(original, FileNotFoundError):
        return _REMOVED if path.parent.is_dir() else _NO_DIRECTORY
    code = getattr(original, "sqlite_errorcode", None)
    if code is None:
        return _CANNOT_OPEN if isinstance(original, OSError) else _OTHER
    kind = _BY_CODE.get(code & 0xFF, _OTHER)  # extended codes keep the primary one in the low byte
    if kind is _CANNOT_OPEN and path.is_dir():
        return _IS_DIRECTORY
    if kind is _CANNOT_OPEN and not path.parent.is_dir():
        return _NO_DIRECTORY
    return kind


def _detail(error: Failure) -> str:
    original = getattr(error, "orig", None) or error
    name = getattr(original, "sqlite_errorname", None) or type(original).__name__
    if isinstance(original, SQLAlchemyError):  # its str() is the statement with all parameters: a conversation
        return f"{name}: {original.args[0] if original.args else ''}"
    return f"{name}: {original}"
