"""Start one dev server process and bring it to the point where it can be used."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from ..errors import RuntimeSetupError
from . import database, rpc
from .binary import Binary
from .home import Home
from .locks import locked
from .process import is_alive, spawn_detached, start_token, terminate
from .record import ServerInfo, read_record, write_record

HOST = "127.0.0.1"
USUAL_PORTS = (7233, 8233)
"""gRPC and UI, as every Temporal tool expects them."""

# Measured (FACTS.md, Cost): without these an iteration takes 207 ms instead of 15-21, for any program.
DYNAMIC_CONFIG = (
    "history.transferProcessorMaxPollRPS=100000",
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    "system.enableActivityEagerExecution=true",
)

_READY_SECONDS = 30.0
_ALONE_SECONDS = 60.0
_PROBE_SECONDS = 2.0
_POLL = 0.05
_ATTEMPTS = 3
_LOG_LIMIT = 10 * 1024 * 1024
_TAIL_BYTES = 64 * 1024

# Nothing else of the environment: the server outlives its starter, whose API keys are none of its business,
# and TEMPORAL_* would configure it.
_ENVIRONMENT = ("HOME", "PATH", "TMPDIR", "TZ", "LANG", "LC_ALL")


async def start(home: Home, binary: Binary, database_fd: int) -> ServerInfo:
    """Start a server on the home's database. Its process keeps ``database_fd``. Needs the server lock.

    Raises:
        ServerStartError: says why, with the end of its log where that helps.
        RuntimeSetupError: PERDURE_HOME cannot be used.
    """
    home.check_writable()
    database.prepare(home)
    _rotate(home)
    async with _alone():
        return await _start(home, binary, database_fd)


async def _start(home: Home, binary: Binary, database_fd: int) -> ServerInfo:
    info = await _bring_up(home, binary, database_fd)
    await rpc.index_runs(info.address)
    if await rpc.keep_closed_runs(info.address):
        # The server notices within 2 s only, and what closes before would be kept for a day. To start once more
        # takes a third of a second, once in a home's life.
        await terminate(info.pid, info.start_token, gently=False)
        info = await _bring_up(home, binary, database_fd)
    write_record(home, info)
    return info


@asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    """One start at a time on this machine, where there is a directory for the lock. Two homes whose servers began at
    once chose the same ports: each was answered by the other's, set that one up, and left its own as it was.
    """
    path = Path(tempfile.gettempdir()) / f"perdure-{os.getuid()}-ports.lock"
    async with AsyncExitStack() as stack:
        with suppress(RuntimeSetupError):
            await stack.enter_async_context(locked(path, wait=_ALONE_SECONDS, busy="starting a Temporal dev server"))
        yield


async def _bring_up(home: Home, binary: Binary, database_fd: int) -> ServerInfo:
    """Start a process and wait until it answers. Its record says so only when the caller writes it."""
    before = read_record(home)
    for _ in range(_ATTEMPTS):
        log_start = home.server_log.stat().st_size if home.server_log.exists() else 0
        record = _spawn(home, binary, database_fd, _choose_ports(before))
        # Cancelled here, the server lives on: whoever needs it next finds it by its record.
        instance_id = await wait_until_ready(record)
        if instance_id is not None:
            return dataclasses.replace(record, instance_id=instance_id)
        await terminate(record.pid, record.start_token)
        said = _tail(home, log_start)
        if "address already in use" in said:
            before = None  # someone took a port between the look and the start
        elif database.PANIC not in said:
            break  # it said why; a crash may be bad luck (it looks for free ports of its own, and panics without)
    raise database.explain(home, said)


async def wait_until_ready(record: ServerInfo) -> str | None:
    """The cluster id that a starting server answers with; None when it ends first, or stays silent."""
    deadline = asyncio.get_running_loop().time() + _READY_SECONDS
    while asyncio.get_running_loop().time() < deadline and is_alive(record.pid, record.start_token):
        answered = await rpc.cluster_id(record.address, seconds=_PROBE_SECONDS)
        # Alive still: then it is the one that has the port, not a stranger who took it first.
        if answered is not None and is_alive(record.pid, record.start_token):
            return answered
        await asyncio.sleep(_POLL)
    return None


def _spawn(home: Home, binary: Binary, database_fd: int, ports: tuple[int, int]) -> ServerInfo:
    port, ui_port = ports
    # The database is named relative to the working directory: its path goes into an SQLite URI unescaped.
    argv = [
        str(binary.path),
        "server",
        "start-dev",
        "--db-filename",
        home.temporal_db.name,
        "--log-level",
        "warn",
    ]
    argv += ["--ip", HOST, "--port", str(port), "--ui-port", str(ui_port)]
    argv += [part for value in DYNAMIC_CONFIG for part in ("--dynamic-config-value", value)]
    env = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    pid = spawn_detached(argv, log=home.server_log, cwd=home.root, env=env, keep_fd=database_fd)
    record = ServerInfo(
        pid=pid,
        address=f"{HOST}:{port}",
        ui_address=f"{HOST}:{ui_port}",
        version=binary.server_version,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        # One that is gone already matches nothing.
        start_token=start_token(pid) or "gone",
        instance_id=None,
    )
    # At once, so that a server whose starter is killed now is found again.
    holder = json.dumps({"pid": pid, "start_token": record.start_token}).encode()
    with home.guard():
        os.ftruncate(database_fd, 0)
        os.pwrite(database_fd, holder, 0)
    write_record(home, record)
    return record


def _choose_ports(before: ServerInfo | None) -> tuple[int, int]:
    """The ports of a server that crashed, as its clients call there; else the usual ones; else free ones."""
    wanted = [USUAL_PORTS]
    if before is not None:
        wanted.insert(0, (_port(before.address), _port(before.ui_address)))
    chosen: list[int] = []
    for candidates in zip(*wanted, strict=True):
        port = next((p for p in candidates if p not in chosen and is_free(p)), None)
        chosen.append(port or _any_port())
    return chosen[0], chosen[1]


def _port(address: str) -> int:
    digits = address.rpartition(":")[2]
    return int(digits) if digits.isdigit() else 0


def is_free(port: int) -> bool:
    """Whether a server can listen on ``port``."""
    if not 0 < port < 65536:
        return False
    with closing(socket.socket()) as probe:
        # As Go does it: connections of a server that was just killed do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
    return True


def _any_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _rotate(home: Home) -> None:
    if home.server_log.exists() and home.server_log.stat().st_size > _LOG_LIMIT:
        home.server_log.replace(home.server_log.with_suffix(".log.1"))


def _tail(home: Home, start_of_run: int) -> str:
    try:
        with home.server_log.open("rb") as log:
            log.seek(max(start_of_run, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return log.read().decode(errors="replace").strip()
    except OSError:
        return ""
