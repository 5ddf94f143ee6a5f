"""TCP links with faults: toxiproxy, one process, with a proxy for each link."""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.support.ports import find_free_ports
from tests.support.wait import eventually


class Toxiproxy:
    """The proxy. ``links`` are by name."""

    def __init__(self, binary: Path, log: Path) -> None:
        self.links: dict[str, Link] = {}
        (self._port,) = find_free_ports(1)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [str(binary), "-host", "127.0.0.1", "-port", str(self._port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def url(self) -> str:
        """Its HTTP interface."""
        return f"http://127.0.0.1:{self._port}"

    async def ready(self) -> None:
        """Until it answers."""

        async def answers() -> bool:
            assert self.process.poll() is None, "toxiproxy has ended"
            try:
                await self.call("GET", "/version")
            except OSError:
                return False
            return True

        await eventually(answers, what="toxiproxy")

    async def link(self, name: str, port: int) -> Link:
        """A link to ``port`` of this machine."""
        (own,) = find_free_ports(1)
        link = self.links[name] = Link(self, name, own)
        proxy = {"name": name, "listen": f"127.0.0.1:{own}", "upstream": f"127.0.0.1:{port}", "enabled": True}
        await self.call("POST", "/proxies", proxy)
        return link

    async def call(self, method: str, path: str, body: Any = None) -> None:
        """One request of its HTTP interface. Raises ``OSError`` without an answer."""
        await asyncio.to_thread(self._call, method, path, body)

    def _call(self, method: str, path: str, body: Any) -> None:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            said = answer.read()
        assert answer.status < 300, f"{method} {path}: {said!r}"


class Link:
    """One link, whose ``port`` its client connects to."""

    def __init__(self, proxy: Toxiproxy, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self._proxy = proxy
        self._toxics: list[str] = []

    async def cut(self) -> None:
        """Close all connections, and refuse new ones."""
        await self._proxy.call("POST", f"/proxies/{self.name}", {"enabled": False})

    async def stall(self) -> None:
        """Take bytes and pass none on, as a network does that loses packets; connections break when it heals."""
        await self._add("timeout", timeout=0)

    async def delay(self, milliseconds: int) -> None:
        """Answers come later, by half as much more or less."""
        await self._add("latency", latency=milliseconds, jitter=milliseconds // 2)

    async def reset(self) -> None:
        """Reset every connection, and each new one once something was sent on it."""
        await self._add("reset_peer", timeout=0)

    async def heal(self) -> None:
        """Undo all faults."""
        while self._toxics:
            await self._proxy.call("DELETE", f"/proxies/{self.name}/toxics/{self._toxics.pop()}")
        await self._proxy.call("POST", f"/proxies/{self.name}", {"enabled": True})

    async def _add(self, type: str, **attributes: int) -> None:
        toxic = {"name": type, "type": type, "stream": "downstream", "attributes": attributes}
        await self._proxy.call("POST", f"/proxies/{self.name}/toxics", toxic)
        self._toxics.append(type)
