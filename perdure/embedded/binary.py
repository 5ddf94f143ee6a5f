"""The Temporal dev server's binary: where it is, and where to get it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ServerNotFoundError
from .home import CLI_VERSION, Home, current_home, hold_lock
from .process import ProgressCallback, show_progress

# ---
# Ways to fetch the dev server's binary into a folder, best first.


GO_MODULE = f"github.com/temporalio/cli/cmd/temporal@v{CLI_VERSION}"

_DOWNLOAD_SECONDS = 300.0
_BUILD_SECONDS = 1200.0
_TICK_SECONDS = 1.0
_TAIL_LINES = 5


class FetchError(Exception):
    """A way that did not work; says why."""


@dataclass(frozen=True)
class FetchMethod:
    """One way: its name for people, and a coroutine function that gives the path of the fetched binary."""

    title: str
    run: Callable[[Path, ProgressCallback], Awaitable[Path]]


async def download_with_sdk(folder: Path, _: ProgressCallback) -> Path:
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
        if not _list_programs(folder):
            raise FetchError(str(error)) from error
    if not (programs := _list_programs(folder)):
        raise FetchError("the SDK left no binary in the folder it was given")
    return programs[0]


async def build_with_go(folder: Path, report: ProgressCallback) -> Path:
    """Build the CLI with Go, through the Go module proxy: 2-3 minutes the first time."""
    go = shutil.which("go")
    if go is None:
        raise FetchError("Go is not installed")
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
            said = await _report_build(command, report)
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


async def _report_build(command: asyncio.subprocess.Process, report: ProgressCallback) -> list[str]:
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


def _list_programs(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*temporal*") if path.is_file() and os.access(path, os.X_OK)]


FETCH_METHODS = (
    FetchMethod(f"the SDK's own download of v{CLI_VERSION}", download_with_sdk),
    FetchMethod(f"`go install {GO_MODULE}`", build_with_go),
)
"""In the order in which they are tried."""


_OLDEST_SERVER = (1, 28)
"""The first server with update-with-start on by default."""

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
    """How it was found, in words for people."""


@dataclass(frozen=True)
class FailedAttempt:
    """A way that was tried and why it failed."""

    method: str
    reason: str


class _UnfitError(Exception):
    """A file that is not a dev server for us; says why."""


async def find_binary(home: Home | None = None) -> Binary | None:
    """The dev server that is on this machine, in the order of DESIGN.md §6; fetches nothing.

    Raises:
        ServerNotFoundError: PERDURE_TEMPORAL_CLI names something that does not work.
    """
    found, _ = await _find_installed_binary(home or current_home())
    return found


async def ensure_binary(home: Home | None = None) -> Binary:
    """The dev server on this machine, fetched into the cache if there is none yet (minutes, with a display).

    Raises:
        ServerNotFoundError: no way worked; it names all of them.
        RuntimeSetupError: PERDURE_HOME cannot be used.
    """
    home = home or current_home()
    found, failures = await _find_installed_binary(home)
    if found:
        return found
    home.create()
    with show_progress(f"fetching the Temporal dev server {CLI_VERSION} (once)") as report:
        async with hold_lock(home.bin / "fetch.lock", wait=_FETCH_LOCK_SECONDS, busy="fetching the dev server"):
            found, failures = await _find_installed_binary(home)
            return found or await _fetch_binary(home, failures, report)


async def _find_installed_binary(home: Home) -> tuple[Binary | None, list[FailedAttempt]]:
    """The first binary on this machine that works, and what was wrong with those before it."""
    if named := os.environ.get("PERDURE_TEMPORAL_CLI"):
        return await _check_named_binary(named), []
    failures: list[FailedAttempt] = []
    for way, path, absent in (
        ("`temporal` on PATH", _find_program("temporal"), "there is none"),
        (f"the cache, {home.binary}", home.binary if home.binary.exists() else None, "it is empty"),
    ):
        try:
            if not path:
                raise _UnfitError(absent)
            return Binary(path, await _check_binary_version(path), way), failures
        except _UnfitError as unfit:
            failures.append(FailedAttempt(way, str(unfit)))
    return None, failures


async def _check_named_binary(named: str) -> Binary:
    """What PERDURE_TEMPORAL_CLI says. Someone chose it, so it is never passed over in silence."""
    path = _find_program(named)
    try:
        if path is None:
            raise _UnfitError("there is no such program")
        return Binary(path, await _check_binary_version(path), "PERDURE_TEMPORAL_CLI")
    except _UnfitError as unfit:
        raise ServerNotFoundError(
            f"PERDURE_TEMPORAL_CLI={named} does not work: {unfit}",
            hint="Let it name a Temporal CLI, or unset it to have one found or fetched.",
        ) from unfit


def _find_program(named: str) -> Path | None:
    """An executable given by path or by name. Absolute, since the server runs in another directory."""
    found = shutil.which(Path(named).expanduser())
    return Path(found).absolute() if found else None


async def _check_binary_version(path: Path) -> str:
    """The version of the server inside ``path``, which proves that it runs here."""
    try:
        done = await asyncio.to_thread(_run_version_command, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _UnfitError(f"{path} --version: {error}") from error
    output = done.stdout.decode(errors="replace").strip()
    match = _VERSION_LINE.search(output)
    if done.returncode or not match:
        said = output.splitlines()[0][:200] if output else "nothing"
        raise _UnfitError(f"{path} --version ended with {done.returncode} and said: {said}")
    version = f"{match[1]}.{match[2]}{match[3] or ''}"
    if (int(match[1]), int(match[2])) < _OLDEST_SERVER:
        oldest = ".".join(map(str, _OLDEST_SERVER))
        raise _UnfitError(f"{path} has server {version}; {oldest} is the oldest that works")
    return version


def _run_version_command(path: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [path, "--version"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_CHECK_SECONDS,
        check=False,
    )


async def _fetch_binary(home: Home, failures: list[FailedAttempt], report: ProgressCallback) -> Binary:
    """Try each way of fetching; what it gives is checked before it takes its place in the cache."""
    for leftover in home.bin.glob(".fetch-*"):  # of a killed process: who holds the lock is alone here
        shutil.rmtree(leftover, ignore_errors=True)
    for way in FETCH_METHODS:
        report(way.title)
        with home.translate_errors():
            folder = Path(tempfile.mkdtemp(dir=home.bin, prefix=".fetch-"))
        try:
            fetched = await way.run(folder, report)
            version = await _check_binary_version(fetched)
            fetched.replace(home.binary)
            return Binary(home.binary, version, way.title)
        except (FetchError, _UnfitError, OSError) as error:
            failures.append(FailedAttempt(way.title, str(error)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    raise _build_not_found_error(failures)


def _build_not_found_error(failures: list[FailedAttempt]) -> ServerNotFoundError:
    tried = [FailedAttempt("PERDURE_TEMPORAL_CLI", "not set"), *failures]
    lines = "\n".join(f"  {number}. {each.method}: {each.reason}" for number, each in enumerate(tried, 1))
    return ServerNotFoundError(
        f"no Temporal dev server was found or could be fetched:\n{lines}",
        hint="Install the Temporal CLI (https://docs.temporal.io/cli) or Go (https://go.dev/dl), let "
        "PERDURE_TEMPORAL_CLI name a binary, or set TEMPORAL_ADDRESS to use a server that runs elsewhere.",
    )
