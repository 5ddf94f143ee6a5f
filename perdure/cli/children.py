"""Worker processes of ours, that end with us: a child reads its standard input, which ends when its parent does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any


class Child:
    """``python -m module *arguments``, which writes JSON lines to stdout and ends when its stdin does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        """Start it, in a session of its own: Ctrl-C is ours to pass on."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            limit=1 << 20,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    async def says(self) -> dict[str, Any] | None:
        """The next thing it reports; None when it has ended. Whatever else it prints goes to our stdout."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if isinstance(said, dict) and "event" in said:
                    return said
            # As it is: the child is the user's own program, and its colours are its own.
            sys.stdout.write(line.decode(errors="replace"))
            sys.stdout.flush()
        return None

    def relay(self) -> None:
        """From now on all that it prints goes to our stdout."""
        self._relay = asyncio.ensure_future(self.says())

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self, *, within: float) -> None:
        """SIGTERM, and SIGKILL to what is still there after ``within`` seconds; wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), within)
        except TimeoutError:
            await self.kill()


def report(event: str, **facts: Any) -> None:
    """Tell the parent, from inside the child."""
    print(json.dumps({"event": event, **facts}), flush=True)


def on_orphaned(act: Callable[[], None]) -> None:
    """Call ``act`` in the running loop when the parent has ended, however it did."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 1024):
            loop.remove_reader(descriptor)
            act()

    loop.add_reader(descriptor, readable)
