"""Detached processes: start one that outlives its starter, recognise it later, end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import ServerStartError

_POLL = 0.05
_TERM_SECONDS = 15.0
_KILL_SECONDS = 5.0

# The shell ends at once, so the server is nobody's child here: no zombie in a starter that lives on.
# umask: the database holds conversations.
_DETACH = 'umask 077; "$@" </dev/null >>"$0" 2>&1 & echo $!'


def spawn_detached(argv: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str], keep_fd: int) -> int:
    """Start ``argv`` in a session of its own, output appended to ``log``, ``keep_fd`` left open; its pid."""
    try:
        shell = subprocess.run(
            ["/bin/sh", "-c", _DETACH, str(log), *argv],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            pass_fds=(keep_fd,),
            start_new_session=True,
            check=True,
        )
        return int(shell.stdout)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise ServerStartError(f"{argv[0]} could not be started: {error}") from error


def start_token(pid: int) -> str | None:
    """What tells the process ``pid`` from any later one of that number; None when there is none."""
    if sys.platform == "linux":
        return _linux_token(pid)
    listing = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    state, _, started = listing.partition(" ")
    return started.strip() if started and not state.startswith("Z") else None


def _linux_token(pid: int) -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold spaces and parentheses itself.
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"


def is_alive(pid: int, token: str) -> bool:
    """Whether that very process still runs (not just one that was given its number)."""
    return start_token(pid) == token


async def terminate(pid: int, token: str, *, gently: bool = True) -> None:
    """End the process: SIGTERM, and SIGKILL when it does not heed it (or at once, when not ``gently``).

    Raises:
        ServerStartError: it is another user's, or survives.
    """
    signals = ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS))
    for number, seconds in signals if gently else signals[1:]:
        if not is_alive(pid, token):
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        except PermissionError as error:
            raise ServerStartError(
                f"the server process {pid} belongs to another user and cannot be stopped",
                hint="Stop it as that user, or set PERDURE_HOME to a directory of your own.",
            ) from error
        if await _gone(pid, token, seconds):
            return
    raise ServerStartError(f"the server process {pid} does not end, not even on SIGKILL")


async def _gone(pid: int, token: str, seconds: float) -> bool:
    deadline = asyncio.get_running_loop().time() + seconds
    while is_alive(pid, token):
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(_POLL)
    return True
