"""MCP servers as processes: our own counter, and one of npm."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support import forkserver
from tests.support.wait import eventually

COUNTER = ("-m", "tests.servers.mcp_counter")
ROOT = Path(__file__).parent.parent.parent


def processes(counts: Path) -> list[int]:
    """The counters that count in ``counts`` and run now."""
    wanted, found = f"MCP_COUNTS={counts}".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # gone, or another user's
            continue
    return found


class Served:
    """A server at a port of its own."""

    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port: int = taken.getsockname()[1]
        self._command = [word.format(port=self.port) for word in command]
        self._env = {**os.environ, **{name: value.format(port=self.port) for name, value in env.items()}}
        self.url = f"http://127.0.0.1:{self.port}/mcp"

    @classmethod
    def counter(cls, counts: Path) -> Served:
        """Our own."""
        return cls([sys.executable, *COUNTER, "{port}"], {"MCP_COUNTS": str(counts)})

    async def start(self) -> Served:
        """Until it listens."""
        program, *arguments = self._command
        with Path(os.devnull).open("r+b") as nothing:
            streams = nothing.fileno()
            if program == sys.executable:
                self._process: forkserver.Process | subprocess.Popen[bytes] = forkserver.fork(
                    arguments, cwd=ROOT, env=self._env, descriptors=(streams, streams, streams)
                )
            else:
                self._process = subprocess.Popen(self._command, env=self._env, cwd=ROOT, stdout=streams, stderr=streams)

        def listens() -> bool:
            assert self._process.poll() is None, f"{self._command} ended"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        await eventually(listens, deadline=120, what=f"{self.url} listens")
        return self

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        if isinstance(self._process, forkserver.Process):
            self._process.wait_blocking()
        else:
            self._process.wait()
