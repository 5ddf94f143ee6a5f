"""The client that the conformance suite of MCP starts: ``python -m tests.conformance.mcp.client URL``.

It uses the server as a worker does, through ``MCPServer.http(url, auth=…)``; where consent lacks, a person follows the
redirect of the authorization server at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx2

from perdure import ToolContext
from perdure._encryption import IN_PROCESS_ADDRESS
from perdure.context.run_context import QuestionSuspension
from perdure.errors import PerdureError
from perdure.mcp import ClientCredentials, MCPServer, OAuth
from perdure.mcp.grants import build_grant_key, build_grant_row, open_grant
from perdure.mcp.sign_in import begin_sign_in, finish_sign_in
from perdure.ports.grants import Grants
from perdure.testing.store import MemoryStore
from perdure.types.approvals import Consent
from tests.support.oauth import agree

T = TypeVar("T")
RETURN = "http://127.0.0.1:9/callback"
METADATA_URL = "https://conformance-test.local/client-metadata.json"
ARGUMENTS: dict[str, dict[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}


class _Access:
    """The grants of this process."""

    address = IN_PROCESS_ADDRESS

    def __init__(self) -> None:
        self.store = MemoryStore()

    async def run(self, request: Callable[[Grants], Awaitable[T]]) -> T:
        return await request(self.store)


def build_auth(scenario: str, about: dict[str, Any], issuer: str | None) -> OAuth | ClientCredentials | None:
    if not scenario.startswith("auth/"):
        return None
    if scenario.startswith("auth/client-credentials"):
        assert issuer is not None, "the server names it"
        key = about.get("private_key_pem")
        algorithm = about.get("signing_algorithm", "RS256")
        return ClientCredentials(
            about["client_id"], issuer, about.get("client_secret"), private_key=key, algorithm=algorithm
        )
    if "client_id" in about:
        return OAuth(client_id=about["client_id"], client_secret=about.get("client_secret"), issuer=issuer)
    return OAuth(client_metadata_url=METADATA_URL if scenario == "auth/basic-cimd" else None)


async def find_issuer(url: str) -> str | None:
    """The operator of a machine knows it; here the server's metadata say it."""
    async with httpx2.AsyncClient() as client:
        response = await client.get(str(httpx2.URL(url).copy_with(path="/.well-known/oauth-protected-resource/mcp")))
    return str(response.json()["authorization_servers"][0]) if response.status_code == 200 else None


class Session:
    """One server, and a person who signs in whenever they are asked to."""

    def __init__(self, url: str, auth: OAuth | ClientCredentials | None) -> None:
        self.url, self.auth, self.access = url, auth, _Access()
        self.server = MCPServer.http(url, auth=auth, name="suite")
        self.questions = 0

    async def list_tools(self) -> list[str]:
        while True:
            tools = await self.server.list(self._context())
            if not any(tool.provisional for tool in tools):
                return [tool.name for tool in tools]
            await self.call(tools[0].name)

    async def call(self, name: str) -> Any:
        """Call the tool, as often as its questions are answered."""
        while True:
            try:
                return await self.server.call(name, ARGUMENTS.get(name, {}), self._context())
            except QuestionSuspension as asked:
                consent = asked.question.consent
            self.questions += 1
            await self.sign_in(consent)

    def _context(self) -> ToolContext[Any]:
        context = ToolContext[Any]()
        context.grant_access = self.access
        return context

    async def sign_in(self, consent: Consent | None) -> None:
        assert consent is not None, "only sign-ins are asked for"
        assert isinstance(self.auth, OAuth)
        key = build_grant_key(None, None, self.url)
        row = await self.access.store.get_grant(key)
        previous = None if row is None else open_grant(row)
        page, pending = await begin_sign_in(self.url, self.auth, RETURN, scopes=consent.scopes, previous=previous)
        grant = await finish_sign_in(pending, await agree(page))
        await self.access.store.create_grant(build_grant_row(IN_PROCESS_ADDRESS, key, grant, "person"))


async def main(url: str) -> None:
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    about = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    issuer = await find_issuer(url) if "client_id" in about else None
    session = Session(url, build_auth(scenario, about, issuer))
    try:
        for name in await session.list_tools():
            print(name, await session.call(name))
    finally:
        await session.server.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[-1]))
    except PerdureError as error:
        sys.exit(f"{type(error).__name__}: {error}")
