"""The worker process of the demo: ``python -m perdure.cli.demo.worker FOLDER MODEL QUEUE ADDRESS NAMESPACE STORE``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ...agent.agent import Agent
from ...embedded.process import call_when_orphaned, report_to_parent
from ...errors import PerdureError
from ...tools import tool
from ..agent_loader import AgentModule
from ..connection import ConnectionOptions, open_client
from ..worker import serve_agents

# ---
# A folder that an agent may read and nothing else: what lies outside, is binary or too long is said, not shown.


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
    """Paths are relative to ``root``. Raises ``ValueError`` or ``OSError`` with a text that a model can act on."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def list_files(self, path: str = ".") -> str:
        """The files below ``path`` with their sizes; the first 200."""
        start = self._resolve_path(path)
        if start.is_file():
            return self._format_file_size(start)
        found: list[str] = []
        for number, file in enumerate(self._iterate_files(start)):
            if number == _MAX_FILES:
                found.append(f"… and more: {_MAX_FILES} are shown; name a folder below {path}")
                break
            found.append(self._format_file_size(file))
        return "\n".join(found) or f"no files in {path}"

    def search(self, text: str, path: str = ".") -> str:
        """``file:line: text`` of the lines that contain ``text``, upper and lower case alike; the first 40."""
        if not text.strip():
            raise ValueError("the text to search for is empty")
        wanted, found = text.casefold(), []
        for file in self._iterate_files(self._resolve_path(path)):
            for number, line in enumerate(self._read_text_lines(file) or (), 1):
                if wanted in line.casefold():
                    found.append(f"{self._relative_name(file)}:{number}: {_truncate_file_line(line.strip())}")
                if len(found) == _MAX_MATCHES:
                    return "\n".join([*found, f"… the first {_MAX_MATCHES} matches"])
        return "\n".join(found) or f"nothing in {path} contains {text!r}"

    def read_file(self, path: str, start: int = 1, lines: int = _MAX_LINES) -> str:
        """At most 120 lines of a file from line ``start``, numbered."""
        file = self._resolve_file(path)
        text = self._read_text_lines(file)
        if text is None:
            raise ValueError(f"{path} is no text file, or has more than {_MAX_FILE_BYTES // 1024 // 1024} MB")
        first = max(start, 1) - 1
        last = first + min(max(lines, 1), _MAX_LINES)
        shown = [f"{number}: {_truncate_file_line(line)}" for number, line in enumerate(text[first:last], first + 1)]
        if shown and last < len(text):
            shown.append(f"… {len(text) - last} more lines")
        return "\n".join(shown) or f"{path} has {len(text)} lines, none from line {first + 1}"

    def count_lines(self, path: str = ".") -> str:
        """Lines of a text file, or of all text files below a folder, the longest ten named."""
        start = self._resolve_path(path)
        counts = {
            file: len(text) for file in self._iterate_files(start) if (text := self._read_text_lines(file)) is not None
        }
        if start.is_file():
            if not counts:
                raise ValueError(f"{path} is no text file")
            return f"{path} has {counts[start]} lines"
        longest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10]
        head = f"{sum(counts.values())} lines in {len(counts)} text files of {path}; the longest:"
        return "\n".join([head, *(f"{count} {self._relative_name(file)}" for file, count in longest)])

    def _resolve_path(self, path: str) -> Path:
        # Resolved first: neither .. nor a link may lead out.
        found = (self.root / path.strip().lstrip("/")).resolve()
        if found != self.root and self.root not in found.parents:
            raise ValueError(f"{path} lies outside the folder")
        if not found.exists():
            raise FileNotFoundError(f"there is no {path} in the folder; list_files shows what there is")
        return found

    def _resolve_file(self, path: str) -> Path:
        found = self._resolve_path(path)
        if not found.is_file():
            raise ValueError(f"{path} is a folder; list_files shows its files")
        return found

    def _iterate_files(self, start: Path) -> Iterator[Path]:
        """Regular files at or below ``start`` in order, without hidden and generated ones."""
        if start.is_file():
            yield start
            return
        left, folders = _MAX_FILES_SCANNED, [start]
        while folders:
            try:
                entries = sorted(folders.pop().iterdir(), reverse=True)
            except OSError:  # not ours to read
                continue
            for entry in reversed(entries):
                if entry.is_symlink() or entry.name.startswith(".") or not entry.is_file():
                    continue
                yield entry
                left -= 1
                if not left:
                    return
            folders += [e for e in entries if not _is_hidden(e) and e.is_dir() and not e.is_symlink()]

    def _read_text_lines(self, file: Path) -> list[str] | None:
        """The lines of a text file; None for a binary, unreadable or huge one."""
        try:
            if file.stat().st_size > _MAX_FILE_BYTES:
                return None
            body = file.read_bytes()
        except OSError:
            return None
        return None if b"\0" in body[:8192] else body.decode(errors="replace").splitlines()

    def _format_file_size(self, file: Path) -> str:
        return f"{self._relative_name(file)} ({file.stat().st_size:,} bytes)"

    def _relative_name(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or path.name in SKIPPED_FOLDERS


def _truncate_file_line(line: str) -> str:
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…"


# ---
# The agent of the demo: it answers questions about the files of one folder. Nothing in it knows of the demo.


AGENT_NAME = "reader"

INSTRUCTIONS = """\
You answer questions about the files of one folder. Look before you speak: find the files that matter, read them, and \
only then answer, in a few sentences, naming the files and lines that your answer rests on. Call one tool at a time. \
Paths are relative to the folder."""


def build_reader_agent(folder: Path, model: str) -> Agent:
    """The agent over ``folder``. Its tools only read, so a call that a crash cut short may simply run again."""
    files = Folder(folder)

    @tool(idempotent=True, timeout=30)
    def list_files(path: str = ".") -> str:
        """List the files of the folder with their sizes.

        Args:
            path: A folder in it; all of it without.
        """
        return files.list_files(path)

    @tool(idempotent=True, timeout=30)
    def search(text: str, path: str = ".") -> str:
        """Find the lines that contain a text, as file:line: text.

        Args:
            text: The words to find, as they stand there; upper and lower case are alike.
            path: A file or folder to look in; everything without.
        """
        return files.search(text, path)

    @tool(idempotent=True, timeout=30)
    def read_file(path: str, start: int = 1, lines: int = 60) -> str:
        """Read lines of a text file, each with its number.

        Args:
            path: The file.
            start: The first line.
            lines: How many; 120 at most.
        """
        return files.read_file(path, start, lines)

    @tool(idempotent=True, timeout=30)
    def count_lines(path: str = ".") -> str:
        """Count the lines of a file, or of all files of a folder.

        Args:
            path: The file or folder; everything without.
        """
        return files.count_lines(path)

    return Agent(AGENT_NAME, model, instructions=INSTRUCTIONS, tools=[list_files, search, read_file, count_lines])


async def main(folder: str, model: str, queue: str, address: str, namespace: str, store: str) -> None:
    """Serve until told to stop, or until the demo is gone."""
    stop = asyncio.Event()
    call_when_orphaned(stop.set)
    loaded = AgentModule(folder, (build_reader_agent(Path(folder), model),))
    async with open_client(ConnectionOptions(address, namespace, store_url=store), task_queue=queue) as client:
        await serve_agents(client, loaded, drain=1.0, stop=stop, ready=lambda _: report_to_parent("serving"))


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)  # what matters of it is in the run's status, which the demo shows
    try:
        asyncio.run(main(*sys.argv[1:]))
    except PerdureError as error:
        report_to_parent("broken", error=error.message, hint=error.hint)
    sys.stdout.flush()
    os._exit(0)  # as perdure.cli.main
