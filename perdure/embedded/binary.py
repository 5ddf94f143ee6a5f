"""Finds or fetches the binary of the Temporal dev server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import ServerNotFoundError
from .home import CLI_VERSION, Home, current_home, hold_lock
from .process import ProgressCallback, show_progress

# ---
# Methods to fetch the dev server's binary into a folder, best first.


GO_MODULE = f"github.com/temporalio/cli/cmd/temporal@v{CLI_VERSION}"

_DOWNLOAD_SECONDS = 300.0
_BUILD_SECONDS = 1200.0
_TICK_SECONDS = 1.0
_TAIL_LINES = 5


class _BinaryError(Exception):
    """The reason why a program cannot be fetched, or is not a usable dev server."""


async def _download_with_sdk(folder: Path, _: ProgressCallback) -> Path:
    """Let Temporal's SDK download the CLI. It has no call for only that: this one also starts a server."""
    from temporalio.testing import WorkflowEnvironment

    try:
        async with asyncio.timeout(_DOWNLOAD_SECONDS):
            environment = await WorkflowEnvironment.start_local(
                download_dest_dir=str(folder), dev_server_download_version=f"v{CLI_VERSION}"
            )
            await environment.shutdown()
    except TimeoutError as error:
        raise _BinaryError(f"not done after {_DOWNLOAD_SECONDS:.0f} s") from error
    except RuntimeError as error:
        # The caller checks a downloaded file that does not start here, like any other.
        if not _list_programs(folder):
            raise _BinaryError(str(error)) from error
    if not (programs := _list_programs(folder)):
        raise _BinaryError("the SDK left no binary in the folder it was given")
    return programs[0]


