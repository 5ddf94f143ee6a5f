"""The dev server that all perdure programs of a home share, in a process of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import socket
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from ..errors import RuntimeSetupError, ServerStartError
from ..temporal.namespaces import index_runs, keep_closed_runs, read_cluster_id
from .binary import Binary, ensure_binary
from .home import Home, current_home, hold_lock, take_lock, try_lock
from .process import is_alive, read_start_token, spawn_detached, terminate_process
from .record import PROBE_SECONDS, ServerInfo, find_running_server, read_record, write_record

# ---
# The dev server's database file: checks before a start, and errors of a failed start.


PANIC_PREFIX = "panic: "
"""Start of the last output of a crashed Go program."""
_LAST_LINES = 5
_LEAST_FREE_BYTES = 1024 * 1024
"""Less is a full disk: a start writes more."""

# Messages of SQLite and the system in the server's log, the cause, and the way out.
_START_FAILURE_CAUSES = (
    (("disk is full", "no space left"), "the disk is full", "Free some space, or set PERDURE_HOME to another disk."),
    (
        ("readonly database", "read-only", "unable to open database"),
        "its database cannot be written",
        "Make {db} and its directory writable, or set PERDURE_HOME to another directory.",
    ),
    (
        ("not a database", "malformed", "no such table"),
        "its database is damaged",
        "Restore {db} from a backup, or move it away: open runs are lost then, transcripts are not.",
    ),
)


def prepare_database(home: Home) -> None:
    """Check that the database can be written. An unfinished database is removed: it holds no data.

    Raises:
        ServerStartError: it cannot be written, or is not a database.
    """
    path = home.temporal_db
    try:
        with path.open("r+b"):
            pass
        if _is_unfinished_database(path):
            for suffix in ("", "-journal", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ServerStartError(
            f"the Temporal dev server cannot write its database, {path}: {error.strerror}",
            hint="Make it a writable file, or set PERDURE_HOME to another directory.",
        ) from error
    except sqlite3.DatabaseError as error:
        raise build_start_error(home, str(error)) from error


def _is_unfinished_database(path: Path) -> bool:
    """Whether the server ended between the creation of the file and of its first namespace.

    The server sets up a database only if there is no file, so it could never start with this one again. ``namespaces``
    is the first of its tables, and the row in it is written last.
    """
    with closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return True
        if "namespaces" not in tables:
            raise sqlite3.DatabaseError("file is not a database of Temporal")
        return connection.execute("SELECT 1 FROM namespaces WHERE name = 'default'").fetchone() is None


def _merge_log_into_database(home: Home) -> None:
    """Move what a server that has ended left in its write-ahead log, often all of it, into the database file, and
    remove the log. If that fails, the next start reads both."""
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{home.temporal_db.as_uri()}?mode=rw", uri=True)) as database,
    ):
        database.execute("SELECT 1 FROM sqlite_master").fetchone()  # the last connection that is closed does it


def build_start_error(home: Home, output: str) -> ServerStartError:
    """Build the error for a server that did not start, from its last output."""
    if not output and shutil.disk_usage(home.root).free < _LEAST_FREE_BYTES:
        output = "disk is full"  # its log, too, can say nothing
    for signs, cause, hint in _START_FAILURE_CAUSES:
        if any(sign in output.lower() for sign in signs):
            message = f"the Temporal dev server does not start: {cause}"
            return ServerStartError(message, hint=hint.format(db=home.temporal_db))
    _, crashed, words = output.rpartition(PANIC_PREFIX)
    lines = (crashed + words).splitlines()
    shown = lines[:_LAST_LINES] if crashed else lines[-_LAST_LINES:]
    text = "".join(f"\n  {line}" for line in shown) or " nothing"
    return ServerStartError(
        f"the Temporal dev server does not start; its output:{text}", hint=f"Its log is {home.server_log}."
    )


# ---
# Starting a dev server process, until it can be used.


HOST = "127.0.0.1"
DEFAULT_PORTS = (7233, 8233)
"""Ports of gRPC and UI that every Temporal tool expects."""

# Measured (FACTS.md, Cost): without these an iteration takes 207 ms instead of 15-21, for any program.
DYNAMIC_CONFIG = (
    "history.transferProcessorMaxPollRPS=100000",
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    "system.enableActivityEagerExecution=true",
)

# The server writes all through one connection, and a decision on a parked run takes twenty commits until the run ends:
# 92 syncs of the disk with SQLite's default journal, 21 in WAL mode. Each commit is on the disk before it is answered.
SQLITE_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL")

_READY_SECONDS = 30.0
_START_LOCK_SECONDS = 60.0
_READY_POLL_SECONDS = 0.05
_START_ATTEMPTS = 3
_LOG_MAX_BYTES = 10 * 1024 * 1024
_TAIL_BYTES = 64 * 1024

# No other variables: the server outlives its starter and must not get its API keys, and TEMPORAL_* would configure it.
_PASSED_VARIABLES = ("HOME", "PATH", "TMPDIR", "TZ", "LANG", "LC_ALL")


async def start_server_process(home: Home, binary: Binary, database_fd: int) -> ServerInfo:
    """Start a server on the home's database. Its process keeps ``database_fd``. Requires the server lock.

    Raises:
        ServerStartError: with the reason, and the end of its log where that helps.
        RuntimeSetupError: PERDURE_HOME cannot be used.
    """
    home.check_writable()
    prepare_database(home)
    _rotate_log(home)
    async with _hold_start_lock():
        info = await _start_until_ready(home, binary, database_fd)
        await index_runs(info.address)
        if await keep_closed_runs(info.address):
            # The server applies it only after up to 2 s, and would delete runs that close before that after a day. A
            # second start takes a third of a second, once in a home's life.
            await terminate_process(info.pid, info.start_token, gently=False)
            info = await _start_until_ready(home, binary, database_fd)
        write_record(home, info)
        return info


@asynccontextmanager
async def _hold_start_lock() -> AsyncIterator[None]:
    """Allow one start at a time on this machine, if there is a directory for the lock. Otherwise two homes whose
    servers start at the same time may choose the same ports, and each is set up through the other's server."""
    path = Path(tempfile.gettempdir()) / f"perdure-{os.getuid()}-ports.lock"
    async with AsyncExitStack() as stack:
        with suppress(RuntimeSetupError):
            await stack.enter_async_context(
                hold_lock(path, wait=_START_LOCK_SECONDS, busy="starting a Temporal dev server")
            )
        yield


