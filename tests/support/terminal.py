"""The command ``perdure`` at a terminal: a pseudo-terminal, on which a test types and reads."""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import os
import pty
import struct
import termios
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support import forkserver
from tests.support.cli import PERDURE
from tests.support.screen import Screen

CTRL_C, CTRL_D, CTRL_J, CTRL_U, ESCAPE = "\x03", "\x04", "\n", "\x15", "\x1b"
ENTER, UP = "\r", "\x1b[A"
_ROWS, _COLUMNS = 40, 100
_DEADLINE = 60.0


class Terminal:
    """A command whose stdin, stdout and stderr are one terminal. What is read is what a person would see."""

    def __init__(self, process: forkserver.Process, descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._drawn = codecs.getincrementaldecoder("utf-8")()
        self._rest = ""
        self._screen = Screen(_COLUMNS)
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._readable)

    @classmethod
    async def start(cls, *arguments: str, cwd: Path, env: Mapping[str, str]) -> Terminal:
        """Start it as the leader of a session, with a terminal of its own."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        process = await forkserver.create_process(
            *PERDURE,
            *arguments,
            cwd=cwd,
            # This terminal does not answer when it is asked where its cursor is.
            env={**env, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "NO_COLOR": "1"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            controls_terminal=True,
        )
        os.close(theirs)
        return cls(process, ours)

    def _readable(self) -> None:
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # what Linux says when the other side has closed it
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self._rest = self._screen.feed(self._rest + self._drawn.decode(data))
        self._more.set()

    @property
    def shown(self) -> str:
        """What is on the screen, and above it."""
        return self._screen.text

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._descriptor, text.encode())

    def paste(self, text: str) -> None:
        """As a terminal hands over what was pasted."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    async def until(self, text: str) -> None:
        """Until ``text`` is on the screen, or above it. Raises ``AssertionError``."""
        await self._until(lambda: text in self._screen.text, text)

    async def at(self, line: str) -> None:
        """Until the cursor is in this line. Before ``>`` is there the terminal itself makes a new line of Enter."""
        await self._until(lambda: self._screen.line == line, line)

    async def idle(self) -> None:
        """Until the agent is at nothing: what it says is there before its turn has ended.

        The cursor must be at the prompt: while something is printed the lines of the prompt are gone, and say nothing.
        """
        busy = ("Ctrl-C interrupts", "Ctrl-C again leaves")

        def asks() -> bool:
            working = any(line.rstrip().endswith(busy) for line in self._screen.text.splitlines())
            return self._screen.line == ">" and not working

        await self._until(asks, "an idle prompt")

    async def _until(self, there: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(_DEADLINE):
                while not there():
                    if self.process.poll() is not None:
                        raise AssertionError(f"it ended without {what!r}:\n{self._screen.text}")
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"no {what!r} in {_DEADLINE:g} s:\n{self._screen.text}") from None

    async def ended(self) -> int:
        """Its exit code."""
        async with asyncio.timeout(_DEADLINE):
            return await self.process.wait()

    async def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            await self.process.wait()
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
