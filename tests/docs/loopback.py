"""Programs of the documentation as processes of their own: a real Temporal server, and a model on loopback."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.model_server import OpenAIServer
from tests.support import forkserver
from tests.support.namespaces import indexed_namespace
from tests.support.program import without_warnings

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
Process = asyncio.subprocess.Process | forkserver.Process
FORKED = {
    sys.executable: [sys.executable],
    "python": [sys.executable],
    "perdure": [sys.executable, "-m", "perdure"],
    "uvicorn": [sys.executable, "-m", "uvicorn"],
}
"""Commands of a page that the fork server runs, and as what. ``test_deploy.py`` starts the installed script."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str


async def ended(process: Process, says: str = "") -> Ended:
    """What a process came to; waits for it."""
    out, err = await process.communicate(says.encode() or None)
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def said(stream: asyncio.StreamReader | None, pattern: str) -> str:
    """The first line that has ``pattern``; what a process says before and after it may be read as well."""
    assert stream is not None
    seen = ""
    async with asyncio.timeout(60):
        while line := (await stream.readline()).decode():
            if re.search(pattern, line):
                return line
            seen += line
    raise AssertionError(f"{pattern!r} was not said, but: {seen}")


def succeeded(ended: Ended) -> str:
    """Its output, see :func:`printed`; nothing on stderr, no abort on the way out."""
    assert (ended.code, ended.err) == (0, ""), ended
    return printed(ended)


def printed(ended: Ended) -> str:
    """What the program itself has printed, without what Temporal's SDK warns of there on a busy machine."""
    return without_warnings(ended.out)


class Loopback:
    """``run`` starts a program and waits for its end; ``model.rule`` is what the model says to it.

    Each has the environment of a machine on which perdure is used: a home, a store and a task queue of this test's
    own, the session's Temporal server, and a provider that stands on loopback.
    """

    def __init__(self, address: str, folder: Path, model: OpenAIServer) -> None:
        self.address = address
        self.folder = folder
        self.model = model
        self.task_queue = f"docs-{uuid.uuid4().hex[:8]}"
        self.store_url = f"sqlite:///{folder / 'store.db'}"
        self.namespace = "default"
        self.port = 8000
        """Of the page's `perdure serve`."""
        self.started: list[Process] = []

    async def own_namespace(self) -> None:
        """For programs whose runs have fixed ids: other tests may use the same."""
        self.namespace = f"docs-{uuid.uuid4().hex[:8]}"
        await indexed_namespace(self.address, self.namespace)

    @property
    def env(self) -> dict[str, str]:
        """The environment of every program."""
        kept = ("PATH", "HOME", "LANG", "TMPDIR", "PERDURE_TEMPORAL_CLI")
        ours = {
            "TEMPORAL_ADDRESS": self.address,
            "TEMPORAL_NAMESPACE": self.namespace,
            "PERDURE_HOME": str(self.folder / "home"),
            "PERDURE_STORE_URL": self.store_url,
            "PERDURE_TASK_QUEUE": self.task_queue,
            "OPENAI_BASE_URL": self.model.base_url,
            "OPENAI_API_KEY": "sk-loopback",
            "PERDURE_ENCRYPTION_KEYS": f"docs:{base64.b64encode(b'docs' * 8).decode()}",
            "LOCAL_MODEL_URL": self.model.base_url,
            "LOCAL_MODEL_KEY": "none",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
        }
        inherited = {name: os.environ[name] for name in kept if name in os.environ}
        path = f"{Path(sys.executable).parent}:{inherited.get('PATH', '')}"
        return {**inherited, "PATH": path, **ours}

    async def spawn(
        self, *command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT, typed: bool = False
    ) -> Process:
        """A process in the checkout; killed when the test ends. ``typed``: it reads what is written to its stdin."""
        words = [str(word) for word in command]
        start: Any = asyncio.create_subprocess_exec
        if words[0] in FORKED:
            words[:1] = FORKED[words[0]]
            start = forkserver.create_process
        process: Process = await start(
            *words,
            cwd=cwd,
            env={**self.env, **(env or {})},
            stdin=asyncio.subprocess.PIPE if typed else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    async def python(
        self, path: str | Path, *arguments: str, env: Mapping[str, str] | None = None, says: str = ""
    ) -> Ended:
        """Run a Python program to its end."""
        return await self.run(sys.executable, path, *arguments, env=env, says=says)

    async def run(
        self, *command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT, says: str = ""
    ) -> Ended:
        """Run a command to its end; ``says`` is what its user types."""
        process = await self.spawn(*command, env=env, cwd=cwd, typed=bool(says))
        return await ended(process, says)

    async def kill(self, process: Process) -> Ended:
        """``kill -9``: it and all that it started."""
        os.killpg(process.pid, signal.SIGKILL)
        return await ended(process)

    async def close(self) -> None:
        """Kill what still runs, with its children, and close the pipes that were not read to the end."""
        for process in self.started:
            if (process.poll() if isinstance(process, forkserver.Process) else process.returncode) is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            # A test that failed half-way leaves pipes open, and asyncio would say so when the loop is gone.
            if isinstance(process, forkserver.Process):
                process.close()
            else:
                process._transport.close()  # type: ignore[attr-defined]  # there is no public way
