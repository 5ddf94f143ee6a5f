"""Connections to PostgreSQL: the URL, a pool, and the translation of the server's and the driver's errors."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit
from weakref import WeakKeyDictionary

import asyncpg

from ..errors import StoreError, StoreLocationError, StoreMismatchError
from . import meta, migrations
from .retention import Step
from .statements import PARAMETER, Statement

T = TypeVar("T")

# ---
# The URL.


@dataclass(frozen=True)
class PostgresAddress:
    """The parts of a store's URL. No part but ``dsn`` and ``secrets`` holds a password."""

    place: str
    """The URL without password and parameters, for errors."""
    dsn: str = field(repr=False)
    """The URL for the driver."""
    listen_dsn: str = field(repr=False)
    """The same for notifications, which a pooling proxy does not pass on."""
    secrets: tuple[str, ...] = field(repr=False)
    pool_size: int
    command_timeout: float
    connect_timeout: float
    named_statements: bool
    """Whether the driver may keep prepared statements on a connection."""
    target: str
    """Which of several servers to take, see libpq's ``target_session_attrs``."""


_URL_HINT = "Write postgresql://USER:PASSWORD@HOST:5432/DATABASE; encode special characters as %XX."
_HOST = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^:\[\]]+)(:\d{1,5})?")
_OWN_PARAMETERS = {
    "pooler": "session",
    "pool_size": "10",
    "command_timeout": "30",
    "connect_timeout": "10",
    "listen": "",
    "target_session_attrs": "",
}


def parse_postgres_url(url: str) -> PostgresAddress:
    """Parse ``postgresql://user:password@host:port/database?parameters``.

    Own parameters: ``pool_size`` (connections, 10), ``command_timeout`` and ``connect_timeout`` (seconds, 30 and 10),
    ``pooler=transaction`` behind a proxy that pools by transaction, and ``listen=host:port``, the server itself, for
    notifications. All others are the driver's (``sslmode``, ``sslrootcert``, …). Raises ``StoreLocationError``, which
    does not quote the URL: it may hold a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise StoreLocationError("the store's URL cannot be parsed", hint=_URL_HINT) from None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}" or parts.fragment:
        raise StoreLocationError("the store's URL has an @ or # that is not encoded", hint=_URL_HINT)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if not (hosts or given.get("host")) or parts.path in ("", "/"):
        raise StoreLocationError("the store's URL names no host or no database", hint=_URL_HINT)
    if hosts and not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        raise StoreLocationError("the store's URL has a host or port that is none", hint=_URL_HINT)
    own = {name: given.pop(name, default) for name, default in _OWN_PARAMETERS.items()}
    if own["pooler"] not in ("session", "transaction"):
        raise StoreLocationError(
            "the store's URL has an unknown pooler", hint="It is pooler=transaction or pooler=session (the default)."
        )
    query = f"?{urlencode(given)}" if given else ""
    return PostgresAddress(
        place=f"postgresql://{user}{'@' if user else ''}{hosts}{parts.path}",
        dsn=f"postgresql://{parts.netloc}{parts.path}{query}",
        listen_dsn=f"postgresql://{login}{'@' if login else ''}{own['listen'] or hosts}{parts.path}{query}",
        secrets=tuple(secret for secret in (password, unquote(password), given.get("password", "")) if secret),
        pool_size=int(_parse_number("pool_size", own["pool_size"])),
        command_timeout=_parse_number("command_timeout", own["command_timeout"]),
        connect_timeout=_parse_number("connect_timeout", own["connect_timeout"]),
        named_statements=own["pooler"] != "transaction",
        # Of several servers the one that can be written to: after a failover it is another one.
        target=own["target_session_attrs"] or ("read-write" if "," in hosts else "any"),
    )


def _parse_number(name: str, text: str) -> float:
    with suppress(ValueError):
        number = float(text)
        if 1 <= number <= 3600:
            return number
    raise StoreLocationError(
        f"the store's URL has a {name} that is not a number from 1 to 3600", hint=f"For instance {name}=20."
    )


# ---
# Translation of every failure into a ``StoreError`` that names the store and the way out.


CONNECTION_FAILURES = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Exceptions of a broken connection: whether the server ran the statement is unknown. ``TimeoutError`` is an
``OSError``."""
POSTGRES_FAILURES = (*CONNECTION_FAILURES, asyncpg.PostgresError, ValueError)
"""Exceptions that work on PostgreSQL may raise; ValueError for an address."""

