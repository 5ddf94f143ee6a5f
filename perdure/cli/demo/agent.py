"""The agent of the demo: it answers questions about the files of one folder. Nothing in it knows of the demo."""

from __future__ import annotations

from pathlib import Path

from ...agent import Agent
from ...tools import tool
from .folder import Folder

NAME = "reader"

INSTRUCTIONS = """\
You answer questions about the files of one folder. Look before you speak: find the files that matter, read them, and \
only then answer, in a few sentences, naming the files and lines that your answer rests on. Call one tool at a time. \
Paths are relative to the folder."""


def reader(folder: Path, model: str) -> Agent:
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

    return Agent(NAME, model, instructions=INSTRUCTIONS, tools=[list_files, search, read_file, count_lines])
