"""``perdure token``, in this process."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import HTTPConnection

from perdure import Agent
from perdure.errors import InvalidInputError
from perdure.testing import ScriptedProvider
from perdure.web.auth import ROLES, BearerTokens, Caller
from perdure.web.problems import UnauthorizedError
from tests.support.commands import Commands
from tests.support.engine import Engine


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(engine, monkeypatch)


async def test_a_token_from_its_making_to_its_end(engine: Engine, cli: Commands) -> None:
    async with engine.served(Agent("token-desk", ScriptedProvider(lambda _: "Done."))) as client:
        scope = ["--tenant", "acme", "--tenant", "umbrella", "--agent", "support", "--expires", "30d"]
        made = await cli("token", "create", "ci deploys", "--role", "sender", *scope, "--by", "ana")
        assert made.code == 0, made.err
        token = made.out.strip()
        assert made.out == f"{token}\n", "a script reads the token alone"
        assert "it is not shown again" in made.err
        assert token not in made.err

        async def call() -> Caller | None:
            headers = [(b"authorization", f"Bearer {token}".encode())]
            scope: dict[str, Any] = {"type": "http", "headers": headers, "client": ("127.0.0.1", 1)}
            return await BearerTokens(client).authenticate(HTTPConnection(scope))

        token_id = token.split("_")[1]
        expected = Caller("ci deploys", f"token:{token_id}", ROLES["sender"], ("acme", "umbrella"), ("support",))
        assert await call() == expected
        (listed,) = [row for row in (await cli("token", "list", "--json")).json if row["id"] == token_id]
        assert (listed["name"], listed["created_by"], listed["tenants"]) == ("ci deploys", "ana", ["acme", "umbrella"])
        assert listed["last_used_at"] is not None
        assert "hash" not in listed
        assert "tenant acme, tenant umbrella, agent support" in (await cli("token", "list")).out

        revoked = await cli("token", "revoke", token_id[:10], "--by", "bea")
        assert revoked.out == f"{token_id} is revoked\n", revoked.err
        with pytest.raises(UnauthorizedError, match="revoked"):
            await call()
        assert token_id not in (await cli("token", "list", "-q")).out
        assert token_id in (await cli("token", "list", "-q", "--revoked")).out
        missing = await cli("token", "revoke", "nothing")
        assert (missing.code, "there is no token 'nothing'" in missing.err) == (2, True)

        rows = await (await client.store()).list_audit(subject=f"token:{token_id}")
        assert [(row.verb, row.by, row.refused) for row in rows] == [
            ("token.revoke", "bea", None),
            ("token.create", "ana", None),
        ]
        assert token[-64:] not in str(rows)
        (refused,) = await (await client.store()).list_audit(subject="token:nothing")
        assert refused.refused is not None
        assert refused.refused.startswith("InvalidInputError: there is no token")

        as_json = (await cli("token", "create", "ben", "--role", "admin", "--json")).json
        assert as_json["token"].startswith(f"pdr_{as_json['id']}_")
        for arguments in (["", "--role", "viewer"], ["x", "--role", "viewer", "--expires", "soon"]):
            assert (await cli("token", "create", *arguments)).code == 2
        assert (await cli("token", "create", "x", "--role", "root")).code == 2
        with pytest.raises(InvalidInputError, match="limited to 1 to 100 tenants"):
            await client.tokens.create("x", role="viewer", tenants=[])
