"""A Worker Deployment on the session's server, steered by the `temporal` CLI; copies of perdure that differ."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.engine import ROOT
from tests.support.wait import eventually


class Deployment:
    """A deployment by its name. Its methods are commands of the ``temporal`` CLI, whose path is in the environment
    while a test has a server."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name

    def environment(self, build_id: str) -> dict[str, str]:
        """What Temporal's Worker Controller gives a worker of this version."""
        return {"TEMPORAL_DEPLOYMENT_NAME": self.name, "TEMPORAL_WORKER_BUILD_ID": build_id}

    async def set_current(self, build_id: str) -> None:
        """Route all runs that are not pinned to the version, once its worker has begun to poll."""
        await self._route("set-current-version", build_id)

    async def set_ramping(self, build_id: str, percentage: int) -> None:
        """Route that share of them to it."""
        await self._route("set-ramping-version", build_id, "--percentage", str(percentage))

    async def _route(self, command: str, build_id: str, *options: str) -> None:
        async def is_done() -> bool:
            version = ("--deployment-name", self.name, "--build-id", build_id)
            code, self._output = await self.cli("worker", "deployment", command, *version, *options, "--yes")
            return code == 0

        await eventually(is_done, every=0.2, what=f"{command} {build_id}")

    async def describe(self, build_id: str) -> dict[str, Any]:
        """The version as Temporal describes it."""
        version = ("--deployment-name", self.name, "--build-id", build_id)
        code, output = await self.cli("worker", "deployment", "describe-version", *version, "-o", "json")
        assert code == 0, output
        described: dict[str, Any] = json.loads(output)
        return described

    async def cli(self, *arguments: str) -> tuple[int, str]:
        """A command of the CLI: its exit code and output."""
        process = await asyncio.create_subprocess_exec(
            os.environ["PERDURE_TEMPORAL_CLI"],
            *arguments,
            "--address",
            self.address,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()


class OtherVersion:
    """A copy of perdure with changes, as the version before or after this one would be. Its programs are processes that
    import the copy."""

    def __init__(self, folder: Path, changes: Mapping[str, tuple[str, str]]) -> None:
        """``changes``: by file under perdure/, a text and what replaces it."""
        self.folder = folder
        shutil.copytree(ROOT / "perdure", folder / "perdure", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "tests").symlink_to(ROOT / "tests")
        for name, (old, new) in changes.items():
            file = folder / "perdure" / name
            text = file.read_text()
            assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
            file.write_text(text.replace(old, new))
        self._processes: list[asyncio.subprocess.Process] = []

    async def run(self, *arguments: str, env: Mapping[str, str]) -> tuple[int, str]:
        """``python`` with ``arguments``, to its end: its exit code and output."""
        process = await self.spawn(*arguments, env=env)
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    async def spawn(self, *arguments: str, env: Mapping[str, str]) -> asyncio.subprocess.Process:
        """Start it; ``close`` ends it."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder), **env},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
        )
        self._processes.append(process)
        return process

    async def close(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.communicate()
