"""The command ``perdure`` in this process: a command costs milliseconds, and finds the runs of the test's own engine.

What only a process shows (signals, a terminal, a worker that drains, ``--file``) is shown with tests/support/cli.py.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import io
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import typer.main

from perdure.cli import app
from perdure.cli.output import print_error
from perdure.embedded import address as address_module
from perdure.errors import PerdureError
from tests.support.cli import Done
from tests.support.engine import Engine
from tests.support.in_process import InProcessEngine

_BOUND_SECONDS = 90
"""The longest that any command of a test takes, on a busy machine. Its thread cannot be ended: it is left behind."""


class _Streams:
    """What one command writes."""

    def __init__(self) -> None:
        self.stdout, self.stderr = _Written(self), _Written(self)
        self.both = io.StringIO()
        """What it has written, on either stream."""
        self._loop = asyncio.get_running_loop()
        self.more = asyncio.Event()

    def has_written(self, text: str) -> None:
        self.both.write(text)
        self._loop.call_soon_threadsafe(self.more.set)


class _Written(io.StringIO):
    def __init__(self, streams: _Streams) -> None:
        super().__init__()
        self._streams = streams

    def write(self, text: str, /) -> int:
        self._streams.has_written(text)
        return super().write(text)


_streams: contextvars.ContextVar[_Streams | None] = contextvars.ContextVar("streams", default=None)


class _Routed:
    """Stands for a stream of ``sys``: a command's own in its thread and its tasks, elsewhere the one that was there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before = getattr(sys, name)

    def _stream(self) -> Any:
        streams = _streams.get()
        return self._before if streams is None else getattr(streams, self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)


class RunningCommand:
    """A command that runs; ``until`` reads what it says."""

    def __init__(self, streams: _Streams, task: asyncio.Future[int]) -> None:
        self._streams = streams
        self._task = task
        self._read = 0
        task.add_done_callback(lambda _: streams.more.set())

    @property
    def output(self) -> str:
        return self._streams.both.getvalue()

    async def until(self, text: str) -> str:
        """The next line with ``text`` in it. Raises ``AssertionError`` when the command ends before."""
        while True:
            self._streams.more.clear()
            ended = self._task.done()
            while (end := self.output.find("\n", self._read)) >= 0:
                line, self._read = self.output[self._read : end], end + 1
                if text in line:
                    return line
            assert not ended, f"it ended without saying {text!r}:\n{self.output}"
            await self._streams.more.wait()

    async def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        return await self._task


class Commands:
    """Runs commands in threads of this process. They talk to the server, or the in-process service, of ``engine``.

    Inside ``async with engine.served(…)``, where the engine is in process.
    """

    def __init__(self, engine: Engine, patch: pytest.MonkeyPatch, env: Mapping[str, str] | None = None) -> None:
        settings = {
            "TEMPORAL_ADDRESS": engine.address,
            "PERDURE_HOME": str(engine.folder / "home"),
            "PERDURE_STORE_URL": str(engine.store_url),
            "PERDURE_TASK_QUEUE": engine.task_queue,
            **(env or {}),
        }
        for name, value in settings.items():
            patch.setenv(name, value)
        self._patch = patch
        if isinstance(engine, InProcessEngine):

            async def connect(target: object) -> Any:
                return await engine.temporal()

            patch.setattr(address_module, "connect", connect)

    async def __call__(self, *arguments: str, stdin: str = "") -> Done:
        """Run it to its end, with ``stdin`` to read. ``AssertionError`` if it has not ended after 90 s."""
        streams = self._streams(stdin)
        running = _start(arguments, streams)
        done, _ = await asyncio.wait({running}, timeout=_BOUND_SECONDS)
        assert done, f"perdure {' '.join(arguments)} does not end:\n{streams.both.getvalue()}"
        code = running.result()
        return Done(code, streams.stdout.getvalue(), streams.stderr.getvalue())

    async def spawn(self, *arguments: str) -> RunningCommand:
        """Start it; what it says on both streams is read together. It must end by itself."""
        streams = self._streams("")
        return RunningCommand(streams, _start(arguments, streams))

    def _streams(self, stdin: str) -> _Streams:
        # Not routed: the chat reads lines in a thread of its own. So two commands at once cannot both be given lines.
        self._patch.setattr(sys, "stdin", io.StringIO(stdin))
        for name in ("stdout", "stderr"):
            if not isinstance(getattr(sys, name), _Routed):  # pytest sets its own for each phase of a test
                self._patch.setattr(sys, name, _Routed(name))
        return _Streams()


def _start(arguments: tuple[str, ...], streams: _Streams) -> asyncio.Future[int]:
    """In a daemon thread: one that never ends does not keep the process."""
    loop = asyncio.get_running_loop()
    ending: asyncio.Future[int] = loop.create_future()

    def settle(code: int | None, error: BaseException | None) -> None:
        if ending.cancelled():
            return
        if error is not None:
            ending.set_exception(error)
        elif code is not None:
            ending.set_result(code)

    def work() -> None:
        code, failure = None, None
        try:
            code = _run(arguments, streams)
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the test has ended without it
            loop.call_soon_threadsafe(settle, code, failure)

    threading.Thread(target=work, name="perdure " + " ".join(arguments[:2]), daemon=True).start()
    return ending


def _run(arguments: tuple[str, ...], streams: _Streams) -> int:
    """As ``perdure.cli.main`` does it."""
    _streams.set(streams)
    with _log_level_kept("perdure.client"):
        try:
            _command().main(args=list(arguments), prog_name="perdure")
        except PerdureError as error:
            return print_error(error)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    raise AssertionError("a command of typer's ends with SystemExit")


@functools.cache
def _command() -> Any:
    """Built once: the signatures of all commands are read, which takes 50 ms."""
    return typer.main.get_command(app)


@contextmanager
def _log_level_kept(name: str) -> Iterator[None]:
    """A command turns down this logger for its process."""
    logger = logging.getLogger(name)
    before = logger.level
    try:
        yield
    finally:
        logger.setLevel(before)
