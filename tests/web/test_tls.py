"""HTTPS: by a reverse proxy on the same machine. ``perdure serve --certfile`` is in test_web_service.py."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from perdure import Agent
from perdure.testing import ScriptedProvider
from perdure.web.app import WebOptions, create_app
from perdure.web.auth import AuthenticatorChain, ProxyHeaders
from tests.support.engine import Engine
from tests.support.tls_proxy import make_certificate, run_https_proxy
from tests.support.web import serve

FORWARDED = {
    "x-forwarded-proto": "https",
    "x-forwarded-host": "agents.example.com",
    "x-forwarded-for": "203.0.113.9",
    "x-user": "ana",
}


@asynccontextmanager
async def behind_proxy(engine: Engine, folder: Path, trusted: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a TLS proxy on loopback, in front of a service that trusts proxies of ``trusted``."""
    certificate, key = make_certificate(folder, "localhost")
    options: dict[str, Any] = {"hosts": ["agents.example.com"], "trusted_proxies": [trusted]}
    authenticator = AuthenticatorChain([ProxyHeaders([trusted], user="x-user", role="operator")])
    async with engine.served(Agent("echo", ScriptedProvider(lambda _: "Hi."))) as client:
        app = create_app(client, authenticator=authenticator, options=WebOptions(**options))
        verified = ssl.create_default_context(cafile=certificate)
        async with (
            serve(client, app=app) as service,
            run_https_proxy(urlsplit(service.url).port or 0, certificate, key, dict(FORWARDED)) as port,
            httpx.AsyncClient(base_url=f"https://localhost:{port}/v1", verify=verified, timeout=30) as http,
        ):
            yield http


async def test_a_proxy_that_is_trusted_says_who_calls_and_how(engine: Engine, tmp_path: Path) -> None:
    async with behind_proxy(engine, tmp_path, "127.0.0.0/8") as http:
        forged = {"x-user": "mallory", "x-forwarded-host": "evil.example", "x-forwarded-for": "127.0.0.1"}
        created = await http.post("/sessions", json={"agent": "echo", "content": "Hi"}, headers=forged)
        assert created.status_code == 201, created.text
        path = f"/sessions/{created.json()['id']}"
        assert (await http.get(f"{path}/events")).json()["data"][0]["type"] == "run"
        own = await http.post(
            f"{path}/events", json={"type": "close"}, headers={"origin": "https://agents.example.com"}
        )
        assert own.status_code == 202, "the page of the host that the proxy is reached by"
        plain = await http.post(
            f"{path}/events", json={"type": "close"}, headers={"origin": "http://agents.example.com"}
        )
        assert plain.status_code == 403, "a page without TLS may be anyone's"
        store = await http_store(engine)
        rows = [row for row in await store.list_audit() if row.verb == "close"]
        assert [(row.by, row.auth, row.origin) for row in rows] == [("ana", "proxy", "203.0.113.9")]


async def http_store(engine: Engine) -> Any:
    return await (await engine.client()).store()


async def test_a_proxy_that_is_not_trusted_says_nothing(engine: Engine, tmp_path: Path) -> None:
    async with behind_proxy(engine, tmp_path, "10.0.0.0/8") as http:
        assert (await http.get("/agents")).status_code == 421, "the host is the connection's own"
        assert (await http.get("/agents", headers={"host": "agents.example.com"})).status_code == 401
