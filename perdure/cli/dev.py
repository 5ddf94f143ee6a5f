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
from ..terminal import print_line, styled
from .connection import Server, connected, ui_url, without_password
from .connection import address as address_of
from .options import AgentsOption, QueueOption, StoreOptions
from .rendering import colours

if TYPE_CHECKING:
    from ..client.client import Client
    from ..embedded.process import Child


POLL = 0.3
"""Seconds between two looks at the files."""
_ENDING = 8.0
"""Seconds that a worker is given to end: what it drains, and a little more."""

Snapshot = dict[Path, tuple[int, int]]


def dev(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The Python file with the agents.")],
    agents: AgentsOption = None,
    task_queue: QueueOption = None,
    *,
    server: StoreOptions,
) -> None:
    """Serve a file's agents on this machine's embedded server; a changed file is loaded again."""
    path = Path(file)
    if not path.is_file():
        raise InvalidInputError(f"there is no file {file}", hint=f"Looked for {path.absolute()}.")
    asyncio.run(_dev(file, server, task_queue, agents))


async def _dev(file: str, server: Server, task_queue: str | None, agents: Path | None) -> None:
    from .. import config
    from ..local_engine import entry_queue

    queue = config.named_task_queue(task_queue) or entry_queue(Path(file))
    async with connected(server, start_server=True, task_queue=queue) as client:
        client.store_url = client.store_url or config.home_store_url()
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        _say("perdure dev", f"{file}, Ctrl-C ends")
        _say("  queue", queue)
        _say("  server", f"{address_of(client)}, store {without_password(client.store_url)}")
        if ui := await ui_url(client):
            _say("  UI", ui)
        await Reloader(file, client, agents).run(stop)


class Reloader:
    """Keeps one worker process serving the newest version of the file that works."""

    def __init__(self, file: str, client: Client, agents: Path | None = None) -> None:
        """``agents`` is a folder of agent files, which the worker itself looks after."""
        self._file = file
        self._folder = () if agents is None else (str(agents),)
        self._client = client
        self._current: Child | None = None
        self._files: set[Path] = {Path(file).absolute()}

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``; then the worker drains."""
        try:
            while not stop.is_set():
                # Taken before it is loaded: what changes meanwhile is loaded again.
                before, begun = snapshot(self._files), time.time_ns()
                await self._load()
                # Files that this load was the first to name were not looked at before it: their times tell.
                now = {path: (0, 0) if state[0] > begun else state for path, state in snapshot(self._files).items()}
                await self._changed(now | {path: before[path] for path in now.keys() & before}, stop)
        finally:
            if self._current is not None:
                await self._current.stop(within=_ENDING)

    async def _changed(self, before: Snapshot, stop: asyncio.Event) -> None:
        """Until a file is not as it was, or the worker has ended by itself."""
        while not stop.is_set() and snapshot(self._files) == before:
            if self._current is not None and not self._current.alive:
                _say("stopped", "the worker ended; starting another", "red")
                self._current = None
                await asyncio.sleep(POLL)
                return
            try:
                await asyncio.wait_for(stop.wait(), POLL)
            except TimeoutError:
                continue

    async def _load(self) -> None:
        """Start a worker on the files as they are. If they do not work, the one that serves goes on."""
        from ..embedded.process import Child

        assert self._client.store_url is not None, "set by the command"
        place = (self._client.task_queue, address_of(self._client), self._client.temporal.namespace)
        child = await Child.start("perdure.cli.dev_worker", self._file, *place, self._client.store_url, *self._folder)
        try:
            said = await child.says()
        except BaseException:
            await child.kill()
            raise
        if said is None or said["event"] != "serving":
            await child.stop(within=_ENDING)
            self._broken(said)
            return
        previous, self._current = self._current, child
        self._files = _watched(self._file, said["files"])
        self._serving(said["agents"], again=previous is not None)
        child.relay()
        if previous is not None:
            await previous.stop(within=_ENDING)

    def _serving(self, agents: list[str], *, again: bool) -> None:
        count = len(self._files)
        files = f"watching {count} file{'s' if count > 1 else ''}"
        _say("reloaded" if again else "  serving", f"{', '.join(agents) or 'no agents yet'}; {files}", "green")
        if not again and agents:
            _say("  try", f'perdure run {agents[0]} "…" --task-queue {self._client.task_queue}')

    def _broken(self, said: dict[str, Any] | None) -> None:
        if said is None:
            _say("broken", "the worker ended while it loaded the file", "red")
        else:
            self._files = self._files | _watched(self._file, said["files"])
            _say("broken", said["error"], "red")
            if said["hint"]:
                _say("", said["hint"])
        serving = "the previous version goes on serving" if self._current else "nothing is served"
        _say("", f"{serving}; save the file again when it is mended")


def _watched(file: str, files: Iterable[str]) -> set[Path]:
    """The files that were loaded, and the folder of the entry: a module that was missing may appear there."""
    return {Path(file).absolute().parent, *(Path(name) for name in files)}


def snapshot(paths: Iterable[Path]) -> Snapshot:
    """What tells a changed file: its time (ns) and size. Of a folder, only whether Python files come and go."""
    seen: Snapshot = {}
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


def _say(label: str, text: str, style: str = "dim") -> None:
    print_line(f"{styled(label.ljust(11), style, on=colours())} {text}")
