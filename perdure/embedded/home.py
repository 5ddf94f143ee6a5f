"""PERDURE_HOME: the directory of the embedded runtime's files, and locks on them."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import RuntimeSetupError

DEFAULT_HOME = Path("~/.perdure")
"""The home if PERDURE_HOME is not set."""

CLI_VERSION = "1.5.1"
"""The version of the Temporal CLI that is fetched and cached: the newest that ``go install`` can build."""

_OWN_FILES = ("server.", "temporal.", "perdure.", "encryption.key", "logs", "bin", "history", ".probe-", ".key-")
"""Prefixes of the names of all files under PERDURE_HOME."""

_PROBE_BYTES = 256 * 1024
"""Free space that a start of the server needs: SQLite's first pages and a log."""


@dataclass(frozen=True)
class Home:
    """The paths under PERDURE_HOME. Nothing is created until :meth:`create`."""

    root: Path

    @property
    def server_file(self) -> Path:
        """The record of the server that was started last."""
        return self.root / "server.json"

    @property
    def server_lock(self) -> Path:
        """Locked by a process that starts or stops the server."""
        return self.root / "server.lock"

    @property
    def database_lock(self) -> Path:
        """Locked by the server process for its whole life: two servers on one database would destroy it."""
        return self.root / "temporal.lock"

    @property
    def temporal_db(self) -> Path:
        """The dev server's database."""
        return self.root / "temporal.db"

    @property
    def store_db(self) -> Path:
        """The transcripts, if PERDURE_STORE_URL names no other store."""
        return self.root / "perdure.db"

    @property
    def logs(self) -> Path:
        """The output of detached processes."""
        return self.root / "logs"

    @property
    def server_log(self) -> Path:
        """Output of the dev server."""
        return self.logs / "temporal.log"

    @property
    def history(self) -> Path:
        """The input history of chats, a file for each agent."""
        return self.root / "history"

    @property
    def bin(self) -> Path:
        """The cache of fetched binaries."""
        return self.root / "bin"

    @property
    def binary(self) -> Path:
        """The cached dev server."""
        return self.bin / f"temporal-{CLI_VERSION}"

    def create(self) -> Home:
        """Create the directories, readable by their owner only: transcripts are private.

        An existing home is closed to other users, too, unless it is a directory named by PERDURE_HOME that has files of
        other programs; perdure's own files are private by themselves.

        Raises:
            RuntimeSetupError: the path is a file, or is not writable.
        """
        with self.translate_errors():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            has_only_own_files = all(path.name.startswith(_OWN_FILES) for path in self.root.iterdir())
            if has_only_own_files or self.root == DEFAULT_HOME.expanduser():
                _restrict_permissions(self.root)
            for folder in (self.logs, self.bin, self.history):
                folder.mkdir(mode=0o700, exist_ok=True)
                _restrict_permissions(folder)
        return self

    def check_writable(self) -> None:
        """Write and remove a small file, so that a full or read-only disk is reported before anything is started.

        Raises:
            RuntimeSetupError: it could not be written.
        """
        import tempfile

        with self.translate_errors(), tempfile.NamedTemporaryFile(dir=self.root, prefix=".probe-") as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Turn file system errors inside the block into a RuntimeSetupError with a way out."""
        try:
            yield
        except OSError as error:
            # mkdir reports a file at its path as FileExistsError; the error's own text would mislead.
            blocker = error.filename if isinstance(error, FileExistsError | NotADirectoryError) else None
            reason = f"{blocker} is not a directory" if blocker else (error.strerror or str(error))
            raise RuntimeSetupError(
                f"the home of perdure, {self.root}, cannot be used: {reason}",
                hint="Make it a writable directory with free space, or set PERDURE_HOME to another one.",
            ) from error


def named_store() -> str | None:
    """Return the store that PERDURE_STORE_URL names; None if it is the one under PERDURE_HOME."""
    return os.environ.get("PERDURE_STORE_URL") or None


def current_home() -> Home:
    """Return the home that PERDURE_HOME names, else ``~/.perdure``."""
    return Home(Path(os.environ.get("PERDURE_HOME") or DEFAULT_HOME).expanduser().absolute())


def open_private(path: str, flags: int) -> int:
    """``opener`` for ``open``: only the owner can read a new file, from the first moment on."""
    return os.open(path, flags, 0o600)


def _restrict_permissions(folder: Path) -> None:
    stat = folder.stat()
    if stat.st_uid == os.geteuid() and stat.st_mode & 0o077:
        folder.chmod(0o700)


# ---
# File locks between processes. The kernel releases them with the process, also on ``kill -9``.


_LOCK_POLL_SECONDS = 0.05
_LOCK_UNSUPPORTED_ERRNOS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}


def try_lock(path: Path) -> int | None:
    """Lock ``path``. Return the file descriptor that holds the lock, or None if another process holds it.

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
        if error.errno not in _LOCK_UNSUPPORTED_ERRNOS:
            raise
        raise RuntimeSetupError(
            f"{path} cannot be locked: {error.strerror}", hint="Set PERDURE_HOME to a directory on a local disk."
        ) from error
    return fd


async def take_lock(path: Path, wait: float, error: RuntimeSetupError) -> int:
    """Lock ``path``, and return the open file that holds the lock. Raises ``error`` after ``wait`` seconds.

    Polls, since a thread blocked in flock could not be cancelled.
    """
    deadline = asyncio.get_running_loop().time() + wait
    while (fd := try_lock(path)) is None:
        if asyncio.get_running_loop().time() > deadline:
            raise error
        await asyncio.sleep(_LOCK_POLL_SECONDS)
    return fd


@asynccontextmanager
async def hold_lock(path: Path, *, wait: float, busy: str) -> AsyncIterator[None]:
    """Hold the lock on ``path``; ``busy`` describes its holder in the error after ``wait`` seconds."""
    hint = f"It holds {path}; `fuser {path}` names it. End it and try again."
    fd = await take_lock(
        path, wait, RuntimeSetupError(f"another process has been {busy} for over {wait:.0f} s", hint=hint)
    )
    try:
        yield
    finally:
        os.close(fd)
