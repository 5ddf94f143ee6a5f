"""``perdure serve`` as a process: with a file, without a token, with one, and at its end."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import re
import shutil
import signal
import ssl
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sse_starlette.sse import AppStatus
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from perdure import Client
from perdure.cli.serve import ServeOptions, _follow_certificate, listen
from perdure.client.tasks import background_task
from tests.docs.pages import ROOT, Page
from tests.support.cli import Cli, Command, talking
from tests.support.tls_proxy import make_certificate, make_server_context
from tests.support.wait import eventually
from tests.support.web import read_frames


@pytest.fixture
async def cli(temporal_address: str, tmp_path: Path) -> AsyncIterator[Cli]:
    async with talking(temporal_address, tmp_path) as cli:
        cli.env["PERDURE_TASK_QUEUE"] = f"serve-{uuid.uuid4().hex[:8]}"
        yield cli


async def start(cli: Cli, *arguments: str) -> tuple[Command, str]:
    service = await cli.spawn("serve", *arguments, "--port", "0")
    await service.until("/v1")
    found = re.search(r"http://127\.0\.0\.1:\d+/v1", service.output)
    assert found is not None, service.output
    return service, found[0]


@pytest.mark.server
async def test_a_service_with_agents_is_used_with_a_token_and_drains(cli: Cli) -> None:
    service, url = await start(cli, "agents.py")
    await service.until("serving ")
    token = (await cli("token", "create", "ada", "--role", "operator")).out.strip()
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        assert (await http.post("/sessions", json={"agent": "talker"})).status_code == 401
        http.headers["authorization"] = f"Bearer {token}"
        session = (await http.post("/sessions", json={"agent": "talker", "content": "Hi"})).json()["id"]
        headers = {"accept": "text/event-stream"}
        async with http.stream("GET", f"/sessions/{session}/events", headers=headers) as stream:
            async for _, event in read_frames(stream):
                if event["type"] == "turn" and event["state"] == "completed":
                    assert event["content"] == "1: 'Hi'"
                    service.send(signal.SIGTERM)  # and the stream ends by itself
        assert await asyncio.wait_for(service.ended(), 30) == 0, service.output
    revoked = json.loads((await cli("token", "list", "--json")).out)
    assert token not in json.dumps(revoked)


@pytest.mark.server
async def test_dev_lets_this_machine_in_and_no_forwarded_request(cli: Cli) -> None:
    service, url = await start(cli, "--dev")
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        created = await http.post("/sessions", json={"agent": "talker"})
        assert created.status_code == 201, created.text
        forwarded = await http.get(f"/sessions/{created.json()['id']}", headers={"x-forwarded-for": "1.2.3.4"})
        assert forwarded.status_code == 403
        rebound = await http.get(f"/sessions/{created.json()['id']}", headers={"host": "evil.example.com"})
        assert rebound.status_code == 421
        ready = await http.get(f"{url.removesuffix('/v1')}/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ok")
    service.send(signal.SIGINT)
    assert await asyncio.wait_for(service.ended(), 30) == 0
    refused = await cli("serve", "--dev", "--host", "0.0.0.0", "--port", "0")
    assert (refused.code, "--dev lets anyone in" in refused.err) == (2, True)


@pytest.mark.server
async def test_a_service_with_a_certificate_speaks_https_alone(cli: Cli, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    whole = tmp_path / "whole.pem"
    whole.write_bytes(certificate.read_bytes() + key.read_bytes())
    for arguments in (("--certfile", certificate, "--keyfile", key), ("--certfile", whole)):
        service = await cli.spawn("serve", "--dev", "--port", "0", *map(str, arguments))
        port = int((await service.until("https://127.0.0.1:")).partition("127.0.0.1:")[2].partition("/")[0])
        verified = ssl.create_default_context(cafile=certificate)
        async with httpx.AsyncClient(base_url=f"https://localhost:{port}", verify=verified, timeout=30) as http:
            assert (await http.get("/v1/sessions")).status_code == 200
        async with httpx.AsyncClient(base_url=f"https://localhost:{port}", timeout=30) as http:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await http.get("/healthz")
        async with httpx.AsyncClient(base_url=f"http://localhost:{port}", timeout=30) as http:
            with pytest.raises(httpx.TransportError):
                await http.get("/healthz")
        service.send(signal.SIGTERM)
        assert await asyncio.wait_for(service.ended(), 30) == 0, service.output
    for arguments, reason in (
        (("--keyfile", str(key)), "--keyfile is the key of a certificate"),
        (("--certfile", str(certificate)), "cannot be read as a certificate and its key"),
        (("--certfile", str(tmp_path / "missing.pem")), "No such file"),
    ):
        refused = await cli("serve", "--dev", "--port", "0", *arguments)
        assert (refused.code, reason in refused.err) == (2, True), refused.err


async def test_a_renewed_certificate_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("perdure.cli.serve._CERTIFICATE_SECONDS", 0.01)
    first, key = make_certificate(tmp_path, "localhost")
    other = tmp_path / "other"
    other.mkdir()
    second, second_key = make_certificate(other, "localhost")
    context = make_server_context(first, key)
    old = Path(shutil.copy(first, tmp_path / "old.crt"))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)

    async def serves(certificate: Path) -> bool:
        verified = ssl.create_default_context(cafile=certificate)
        try:
            port = server.sockets[0].getsockname()[1]
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=verified, server_hostname="localhost")
        except ssl.SSLError:
            return False
        writer.close()
        return True

    async with server, background_task(_follow_certificate(context, first, key)):
        assert [await serves(old), await serves(second)] == [True, False]
        second.replace(first)
        await eventually(lambda: "not renewed yet" in caplog.text)
        assert await serves(old), "a certificate without its key replaces nothing"
        second_key.replace(key)
        await eventually(lambda: serves(first))


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /healthz HT", b"TP/1.1\r\nHost: localhost\r\n", b"X: y\r\n"],
        [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /heal"],
        [b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n", b"a", b"b"],
    ],
    ids=["head", "second-head", "body-after-the-answer"],
)
async def test_a_connection_that_sends_a_byte_now_and_then_is_closed(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]
) -> None:
    monkeypatch.setattr("perdure.cli.serve._REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(AppStatus, "should_exit", False)  # set at the end of the service, for all of this process

    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.3)  # longer than a head may take
        return Response("ok")

    app = Starlette(routes=[Route("/healthz", answer)])
    async with listen(app, ServeOptions(port=0), asyncio.Event()) as [url]:
        port = urlsplit(url).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        received = b""
        for piece in pieces:
            writer.write(piece)
            if piece.endswith(b"\r\n\r\n"):
                received += await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            received += await asyncio.wait_for(reader.read(), 20)
        assert received.count(b"HTTP/1.1 200") == (1 if b"healthz HTTP" in pieces[0] else 0)
        writer.close()


PAGE = Page(ROOT / "docs" / "how-to" / "http-api.md")
ASK, MOUNT = [block.body for block in PAGE.programs if block.mark.startswith("elsewhere")]


@pytest.mark.server
async def test_the_examples_of_the_page_run(cli: Cli) -> None:
    service, url = await start(cli, "agents.py")
    await service.until("serving ")
    token = (await cli("token", "create", "ada", "--role", "operator")).out.strip()
    names: dict[str, Any] = {"url": url, "token": token}
    await eval(compile(ASK, "http-api.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)  # noqa: S307  # our page
    assert names["answer"] == "1: 'Hi'"

    store_url, address = cli.env["PERDURE_STORE_URL"], cli.env["TEMPORAL_ADDRESS"]
    client = await Client.connect(address=address, store_url=store_url)
    exec(compile(MOUNT, "http-api.md", "exec"), names)  # noqa: S102  # our page
    outer = Starlette(routes=[Mount("/inner", app=names["build_application"](client))])
    path = f"/inner/agents/v1/sessions/{names['session']['id']}"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="https://app.example.com") as http:
        assert (await http.get(path)).status_code == 401
        http.headers["authorization"] = f"Bearer {token}"
        assert (await http.get(path)).json()["id"] == names["session"]["id"]
        created = await http.post("/inner/agents/v1/sessions", json={"agent": "talker"})
        assert created.headers["location"] == f"/inner/agents/v1/sessions/{created.json()['id']}"
    await client.close()
    service.send(signal.SIGTERM)
    assert await service.ended() == 0


@pytest.mark.server
async def test_the_console_beside_the_api_alone_and_left_out(cli: Cli) -> None:
    async with httpx.AsyncClient(timeout=30) as http:
        service, url = await start(cli, "--dev")
        page = await http.get(f"{url.removesuffix('/v1')}/console/inbox")
        assert (page.status_code, "Nothing waits" in page.text) == (200, True)
        await service.until("/console")
        service.send(signal.SIGTERM)

        alone = await cli.spawn("console", "agents.py", "--dev", "--port", "0")
        await alone.until("/console")
        found = re.search(r"http://127\.0\.0\.1:\d+/console", alone.output)
        assert found is not None, alone.output
        assert (await http.get(f"{found[0]}/runs")).status_code == 200
        assert (await http.get(f"{found[0].removesuffix('/console')}/v1/sessions")).status_code == 404
        assert (await http.get(f"{found[0]}/runs", headers={"x-forwarded-for": "1.2.3.4"})).status_code == 403
        alone.send(signal.SIGTERM)
        assert await asyncio.wait_for(alone.ended(), 30) == 0, alone.output

        without, url = await start(cli, "--dev", "--no-console")
        assert (await http.get(f"{url.removesuffix('/v1')}/console/inbox")).status_code == 404
        assert "/console" not in without.output


@pytest.mark.server
async def test_dev_serves_the_console(cli: Cli) -> None:
    dev = await cli.spawn("dev", "agents.py")
    await dev.until("/console")
    found = re.search(r"http://127\.0\.0\.1:\d+/console", dev.output)
    assert found is not None, dev.output
    async with httpx.AsyncClient(timeout=30) as http:
        assert (await http.get(f"{found[0]}/inbox")).status_code == 200
    dev.send(signal.SIGINT)
    assert await asyncio.wait_for(dev.ended(), 30) == 0, dev.output
