"""``perdure dev``: serves a file's agents on this machine, and loads the file again when it changes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._terminal import print_line, style_text
from ..errors import InvalidInputError, join_sentences
from .connection import StoreOptions, find_ui_url, get_server_address, list_worker_arguments, mask_password, open_client
from .options import AgentsOption, TaskQueueOption

if TYPE_CHECKING:
    from ..client.client import Client
    from ..embedded.process import ChildProcess


CONSOLE_PORT, CONSOLE_PREFIX = 8300, "/console"
"""Where the console is, if the port is free; else at another port."""
FILE_POLL_SECONDS = 0.3
"""Seconds between two snapshots of the files."""
_WORKER_STOP_SECONDS = 8.0
"""Seconds for a worker to end: the time in which it drains, and a little more."""

FileSnapshot = dict[Path, tuple[int, int]]


def dev(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The Python file with the agents.")],
    agents: AgentsOption = None,
    task_queue: TaskQueueOption = None,
    *,
    server: StoreOptions,
) -> None:
    """Serve a file's agents on this machine's embedded server, and load the file again when it changes."""
    path = Path(file)
    if not path.is_file():
        raise InvalidInputError(f"there is no file {file}", hint=f"Looked for {path.absolute()}.")
    asyncio.run(_serve_with_reload(file, server, task_queue, agents))


async def _serve_with_reload(file: str, server: StoreOptions, task_queue: str | None, agents: Path | None) -> None:
    from .. import _config as config
    from ..local_engine.engine import build_program_queue_name

    queue = config.named_task_queue(task_queue) or build_program_queue_name(Path(file))
    async with open_client(server, start_server=True, task_queue=queue) as client:
        client.store_url = client.store_url or config.get_home_store_url()
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        _print_status("perdure dev", f"{file}, Ctrl-C ends")
        _print_status("  queue", queue)
        _print_status("  server", f"{get_server_address(client)}, store {mask_password(client.store_url)}")
        if ui := await find_ui_url(client):
            _print_status("  UI", ui)
        async with _serve_console(client) as console:
            _print_status("  console", console)
            await Reloader(file, client, agents).run(stop)


@asynccontextmanager
async def _serve_console(client: Client) -> AsyncIterator[str]:
    """Serve the console to this machine within the block, which gets its address, or why there is none."""
    from ..embedded.server import is_port_free
    from .serve import ServeOptions, find_missing_server, listen

    if (missing := find_missing_server("the console")) is not None:
        yield join_sentences(f"none: {missing.message}", missing.hint)
        return
    from ..console import console_routes
    from ..web.app import WebOptions, create_app
    from ..web.auth import DevAccess

    options = WebOptions(dev=True, api=False)
    app = create_app(client, authenticator=DevAccess(), options=options, pages=console_routes)
    place = ServeOptions(port=CONSOLE_PORT if is_port_free(CONSOLE_PORT) else 0)
    async with listen(app, place, asyncio.Event()) as urls:
        yield f"{urls[0]}{CONSOLE_PREFIX}"


class Reloader:
    """Keeps one worker process serving the newest version of the file that works."""

    def __init__(self, file: str, client: Client, agents: Path | None = None) -> None:
        """``agents`` is a folder of agent files, which the worker itself watches."""
        self._file = file
        self._folder = () if agents is None else (str(agents),)
        self._client = client
        self._current: ChildProcess | None = None
        self._files: set[Path] = {Path(file).absolute()}

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``; then the worker drains."""
        try:
            while not stop.is_set():
                # Taken before the files are loaded, so that what changes meanwhile is loaded again.
                before, begun = take_snapshot(self._files), time.time_ns()
                await self._start_worker()
                loaded = take_snapshot(self._files)
                for path, (modified_ns, _) in loaded.items():
                    if path in before:
                        loaded[path] = before[path]
                    elif modified_ns > begun:  # first named by this load, and changed since it began
                        loaded[path] = (0, 0)
                await self._wait_for_change(loaded, stop)
        finally:
            if self._current is not None:
                await self._current.stop(within=_WORKER_STOP_SECONDS)

    async def _wait_for_change(self, before: FileSnapshot, stop: asyncio.Event) -> None:
        """Wait until a file has changed, or the worker has ended by itself."""
        while not stop.is_set() and take_snapshot(self._files) == before:
            if self._current is not None and not self._current.is_running:
                _print_status("stopped", "the worker ended; starting another", "red")
                self._current = None
                await asyncio.sleep(FILE_POLL_SECONDS)
                return
            try:
                await asyncio.wait_for(stop.wait(), FILE_POLL_SECONDS)
            except TimeoutError:
                continue

    async def _start_worker(self) -> None:
        """Start a worker with the present files. If they cannot be loaded, the worker that serves goes on."""
        from ..embedded.process import ChildProcess

        arguments = (self._file, *list_worker_arguments(self._client), *self._folder)
        child = await ChildProcess.start("perdure.cli.dev_worker", *arguments)
        try:
            report = await child.read_report()
        except BaseException:
            await child.kill()
            raise
        if report is None or report["event"] != "serving":
            await child.stop(within=_WORKER_STOP_SECONDS)
            self._print_load_error(report)
            return
        previous, self._current = self._current, child
        self._files = _list_watched_paths(self._file, report["files"])
        self._print_serving(report["agents"], again=previous is not None)
        child.relay_output()
        if previous is not None:
            await previous.stop(within=_WORKER_STOP_SECONDS)

    def _print_serving(self, agents: list[str], *, again: bool) -> None:
        count = len(self._files) - 1  # without the folder, which is watched for modules that are missing
        files = f"watching {count} file{'s' if count > 1 else ''}"
        _print_status("reloaded" if again else "  serving", f"{', '.join(agents) or 'no agents yet'}; {files}", "green")
        if not again and agents:
            _print_status("  try", f'perdure run {agents[0]} "…" --task-queue {self._client.task_queue}')

    def _print_load_error(self, report: dict[str, Any] | None) -> None:
        if report is None:
            _print_status("broken", "the worker ended while it loaded the file", "red")
        else:
            self._files = self._files | _list_watched_paths(self._file, report["files"])
            _print_status("broken", report["error"], "red")
            if report["hint"]:
                _print_status("", report["hint"])
        serving = "the previous version goes on serving" if self._current else "nothing is served"
        _print_status("", f"{serving}; correct the file and save it")


def _list_watched_paths(file: str, files: Iterable[str]) -> set[Path]:
    """The files that were loaded, and the folder of ``file``, in which a missing module may appear."""
    return {Path(file).absolute().parent, *(Path(name) for name in files)}


def take_snapshot(paths: Iterable[Path]) -> FileSnapshot:
    """Time (ns) and size of each file, by which a change is seen; for a folder, a hash of its Python files' names."""
    snapshot: FileSnapshot = {}
    for path in paths:
        try:
            if path.is_dir():
                snapshot[path] = (0, sum(hash(name) for name in path.glob("*.py")))
            else:
                stat = path.stat()
                snapshot[path] = (stat.st_mtime_ns, stat.st_size)
        except OSError:  # an editor is replacing it
            snapshot[path] = (0, 0)
    return snapshot


def _print_status(label: str, text: str, style: str = "dim") -> None:
    print_line(f"{style_text(label.ljust(11), style)} {text}")
