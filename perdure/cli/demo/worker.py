"""The worker process of the demo and its agent, which reads the files of a folder.

``python -m perdure.cli.demo.worker FOLDER MODEL QUEUE ADDRESS NAMESPACE STORE``. The agent knows nothing of the demo.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ..._terminal import truncate_text
from ...agent.spec import AgentSpec
from ...embedded.process import call_when_orphaned, report_to_parent
from ...errors import PerdureError
from ...tools import tool
from ..agent_loader import AgentModule
from ..connection import StoreOptions, open_client
from ..worker import serve_agents

SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "venv", "build", "dist", "site-packages"})
_MAX_FILES = 200
_MAX_MATCHES = 40
_MAX_LINES = 120
_MAX_LINE_CHARS = 300
_MAX_FILE_BYTES = 5 * 1024 * 1024
"""A larger file is not searched or counted."""
_MAX_FILES_SCANNED = 5000
"""Files that one search looks into."""


class Folder:
    """The tools of the agent: they read the files below ``root`` and nothing else.

    Paths are relative to ``root``. Raises ``ValueError`` or ``OSError`` with a text that a model can act on.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def list_files(self, path: str = ".") -> str:
        """List the files of the folder with their sizes; the first 200.

        Args:
            path: A folder in it; by default all of it.
        """
        start = self._resolve_path(path)
        files = list(itertools.islice(self._iterate_files(start), _MAX_FILES + 1))
        lines = [f"{self._relative_name(file)} ({file.stat().st_size:,} bytes)" for file in files[:_MAX_FILES]]
        if len(files) > _MAX_FILES:
            lines.append(f"… and more: {_MAX_FILES} are shown; name a folder below {path}")
        return "\n".join(lines) or f"no files in {path}"

    def search(self, text: str, path: str = ".") -> str:
        """Find the lines that contain a text, as file:line: text; the first 40.

        Args:
            text: The words to find, as they stand there; upper and lower case are alike.
            path: A file or folder to look in; by default everything.
        """
        if not text.strip():
            raise ValueError("the text to search for is empty")
        wanted, matches = text.casefold(), []
        for file in self._iterate_files(self._resolve_path(path)):
            for number, line in enumerate(self._read_text_lines(file) or (), 1):
                if wanted in line.casefold():
                    excerpt = truncate_text(line.strip(), _MAX_LINE_CHARS)
                    matches.append(f"{self._relative_name(file)}:{number}: {excerpt}")
                if len(matches) == _MAX_MATCHES:
                    return "\n".join([*matches, f"… the first {_MAX_MATCHES} matches"])
        return "\n".join(matches) or f"nothing in {path} contains {text!r}"

    def read_file(self, path: str, start: int = 1, lines: int = 60) -> str:
        """Read lines of a text file, each with its number.

        Args:
            path: The file.
            start: The first line.
            lines: How many; 120 at most.
        """
        file = self._resolve_path(path)
        if not file.is_file():
            raise ValueError(f"{path} is a folder; list_files shows its files")
        text = self._read_text_lines(file)
        if text is None:
            raise ValueError(f"{path} is not a text file, or has more than {_MAX_FILE_BYTES // 1024 // 1024} MB")
        first = max(start, 1) - 1
        last = first + min(max(lines, 1), _MAX_LINES)
        numbered = enumerate(text[first:last], first + 1)
        shown = [f"{number}: {truncate_text(line, _MAX_LINE_CHARS)}" for number, line in numbered]
        if shown and last < len(text):
            shown.append(f"… {len(text) - last} more lines")
        return "\n".join(shown) or f"{path} has {len(text)} lines, none from line {first + 1}"

    def count_lines(self, path: str = ".") -> str:
        """Count the lines of a file, or of all files of a folder; the longest ten are named.

        Args:
            path: The file or folder; by default everything.
        """
        start = self._resolve_path(path)
        texts = ((file, self._read_text_lines(file)) for file in self._iterate_files(start))
        counts = {file: len(text) for file, text in texts if text is not None}
        if start.is_file():
            if not counts:
                raise ValueError(f"{path} is not a text file")
            return f"{path} has {counts[start]} lines"
        longest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10]
        head = f"{sum(counts.values())} lines in {len(counts)} text files of {path}; the longest:"
        return "\n".join([head, *(f"{count} {self._relative_name(file)}" for file, count in longest)])

    def _resolve_path(self, path: str) -> Path:
        # Resolved first: neither .. nor a link may lead out.
        resolved = (self.root / path.strip().lstrip("/")).resolve()
        if resolved != self.root and self.root not in resolved.parents:
            raise ValueError(f"{path} lies outside the folder")
        if not resolved.exists():
            raise FileNotFoundError(f"there is no {path} in the folder; list_files shows its files")
        return resolved

    def _iterate_files(self, start: Path) -> Iterator[Path]:
        """The first 5,000 regular files at or below ``start`` in order, without hidden and generated ones."""
        if start.is_file():
            yield start
            return
        left, folders = _MAX_FILES_SCANNED, [start]
        while folders:
            try:
                entries = sorted(folders.pop().iterdir(), reverse=True)
            except OSError:  # may not be read
                continue
            entries = [entry for entry in entries if not entry.name.startswith(".") and not entry.is_symlink()]
            for entry in reversed(entries):
                if entry.is_file():
                    yield entry
                    left -= 1
                    if not left:
                        return
            folders += [entry for entry in entries if entry.name not in SKIPPED_FOLDERS and entry.is_dir()]

    def _read_text_lines(self, file: Path) -> list[str] | None:
        """The lines of a text file; None for a binary, unreadable or huge one."""
        try:
            if file.stat().st_size > _MAX_FILE_BYTES:
                return None
            body = file.read_bytes()
        except OSError:
            return None
        return None if b"\0" in body[:8192] else body.decode(errors="replace").splitlines()

    def _relative_name(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()


AGENT_NAME = "reader"

INSTRUCTIONS = """\
You answer questions about the files of one folder. Look before you speak: find the files that matter, read them, and \
only then answer, in a few sentences, naming the files and lines that your answer rests on. Call one tool at a time. \
Paths are relative to the folder."""


def build_reader_agent(folder: Path, model: str) -> AgentSpec:
    """The agent over ``folder``. Its tools only read, so a call that a crash cut short may simply run again."""
    files = Folder(folder)
    methods = (files.list_files, files.search, files.read_file, files.count_lines)
    tools = [tool(method, idempotent=True, timeout=30) for method in methods]
    return AgentSpec(AGENT_NAME, model, instructions=INSTRUCTIONS, tools=tools)


async def main(folder: str, model: str, queue: str, address: str, namespace: str, store: str) -> None:
    """Serve until told to stop, or until the demo has ended."""
    stop = asyncio.Event()
    call_when_orphaned(stop.set)
    loaded = AgentModule(folder, (build_reader_agent(Path(folder), model),))
    async with open_client(StoreOptions(address, namespace, store_url=store), task_queue=queue) as client:
        await serve_agents(client, loaded, stop, drain=1.0, on_serving=lambda: report_to_parent("serving"))


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)  # the demo shows the run's status, which has the errors that matter
    try:
        asyncio.run(main(*sys.argv[1:]))
    except PerdureError as error:
        report_to_parent("broken", error=error.message, hint=error.hint)
    sys.stdout.flush()
    os._exit(0)  # as perdure.cli.main
