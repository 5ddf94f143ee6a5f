"""The dev server that all perdure programs of a home share, in a process of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os

from ..errors import ServerStartError
from . import launch, rpc
from .binary import ensure_binary
from .home import Home, current_home
from .locks import locked, try_lock
from .process import is_alive, terminate
from .record import ServerInfo, read_record, remove_record, write_record

_PROBE_SECONDS = 2.0
_LOCK_SECONDS = 120.0
_RELEASE_SECONDS = 10.0
_POLL = 0.02
_BUSY = "starting or stopping the Temporal dev server"


async def running_server(home: Home | None = None) -> ServerInfo | None:
    """The embedded server that runs and answers; None when there is none (or it is still starting)."""
    record = read_record(home or current_home())
    if record is None or record.instance_id is None or not is_alive(record.pid, record.start_token):
        return None
    answered = await rpc.cluster_id(record.address, seconds=_PROBE_SECONDS)
    return record if answered == record.instance_id else None


async def ensure_server(home: Home | None = None) -> ServerInfo:
    """The embedded server that runs; started if none does, its binary fetched if there is none.

    Any number of processes may call it at once: they get the same server.

    Raises:
        ServerNotFoundError: there is no binary and none could be fetched.
        ServerStartError: it does not start; says why.
        RuntimeSetupError: PERDURE_HOME cannot be used.
    """
    home = home or current_home()
    if running := await running_server(home):
        return running
    home.create()
    async with locked(home.server_lock, wait=_LOCK_SECONDS, busy=_BUSY):
        if adopted := await _adopt(home):
            return adopted
    # Not under the lock: a fetch takes minutes, and has a lock and a display of its own.
    binary = await ensure_binary(home)
    async with locked(home.server_lock, wait=_LOCK_SECONDS, busy=_BUSY):
        if adopted := await _adopt(home):
            return adopted
        database_fd = await _claim_database(home)
        try:
            return await launch.start(home, binary, database_fd)
        finally:
            os.close(database_fd)


async def stop_server(home: Home | None = None) -> bool:
    """Stop the embedded server and wait until it is gone; whether there was one. Runs stay in its database.

    Raises:
        ServerStartError: it cannot be stopped.
    """
    home = home or current_home()
    if not home.root.is_dir():
        return False
    async with locked(home.server_lock, wait=_LOCK_SECONDS, busy=_BUSY):
        record = read_record(home)
        stopped = record is not None and is_alive(record.pid, record.start_token)
        if record is not None and stopped:
            await terminate(record.pid, record.start_token)
        stopped = await _end_unrecorded(home) or stopped
        remove_record(home)
    return stopped


async def _adopt(home: Home) -> ServerInfo | None:
    """The recorded server, if it lives and comes to answer. One that does not is ended. Needs the lock."""
    record = read_record(home)
    if record is None or not is_alive(record.pid, record.start_token):
        return None
    answered = await launch.wait_until_ready(record)
    if answered is not None and answered == (record.instance_id or answered):
        if record.instance_id is None:  # its starter died before it could say
            record = dataclasses.replace(record, instance_id=answered)
            await rpc.index_runs(record.address)
            await rpc.keep_closed_runs(record.address)
            write_record(home, record)
        return record
    await terminate(record.pid, record.start_token)
    return None


async def _claim_database(home: Home) -> int:
    """The lock that the next server will hold for life. A server that nobody knows of is ended first."""
    await _end_unrecorded(home)
    # The kernel lets go of a killed process's locks a moment after the process is seen to be gone.
    deadline = asyncio.get_running_loop().time() + _RELEASE_SECONDS
    while (fd := try_lock(home.database_lock)) is None:
        if asyncio.get_running_loop().time() > deadline:
            raise ServerStartError(
                f"a server that has no record holds {home.temporal_db}",
                hint=f"`fuser {home.database_lock}` names its process. End it and try again.",
            )
        await asyncio.sleep(_POLL)
    return fd


async def _end_unrecorded(home: Home) -> bool:
    """End a server whose record was lost; whether there was one. The lock on the database proves it lives."""
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
    await terminate(pid, token)
    return alive
