"""Detached processes: start one that outlives its starter, recognise it later, end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import ServerStartError

# ---
# Worker processes of ours, that end with us: a child reads its standard input, which ends when its parent does.


class ChildProcess:
    """``python -m module *arguments``, which writes JSON lines to stdout and ends when its stdin does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> ChildProcess:
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
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    async def read_report(self) -> dict[str, Any] | None:
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

    def relay_output(self) -> None:
        """From now on all that it prints goes to our stdout."""
        self._relay = asyncio.ensure_future(self.read_report())

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


def report_to_parent(event: str, **facts: Any) -> None:
    """Tell the parent, from inside the child."""
    print(json.dumps({"event": event, **facts}), flush=True)  # noqa: T201 - the parent reads it


def call_when_orphaned(act: Callable[[], None]) -> None:
    """Call ``act`` in the running loop when the parent has ended, however it did."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 1024):
            loop.remove_reader(descriptor)
            act()

    loop.add_reader(descriptor, readable)


_EXIT_POLL_SECONDS = 0.05
_TERM_SECONDS = 15.0
_KILL_SECONDS = 5.0

# The shell ends at once, so the server is nobody's child here: no zombie in a starter that lives on.
# umask: the database holds conversations.
_DETACH_SCRIPT = 'umask 077; "$@" </dev/null >>"$0" 2>&1 & echo $!'


def spawn_detached(argv: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str], keep_fd: int) -> int:
    """Start ``argv`` in a session of its own, output appended to ``log``, ``keep_fd`` left open; its pid."""
    try:
        shell = subprocess.run(
            ["/bin/sh", "-c", _DETACH_SCRIPT, str(log), *argv],
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


def read_start_token(pid: int) -> str | None:
    """What tells the process ``pid`` from any later one of that number; None when there is none."""
    if sys.platform == "linux":
        return _read_linux_start_token(pid)
    listing = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    state, _, started = listing.partition(" ")
    return started.strip() if started and not state.startswith("Z") else None


def _read_linux_start_token(pid: int) -> str | None:
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
    return read_start_token(pid) == token


async def terminate_process(pid: int, token: str, *, gently: bool = True) -> None:
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
        if await _wait_for_exit(pid, token, seconds):
            return
    raise ServerStartError(f"the server process {pid} does not end, not even on SIGKILL")


async def _wait_for_exit(pid: int, token: str, seconds: float) -> bool:
    deadline = asyncio.get_running_loop().time() + seconds
    while is_alive(pid, token):
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(_EXIT_POLL_SECONDS)
    return True


# ---
# What is being done, on stderr, while it takes long: a live line on a terminal, plain lines elsewhere.


ProgressCallback = Callable[[str], None]
"""Takes what is being done now, in a few words."""

_QUIET_SECONDS = 10.0


@contextmanager
def show_progress(title: str) -> Iterator[ProgressCallback]:
    """Show ``title`` and the latest report, with the time it has taken."""
    if sys.stderr.isatty():
        with _show_live_progress(title) as report:
            yield report
    else:
        yield _build_plain_progress(title)


@contextmanager
def _show_live_progress(title: str) -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(title)
        yield lambda text: display.update(task, description=f"{title}: {text}")


def _build_plain_progress(title: str) -> ProgressCallback:
    """One line per new stage, and a sign of life every few seconds (for logs, which have no cursor)."""
    begun = shown = time.monotonic()
    stage = ""
    sys.stderr.write(f"{title}\n")

    def report(text: str) -> None:
        nonlocal shown, stage
        now, new_stage = time.monotonic(), text.partition(",")[0]
        if new_stage != stage or now - shown >= _QUIET_SECONDS:
            sys.stderr.write(f"  {text} ({now - begun:.0f} s)\n")
            shown, stage = now, new_stage

    return report
