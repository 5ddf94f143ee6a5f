"""What goes wrong with a store: locked, read-only, full, altered, gone; and how each is put right again."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA locking_mode = " + sys.argv[2])
connection.execute("BEGIN EXCLUSIVE")
connection.execute("CREATE TABLE IF NOT EXISTS held (x)")
print("held", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
"""


@contextmanager
def locked(path: Path, *, readers_too: bool = False) -> Iterator[None]:
    """Another process holds the store; with ``readers_too`` it cannot be read, and no process may have it open."""
    mode = "EXCLUSIVE" if readers_too else "NORMAL"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.stdin.close()
        holder.wait(30)
        holder.stdout.close()


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """The store cannot be written, not even by a process that has it open. Skips where that cannot be arranged."""
    files = [str(file) for file in (path, path.with_name(path.name + "-wal")) if file.exists()]
    if not shutil.which("chattr") or subprocess.run(["chattr", "+i", *files], capture_output=True).returncode:
        pytest.skip("NOT TESTED: only root, and on a file system with attributes, can take an open file from its owner")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *files], check=True)


@contextmanager
def small_disk(folder: Path, *, kilobytes: int) -> Iterator[Path]:
    """A file system of its own. Skips where none can be mounted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"NOT TESTED: a full disk needs a small file system, which only root can mount ({mounted.stderr})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the space that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    assert os.statvfs(folder).f_bavail == 0
    return filler


def sql(path: Path, statement: str, *values: Any) -> list[Any]:
    """One statement on the store, as a database browser would run it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


@contextmanager
def taken_away(path: Path) -> Iterator[None]:
    """The store's files are moved elsewhere, and back."""
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    moved = [(file, file.with_name("moved-" + file.name)) for file in files if file.exists()]
    for file, away in moved:
        file.rename(away)
    try:
        yield
    finally:
        for file, away in moved:
            away.rename(file)
