"""``perdure token``: the API tokens of the HTTP service."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .._terminal import escape_line, print_line
from .connection import ActorStoreOptions, StoreOptions, call_client, require_one_id
from .options import Commands
from .output import OutputOptions, Row

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.tokens import ApiToken

RoleChoice = Literal["viewer", "sender", "approver", "operator", "admin"]
"""``Role`` of the ports, whose package this module does not import."""


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: recorded with all that its holder does.")],
    role: Annotated[RoleChoice, typer.Option(help="What its holder may do.")],
    tenant: Annotated[list[str] | None, typer.Option(help="Only runs of this tenant; repeatable.")] = None,
    agent: Annotated[list[str] | None, typer.Option(help="Only runs of this agent; repeatable.")] = None,
    session: Annotated[list[str] | None, typer.Option(help="Only this session and its subagents; repeatable.")] = None,
    expires: Annotated[str | None, typer.Option(help="How long it is valid: 12h, 30d; by default always.")] = None,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Create a token, and print it: only now, because the store has its hash alone."""
    made = call_client(
        server,
        lambda client: client.tokens.create(
            name,
            role=role,
            tenants=tenant or None,
            agents=agent or None,
            sessions=session or None,
            expires=expires,
        ),
    )
    until = f"expires {made.info.expires_at[:16]} UTC" if made.info.expires_at else "does not expire"
    print_line(f"token {made.info.id} of {escape_line(name)}, {role}, {until}; it is not shown again", error=True)
    output.print_result(asdict(made.info) | {"token": made.token}, made.token)


def list_tokens(
    revoked: Annotated[bool, typer.Option("--revoked", help="Also those that are revoked.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 1000,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids, one a line.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """List tokens, the newest first."""
    tokens = call_client(server, lambda client: client.tokens.list(revoked=revoked, limit=limit))
    headings = ("ID", "NAME", "ROLE", "ONLY", "EXPIRES", "USED", "REVOKED")
    output.print_list(tokens, headings, _format_row, quiet=quiet, empty="no tokens")


def _format_row(token: ApiToken) -> Row:
    scopes = (("tenant", token.tenants), ("agent", token.agents), ("session", token.sessions))
    only = ", ".join(f"{noun} {name}" for noun, names in scopes for name in names or ())
    times = (token.expires_at, token.last_used_at, token.revoked_at)
    return token.id, token.name, token.role, only or "-", *((at or "-")[:16] for at in times)


def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, or a unique beginning of it.")],
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Revoke a token: its next request is refused."""

    async def find_and_revoke(client: Client) -> ApiToken:
        ids = [token.id for token in await client.tokens.list(revoked=True, limit=100_000) if token.id.startswith(id)]
        return await client.tokens.revoke(require_one_id(id, ids, "tokens") if ids and id else id)

    token = call_client(server, find_and_revoke)
    output.print_result(asdict(token), f"{token.id} is revoked")


app = Commands(help="API tokens of the HTTP service.", no_args_is_help=True)
app.add(create)
app.add(list_tokens, name="list")
app.add(revoke)
