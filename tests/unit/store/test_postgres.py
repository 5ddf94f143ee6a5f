"""What the store in PostgreSQL does without a server: its URL, its errors, its payloads and texts."""

from __future__ import annotations

import ssl

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import StoreError, StoreLocationError
from perdure.ports.store import EventBatch, NewEvent
from perdure.store import open_store
from perdure.store.postgres import PostgresStore, _choose_marked_event, shorten_key
from perdure.store.postgres_connection import (
    POSTGRES_FAILURES,
    build_connect_options,
    escape_text,
    parse_postgres_url,
    translate_postgres_failure,
    unescape_text,
)
from perdure.store.postgres_notify import CHANGED_UNKNOWN, build_payloads, parse_payload
from perdure.types.events import Event, LimitReached, ModelCompleted, ModelDelta, ModelRetracted

ADDRESS = parse_postgres_url("postgresql://ana:s3cret@db/perdure")

# --- the URL -----------------------------------------------------------------------------------------------------


def test_parts_of_a_url():
    url = "postgresql+asyncpg://ana:p%40ss@db-1:5432,db-2:5433/perdure?sslmode=require&pool_size=4&pooler=transaction"
    address = parse_postgres_url(f"{url}&listen=db-0:5432&command_timeout=7.5")
    assert address.place == "postgresql://ana@db-1:5432,db-2:5433/perdure"
    assert address.dsn == "postgresql://ana:p%40ss@db-1:5432,db-2:5433/perdure?sslmode=require"
    assert address.listen_dsn == "postgresql://ana:p%40ss@db-0:5432/perdure?sslmode=require"
    assert (address.pool_size, address.command_timeout, address.connect_timeout) == (4, 7.5, 10)
    assert (address.named_statements, address.target) == (False, "read-write")
    assert build_connect_options(address)["statement_cache_size"] == 0
    assert "p%40ss" not in repr(address)
    assert "p@ss" not in repr(address)


def test_the_usual_url():
    address = parse_postgres_url("postgres://db/perdure")
    assert (address.place, address.target) == ("postgresql://db/perdure", "any")
    assert (address.pool_size, address.named_statements) == (10, True)
    assert parse_postgres_url("postgresql:///perdure?host=/run/postgresql").place == "postgresql:///perdure"
    assert parse_postgres_url("postgresql://[::1]:5432/perdure").place == "postgresql://[::1]:5432/perdure"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://ana:secret@db", "no host or no database"),
        ("postgresql://ana:secret@db/", "no host or no database"),
        ("postgresql:///perdure", "no host or no database"),
        ("postgresql://ana:secret/word@db/perdure", "not encoded"),
        ("postgresql://ana:secret?word@db/perdure", "not encoded"),
        ("postgresql://ana:secret#word@db/perdure", "not encoded"),
        ("postgresql://ana:secret@db:port/perdure", "host or port"),
        ("postgresql://ana:secret@[db/perdure", "cannot be parsed"),
        ("postgresql://ana:secret@db/perdure?pooler=statement", "pooler"),
        ("postgresql://ana:secret@db/perdure?pool_size=many", "pool_size"),
        ("postgresql://ana:secret@db/perdure?pool_size=0", "pool_size"),
        ("postgresql://ana:secret@db/perdure?command_timeout=nan", "command_timeout"),
    ],
)
def test_urls_that_name_no_store(url: str, says: str):
    with pytest.raises(StoreLocationError, match=says) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert "word" not in str(caught.value).replace("PASSWORD", "")


async def test_a_store_that_is_not_open():
    store = PostgresStore("postgresql://ana:secret@db/perdure")
    with pytest.raises(StoreError, match=r"ana@db/perdure is not open"):
        await store.get_run("c")
    await store.close()


# --- errors ------------------------------------------------------------------------------------------------------


def subclasses(cls: type[BaseException]) -> set[type[BaseException]]:
    return {cls}.union(*[subclasses(child) for child in cls.__subclasses__()])


def check(error: Exception) -> StoreError:
    name = type(error).__name__
    assert isinstance(error, POSTGRES_FAILURES), name
    translated = translate_postgres_failure(error, ADDRESS)
    assert isinstance(translated, StoreError), name
    assert "ana@db/perdure" in translated.message, name
    assert translated.hint, name
    assert "s3cret" not in str(translated), name
    return translated


