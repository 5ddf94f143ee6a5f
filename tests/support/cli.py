"""The command ``perdure`` in processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support import forkserver

PERDURE = (sys.executable, "-m", "perdure")


class Command:
    """A command that runs; ``until`` reads what it says."""

    def __init__(self, process: forkserver.Process) -> None:
        self.process = process
        self.said: list[str] = []

    async def until(self, text: str) -> str:
        """The next line with ``text`` in it. Raises ``AssertionError`` when the command ends before."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            self.said.append(line)
            if text in line:
                return line
        raise AssertionError(f"it ended without saying {text!r}:\n{''.join(self.said)}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Read it to its end; its exit code."""
        assert self.process.stdout is not None
        self.said.append((await self.process.stdout.read()).decode())
        return await self.process.wait()

    @property
    def output(self) -> str:
        return "".join(self.said)


class Done:
    """What a command came to."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Runs commands in ``folder``, in an environment of the test's own; ``close`` ends what is left."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "OPENAI_"))} | dict(env)
        self._commands: list[Command] = []

    async def __call__(self, *arguments: str, stdin: str = "") -> Done:
        """Run it to its end, with ``stdin`` to read."""
        pipe = asyncio.subprocess.PIPE
        process = await forkserver.create_process(
            *PERDURE, *arguments, cwd=self.folder, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe
        )
        out, err = await process.communicate(stdin.encode())
        return Done(process.returncode or 0, out.decode(), err.decode())

    async def spawn(self, *arguments: str) -> Command:
        """Start it; what it says on both streams is read together."""
        process = await forkserver.create_process(
            *PERDURE,
            *arguments,
            cwd=self.folder,
            env=self.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        command = Command(process)
        self._commands.append(command)
        return command

    async def close(self) -> None:
        for command in self._commands:
            if command.process.poll() is None:
                command.process.kill()
            await command.ended()


@asynccontextmanager
async def talking(address: str, folder: Path) -> AsyncIterator[Cli]:
    """Commands in ``folder``, which has the agents of ``tests/support/talker.py``, a home and a store of its own."""
    (folder / "agents.py").write_text(Path(__file__).with_name("talker.py").read_text())
    env = {
        "TEMPORAL_ADDRESS": address,
        "PERDURE_HOME": str(folder / "home"),
        "PERDURE_STORE_URL": f"sqlite:///{folder / 'store.db'}",
        "CLI_TEST_FOLDER": str(folder),
    }
    cli = Cli(folder, env)
    try:
        yield cli
    finally:
        await cli.close()
