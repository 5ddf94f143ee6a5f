"""Ways to fetch the dev server's binary into a folder, best first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from .home import CLI_VERSION
from .progress import Report

MODULE = f"github.com/temporalio/cli/cmd/temporal@v{CLI_VERSION}"

_DOWNLOAD_SECONDS = 300.0
_BUILD_SECONDS = 1200.0
_TICK_SECONDS = 1.0
_TAIL_LINES = 5


class FetchError(Exception):
    """A way that did not work; says why."""


@dataclass(frozen=True)
class Way:
    """One way: its name for people, and a coroutine function that gives the path of the fetched binary."""

    title: str
    run: Callable[[Path, Report], Awaitable[Path]]


async def sdk_download(folder: Path, _: Report) -> Path:
    """Let Temporal's SDK download the CLI. It has no call for just that: it also starts a server."""
    from temporalio.testing import WorkflowEnvironment

    try:
        async with asyncio.timeout(_DOWNLOAD_SECONDS):
            environment = await WorkflowEnvironment.start_local(
                download_dest_dir=str(folder), dev_server_download_version=f"v{CLI_VERSION}"
            )
            await environment.shutdown()
    except TimeoutError as error:
        raise FetchError(f"not done after {_DOWNLOAD_SECONDS:.0f} s") from error
    except RuntimeError as error:
        # A file that came over but does not start here is judged by the caller, like any other.
        if not _programs(folder):
            raise FetchError(str(error)) from error
    if not (programs := _programs(folder)):
        raise FetchError("the SDK left no binary in the folder it was given")
    return programs[0]


async def go_install(folder: Path, report: Report) -> Path:
    """Build the CLI with Go, through the Go module proxy: 2-3 minutes the first time."""
    go = shutil.which("go")
    if go is None:
        raise FetchError("Go is not installed")
    # GOBIN may not be combined with a foreign target.
    env = {name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH")}
    command = await asyncio.create_subprocess_exec(
        go, "install", "-v", "-ldflags", "-s -w", MODULE,
        cwd=folder, env=env | {"GOBIN": str(folder), "GO111MODULE": "on", "GOWORK": "off"},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_BUILD_SECONDS):
            said = await _follow(command, report)
    except TimeoutError as error:
        raise FetchError(f"not done after {_BUILD_SECONDS:.0f} s") from error
    finally:
        if command.returncode is None:  # timed out or cancelled: the compilers go with it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
            await command.wait()
    if command.returncode:
        raise FetchError(f"ended with {command.returncode}: {' | '.join(said) or 'no output'}")
    return folder / "temporal"


async def _follow(command: asyncio.subprocess.Process, report: Report) -> list[str]:
    """Report what Go does until it ends; the last lines it said, without the names of packages."""
    downloaded = compiled = 0
    said: list[str] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            report(f"building, {downloaded} modules downloaded, {compiled} packages compiled")

    ticker = asyncio.create_task(tick())
    try:
        assert command.stderr is not None
        async for raw in command.stderr:
            line = raw.decode(errors="replace").strip()
            if line.startswith("go: downloading "):
                downloaded += 1
            elif " " not in line:
                compiled += 1
            else:
                said = [*said, line][-_TAIL_LINES:]
        await command.wait()
    finally:
        ticker.cancel()
    return said


def _programs(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*temporal*") if path.is_file() and os.access(path, os.X_OK)]


WAYS = (
    Way(f"the SDK's own download of v{CLI_VERSION}", sdk_download),
    Way(f"`go install {MODULE}`", go_install),
)
"""In the order in which they are tried."""
