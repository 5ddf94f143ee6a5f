"""File locks between processes. The kernel drops them with the process, also on ``kill -9``."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..errors import RuntimeSetupError

_POLL = 0.05
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}


def try_lock(path: Path) -> int | None:
    """Lock ``path``; the file descriptor that holds it, or None when another process does.

    Raises:
        RuntimeSetupError: the file cannot be opened, or its file system has no locks.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RuntimeSetupError(
            f"{path} cannot be opened: {error.strerror}", hint="Set PERDURE_HOME to a writable directory."
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError as error:
        os.close(fd)
        if error.errno not in _NO_LOCKS:
            raise
        raise RuntimeSetupError(
            f"{path} cannot be locked: {error.strerror}",
            hint="Set PERDURE_HOME to a directory on a local disk.",
        ) from error
    return fd


@asynccontextmanager
async def locked(path: Path, *, wait: float, busy: str) -> AsyncIterator[None]:
    """Hold the lock on ``path``; ``busy`` says what its holder does, should that take over ``wait`` seconds.

    Polls, since a thread blocked in flock could not be cancelled.
    """
    deadline = asyncio.get_running_loop().time() + wait
    while (fd := try_lock(path)) is None:
        if asyncio.get_running_loop().time() > deadline:
            raise RuntimeSetupError(
                f"another process has been {busy} for over {wait:.0f} s",
                hint=f"It holds {path}; `fuser {path}` names it. End it and try again.",
            )
        await asyncio.sleep(_POLL)
    try:
        yield
    finally:
        os.close(fd)