_UNREACHABLE_ERROR = (
    "the store {place} cannot be reached",
    "Check that the server runs and the address is right; the work is tried again.",
)
_TIMEOUT_ERROR = (
    "the store {place} did not answer in time",
    "Check the server's load and pg_stat_activity for locks; the work is tried again (?command_timeout=SECONDS).",
)
_SETTING_ERROR = (
    "a parameter in the URL of the store {place} is wrong",
    "See docs/how-to/postgresql.md for those that perdure knows; others must be settings of the server.",
)
_TLS_ERROR = (
    "the store {place} has no TLS connection for this process",
    "Correct sslmode and sslrootcert in PERDURE_STORE_URL, or the server's certificate; the work is tried again.",
)
_FILE_ERROR = (
    "a file that the URL of the store {place} names is not there",
    "Check sslrootcert, sslcert and sslkey, or that the server of that socket runs; the work is tried again.",
)
_LOGIN_ERROR = (
    "the store {place} refuses the user or the password",
    "Correct them in PERDURE_STORE_URL (special characters as %XX), or the server's pg_hba.conf.",
)
_DATABASE_ERROR = ("there is no database for the store {place}", "Create it: createdb NAME; or correct the URL.")
_PRIVILEGE_ERROR = (
    "the store {place} does not allow this to its user",
    "The first start needs CREATE on the schema; work needs SELECT, INSERT, UPDATE, DELETE on its tables.",
)
_READ_ONLY_ERROR = (
    "the store {place} can only be read",
    "It is a standby: name the primary, or several hosts (postgresql://USER@A,B/DATABASE); the work is tried again.",
)
_SHUTDOWN_ERROR = ("the server of the store {place} was stopped or starts", "The work is tried again.")
_FULL_ERROR = (
    "the server of the store {place} has no disk, memory or connections left",
    "Free some, or lower ?pool_size=; nothing is half-written, and the work is tried again.",
)
_LAYOUT_ERROR = (
    "{place} is not laid out as a perdure store",
    "A table, column or function was removed or changed: restore it from a backup, or name another database.",
)
_LOCK_ERROR = (
    "another transaction locks rows of the store {place}",
    "Look for it in pg_stat_activity; the work is tried again.",
)
_DAMAGED_ERROR = ("the store {place} is damaged", "Stop the workers and restore the database from a backup.")
_STATEMENT_ERROR = (
    "the server of the store {place} cancelled a statement",
    "Raise statement_timeout of its user, or look for locks in pg_stat_activity; the work is tried again.",
)
_TOO_LARGE_ERROR = (
    "a value is too large for the store {place}",
    "An id, key or name has up to 2,700 bytes there, a statement up to 1 GB.",
)
_VALUE_ERROR = (
    "the store {place} cannot take a value",
    "A text with a lone surrogate, or a number out of range? Nothing of it was written.",
)
_UNKNOWN_ERROR = ("the store {place} fails", "See the server's log; `perdure doctor` checks the connection.")

_AWAY_ERRORS = (_UNREACHABLE_ERROR, _TIMEOUT_ERROR, _SHUTDOWN_ERROR, _FULL_ERROR, _LOCK_ERROR)
"""Errors of a server that may be back in a moment."""
_ERRORS = {
    ("42704",): _SETTING_ERROR,
    ("28",): _LOGIN_ERROR,
    ("3D",): _DATABASE_ERROR,
    ("42501",): _PRIVILEGE_ERROR,
    ("25006",): _READ_ONLY_ERROR,
    ("57014",): _STATEMENT_ERROR,
    ("57P",): _SHUTDOWN_ERROR,
    ("53", "54023", "58030"): _FULL_ERROR,
    ("42", "23", "3F", "0A"): _LAYOUT_ERROR,
    ("55P03", "40"): _LOCK_ERROR,
    ("XX001", "XX002"): _DAMAGED_ERROR,
    ("54",): _TOO_LARGE_ERROR,
    ("22",): _VALUE_ERROR,
    ("08",): _UNREACHABLE_ERROR,
}
_ERRORS_BY_PREFIX = {prefix: texts for prefixes, texts in _ERRORS.items() for prefix in prefixes}