async def _start_until_ready(home: Home, binary: Binary, database_fd: int) -> ServerInfo:
    """Start a process and wait until it answers. The caller adds the instance id to its record."""
    previous = read_record(home)
    for _ in range(_START_ATTEMPTS):
        log_start = home.server_log.stat().st_size if home.server_log.exists() else 0
        record = _spawn_server(home, binary, database_fd, _choose_ports(previous))
        # If cancelled here, the server keeps running: the next program finds it by its record.
        instance_id = await wait_until_ready(record)
        if instance_id is not None:
            return dataclasses.replace(record, instance_id=instance_id)
        await terminate_process(record.pid, record.start_token)
        output = _read_log_tail(home, log_start)
        if "address already in use" in output:
            previous = None  # another program took a port between the check and the start
        elif PANIC_PREFIX not in output:
            break  # it gave a reason; a crash may be bad luck (it looks for free ports of its own, and panics without)
    raise build_start_error(home, output)


async def wait_until_ready(record: ServerInfo) -> str | None:
    """Return the cluster id with which a starting server answers; None if it ends first, or does not answer."""
    deadline = asyncio.get_running_loop().time() + _READY_SECONDS
    while asyncio.get_running_loop().time() < deadline and is_alive(record.pid, record.start_token):
        answered = await read_cluster_id(record.address, seconds=PROBE_SECONDS, starting=True)
        # If it is still alive, it is the process that has the port, not another program.
        if answered is not None and is_alive(record.pid, record.start_token):
            return answered
        await asyncio.sleep(_READY_POLL_SECONDS)
    return None


def _spawn_server(home: Home, binary: Binary, database_fd: int, ports: tuple[int, int]) -> ServerInfo:
    port, ui_port = ports
    # The database is named relative to the working directory: its path goes into an SQLite URI unescaped.
    argv = [str(binary.path), "server", "start-dev", "--db-filename", home.temporal_db.name, "--log-level", "warn"]
    argv += ["--ip", HOST, "--port", str(port), "--ui-port", str(ui_port)]
    argv += [part for value in DYNAMIC_CONFIG for part in ("--dynamic-config-value", value)]
    argv += [part for value in SQLITE_PRAGMAS for part in ("--sqlite-pragma", value)]
    env = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    pid = spawn_detached(argv, log=home.server_log, cwd=home.root, env=env, keep_fd=database_fd)
    record = ServerInfo(
        pid=pid,
        address=f"{HOST}:{port}",
        ui_address=f"{HOST}:{ui_port}",
        version=binary.server_version,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        # The token of a process that has already ended must match nothing.
        start_token=read_start_token(pid) or "gone",
        instance_id=None,
    )
    # Written at once, so that the server is found again if its starter is killed now.
    holder = json.dumps({"pid": pid, "start_token": record.start_token}).encode()
    with home.translate_errors():
        os.ftruncate(database_fd, 0)
        os.pwrite(database_fd, holder, 0)
    write_record(home, record)
    return record


def _choose_ports(previous: ServerInfo | None) -> tuple[int, int]:
    """Choose the ports of a crashed server, since its clients use them; else the default ports; else free ones."""
    preferred = [DEFAULT_PORTS]
    if previous is not None:
        preferred.insert(0, (_parse_port(previous.address), _parse_port(previous.ui_address)))
    chosen: list[int] = []
    for candidates in zip(*preferred, strict=True):
        port = next((p for p in candidates if p not in chosen and is_port_free(p)), None)
        chosen.append(port or _find_free_port())
    return chosen[0], chosen[1]


