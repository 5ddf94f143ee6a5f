"""``perdure mcp``: sign-ins at MCP servers that demand OAuth.

The browser comes back to this command (RFC 8252): to a port of loopback that is open for one sign-in.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, urlsplit

import typer

from .._terminal import escape_line, print_line
from ..errors import InvalidInputError, PerdureError
from .connection import ActorStoreOptions, StoreOptions, call_client
from .options import Commands
from .output import OutputOptions, Row

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.grants import McpGrant, SignedIn
    from ..types.approvals import Consent

WAIT_SECONDS = 600.0
"""Seconds for which the command waits for the browser."""
REQUEST_SECONDS, REQUEST_BYTES = 10.0, 32 * 1024
"""Most seconds and bytes of the browser's request."""
_CALLBACK = "/callback"

UrlArgument = Annotated[str, typer.Argument(metavar="URL", help="URL of the MCP server, as the agent has it.")]
TenantOption = Annotated[str | None, typer.Option(help="The grant is for this tenant's runs; else for those of none.")]
ScopeOption = Annotated[list[str] | None, typer.Option(help="To ask for, besides the server's scopes; repeatable.")]
UserOption = Annotated[str | None, typer.Option(help="The grant is for this user's runs: OAuth(per_user=True).")]


def login(
    url: UrlArgument,
    tenant: TenantOption = None,
    user: UserOption = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="A scope to ask for, besides the server's; repeatable.")
    ] = None,
    client_id: Annotated[str | None, typer.Option(help="Of a client that was registered by hand.")] = None,
    client_secret_file: Annotated[Path | None, typer.Option(help="File with the secret of that client.")] = None,
    issuer: Annotated[str | None, typer.Option(help="The authorization server that knows that client.")] = None,
    client_metadata_url: Annotated[str | None, typer.Option(help="URL of the client's metadata document.")] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of loopback that the browser comes back to; 0: any.")
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Open no browser here: print the address, and read the answer.")
    ] = False,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Sign in at an MCP server, and store the grant. Calls that wait for it go on."""
    secret = None if client_secret_file is None else _read_secret(client_secret_file)
    names = {"client_id": client_id, "client_secret": secret, "issuer": issuer}
    client_fields = {name: value for name, value in names.items() if value is not None}
    if client_metadata_url is not None:
        client_fields["client_metadata_url"] = client_metadata_url

    async def act(client: Client) -> SignedIn:
        from ..mcp.oauth import OAuth

        auth = OAuth(scopes=scope or (), **client_fields) if client_fields else None  # type: ignore[arg-type]  # by name
        async with _listen(port) as browser:
            begun = await client.grants.begin(
                url, redirect_uri=browser.url, auth=auth, tenant=tenant, user=user, scopes=tuple(scope or ())
            )
            print_line(f"Sign in here: {begun.url}", error=True)
            browser.state = begun.state
            if no_browser:
                answer = await asyncio.to_thread(_read_answer, begun.state)
            else:
                _open_browser(begun.url)
                answer = await browser.wait()
            try:
                signed_in = await client.grants.finish(answer)
            except PerdureError as error:
                browser.show(f"The sign-in has failed: {error.message}")
                raise
            browser.show(f"Signed in to {signed_in.grant.server}. You can close this page.")
            return signed_in

    signed_in = call_client(server, act)
    runs = len(signed_in.answered)
    waited = f"; {runs} waiting call{'' if runs == 1 else 's'} of {', '.join(signed_in.answered)}" if runs else ""
    if signed_in.unanswered:
        runs_left = escape_line(", ".join(signed_in.unanswered))
        hint = "they are answered once a worker runs: perdure answer RUN true"
        print_line(f"calls of {runs_left} wait for this sign-in, and could not be told; {hint}", error=True)
    facts = asdict(signed_in.grant) | {"answered": signed_in.answered, "unanswered": signed_in.unanswered}
    output.print_result(facts, f"signed in to {escape_line(signed_in.grant.server)}{escape_line(waited)}")


def _read_secret(path: Path) -> str:
    try:
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{path} cannot be read: {error}", hint="Give a file with the client's secret."
        ) from None
    if not secret:
        raise InvalidInputError(f"{path} is empty", hint="Give a file with the client's secret.")
    return secret


def _read_answer(state: str) -> dict[str, str]:
    """Read the address at which a browser on another machine has ended, of the sign-in that has this ``state``."""
    print_line("Then paste the address that the browser ends at (its page cannot be shown):", error=True)
    line = sys.stdin.readline().strip()
    answer = dict(parse_qsl(urlsplit(line).query))
    if "state" not in answer:
        raise InvalidInputError(
            "that is not the address that the browser ended at", hint=f"It has …{_CALLBACK}?code=…&state=…."
        )
    if not secrets.compare_digest(answer["state"].encode(), state.encode()):
        raise InvalidInputError("that address is of another sign-in", hint="Begin the sign-in again.")
    return answer


def _open_browser(url: str) -> None:
    import threading
    import webbrowser

    def open_page() -> None:
        with suppress(Exception):  # a machine without one: the address is printed
            webbrowser.open(url)

    threading.Thread(target=open_page, daemon=True).start()


class _Browser:
    """What comes back to the port."""

    def __init__(self) -> None:
        self.url = ""
        self.state = secrets.token_urlsafe(32)  # until the sign-in has begun: one that nothing has
        self._answer: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._page: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.served: list[asyncio.Task[None]] = []

    async def wait(self) -> dict[str, str]:
        """Return the parameters of the browser's return."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._answer), WAIT_SECONDS)
        except TimeoutError:
            raise InvalidInputError(
                f"nobody has signed in for {WAIT_SECONDS / 60:g} minutes", hint="Call it again."
            ) from None

    def show(self, text: str) -> None:
        """Show a text to the browser that has come back."""
        if not self._page.done():
            self._page.set_result(text)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        self.served.append(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            path, answer = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
            is_ours = secrets.compare_digest(answer.get("state", "").encode(), self.state.encode())
            if method != "GET" or path != _CALLBACK or not is_ours or self._answer.done():
                writer.write(_build_page(400, "This address belongs to no sign-in."))  # and the command waits on
                return
            self._answer.set_result(answer)
            writer.write(_build_page(200, await self._page))
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, OSError):
            pass
        finally:
            with suppress(OSError):
                await writer.drain()
                writer.close()
                await writer.wait_closed()