def build_closed_error(address: PostgresAddress) -> StoreError:
    """Build the error of a store that is not open."""
    return StoreError(f"the store {address.place} is not open", hint="Call open() first.")


def translate_postgres_failure(error: Exception, address: PostgresAddress) -> StoreError:
    """Translate ``error`` into a ``StoreError``, without passwords. Total: unknown errors are translated too."""
    if isinstance(error, StoreError):
        return error
    message, hint = _select_error_texts(error)
    name = getattr(error, "sqlstate", None) or type(error).__name__
    cause = str(error)
    for secret in address.secrets:
        cause = cause.replace(secret, "***")
    reason = f"({name}: {cause})" if cause else f"({name})"
    store_error = StoreError(f"{message.format(place=address.place)} {reason}", hint=hint)
    store_error.away = (message, hint) in _AWAY_ERRORS
    return store_error


def _select_error_texts(error: Exception) -> tuple[str, str]:
    sqlstate = getattr(error, "sqlstate", None) or ""
    for length in (5, 3, 2):
        if texts := _ERRORS_BY_PREFIX.get(sqlstate[:length]):
            return texts
    if isinstance(error, TimeoutError):
        return _TIMEOUT_ERROR
    if isinstance(error, ssl.SSLError) or "rejected SSL upgrade" in str(error):
        return _TLS_ERROR
    if isinstance(error, UnicodeError):
        return _VALUE_ERROR
    if isinstance(error, asyncpg.ClientConfigurationError):
        return _SETTING_ERROR
    if isinstance(error, FileNotFoundError):
        return _FILE_ERROR
    if "TargetServerAttributeNotMatched" in type(error).__name__:
        return _READ_ONLY_ERROR
    return _UNREACHABLE_ERROR if isinstance(error, CONNECTION_FAILURES) else _UNKNOWN_ERROR


# ---
# Statements and values.


