"""Who takes part in the demo: the model and the workers, each a process of its own, all gone at the end."""

from __future__ import annotations

import asyncio
import http.client
import json
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...errors import RuntimeSetupError
from ..children import Child
from ..connection import address

if TYPE_CHECKING:
    from ...client import Client

SMALL = "demo"
"""``--model demo``: the small one, even with a key."""
_ENDING = 5.0


class Cast:
    """Processes of one demo. ``async with cast:`` ends all of them, whatever happens."""

    def __init__(self, client: Client, folder: Path, model: str) -> None:
        self.client = client
        self.model = "openai:demo" if model == SMALL else model
        self.worker: Child | None = None
        self._small = model == SMALL
        self._folder = folder
        self._env: dict[str, str] = {}
        self._children: list[Child] = []

    async def __aenter__(self) -> Cast:
        if find_spec("openai") is None and self.model.startswith("openai:"):
            from ...providers.endpoint import missing_sdk

            raise missing_sdk("openai")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # To the end, whatever happens meanwhile: a second Ctrl-C must leave nothing behind either.
        await asyncio.shield(asyncio.gather(*(child.stop(within=_ENDING) for child in self._children)))

    @property
    def base_url(self) -> str | None:
        """Where the small model listens; None with a real one."""
        return self._env.get("OPENAI_BASE_URL")

    async def start_model(self) -> None:
        """Start the small model, unless a real one is used."""
        if not self._small:
            return
        said = await self._start("perdure.cli.demo.model")
        self._env = {"OPENAI_BASE_URL": str(said["base_url"]), "OPENAI_API_KEY": "none-needed"}

    async def start_worker(self) -> Child:
        """Start a worker; it serves when this returns."""
        assert self.client.store_url is not None, "set by the command"
        place = (self.client.task_queue, address(self.client), self.client.temporal.namespace, self.client.store_url)
        await self._start("perdure.cli.demo.worker", str(self._folder), self.model, *place)
        self.worker = self._children[-1]
        return self.worker

    async def asked(self) -> int | None:
        """How often the small model was asked, by its own count; None with a real one."""
        if self.base_url is None:
            return None
        return await asyncio.to_thread(_requests, self.base_url)

    async def _start(self, module: str, *arguments: str) -> dict[str, object]:
        child = await Child.start(module, *arguments, env=self._env)
        self._children.append(child)
        said = await child.says()
        if said is None or said["event"] != "serving":
            why = said["error"] if said else "it ended at once"
            raise RuntimeSetupError(f"{module} does not start: {why}", hint=said["hint"] if said else None)
        return said


def _requests(base_url: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=5)
    try:
        connection.request("GET", "/stats")
        return int(json.load(connection.getresponse())["requests"])
    finally:
        connection.close()