def _build_page(status: int, text: str) -> bytes:
    body = f"<!doctype html><meta charset=utf-8><title>perdure</title><p>{escape(text)}</p>".encode()
    head = (
        f"HTTP/1.1 {status} {'OK' if status == 200 else 'Bad Request'}\r\n"  # of HTTP
        "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
        "Content-Security-Policy: default-src 'none'\r\nX-Content-Type-Options: nosniff\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@asynccontextmanager
async def _listen(port: int) -> AsyncIterator[_Browser]:
    browser = _Browser()
    try:
        listener = await asyncio.start_server(browser.accept, "127.0.0.1", port, limit=REQUEST_BYTES)
    except OSError as error:
        raise InvalidInputError(f"port {port} of 127.0.0.1 cannot be used: {error}", hint="Give --port 0.") from None
    browser.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}{_CALLBACK}"
    try:
        yield browser
    finally:
        browser.show("The sign-in has ended.")
        listener.close()
        if browser.served:
            _, late = await asyncio.wait(browser.served, timeout=1.0)
            for task in late:
                task.cancel()


def build_login_command(consent: Consent) -> str:
    """Build the command that signs in for a call that waits for it."""
    options = {"--tenant": consent.tenant, "--user": consent.user}
    words = [word for name, value in options.items() if value for word in (name, value)]
    words += [word for scope in consent.scopes for word in ("--scope", scope)]
    return shlex.join(["perdure", "mcp", "login", consent.server, *words])


def list_grants(
    tenant: Annotated[str | None, typer.Option(help="Only grants of this tenant.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 1000,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the URLs, one a line.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """List the grants for MCP servers."""
    grants = call_client(server, lambda client: client.grants.list(tenant=tenant, limit=limit))
    header = ("SERVER", "TENANT", "USER", "SCOPES", "STATE", "SIGNED IN BY", "SINCE")
    output.print_list(grants, header, _format_grant, quiet=quiet, empty="no grants")


def _format_grant(grant: McpGrant) -> Row:
    scopes = " ".join(grant.scopes)
    by = (grant.signed_in_by, grant.updated_at[:19])
    return grant.server, *(text or "-" for text in (grant.tenant, grant.user, scopes)), grant.state, *by


def logout(
    url: UrlArgument,
    tenant: TenantOption = None,
    user: UserOption = None,
    keep_tokens: Annotated[
        bool, typer.Option("--keep-tokens", help="Do not revoke them at the authorization server.")
    ] = False,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Delete a grant, and revoke its tokens where the authorization server can."""
    revoked = call_client(
        server, lambda client: client.grants.delete(url, tenant=tenant, user=user, revoke=not keep_tokens)
    )
    text = "deleted and revoked" if revoked else "deleted; its tokens are not revoked"
    output.print_result({"server": url, "revoked": revoked}, f"the grant for {escape_line(url)} is {text}")


app = Commands(help="Sign-ins at MCP servers that demand OAuth.", no_args_is_help=True)
app.add(login)
app.add(list_grants, name="list")
app.add(logout)