def test_every_class_of_the_driver_and_every_sqlstate():
    bases = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    classes = set().union(*map(subclasses, bases))
    assert len(classes) > 250
    for cls in classes:
        check(cls("what it says of s3cret"))
    for cls in subclasses(OSError):
        if cls.__module__ in ("builtins", "socket", "ssl"):
            check(cls("what it says of s3cret"))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (asyncpg.InvalidPasswordError("no"), "refuses the user or the password"),
        (asyncpg.InvalidAuthorizationSpecificationError("no"), "refuses the user or the password"),
        (asyncpg.InvalidCatalogNameError("no"), "no database"),
        (asyncpg.InsufficientPrivilegeError("no"), "does not allow"),
        (asyncpg.ReadOnlySQLTransactionError("no"), "can only be read"),
        (asyncpg.QueryCanceledError("no"), "cancelled a statement"),
        (asyncpg.AdminShutdownError("no"), "stopped or starts"),
        (asyncpg.CannotConnectNowError("no"), "stopped or starts"),
        (asyncpg.TooManyConnectionsError("no"), "connections left"),
        (asyncpg.DiskFullError("no"), "disk"),
        (asyncpg.UndefinedTableError("no"), "not laid out"),
        (asyncpg.UndefinedFunctionError("no"), "not laid out"),
        (asyncpg.LockNotAvailableError("no"), "locks rows"),
        (asyncpg.DeadlockDetectedError("no"), "locks rows"),
        (asyncpg.DataCorruptedError("no"), "damaged"),
        (asyncpg.ConnectionDoesNotExistError("no"), "cannot be reached"),
        (ConnectionRefusedError("no"), "cannot be reached"),
        (TimeoutError(), "did not answer in time"),
        (asyncpg.DataError("no"), "cannot take a value"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"), "cannot take a value"),
        (asyncpg.ClientConfigurationError("no"), "a parameter in the URL"),
        (asyncpg.UndefinedObjectError("no"), "a parameter in the URL"),
        (FileNotFoundError("no"), "a file that the URL"),
        (ssl.SSLCertVerificationError("no"), "no TLS connection"),
        (asyncpg.InternalServerError("no"), "fails"),
    ],
)
def test_what_is_said(error: Exception, says: str):
    assert says in check(error).message


# --- texts, keys, payloads -----------------------------------------------------------------------------------------

TEXTS = st.text(st.sampled_from("\0\1\2ab\U0010ffff"), max_size=6)


@given(TEXTS, TEXTS)
def test_escaped_texts_have_no_nul_and_the_same_order(one: str, other: str):
    assert "\0" not in escape_text(one)
    assert unescape_text(escape_text(one)) == one
    assert (escape_text(one) < escape_text(other)) == (one < other)
    assert escape_text(one + other) == escape_text(one) + escape_text(other)


def test_long_keys_are_stored_by_their_hash():
    assert shorten_key(None) is None
    assert shorten_key("result/x") == "result/x"
    long = [shorten_key("\N{SNOWMAN}" * 1000 + end) for end in "ab"]
    assert len(set(long)) == 2
    assert all(key is not None and len(key) < 100 for key in long)
    assert len(shorten_key("\ud800" * 1000) or "") < 100  # a hostile client's; short ones are refused by the driver


@pytest.mark.parametrize(
    ("events", "marked"),
    [
        ([], 0),
        ([(LimitReached(), "k")], 0),
        ([(ModelRetracted(), None)], 0),
        ([(ModelDelta(), None), (ModelRetracted(), None), (LimitReached(), "k")], 1),
        ([(ModelDelta(), None), (ModelCompleted(), None)], 2),  # the reply deletes the delta
        ([(ModelDelta(), "k")], 1),  # the key of a delta is not stored
        ([(LimitReached(), None), (ModelDelta(), "k")], 1),
    ],
)
def test_the_event_that_marks_a_batch(events: list[tuple[Event, str | None]], marked: int):
    assert _choose_marked_event(EventBatch("c", [NewEvent(*event) for event in events])) == marked


def test_payloads_name_all_streams_and_fit():
    seqs = {f"{n}-{'ü' * 300}": n for n in range(1, 60)}
    payloads = build_payloads(seqs)
    assert all(len(payload.encode()) < 8000 for payload in payloads)
    named: dict[str, int] = {}
    for payload in payloads:
        named |= parse_payload(payload)
    assert named == seqs
    assert build_payloads({"x" * 9000: 1, "c": 2}) == [CHANGED_UNKNOWN]


@pytest.mark.parametrize("payload", ["", "{", "[1]", "null", '{"c": "1"}', '{"c": null}', CHANGED_UNKNOWN])
def test_payloads_of_other_programs_name_nothing(payload: str):
    assert parse_payload(payload) == {}
