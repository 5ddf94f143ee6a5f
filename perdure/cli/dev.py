"""``perdure dev``: serve a file's agents on this machine, and again whenever the file changes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInputError
from ..terminal import print_line, style_text
from .connection import ConnectionOptions, find_ui_url, mask_password, open_client
from .connection import get_server_address as address_of
from .options import AgentsOption, StoreOptions, TaskQueueOption
from .output import can_colour_stdout

if TYPE_CHECKING:
    from ..client.client import Client
    from ..embedded.process import ChildProcess


FILE_POLL_SECONDS = 0.3
"""Seconds between two looks at the files."""
_WORKER_STOP_SECONDS = 8.0
"""Seconds that a worker is given to end: what it drains, and a little more."""

FileSnapshot = dict[Path, tuple[int, int]]


def dev(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The Python file with the agents.")],
    agents: AgentsOption = None,
    task_queue: TaskQueueOption = None,
    *,
    server: StoreOptions,
) -> None:
    """Serve a file's agents on this machine's embedded server; a changed file is loaded again."""
    path = Path(file)
    if not path.is_file():
        raise InvalidInputError(f"there is no file {file}", hint=f"Looked for {path.absolute()}.")
    asyncio.run(_serve_with_reload(file, server, task_queue, agents))


async def _serve_with_reload(file: str, server: ConnectionOptions, task_queue: str | None, agents: Path | None) -> None:
    from .. import config
    from ..local_engine import build_program_queue_name

    queue = config.named_task_queue(task_queue) or build_program_queue_name(Path(file))
    async with open_client(server, start_server=True, task_queue=queue) as client:
        client.store_url = client.store_url or config.get_home_store_url()
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        _print_status("perdure dev", f"{file}, Ctrl-C ends")
        _print_status("  queue", queue)
        _print_status("  server", f"{address_of(client)}, store {mask_password(client.store_url)}")
        if ui := await find_ui_url(client):
            _print_status("  UI", ui)
        await Reloader(file, client, agents).run(stop)


class Reloader:
    """Keeps one worker process serving the newest version of the file that works."""

    def __init__(self, file: str, client: Client, agents: Path | None = None) -> None:
        """``agents`` is a folder of agent files, which the worker itself looks after."""
        self._file = file
        self._folder = () if agents is None else (str(agents),)
        self._client = client
        self._current: ChildProcess | None = None
        self._files: set[Path] = {Path(file).absolute()}

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``; then the worker drains."""
        try:
            while not stop.is_set():
                # Taken before it is loaded: what changes meanwhile is loaded again.
                before, begun = take_snapshot(self._files), time.time_ns()
                await self._start_worker()
                # Files that this load was the first to name were not looked at before it: their times tell.
                now = {
                    path: (0, 0) if state[0] > begun else state for path, state in take_snapshot(self._files).items()
                }
                await self._wait_for_change(now | {path: before[path] for path in now.keys() & before}, stop)
        finally:
            if self._current is not None:
                await self._current.stop(within=_WORKER_STOP_SECONDS)

    async def _wait_for_change(self, before: FileSnapshot, stop: asyncio.Event) -> None:
        """Until a file is not as it was, or the worker has ended by itself."""
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
        """Start a worker on the files as they are. If they do not work, the one that serves goes on."""
        from ..embedded.process import ChildProcess

        assert self._client.store_url is not None, "set by the command"
        place = (self._client.task_queue, address_of(self._client), self._client.temporal.namespace)
        child = await ChildProcess.start(
            "perdure.cli.dev_worker", self._file, *place, self._client.store_url, *self._folder
        )
        try:
            said = await child.read_report()
        except BaseException:
            await child.kill()
            raise
        if said is None or said["event"] != "serving":
            await child.stop(within=_WORKER_STOP_SECONDS)
            self._print_load_error(said)
            return
        previous, self._current = self._current, child
        self._files = _list_watched_paths(self._file, said["files"])
        self._print_serving(said["agents"], again=previous is not None)
        child.relay_output()
        if previous is not None:
            await previous.stop(within=_WORKER_STOP_SECONDS)

    def _print_serving(self, agents: list[str], *, again: bool) -> None:
        count = len(self._files)
        files = f"watching {count} file{'s' if count > 1 else ''}"
        _print_status("reloaded" if again else "  serving", f"{', '.join(agents) or 'no agents yet'}; {files}", "green")
        if not again and agents:
            _print_status("  try", f'perdure run {agents[0]} "…" --task-queue {self._client.task_queue}')

    def _print_load_error(self, said: dict[str, Any] | None) -> None:
        if said is None:
            _print_status("broken", "the worker ended while it loaded the file", "red")
        else:
            self._files = self._files | _list_watched_paths(self._file, said["files"])
            _print_status("broken", said["error"], "red")
            if said["hint"]:
                _print_status("", said["hint"])
        serving = "the previous version goes on serving" if self._current else "nothing is served"
        _print_status("", f"{serving}; save the file again when it is mended")


def _list_watched_paths(file: str, files: Iterable[str]) -> set[Path]:
    """The files that were loaded, and the folder of the entry: a module that was missing may appear there."""
    return {Path(file).absolute().parent, *(Path(name) for name in files)}


def take_snapshot(paths: Iterable[Path]) -> FileSnapshot:
    """What tells a changed file: its time (ns) and size. Of a folder, only whether Python files come and go."""
    seen: FileSnapshot = {}
    for path in paths:
        try:
            if path.is_dir():
                seen[path] = (0, sum(hash(name) for name in path.glob("*.py")))
            else:
                stat = path.stat()
                seen[path] = (stat.st_mtime_ns, stat.st_size)
        except OSError:  # an editor that is just replacing it
            seen[path] = (0, 0)
    return seen


def _print_status(label: str, text: str, style: str = "dim") -> None:
    print_line(f"{style_text(label.ljust(11), style, on=can_colour_stdout())} {text}")