@lru_cache(maxsize=1024)
def _bind_by_position(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return ``sql`` with ``$1`` … in the place of its named parameters, and their names in that order."""
    names: list[str] = []

    def replace(parameter: re.Match[str]) -> str:
        if parameter[1] not in names:
            names.append(parameter[1])
        return f"${names.index(parameter[1]) + 1}"

    sql = re.sub(r"NOT IN \(:(\w+)\)", r"<> ALL(:\1)", sql)
    sql = re.sub(r"IN \(:(\w+)\)", r"= ANY(:\1)", sql)
    return PARAMETER.sub(replace, sql), tuple(names)


def bind_statement(statement: Statement | str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return the SQL of ``statement`` with ``$1`` … as its parameters, and their values in that order."""
    if isinstance(statement, str):
        sql, names = _bind_by_position(statement)
        return sql, [_escape_value(values[name]) for name in names]
    sql, names = _bind_by_position(statement.render("postgresql", values))
    return sql, [_escape_value(value) for value in statement.get_values(names, values)]


def escape_text(text: str) -> str:
    """Escape NUL, which PostgreSQL takes in no text. Keeps the order of texts, and what is a prefix of what."""
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\2").replace("\0", "\1\1")
    return text


def unescape_text(text: str) -> str:
    """Reverse :func:`escape_text`."""
    return text.replace("\1\1", "\0").replace("\1\2", "\1") if "\1" in text else text


def _escape_value(value: Any) -> Any:
    if type(value) is str:
        return escape_text(value)
    if isinstance(value, list | tuple):
        return [escape_text(one) if type(one) is str else one for one in value]
    return value


def unescape_value(value: Any) -> Any:
    """Reverse :func:`escape_text` in a text; another value as it is."""
    return unescape_text(value) if type(value) is str else value


# ---
# The pool.


APPLICATION_PREFIX = "perdure schema "
IDLE_SECONDS = 300.0
"""Time after which an unused connection is closed."""
LIFETIME_SECONDS = 600.0
"""Time after which a connection is not used again: the host's name may have another address by then, and a server that
was replaced may still answer reads."""
CANCEL_SECONDS = 2.0
"""Time that the server has to cancel a statement whose caller waits no longer."""


class PostgresPool:
    """A pool of connections, for one event loop. All methods raise ``StoreError``.

    A statement whose connection breaks is asked for again once, on a new connection: every statement of the store is
    safe to run again.

    Not asyncpg's own pool, which takes 100 to 150 µs of CPU and four turns of the event loop for each statement.
    """

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._idle: list[tuple[Any, float]] = []
        """Unused connections with the time of their last use, the latest last."""
        self._slots = asyncio.Semaphore(address.pool_size)
        """One for each connection that is used, being made or being ended. Callers get them in their order."""
        self._waiting = 0
        """Number of callers that wait for a slot."""
        self._used: set[Any] = set()
        self._opened_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._stale: set[Any] = set()
        """Used connections that are not used again: they lead to a server that has stopped."""
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.store_id = ""
        """Once set, another store at the same address is refused."""

    async def close(self) -> None:
        """Close the connections: those in use when they are released. Nothing more can be run."""
        self._is_closed = True
        for _ in range(self._waiting):  # they find it closed
            self._slots.release()
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            with suppress(*POSTGRES_FAILURES):
                await connection.close(timeout=1)
        if self._ending:
            await asyncio.wait(self._ending)

    async def _acquire(self) -> Any:
        """Return a connection; its slot is the caller's until ``_release``."""
        if self._slots.locked():
            self._waiting += 1
            try:
                async with asyncio.timeout(self._address.connect_timeout + self._address.command_timeout):
                    await self._slots.acquire()
            finally:
                self._waiting -= 1
        else:
            await self._slots.acquire()
        try:
            if self._is_closed:
                raise build_closed_error(self._address)
            connection = self._pop_idle() or await self._connect()
        except BaseException:
            self._slots.release()
            raise
        self._used.add(connection)
        return connection

    def _pop_idle(self) -> Any:
        while self._idle:
            connection, used_at = self._idle.pop()
            now = time.monotonic()
            is_fresh = now - used_at < IDLE_SECONDS and now - self._opened_at[connection] < LIFETIME_SECONDS
            if is_fresh and not connection.is_closed():
                return connection
            connection.terminate()
        return None

    async def _connect(self) -> Any:
        connection = await asyncpg.connect(**build_connect_options(self._address))
        self._opened_at[connection] = time.monotonic()
        try:
            await self._check_same_store(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _release(self, connection: Any, *, is_running: bool) -> None:
        """Take the connection back; ``is_running``: the server may still run its statement."""
        is_stale = connection in self._stale
        self._used.discard(connection)
        self._stale.discard(connection)
        if is_running and not connection.is_closed():
            ending = asyncio.create_task(self._end(connection))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            return
        self._slots.release()
        if is_stale or self._is_closed or connection.is_closed():
            connection.terminate()
            return
        self._idle.append((connection, time.monotonic()))
        if time.monotonic() - self._idle[0][1] > IDLE_SECONDS:
            self._idle.pop(0)[0].terminate()

    async def _end(self, connection: Any) -> None:
        """Close a connection whose caller has left it, once the server has cancelled the statement.

        Without that the server would go on, and keep its locks: statements that wait for a lock would pile up there.
        """
        try:
            with suppress(*POSTGRES_FAILURES):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await connection.close()
        finally:
            connection.terminate()
            self._slots.release()

    def _drop_all(self) -> None:
        """Use no connection again that there is now."""
        idle, self._idle = self._idle, []
        self._stale |= self._used
        for connection, _ in idle:
            connection.terminate()

    async def fetch(self, statement: Statement | str, **values: Any) -> list[Any]:
        """Run ``statement`` with the values of its parameters, and return its rows."""
        sql, arguments = bind_statement(statement, values)
        rows: list[Any] = await self._run(lambda connection, _: connection.fetch(sql, *arguments))
        return rows

    async def call(self, statement: str, build_arguments: Callable[[bool], Sequence[Any]]) -> Any:
        """Call a function of the store, and return its row. ``build_arguments`` is told whether an earlier call may
        have been run already."""

        def fetch_row(connection: Any, is_repeated: bool) -> Awaitable[Any]:
            return connection.fetchrow(statement, *map(_escape_value, build_arguments(is_repeated)))  # type: ignore[no-any-return]

        return await self._run(fetch_row)

    async def transact(self, make_step: Callable[[], Step[T]], *, write: bool) -> T:
        """Run a step; its statements in one transaction if it writes. ``make_step`` is called again for another try."""

        async def run_step(connection: Any) -> T:
            step = make_step()
            try:
                query = next(step)
                while True:
                    sql, arguments = bind_statement(query.statement, query.values)
                    rows = await connection.fetch(sql, *arguments)
                    query = step.send([tuple(map(unescape_value, row)) for row in rows])
            except StopIteration as end:
                result: T = end.value
                return result

        async def run(connection: Any, _: bool) -> T:
            if not write:
                return await run_step(connection)
            async with connection.transaction():
                return await run_step(connection)

        return await self._run(run)

    async def _run(self, work: Callable[[Any, bool], Awaitable[T]]) -> T:
        for is_repeated in (False, True):
            try:
                return await self._try(work, is_repeated)
            except StoreError as error:
                if is_repeated or not _may_try_again(error.__cause__):
                    raise
        raise AssertionError("the second try returns or raises")

    async def _try(self, work: Callable[[Any, bool], Awaitable[T]], is_repeated: bool) -> T:
        try:
            connection = await self._acquire()
            is_running = True
            try:
                result = await work(connection, is_repeated)
                is_running = False
                return result
            except asyncpg.PostgresError:
                is_running = False  # the server has refused the statement, and takes others
                raise
            finally:
                self._release(connection, is_running=is_running)
        except POSTGRES_FAILURES as error:
            if _is_of_the_server(error):
                self._drop_all()
            raise translate_postgres_failure(error, self._address) from error

    async def _check_same_store(self, connection: Any) -> None:
        if not self.store_id:
            return
        identity, _ = bind_statement(meta.SQL.read_identity, {})
        version, usable_from, other, _ = await connection.fetchrow(identity) or ("", None, None, None)
        migrations.check_still_usable(version, usable_from)
        if other != self.store_id:
            raise StoreMismatchError(
                f"{self._address.place} is now another store ({other}) than the one that was opened ({self.store_id})",
                hint="Bring the right database back, or restart this program to use the new one.",
            )


def build_connect_options(address: PostgresAddress, *, listen: bool = False) -> dict[str, Any]:
    """Build the driver's options of a connection; ``listen``: to the server itself, for notifications."""
    return {
        "dsn": address.listen_dsn if listen else address.dsn,
        "timeout": address.connect_timeout,
        "command_timeout": address.command_timeout,
        "statement_cache_size": 100 if address.named_statements else 0,
        "target_session_attrs": address.target,
        # `perdure store migrate --contract` looks for workers whose code is too old for the next schema.
        "server_settings": {"application_name": f"{APPLICATION_PREFIX}{migrations.CURRENT_VERSION}"},
    }


async def connect_to_postgres(address: PostgresAddress, *, listen: bool = False) -> Any:
    """Open a connection of its own. Raises ``StoreError``."""
    try:
        return await asyncpg.connect(**build_connect_options(address, listen=listen))
    except POSTGRES_FAILURES as error:
        raise translate_postgres_failure(error, address) from None


@asynccontextmanager
async def open_connection(address: PostgresAddress) -> AsyncIterator[Any]:
    """A connection for the block, whose failures are ``StoreError``."""
    connection = await connect_to_postgres(address)
    try:
        yield connection
    except POSTGRES_FAILURES as error:
        raise translate_postgres_failure(error, address) from error
    finally:
        with suppress(*POSTGRES_FAILURES):
            await connection.close(timeout=5)


def _is_of_the_server(error: BaseException) -> bool:
    """Whether the failure is one of the connection or the server, and not of the statement."""
    sqlstate = getattr(error, "sqlstate", None) or ""
    return isinstance(error, CONNECTION_FAILURES) or sqlstate[:3] == "57P" or sqlstate == "25006"


def _may_try_again(error: BaseException | None) -> bool:
    """Whether the same statement may succeed at once: on a new connection, or after a deadlock."""
    if error is None or isinstance(error, TimeoutError):
        return False
    sqlstate = getattr(error, "sqlstate", None) or ""
    return _is_of_the_server(error) or sqlstate in ("40001", "40P01")
