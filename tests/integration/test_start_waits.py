"""Workers and services that start while their store, or Temporal, is away wait for it, and say so."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.cli import Cli, Command
from tests.support.engine import Engine
from tests.support.ports import find_free_ports
from tests.support.postgres import run_server
from tests.support.wait import eventually

pytestmark = [pytest.mark.server, pytest.mark.postgres]

AGENTS = """
from perdure import Agent
from perdure.testing import ScriptedProvider

desk = Agent("desk", ScriptedProvider(lambda request: "Done."))
"""


@pytest.fixture
async def cli(engine: Engine, tmp_path: Path) -> AsyncIterator[Cli]:
    (tmp_path / "agents.py").write_text(AGENTS)
    env = {
        "TEMPORAL_ADDRESS": engine.address,
        "PERDURE_HOME": str(tmp_path / "home"),
        "PERDURE_STORE_URL": str(engine.store_url),
        "PERDURE_TASK_QUEUE": engine.task_queue,
    }
    cli = Cli(tmp_path, env)
    try:
        yield cli
    finally:
        await cli.close()


async def _stop(command: Command) -> int:
    command.send(signal.SIGTERM)
    return await asyncio.wait_for(command.ended(), 60)


async def test_a_worker_waits_for_its_store_visibly(cli: Cli, engine: Engine) -> None:
    with run_server() as server:
        cli.env["PERDURE_STORE_URL"] = engine.store_url = server.url
        server.stop()
        port = find_free_ports(1)[0]
        worker = await cli.spawn("worker", "agents.py", "--health", str(port))
        said = await worker.until("waiting for the store")
        assert re.search(r"WARNING .*\(0 s so far\): the store postgresql://.* cannot be reached", said), said
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            ready = await http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["checks"]["store"]["reason"].startswith(
                "waiting for the store: the store postgresql://"
            )
            assert (await http.get("/healthz")).status_code == 200
            server.start()
            await worker.until("the store answers, after")
            await worker.until("serving desk")

            async def is_ready() -> bool:
                return (await http.get("/readyz")).status_code == 200

            await eventually(is_ready)
        client = await engine.client()
        assert (await (await client.start("desk", "Go.")).result()).content == "Done."
        assert await _stop(worker) == 0


async def test_a_wait_can_be_stopped(cli: Cli, engine: Engine) -> None:
    cli.env["PERDURE_STORE_URL"] = f"postgresql://ana@127.0.0.1:{find_free_ports(1)[0]}/perdure"
    worker = await cli.spawn("worker", "agents.py")
    await worker.until("waiting for the store")
    assert await _stop(worker) == 0


async def test_a_service_waits_for_its_store(cli: Cli, engine: Engine) -> None:
    with run_server() as server:
        cli.env["PERDURE_STORE_URL"] = server.url
        server.stop()
        service = await cli.spawn("serve", "agents.py", "--dev", "--port", "0")
        found = re.search(r"http://[\d.]+:\d+", await service.until("/v1"))
        assert found is not None
        await service.until("waiting for the store")
        async with httpx.AsyncClient(base_url=found[0]) as http:
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["checks"]["store"]) == (503, "unavailable")
            server.start()
            await service.until("serving desk")
            assert (await http.post("/v1/sessions", json={"agent": "desk", "content": "Go."})).status_code == 201


@pytest.mark.parametrize("command", ["worker", "serve"])
async def test_both_wait_for_temporal(cli: Cli, command: str) -> None:
    cli.env["TEMPORAL_ADDRESS"] = f"127.0.0.1:{find_free_ports(1)[0]}"
    waiting = await cli.spawn(command, "agents.py")
    said = await waiting.until("waiting for the Temporal server")
    assert "connection refused" in said
    waiting.send(signal.SIGTERM)
    assert await asyncio.wait_for(waiting.ended(), 60) != 4


async def test_a_wrong_configuration_ends_at_once(cli: Cli) -> None:
    with run_server() as server:
        host = f"127.0.0.1:{server.port}"
        wrong = {
            f"postgresql://postgres@{host}/none": "there is no database",
            f"postgresql://nobody@{host}/postgres": "refuses the user or the password",
            f"postgresql://postgres@{host}": "names no host or no database",
            "mysql://x/y": "",
        }
        for url, text in wrong.items():
            cli.env["PERDURE_STORE_URL"] = url
            done = await asyncio.wait_for(cli("worker", "agents.py"), 60)
            assert done.code != 0, url
            assert text in done.err
            assert "waiting for" not in done.err
