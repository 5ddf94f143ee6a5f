"""Runs whose large results, messages and files are objects: under a kill, and while the objects are away."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import obstore
import obstore.store
import pytest

from perdure import Agent, Client, File, tool
from perdure.errors import StoreLocationError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.servers.s3 import S3Server
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server

READER = """
import asyncio, json, sys
from perdure import Client
from perdure.types.messages import iter_file_parts

async def main(run_id):
    client = await Client.connect()
    messages = await client.run(run_id).transcript()
    files = [await client.file(part) for part in iter_file_parts(messages)]
    texts = [part.content for message in messages for part in message.parts if part.type == "tool_result"]
    message = messages[0].text
    await client.close()
    print(json.dumps([len(message), [[t[0], len(t)] for t in texts], [[file[0], len(file)] for file in files]]))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.slow)])
async def test_a_worker_is_killed_between_upload_and_commit(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "folder":
        await _kill_and_read(engine, tmp_path, monkeypatch, f"file://{tmp_path / 'objects'}")
        return
    with S3Server() as server:
        server.create_bucket("large")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        await _kill_and_read(engine, tmp_path, monkeypatch, "s3://large/p")


async def _kill_and_read(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("PERDURE_BLOB_URL", url)
    lost = await engine.process("large", TEST_KILL_UPLOAD="1")
    client = await engine.client()
    run = await client.start("reporter", ["?" * 2_000_000, File(b"\x07" * 200_000, media_type="image/png")])
    assert await lost.gone() == -9
    await engine.process("large")
    response = await run.result()
    assert response.content == "Done."
    assert [len(text) for text in results(response.messages)] == [1_000_000] * 2
    reports = [entry["key"] for entry in engine.ledger.entries("report")]
    assert reports == ["1", "1", "2"], "the tool is idempotent and ran again after the kill; its result counts once"

    settings = {
        "PERDURE_HOME": str(tmp_path / "another-home"),
        "TEMPORAL_ADDRESS": engine.address,
        "PERDURE_STORE_URL": str(engine.store_url),
        "PERDURE_TASK_QUEUE": engine.task_queue,
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-c", READER, run.id]
    read = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout) == [
        2_000_000,
        [["1", 1_000_000], ["2", 1_000_000]],
        [[7, 200_000], [1, 300_000], [2, 300_000]],
    ]
    where = obstore.store.from_url(url, **({} if url.startswith("file") else {"client_options": {"allow_http": True}}))
    names = {item["path"] for page in obstore.list(where) for item in page}
    assert len(names) == 1 + 1 + 1 + 2 + 2, "the marker, the message, its file, two results and their files: none twice"


async def test_work_waits_while_the_objects_are_away_and_then_goes_on(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, away = tmp_path / "objects", tmp_path / "away"
    monkeypatch.setenv("PERDURE_BLOB_URL", f"file://{objects}")
    acted = []

    @tool
    async def produce() -> str:
        """Its outcome can be recorded only later, and it must not run again."""
        objects.rename(away)
        acted.append(1)
        return "x" * 1_000_000

    agent = Agent("a", ScriptedProvider([call("produce"), "Done."]), tools=[produce])
    async with engine.served(agent) as client:
        run = await client.start("a", "Go.")

        async def is_waiting() -> bool:
            return "does not have the objects" in str(await run.status())

        await eventually(is_waiting, what="a status that says what is missing")
        away.rename(objects)
        response = await run.result()
        assert response.content == "Done."
        assert results(response.messages) == ["x" * 1_000_000]
        assert acted == [1]


async def test_a_worker_without_the_setting_does_not_start(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(request: ModelRequest) -> Any:
        return str(len(request.messages[0].text))

    agent = Agent("a", ScriptedProvider(reply))
    url = f"file://{tmp_path / 'objects'}"
    monkeypatch.setenv("PERDURE_BLOB_URL", url)
    async with engine.served(agent) as client:
        assert (await (await client.start("a", "?" * 1_000_000)).result()).content == "1000000"
    monkeypatch.delenv("PERDURE_BLOB_URL")
    with pytest.raises(StoreLocationError, match="PERDURE_BLOB_URL is not set") as caught:
        async with engine.served(agent):
            pass
    assert url in str(caught.value.hint)


async def test_a_client_without_the_setting_still_steers(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sends goes into the database; only reading a large object needs the setting."""
    agent = Agent("a", ScriptedProvider(lambda request: str(len(request.messages[0].text))))
    monkeypatch.setenv("PERDURE_BLOB_URL", f"file://{tmp_path / 'objects'}")
    async with engine.served(agent) as client:
        await (await client.start("a", "!" * 900_000)).result()
        monkeypatch.delenv("PERDURE_BLOB_URL")
        plain: Client = await engine.client()
        response = await (await plain.start("a", "?" * 1_000_000)).result()
        assert response.content == "1000000"
        assert response.messages[0].text == "?" * 1_000_000
