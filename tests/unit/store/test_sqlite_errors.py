"""Every failure of SQLite becomes a ``StoreError`` that names the file and a way out."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy.exc

from perdure.errors import StoreError
from perdure.store import sqlite_connection
from perdure.store.sqlite_connection import SQLITE_FAILURES, SqliteDatabase, translate_sqlite_failure

NO_CODES = ("SQLITE_OK", "SQLITE_DENY", "SQLITE_IGNORE", "SQLITE_LIMIT_", "SQLITE_ROW", "SQLITE_DONE")
CODES = {
    name: code
    for name, code in vars(sqlite3).items()
    if name.startswith("SQLITE_") and isinstance(code, int) and not name.startswith(NO_CODES)
}


def driver_error(name: str, cls: type[sqlite3.Error] = sqlite3.OperationalError) -> sqlite3.Error:
    error = cls("what SQLite says")
    error.sqlite_errorcode, error.sqlite_errorname = CODES[name], name
    return error


def unwrapped(error: sqlalchemy.exc.SQLAlchemyError) -> Exception:
    """What becomes of an error of SQLAlchemy."""
    with (
        contextlib.closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(SQLITE_FAILURES) as caught,
        SqliteDatabase(connection).open_sqlalchemy(),
    ):
        raise error
    return caught.value


def check(error: Exception, path: Path) -> StoreError:
    named = f"{type(error).__name__} {getattr(error, 'sqlite_errorname', '')}"
    assert isinstance(error, SQLITE_FAILURES), named
    translated = translate_sqlite_failure(error, path)
    assert isinstance(translated, StoreError), named
    assert str(path) in translated.message, named
    assert translated.hint, named
    assert "{" not in str(translated), named
    return translated


def test_every_code(tmp_path: Path):
    for name in CODES:
        check(driver_error(name), tmp_path / "store.db")


def subclasses(cls: type[BaseException]) -> set[type[BaseException]]:
    return {cls}.union(*[subclasses(child) for child in cls.__subclasses__()])


def test_every_class_of_the_driver(tmp_path: Path):
    for cls in subclasses(sqlite3.Error) | {sqlite3.Warning}:
        check(cls("what SQLite says"), tmp_path / "store.db")


def test_every_class_of_sqlalchemy(tmp_path: Path):
    for cls in subclasses(sqlalchemy.exc.SQLAlchemyError):
        check(unwrapped(cls.__new__(cls)), tmp_path / "store.db")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("SQLITE_BUSY", "locked"),
        ("SQLITE_FULL", "full"),
        ("SQLITE_READONLY", "read-only"),
        ("SQLITE_NOTADB", "not a SQLite database"),
        ("SQLITE_CANTOPEN", "cannot be opened"),
        ("SQLITE_CORRUPT", "damaged"),
        ("SQLITE_IOERR", "disk"),
        ("SQLITE_INTERNAL", "fails"),
    ],
)
def test_what_is_said(name: str, says: str, tmp_path: Path):
    for error in (driver_error(name), unwrapped(sqlalchemy.exc.OperationalError("SELECT", (), driver_error(name)))):
        assert says in check(error, tmp_path / "store.db").message
        assert name in check(error, tmp_path / "store.db").message


@pytest.mark.skipif(not hasattr(sqlite3, "SQLITE_IOERR_WRITE"), reason="needs the extended codes")
def test_extended_codes_are_of_their_kind(tmp_path: Path):
    assert "disk" in check(driver_error("SQLITE_IOERR_WRITE"), tmp_path / "store.db").message


def test_directories(tmp_path: Path):
    nowhere = tmp_path / "no" / "store.db"
    assert "no directory" in check(driver_error("SQLITE_CANTOPEN"), nowhere).message
    assert "no directory" in check(FileNotFoundError(2, "gone"), nowhere).message
    assert "is a directory" in check(driver_error("SQLITE_CANTOPEN"), tmp_path).message
    assert "removed" in check(FileNotFoundError(2, "gone"), tmp_path / "store.db").message
    assert "cannot be opened" in check(PermissionError(13, "no"), tmp_path / "store.db").message


def test_all_texts_format():
    named = [value for name, value in vars(sqlite_connection).items() if name.endswith("_ERROR")]
    assert len(named) == 5
    for text in [*named, *sqlite_connection._ERRORS.values()]:
        [part.format(path="p", name="n", directory="d") for part in text]
