"""An MCP server that demands OAuth, and its authorization server, in a thread: real HTTP, with hostile switches."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import uvicorn
from mcp.server import MCPServer as SdkServer
from mcp.types import ToolAnnotations
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from tests.support.ports import find_free_ports


@dataclass
class Token:
    """What one access or refresh token is worth."""

    scope: str
    user: str
    expires_at: float = float("inf")
    family: str = ""


@dataclass
class OAuthServer:
    """The settings may be changed while it runs."""

    port: int
    registers: bool = True
    """Has an endpoint for registration."""
    rotates: bool = True
    """A refresh token is worth one refresh; a second use of it revokes all tokens of its family."""
    expires_in: int | None = 3600
    pkce: bool = True
    """Says that it supports S256."""
    issuer_in_metadata: str | None = None
    """Says another issuer."""
    iss: str | None = "own"
    """The parameter of the redirect: its own issuer, none, or another."""
    user: str = "ana"
    """Who is signed in at it."""
    agrees: bool = True
    scopes: dict[str, str] = field(default_factory=dict)
    """Tools that demand a scope."""
    refresh_status: int = 200
    """Not 200: its token endpoint fails so for refreshes."""
    refresh_body: str | None = None
    """What it answers to refreshes instead, with that status."""
    refreshing: threading.Event = field(default_factory=threading.Event)
    """Set when a refresh is asked for."""
    go_on: threading.Event = field(default_factory=threading.Event)
    """Metadata and refreshes are answered when it is set."""
    repeats: bool = False
    """Errors of its token endpoint have what was sent."""
    gives_scope: str | None = None
    """The scope that it says to have given."""
    breaks_streams: bool = False
    """It carries out calls of ``act``, ends the stream before the answer, and the token is over by then."""
    token_fields: dict[str, Any] = field(default_factory=dict)
    """What its tokens come with instead."""
    metadata_url: str | None = None
    """Where it says that the metadata of the resource are."""
    padding: int = 0
    """Bytes that the metadata has too many."""
    token_url: str | None = None
    """Where it says that its token endpoint is."""
    resource: str | None = None
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    access: dict[str, Token] = field(default_factory=dict)
    refresh: dict[str, Token] = field(default_factory=dict)
    revoked: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Calls of tools that were carried out, with their users."""
    refreshes: int = 0
    asked: list[str] = field(default_factory=list)
    """Paths that were asked for, with their methods."""
    users: list[str] = field(default_factory=list)
    referrers: list[str | None] = field(default_factory=list)
    """What browsers said of the page that led to it."""

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Of the MCP server."""
        return f"{self.base}/mcp"

    @property
    def issuer(self) -> str:
        return f"{self.base}/as"

    # --- the authorization server

    async def resource_metadata(self, _: Request) -> Response:
        resource = self.resource or self.url
        return JSONResponse({"resource": resource, "authorization_servers": [self.issuer], "pad": "x" * self.padding})

    async def metadata(self, _: Request) -> Response:
        await asyncio.to_thread(self.go_on.wait, 60)
        said: dict[str, Any] = {
            "issuer": self.issuer_in_metadata or self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": self.token_url or f"{self.issuer}/token",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "response_types_supported": ["code"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "private_key_jwt"],
            "authorization_response_iss_parameter_supported": self.iss is not None,
        }
        if self.registers:
            said["registration_endpoint"] = f"{self.issuer}/register"
        if self.pkce:
            said["code_challenge_methods_supported"] = ["S256"]
        return JSONResponse(said)

    async def register(self, request: Request) -> Response:
        if not self.registers:
            return JSONResponse({"error": "no registration here"}, 404)
        client = {**json.loads(await request.body()), "client_id": f"client-{len(self.clients) + 1}"}
        client["token_endpoint_auth_method"] = "none"
        self.clients[client["client_id"]] = client
        return JSONResponse(client, 201)

    async def authorize(self, request: Request) -> Response:
        self.referrers.append(request.headers.get("referer"))
        asked = dict(request.query_params)
        if asked.get("client_id") not in self.clients or asked.get("code_challenge_method") != "S256":
            return JSONResponse({"error": "invalid_request"}, 400)
        assert asked["resource"] == self.url
        answer = {"state": asked["state"]}
        if self.iss is not None:
            answer["iss"] = self.issuer if self.iss == "own" else self.iss
        if self.agrees:
            answer["code"] = secrets.token_hex(8)
            self.codes[answer["code"]] = {**asked, "user": self.user}
        else:
            answer |= {"error": "access_denied", "error_description": "<b>no</b>"}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(answer)}", 302)

    async def token(self, request: Request) -> Response:
        response = await self.answer_token(request)
        if self.repeats and response.status_code >= 400:
            said = f"not {(await request.body()).decode()}"
            return JSONResponse({"error": "invalid_request", "error_description": said}, 400)
        return response

    async def answer_token(self, request: Request) -> Response:
        asked = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        match asked["grant_type"]:
            case "authorization_code":
                code = self.codes.pop(asked["code"], None)
                if code is None:
                    return JSONResponse({"error": "invalid_grant"}, 400)
                digest = hashlib.sha256(asked["code_verifier"].encode()).digest()
                challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
                if challenge != code["code_challenge"] or asked["redirect_uri"] != code["redirect_uri"]:
                    return JSONResponse({"error": "invalid_grant"}, 400)
                return self.issue(code.get("scope", ""), code["user"], secrets.token_hex(4))
            case "refresh_token":
                return await self.answer_refresh(asked)
            case "client_credentials":
                header = request.headers.get("authorization", "")
                user = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
                if (user[0], user[2]) != ("robot", "robot-secret"):
                    return JSONResponse({"error": "invalid_client"}, 401)
                return self.issue(asked.get("scope", ""), "robot", "", refresh=False)
        return JSONResponse({"error": "unsupported_grant_type"}, 400)

    async def answer_refresh(self, asked: dict[str, str]) -> Response:
        self.refreshes += 1
        self.refreshing.set()
        await asyncio.to_thread(self.go_on.wait, 60)
        if self.refresh_body is not None:
            return Response(self.refresh_body, self.refresh_status)
        if self.refresh_status != 200:
            return JSONResponse({"error": "server_error"}, self.refresh_status)
        known = self.refresh.get(asked["refresh_token"])
        if known is None or known.family in self.revoked:
            return JSONResponse({"error": "invalid_grant"}, 400)
        if self.rotates and known.expires_at < time.time():
            self.revoked.append(known.family)  # used twice
            return JSONResponse({"error": "invalid_grant"}, 400)
        known.expires_at = 0.0 if self.rotates else known.expires_at
        return self.issue(known.scope, known.user, known.family)

    def issue(self, scope: str, user: str, family: str, *, refresh: bool = True) -> Response:
        access, again = f"access-{secrets.token_hex(8)}", f"refresh-{secrets.token_hex(8)}"
        until = float("inf") if self.expires_in is None else time.time() + self.expires_in
        self.access[access] = Token(scope, user, until, family)
        answer: dict[str, Any] = {"access_token": access, "token_type": "Bearer", "scope": self.gives_scope or scope}
        if self.expires_in is not None:
            answer["expires_in"] = self.expires_in
        if refresh:
            self.refresh[again] = Token(scope, user, float("inf"), family)
            answer["refresh_token"] = again
        return JSONResponse(answer | self.token_fields)

    async def revoke(self, request: Request) -> Response:
        asked = parse_qs((await request.body()).decode())
        token = self.refresh.get(asked["token"][0]) or self.access.get(asked["token"][0])
        if token is not None:
            self.revoked.append(token.family)
        return Response()

    def revoke_all(self) -> None:
        """As a person does at the server's own page."""
        self.revoked += [token.family for token in self.access.values()]

    def expire_all(self) -> None:
        """Access tokens are worth nothing from now on."""
        for token in self.access.values():
            token.expires_at = 0.0

    # --- the MCP server

    def build(self) -> Any:
        mcp = SdkServer("guarded")

        @mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
        def look() -> str:
            """Look."""
            return self.count("look")

        @mcp.tool()
        def act() -> str:
            """Do something that is to be done once."""
            return self.count("act")

        inner = mcp.streamable_http_app()

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            messages = []
            body = b""
            while True:
                message = await receive()
                messages.append(message)
                body += message.get("body", b"")
                if message["type"] != "http.request" or not message.get("more_body"):
                    break
            refused = self.check(dict(scope["headers"]), body)
            if refused is not None:
                await refused(scope, receive, send)
                return

            if self.breaks_streams and b'"act"' in body:
                self.count("act")
                self.expire_all()
                await Response("id: 1\nretry: 1\ndata: \n\n", media_type="text/event-stream")(scope, receive, send)
                return

            async def replay() -> Any:
                return messages.pop(0) if messages else await receive()

            await inner(scope | {"path": "/mcp", "root_path": ""}, replay, send)

        @asynccontextmanager
        async def lifespan(_: Any) -> Any:
            async with inner.router.lifespan_context(inner):
                yield

        well_known = "/.well-known/oauth-protected-resource"
        app = Starlette(
            routes=[
                Route(well_known + "/mcp", self.resource_metadata),
                Route("/.well-known/oauth-authorization-server/as", self.metadata),
                Route("/as/register", self.register, methods=["POST"]),
                Route("/as/authorize", self.authorize),
                Route("/as/token", self.token, methods=["POST"]),
                Route("/as/revoke", self.revoke, methods=["POST"]),
                Mount("/mcp", guarded),
            ],
            lifespan=lifespan,
        )

        async def recorded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.asked.append(f"{scope['method']} {scope['path']}")
                if scope["path"] == "/mcp":
                    scope = scope | {"path": "/mcp/", "raw_path": b"/mcp/"}
            await app(scope, receive, send)

        return recorded

    def check(self, headers: dict[bytes, bytes], body: bytes) -> Response | None:
        token = self.access.get(headers.get(b"authorization", b"").decode().removeprefix("Bearer "))
        where = self.metadata_url or f"{self.base}/.well-known/oauth-protected-resource/mcp"
        said = f'resource_metadata="{where}"'
        if token is None or token.expires_at < time.time() or (token.family and token.family in self.revoked):
            return Response(status_code=401, headers={"WWW-Authenticate": f"Bearer {said}"})
        asked = json.loads(body) if body else {}
        tool = asked.get("params", {}).get("name") if asked.get("method") == "tools/call" else None
        needed = self.scopes.get(str(tool))
        if needed is not None and needed not in token.scope.split():
            demand = f'Bearer error="insufficient_scope", scope="{needed}", {said}'
            return Response(status_code=403, headers={"WWW-Authenticate": demand})
        if tool is not None:
            self.users.append(token.user)
        return None

    def count(self, name: str) -> str:
        self.calls.append((name, self.users[-1]))
        return f"{name} {len(self.calls)} as {self.users[-1]}"


@contextmanager
def serve_oauth(**settings: Any) -> Iterator[OAuthServer]:
    """A server for the length of the block."""
    guarded = OAuthServer(find_free_ports(1)[0], **settings)
    guarded.go_on.set()
    config = uvicorn.Config(guarded.build(), "127.0.0.1", guarded.port, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "it has not started"
        thread.join(0.02)
    try:
        yield guarded
    finally:
        guarded.go_on.set()
        server.should_exit = True
        thread.join(10)


async def agree(url: str) -> dict[str, str]:
    """Open the page at which a person signs in; the parameters with which the browser comes back."""
    async with httpx2.AsyncClient() as client:
        response = await client.get(url)
    assert response.status_code == 302, response.text
    return {name: values[0] for name, values in parse_qs(urlsplit(response.headers["location"]).query).items()}
