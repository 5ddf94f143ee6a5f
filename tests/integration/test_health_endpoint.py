"""The HTTP endpoint of a worker's health: requests of any kind, slow and many clients, a port in use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.errors import RuntimeSetupError
from perdure.worker import health
from perdure.worker.health import MAX_CONNECTIONS, HealthServer

HOSTILE = "</script><script>alert(1)</script>\r\nX: y\u2028\x00é"


def report(path: str) -> tuple[bool, dict[str, Any]] | None:
    return {"/healthz": (True, {"status": "alive"}), "/readyz": (False, {"reason": HOSTILE})}.get(path)


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[HealthServer]:
    async with HealthServer("0", report) as server:
        yield server


async def connect(server: HealthServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def send(server: HealthServer, request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Status, headers and body of the answer."""
    reader, writer = await connect(server)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return status, dict(line.split(": ", 1) for line in lines), body


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_states_are_status_codes_and_bodies_are_json() -> None:
    async with listening() as server:
        status, headers, body = await send(server, get("/healthz"))
        assert status == "HTTP/1.1 200 OK"
        assert headers["Content-Type"] == "application/json"
        assert headers["Content-Length"] == str(len(body))
        assert json.loads(body) == {"status": "alive"}
        status, _, body = await send(server, get("/readyz?verbose=1"))
        assert status == "HTTP/1.1 503 Service Unavailable"
        assert json.loads(body) == {"reason": HOSTILE}
        assert body.isascii()
        assert not set(body) & set(b"<>\r\x00"), "nothing of a reason is left as it is"


async def test_head_has_the_headers_alone() -> None:
    async with listening() as server:
        status, headers, body = await send(server, get("/healthz", "HEAD"))
    assert (status, body) == ("HTTP/1.1 200 OK", b"")
    assert headers["Content-Length"] != "0"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/"), 404),
        (get("/healthz/"), 404),
        (get("/%68ealthz"), 404),
        (get("/../readyz"), 404),
        (get("/healthz", "POST"), 405),
        (get("/healthz", "BREW"), 405),
        (b"GET /healthz\r\n\r\n", 400),
        (b"\x16\x03\x01 \xff\r\n\r\n", 400),
        (b"GET /healthz SPDY/3\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
        (b"x" * 100_000, 431),
    ],
)
async def test_other_requests_are_refused(request_bytes: bytes, status: int) -> None:
    async with listening() as server:
        answered, _, body = await send(server, request_bytes)
        assert answered.startswith(f"HTTP/1.1 {status} ")
        assert json.loads(body)["error"]
        assert (await send(server, get("/healthz")))[0] == "HTTP/1.1 200 OK"


async def test_many_slow_clients_hold_up_nothing() -> None:
    async with listening() as server:
        slow = [await connect(server) for _ in range(3 * MAX_CONNECTIONS)]
        for _, writer in slow:
            with contextlib.suppress(ConnectionError):
                writer.write(b"GET /healthz HTTP/1.1\r\n")
        threads = threading.active_count()
        for _ in range(3):
            assert (await send(server, get("/healthz")))[0] == "HTTP/1.1 200 OK"
        assert threading.active_count() <= threads, "no thread for each client"
        # The oldest made room.
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(slow[0][0].read(), 10) == b""
        for _, writer in slow:
            writer.transport.abort()


async def test_a_client_that_sends_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "REQUEST_SECONDS", 0.05)
    async with listening() as server:
        reader, writer = await connect(server)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_it_answers_while_the_workers_loop_is_blocked() -> None:
    async with listening() as server:
        host, _, port = server.address.rpartition(":")
        answers: list[str] = []

        def probe() -> None:
            import http.client

            connection = http.client.HTTPConnection(host, int(port), timeout=10)
            connection.request("GET", "/healthz")
            answers.append(connection.getresponse().read().decode())

        thread = threading.Thread(target=probe)
        thread.start()
        thread.join(10)  # blocks this loop
    assert [json.loads(answer) for answer in answers] == [{"status": "alive"}]


async def test_a_port_in_use_is_named_with_the_way_out() -> None:
    async with listening() as server:
        with pytest.raises(RuntimeSetupError, match="already in use") as refused:
            await HealthServer(server.address, report).__aenter__()
        assert f"cannot listen on {server.address}" in refused.value.message
        assert "--health" in str(refused.value.hint)
        assert (await send(server, get("/healthz")))[0] == "HTTP/1.1 200 OK"
    with pytest.raises(ConnectionError):
        await connect(server)


async def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(RuntimeSetupError, match=r"cannot listen on 203\.0\.113\.1:80"):
        await HealthServer("203.0.113.1:80", report).__aenter__()
