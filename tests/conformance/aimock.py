"""The npm package ``@copilotkit/aimock``: a server that speaks all four wire formats, written by others.

One port answers ``/v1/chat/completions``, ``/v1/responses``, ``/v1/messages`` and ``/v1beta/models/…``. A test gives it
a script: the first request gets the first reply, whatever the format. It keeps a journal of what it was asked, turned
into one shape for all formats by its own reading of them; requests that no reply is left for get 404.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.wait import eventually

FOLDER = Path(__file__).parent
_LISTENING = re.compile(r"listening on (http://\S+)")

_ids = itertools.count(1)

Fixture = dict[str, Any]


def say(text: str, *, thinking: str = "", **how: Any) -> Fixture:
    """A reply of text. ``how``: ``finish`` (the reason), or a setting of the stream, see :func:`_fixture`."""
    return _fixture({"content": text}, thinking, how)


def ask(*calls: tuple[str, Any], text: str = "", thinking: str = "", **how: Any) -> Fixture:
    """A reply of calls: name and arguments (text goes out as it is). Every call gets an id of its own."""
    said = {"content": text} if text else {}
    made = [{"id": f"call_{next(_ids)}", "name": name, "arguments": given} for name, given in calls]
    return _fixture({**said, "toolCalls": made}, thinking, how)


def fail(
    status: int, message: str, type: str = "", *, code: str | None = None, retry_after: int | None = None
) -> Fixture:
    """An error answer."""
    error = {"message": message, "type": type or "server_error", "code": code}
    wait = {} if retry_after is None else {"retryAfter": retry_after}
    return {"response": {"error": error, "status": status, **wait}}


def _fixture(response: dict[str, Any], thinking: str, how: dict[str, Any]) -> Fixture:
    """``how``: ``chunkSize`` characters a piece, ``latency`` ms before each, ``truncateAfterChunks``, …"""
    if thinking:
        response |= {"reasoning": thinking, "reasoningSignature": f"signed {thinking}"}
    for key, name in (("finish", "finishReason"), ("usage", "usage"), ("redacted", "redactedThinking")):
        if key in how:
            response[name] = how.pop(key)
    return {"response": response, **how}


class Aimock:
    """The server. ``url`` is without a path."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def script(self, *fixtures: Fixture) -> None:
        """Forget everything, and give these replies: in order, or by the ``match`` that a fixture has."""
        await self._post("/__aimock/reset", {})
        numbered = [{"match": {"sequenceIndex": n}, **fixture} for n, fixture in enumerate(fixtures)]
        await self._post("/__aimock/fixtures", {"fixtures": numbered})

    async def asked(self) -> list[dict[str, Any]]:
        """What was asked since: ``body`` in the shape of chat completions, ``headers``, ``response.status``."""
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{self.url}/__aimock/journal")
        return [entry for entry in answer.raise_for_status().json() if entry["method"] == "POST"]

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{self.url}{path}", json=body)
        assert answer.status_code == 200, answer.text


@contextmanager
def running(modules: Path, folder: Path) -> Iterator[Aimock]:
    """The server as a process, for the length of the block. ``modules`` has the package, ``folder`` takes the log."""
    config, log = folder / "aimock.json", folder / "aimock.log"
    config.write_text(json.dumps({"host": "127.0.0.1", "port": 0, "llm": {"logLevel": "warn"}}))
    script = modules / "@copilotkit" / "aimock" / "dist" / "aimock-cli.js"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIMOCK_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["node", str(script), "--config", str(config)], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    try:
        yield asyncio.run(_ready(process, log))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _ready(process: subprocess.Popen[bytes], log: Path) -> Aimock:
    async def up() -> Aimock | None:
        if process.poll() is not None:
            raise RuntimeError(f"aimock ended: {log.read_text()}")
        found = _LISTENING.search(log.read_text())
        if found is None:
            return None
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{found[1]}/health")
        return Aimock(found[1]) if answer.status_code == 200 else None

    return await eventually(up, what="aimock that answers")
