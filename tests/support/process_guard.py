"""Ends processes when the program that started them has ended, however it did: also by ``kill -9``.

A process of its own reads which ones there are, and kills them when its standard input ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path


class ProcessGuard:
    """Knows process groups by their leaders. ``folder`` is removed behind the last of them."""

    def __init__(self, folder: Path) -> None:
        self._groups: set[int] = set()
        self._lock = threading.Lock()  # processes are started from threads
        # -S: it imports nothing of a site. A session of its own: Ctrl-C is for the program that it waits for.
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__, str(folder)], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def add(self, pid: int) -> None:
        """Guard the group of ``pid``, which leads it."""
        with self._lock:
            self._groups.add(pid)
            self._send()

    def remove(self, pid: int) -> None:
        """Forget it: it has ended, and its number may become another's."""
        with self._lock:
            self._groups.discard(pid)
            self._send()

    def close(self) -> None:
        """Kill all groups, remove the folder."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _send(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, self._groups)) + "\n")
        self._process.stdin.flush()


def main() -> None:
    """Remember the groups of the last whole line; kill them behind the end of the input."""
    groups: list[int] = []
    for line in sys.stdin:
        if line.endswith("\n"):
            groups = [int(pid) for pid in line.split()]
    for pid in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
