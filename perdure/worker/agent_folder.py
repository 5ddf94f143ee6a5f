"""Serves the agent files of a folder beside the agents of code, and follows changes of the files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..agent.agent_file import AGENT_FILE_SUFFIXES, load_spec
from ..agent.spec import AgentSpec
from ..calls.agents import Agents
from ..errors import InvalidInputError, PerdureError, join_sentences
from ..ports.toolset import Toolset

logger = logging.getLogger("perdure.worker")

FOLDER_POLL_SECONDS = 0.3
"""Seconds between two scans. A file is read once two scans find it unchanged: an editor may still be writing it."""

_FileState = tuple[int, int]
"""Time (ns) and size."""


@dataclass(slots=True)
class _WatchedAgentFile:
    state: _FileState
    latest_agent: AgentSpec | None = None
    """The agent of the file, or of its last valid version."""
    served_agent: AgentSpec | None = None
    """The agent that is served: an older version, if the name of the latest one is taken."""
    load_error: str | None = None
    last_report: str = ""
    """The last report on the file."""


class AgentFolder:
    """Keeps ``agents`` in step with the files of a folder, for the length of ``async with folder:``, on the worker's
    loop.

    A broken file is reported by ``say``, and its last valid version stays in force. A removed file removes its agent:
    runs of that agent look for another worker for a minute, and fail.
    """

    def __init__(
        self,
        folder: Path,
        agents: Agents,
        *,
        toolsets: Iterable[Toolset] = (),
        say: Callable[[str], object],
        record: Callable[[Iterable[AgentSpec]], Awaitable[None]] | None = None,
    ) -> None:
        """Read the folder. ``record`` gets the agents before they are served: what the store does not know is refused
        by HTTP. Raises ``InvalidInputError`` if the folder does not exist."""
        if not folder.is_dir():
            raise InvalidInputError(f"folder {folder} does not exist", hint="Name the folder that has the agent files.")
        self._folder = folder
        self._agents = agents
        self._toolsets = tuple(toolsets)
        self._say = say
        self._record = record
        self._files: dict[Path, _WatchedAgentFile] = {}
        self._before = self._scan_folder()
        self._apply_files(self._before, self._before, self._load_files(self._find_changed_files(self._before)))

    async def __aenter__(self) -> AgentFolder:
        await self._record_agents(file.served_agent for file in self._files.values())
        self._watching = asyncio.create_task(self._watch_folder())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch_folder(self) -> None:
        """Apply changes of the folder until cancelled."""
        there = True
        while True:
            await asyncio.sleep(FOLDER_POLL_SECONDS)
            before, was_there = self._before, there
            there = self._folder.is_dir()
            if not there:
                if was_there:
                    self._say(f"the folder {self._folder} is gone; its agents are still served")
                continue
            try:
                self._before = now = await asyncio.to_thread(self._scan_folder)
                settled = {path: state for path, state in now.items() if before.get(path) == state}
                loaded = await asyncio.to_thread(
                    self._load_files, self._find_changed_files(settled)
                )  # parsing YAML is slow
                await self._record_agents(loaded.values())
                self._apply_files(settled, now.keys() | before.keys(), loaded)
            except Exception:
                logger.exception("the agent files of %s could not be read", self._folder)

    async def _record_agents(self, loaded: Iterable[AgentSpec | str | None]) -> None:
        agents = [agent for agent in loaded if isinstance(agent, AgentSpec)]
        if agents and self._record is not None:
            await self._record(agents)

    def _scan_folder(self) -> dict[Path, _FileState]:
        """Return the agent files in the folder with their state."""
        found: dict[Path, _FileState] = {}
        for path in sorted(self._folder.glob("*")):
            if path.suffix.lower() in AGENT_FILE_SUFFIXES and not path.name.startswith("."):
                with suppress(OSError):  # an editor may be replacing it
                    stat = path.stat()
                    found[path] = (stat.st_mtime_ns, stat.st_size)
        return found

    def _find_changed_files(self, settled: dict[Path, _FileState]) -> list[Path]:
        """Return the files that must be read."""
        return [path for path, state in settled.items() if path not in self._files or self._files[path].state != state]

    def _load_files(self, paths: Iterable[Path]) -> dict[Path, AgentSpec | str]:
        """Load the agents of these files, or the reasons why they are invalid."""
        return {path: self._load_file(path) for path in paths}

    def _load_file(self, path: Path) -> AgentSpec | str:
        try:
            return load_spec(path, AgentSpec, tools=self._agents.tools, toolsets=self._toolsets)
        except PerdureError as error:
            return join_sentences(error.message, error.hint)
        except Exception as error:  # the other files are still served
            return f"{path}: {type(error).__name__}: {error}"

    def _apply_files(
        self, settled: dict[Path, _FileState], present: Collection[Path], loaded: dict[Path, AgentSpec | str]
    ) -> None:
        """Serve the agents of the files. Files of ``present`` that are not ``settled`` may still be written; changed
        files are in ``loaded``."""
        gone = [self._files.pop(path) for path in [*self._files] if path not in present]
        changed = list(loaded)
        if not gone and not changed:
            return
        for path, found in loaded.items():
            self._record_loaded(path, settled[path], found)
        ours = {file.served_agent.name for file in (*gone, *self._files.values()) if file.served_agent is not None}
        taken = {agent.name: "the code" for agent in self._agents if agent.name not in ours}
        # A file keeps its served name; if several want a free one, the first file gets it.
        for path, file in sorted(self._files.items(), key=lambda one: (_is_agent_renamed(one[1]), one[0])):
            free = (
                agent
                for agent in (file.latest_agent, file.served_agent)
                if agent is not None and agent.name not in taken
            )
            file.served_agent = next(free, None)
            if file.served_agent is not None:
                taken[file.served_agent.name] = path.name
        self._agents.replace_agents(
            ours, [file.served_agent for file in self._files.values() if file.served_agent is not None]
        )
        for name in sorted(ours - taken.keys()):
            self._say(f"removed: agent {name} is not served any more")
        for path, file in sorted(self._files.items()):
            self._report_file(path, file, taken, again=path in changed)

    def _record_loaded(self, path: Path, state: _FileState, found: AgentSpec | str) -> None:
        file = self._files.setdefault(path, _WatchedAgentFile(state))
        file.state, file.load_error = state, None
        if isinstance(found, str):
            file.load_error = found
        else:
            file.latest_agent = found

    def _report_file(self, path: Path, file: _WatchedAgentFile, taken: dict[str, str], *, again: bool) -> None:
        why = file.load_error
        if why is None and file.latest_agent is not file.served_agent and file.latest_agent is not None:
            name = file.latest_agent.name
            why = f"{path}: two agents are called {name!r}, the other one in {taken[name]} (rename one)"
        if why is None and file.served_agent is not None:
            said = f"serving: {file.served_agent.name} ({path.name})"
        else:
            said = f"broken: {why}" + (
                "; its last valid version is still served" if file.served_agent is not None else ""
            )
        if again or said != file.last_report:
            self._say(said)
        file.last_report = said


def _is_agent_renamed(file: _WatchedAgentFile) -> bool:
    """Whether the file's agent has another name than the one that is served."""
    return file.served_agent is None or (
        file.latest_agent is not None and file.latest_agent.name != file.served_agent.name
    )
