"""Child processes that end with their parent, detached processes that outlive it, and progress on stderr."""

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
# Child processes that end with this one: a child reads its standard input, which ends when its parent does.


class ChildProcess:
    """``python -m module *arguments``, which writes JSON lines to stdout and ends when its stdin does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> ChildProcess:
        """Start it, in a session of its own: this process passes Ctrl-C on."""
        command = [sys.executable, "-m", module, *arguments]
        process = await asyncio.create_subprocess_exec(
            *command,
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
        """Read the next report; None when the process has ended. Its other output goes to this process's stdout."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            with contextlib.suppress(ValueError):
                report = json.loads(line)
                if isinstance(report, dict) and "event" in report:
                    return report
            # Unchanged: the child is the user's own program, with its own colours.
            sys.stdout.write(line.decode(errors="replace"))
            sys.stdout.flush()
        return None

    def relay_output(self) -> None:
        """Print all further output of the process on this process's stdout."""
        self._relay = asyncio.ensure_future(self.read_report())

    async def kill(self) -> None:
        """Send SIGKILL, and wait until it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self, *, within: float) -> None:
        """Send SIGTERM, and SIGKILL if it has not ended after ``within`` seconds; wait until it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), within)
        except TimeoutError:
            await self.kill()


def report_to_parent(event: str, **facts: Any) -> None:
    """Report to the parent, from inside the child."""
    print(json.dumps({"event": event, **facts}), flush=True)  # noqa: T201 - the parent reads it


def call_when_orphaned(act: Callable[[], None]) -> None:
    """Call ``act`` in the running loop when the parent has ended, for any reason."""
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

# The shell ends at once, so the server is not a child of this process, and leaves no zombie in it.
# umask: the database holds conversations.
_DETACH_SCRIPT = 'umask 077; "$@" </dev/null >>"$0" 2>&1 & echo $!'


def spawn_detached(argv: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str], keep_fd: int) -> int:
    """Start ``argv`` in a session of its own, with output appended to ``log`` and ``keep_fd`` left open. Returns its
    pid."""
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
    """Return a token that identifies the process ``pid`` among all processes of that number; None if there is none."""
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
    """Whether the identified process still runs, not another one with its number."""
    return read_start_token(pid) == token


async def terminate_process(pid: int, token: str, *, gently: bool = True) -> None:
    """End the process: send SIGTERM, and SIGKILL if it does not end (or at once, if not ``gently``).

    Raises:
        ServerStartError: it belongs to another user, or does not end.
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
# Progress of long operations on stderr: a live line on a terminal, plain lines elsewhere.


ProgressCallback = Callable[[str], None]
"""Takes a short description of the present step."""

_QUIET_SECONDS = 10.0


@contextmanager
def show_progress(title: str) -> Iterator[ProgressCallback]:
    """Show ``title`` and the latest report, with the time that has passed."""
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
    """Print one line per new stage, and repeat it every few seconds (for logs, which have no cursor)."""
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