def _parse_port(address: str) -> int:
    digits = address.rpartition(":")[2]
    return int(digits) if digits.isdigit() else 0


def is_port_free(port: int) -> bool:
    """Whether a server can listen on ``port``."""
    if not 0 < port < 65536:
        return False
    with closing(socket.socket()) as probe:
        # As Go does: connections of a server that was just killed do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
    return True


def _find_free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _rotate_log(home: Home) -> None:
    if home.server_log.exists() and home.server_log.stat().st_size > _LOG_MAX_BYTES:
        home.server_log.replace(home.server_log.with_suffix(".log.1"))


def _read_log_tail(home: Home, start_of_run: int) -> str:
    try:
        with home.server_log.open("rb") as log:
            log.seek(max(start_of_run, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return log.read().decode(errors="replace").strip()
    except OSError:
        return ""


_LOCK_SECONDS = 120.0
_RELEASE_SECONDS = 10.0
_LOCK_PURPOSE = "starting or stopping the Temporal dev server"


async def ensure_server(home: Home | None = None) -> ServerInfo:
    """Return the running embedded server; start one if none runs, and fetch its binary if there is none.

    Any number of processes may call this at the same time: they get the same server.

    Raises:
        ServerNotFoundError: there is no binary and none could be fetched.
        ServerStartError: it does not start; with the reason.
        RuntimeSetupError: PERDURE_HOME cannot be used.
    """
    home = home or current_home()
    if running := await find_running_server(home):
        return running
    home.create()
    async with hold_lock(home.server_lock, wait=_LOCK_SECONDS, busy=_LOCK_PURPOSE):
        if adopted := await _adopt_recorded_server(home):
            return adopted
    # Without the lock: a fetch takes minutes, and has a lock and a display of its own.
    binary = await ensure_binary(home)
    async with hold_lock(home.server_lock, wait=_LOCK_SECONDS, busy=_LOCK_PURPOSE):
        if adopted := await _adopt_recorded_server(home):
            return adopted
        database_fd = await _claim_database(home)
        try:
            return await start_server_process(home, binary, database_fd)
        finally:
            os.close(database_fd)


async def stop_server(home: Home | None = None) -> bool:
    """Stop the embedded server and wait until it has ended. Returns whether there was one. Runs stay in its database,
    all of it in one file: a copy of that is a backup.

    Raises:
        ServerStartError: it cannot be stopped.
    """
    home = home or current_home()
    if not home.root.is_dir():
        return False
    async with hold_lock(home.server_lock, wait=_LOCK_SECONDS, busy=_LOCK_PURPOSE):
        record = read_record(home)
        stopped = record is not None and is_alive(record.pid, record.start_token)
        if record is not None and stopped:
            await terminate_process(record.pid, record.start_token)
        stopped = await _stop_unrecorded_server(home) or stopped
        home.server_file.unlink(missing_ok=True)
        database_fd = await _claim_database(home)
        try:
            _merge_log_into_database(home)
        finally:
            os.close(database_fd)
    return stopped


async def _adopt_recorded_server(home: Home) -> ServerInfo | None:
    """Return the recorded server if it runs and answers; end it if it does not answer. Requires the lock."""
    record = read_record(home)
    if record is None or not is_alive(record.pid, record.start_token):
        return None
    answered = await wait_until_ready(record)
    if answered is not None and answered == (record.instance_id or answered):
        if record.instance_id is None:  # its starter ended before it could record it
            record = dataclasses.replace(record, instance_id=answered)
            await index_runs(record.address)
            await keep_closed_runs(record.address)
            write_record(home, record)
        return record
    await terminate_process(record.pid, record.start_token)
    return None


async def _claim_database(home: Home) -> int:
    """Take the lock that the next server holds for its lifetime. Ends a server without a record first."""
    await _stop_unrecorded_server(home)
    # The kernel releases the locks of a killed process a moment after the process has ended.
    hint = f"`fuser {home.database_lock}` names its process. End it and try again."
    error = ServerStartError(f"a server without a record holds {home.temporal_db}", hint=hint)
    return await take_lock(home.database_lock, _RELEASE_SECONDS, error)


async def _stop_unrecorded_server(home: Home) -> bool:
    """End a server whose record was lost. Returns whether there was one. The lock on the database proves that it
    runs."""
    fd = try_lock(home.database_lock)
    if fd is not None:
        os.close(fd)
        return False
    try:
        holder = json.loads(home.database_lock.read_bytes())
        pid, token = int(holder["pid"]), str(holder["start_token"])
    except (OSError, ValueError, TypeError, KeyError):
        return False
    alive = is_alive(pid, token)
    await terminate_process(pid, token)
    return alive