async def _build_with_go(folder: Path, report: ProgressCallback) -> Path:
    """Build the CLI with Go, through the Go module proxy: 2-3 minutes the first time."""
    go = shutil.which("go")
    if go is None:
        raise _BinaryError("Go is not installed")
    # GOBIN may not be combined with a foreign target.
    env = {name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH")}
    command = await asyncio.create_subprocess_exec(
        go, "install", "-v", "-ldflags", "-s -w", GO_MODULE,
        cwd=folder, env=env | {"GOBIN": str(folder), "GO111MODULE": "on", "GOWORK": "off"},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_BUILD_SECONDS):
            last_lines = await _report_build(command, report)
    except TimeoutError as error:
        raise _BinaryError(f"not done after {_BUILD_SECONDS:.0f} s") from error
    finally:
        if command.returncode is None:  # timed out or cancelled: the compilers go with it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
            await command.wait()
    if command.returncode:
        raise _BinaryError(f"ended with {command.returncode}: {' | '.join(last_lines) or 'no output'}")
    return folder / "temporal"


async def _report_build(command: asyncio.subprocess.Process, report: ProgressCallback) -> list[str]:
    """Report what Go does until it ends; return its last lines of output, without the names of packages."""
    downloaded = compiled = 0
    last_lines: list[str] = []

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
                last_lines = [*last_lines, line][-_TAIL_LINES:]
        await command.wait()
    finally:
        ticker.cancel()
    return last_lines


def _list_programs(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*temporal*") if path.is_file() and os.access(path, os.X_OK)]


_FETCH_METHODS = (
    (f"the SDK's own download of v{CLI_VERSION}", _download_with_sdk),
    (f"`go install {GO_MODULE}`", _build_with_go),
)
"""Titles and functions, in the order in which they are tried."""


_OLDEST_SERVER = (1, 28)
"""The first version with update-with-start on by default."""

# "temporal version 1.5.1 (Server 1.29.1, UI 2.42.1)"; one built by `go install` says 0.0.0-DEV.
_VERSION_LINE = re.compile(r"^temporal version \S+ \(server (\d+)\.(\d+)(\.\w+)?", re.IGNORECASE | re.MULTILINE)
_CHECK_SECONDS = 30.0
_FETCH_LOCK_SECONDS = 1200.0


@dataclass(frozen=True)
class Binary:
    """A dev server that runs on this machine."""

    path: Path
    server_version: str
    source: str
    """How it was found, for people."""


async def find_binary(home: Home | None = None) -> Binary | None:
    """Find the dev server on this machine, in the order of DESIGN.md §6; fetches nothing.

    Raises:
        ServerNotFoundError: PERDURE_TEMPORAL_CLI names a program that does not work.
    """
    return (await _find_installed_binary(home or current_home()))[0]


async def ensure_binary(home: Home | None = None) -> Binary:
    """Find the dev server on this machine, or fetch it into the cache (takes minutes, with a display).

    Raises:
        ServerNotFoundError: no method worked; the error lists all of them.
        RuntimeSetupError: PERDURE_HOME cannot be used.
    """
    home = home or current_home()
    binary, _ = await _find_installed_binary(home)
    if binary:
        return binary
    home.create()
    with show_progress(f"fetching the Temporal dev server {CLI_VERSION} (once)") as report:
        async with hold_lock(home.bin / "fetch.lock", wait=_FETCH_LOCK_SECONDS, busy="fetching the dev server"):
            binary, failures = await _find_installed_binary(home)
            return binary or await _fetch_binary(home, failures, report)


async def _find_installed_binary(home: Home) -> tuple[Binary | None, dict[str, str]]:
    """Find the first binary on this machine that works; also return why each before it does not."""
    if named := os.environ.get("PERDURE_TEMPORAL_CLI"):
        return await _check_named_binary(named), {}
    failures: dict[str, str] = {}
    cached = home.binary if home.binary.exists() else None
    for source, path, absent in (
        ("`temporal` on PATH", _find_program("temporal"), "there is none"),
        (f"the cache, {home.binary}", cached, "it is empty"),
    ):
        try:
            if path is None:
                raise _BinaryError(absent)
            return Binary(path, await _check_binary_version(path), source), failures
        except _BinaryError as error:
            failures[source] = str(error)
    return None, failures


async def _check_named_binary(named: str) -> Binary:
    """Check the program of PERDURE_TEMPORAL_CLI. It was chosen explicitly, so it is never ignored."""
    path = _find_program(named)
    try:
        if path is None:
            raise _BinaryError("there is no such program")
        return Binary(path, await _check_binary_version(path), "PERDURE_TEMPORAL_CLI")
    except _BinaryError as error:
        raise ServerNotFoundError(
            f"PERDURE_TEMPORAL_CLI={named} does not work: {error}",
            hint="Set it to a Temporal CLI, or unset it: then one is found or fetched.",
        ) from error


def _find_program(named: str) -> Path | None:
    """Find an executable by path or by name. Absolute, since the server runs in another directory."""
    program = shutil.which(Path(named).expanduser())
    return Path(program).absolute() if program else None


async def _check_binary_version(path: Path) -> str:
    """Return the version of the server inside ``path``, which proves that it runs here."""
    run = partial(subprocess.run, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        command = [path, "--version"]
        ended = await asyncio.to_thread(run, command, timeout=_CHECK_SECONDS, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _BinaryError(f"{path} --version: {error}") from error
    output = ended.stdout.strip()
    match = _VERSION_LINE.search(output)
    if ended.returncode or not match:
        first_line = output.splitlines()[0][:200] if output else "nothing"
        raise _BinaryError(f"{path} --version ended with {ended.returncode} and printed: {first_line}")
    version = f"{match[1]}.{match[2]}{match[3] or ''}"
    if (int(match[1]), int(match[2])) < _OLDEST_SERVER:
        oldest = ".".join(map(str, _OLDEST_SERVER))
        raise _BinaryError(f"{path} has server {version}; {oldest} is the oldest that works")
    return version


async def _fetch_binary(home: Home, failures: dict[str, str], report: ProgressCallback) -> Binary:
    """Try each method of fetching; a fetched binary is checked before it is moved into the cache."""
    for leftover in home.bin.glob(".fetch-*"):  # of a killed process: only the holder of the lock is here
        shutil.rmtree(leftover, ignore_errors=True)
    for title, fetch in _FETCH_METHODS:
        report(title)
        with home.translate_errors():
            folder = Path(tempfile.mkdtemp(dir=home.bin, prefix=".fetch-"))
        try:
            fetched = await fetch(folder, report)
            version = await _check_binary_version(fetched)
            fetched.replace(home.binary)
            return Binary(home.binary, version, title)
        except (_BinaryError, OSError) as error:
            failures[title] = str(error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    raise _build_not_found_error(failures)


def _build_not_found_error(failures: dict[str, str]) -> ServerNotFoundError:
    tried = {"PERDURE_TEMPORAL_CLI": "not set", **failures}
    lines = "\n".join(f"  {number}. {method}: {reason}" for number, (method, reason) in enumerate(tried.items(), 1))
    return ServerNotFoundError(
        f"no Temporal dev server was found or could be fetched:\n{lines}",
        hint="Install the Temporal CLI (https://docs.temporal.io/cli) or Go (https://go.dev/dl), set "
        "PERDURE_TEMPORAL_CLI to a binary, or set TEMPORAL_ADDRESS to use another server.",
    )
