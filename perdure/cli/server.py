"""``perdure server``: the Temporal dev server of this machine."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

from ..terminal import print_line, print_text
from .options import Commands, OutputFormat, OutputOptions, ServerOptions, print_json

if TYPE_CHECKING:
    from ..embedded.server import ServerInfo


# ---
# ``perdure env``: point the ``temporal`` CLI at the server that perdure uses.


def env(server: ServerOptions, output: OutputOptions) -> None:
    """Print exports for the temporal CLI: eval "$(perdure env)". Starts nothing, and prints no keys."""
    from ..embedded.address import resolve_target

    target = asyncio.run(resolve_target(address=server.address, namespace=server.namespace, profile=server.profile))
    variables = {"TEMPORAL_ADDRESS": target.address, "TEMPORAL_NAMESPACE": target.namespace}
    if server.profile:  # carries the keys and certificates
        variables["TEMPORAL_PROFILE"] = server.profile
    if output is not OutputFormat.TEXT:
        print_json(variables, output=output)
        return
    for name, value in variables.items():
        print_line(f"export {name}={shlex.quote(value)}")


app = Commands(help="The Temporal dev server of this machine, and the setup of any server.", no_args_is_help=True)


@app.command()
def install(output: OutputOptions) -> None:
    """Find the dev server's binary, or fetch it once; prints its path."""
    from ..embedded.binary import ensure_binary

    binary = asyncio.run(ensure_binary())
    if output is not OutputFormat.TEXT:
        facts = {"path": str(binary.path), "version": binary.server_version, "source": binary.source}
        print_json(facts, output=output)
        return
    print_line(f"Temporal server {binary.server_version}, from {binary.source}", error=True)
    print_line(str(binary.path))


@app.command()
def start(output: OutputOptions) -> None:
    """Start the server, unless it runs. It stays when this command ends."""
    from ..embedded.server import ensure_server

    _print_server_info(asyncio.run(ensure_server()), output)


@app.command()
def stop(output: OutputOptions) -> None:
    """Stop the server. Runs stay in its database and go on when it is started again."""
    from ..embedded.server import stop_server

    stopped = asyncio.run(stop_server())
    if output is not OutputFormat.TEXT:
        print_json({"stopped": stopped}, output=output)
        return
    print_line("stopped" if stopped else "no embedded server runs")


@app.command()
def status(output: OutputOptions) -> None:
    """Show the server that runs; exit code 4 when none does."""
    from ..embedded.server import find_running_server
    from ..errors import ServerUnreachableError

    info = asyncio.run(find_running_server())
    if info is None:
        raise ServerUnreachableError("no embedded server runs", hint="Start one with `perdure server start`.")
    _print_server_info(info, output)


@app.command()
def setup(server: ServerOptions, output: OutputOptions) -> None:
    """Register perdure's search attributes on any server, so that one query finds what waits. Safe to repeat."""
    from ..embedded.address import connect, resolve_target
    from ..temporal_service import register_search_attributes
    from ..types.interface import SEARCH_ATTRIBUTES

    async def go() -> tuple[str, str, tuple[str, ...]]:
        target = await resolve_target(address=server.address, namespace=server.namespace, profile=server.profile)
        client = await connect(target)
        return (
            target.address,
            target.namespace,
            await register_search_attributes(client.service_client, target.namespace),
        )

    where, named, added = asyncio.run(go())
    there = [name for name in SEARCH_ATTRIBUTES if name not in added]
    if output is not OutputFormat.TEXT:
        print_json({"address": where, "namespace": named, "added": list(added), "there": there}, output=output)
        return
    print_line(f"namespace {named} at {where}")
    for name, kind in SEARCH_ATTRIBUTES.items():
        print_line(f"{'added' if name in added else 'there'}  {name} ({kind})")


def _print_server_info(info: ServerInfo, output: OutputFormat) -> None:
    if output is not OutputFormat.TEXT:
        from dataclasses import asdict

        print_json(asdict(info) | {"ui_url": info.ui_url}, output=output)
        return
    from ..embedded.home import current_home

    print_text(f"address   {info.address}\nui        {info.ui_url}\nversion   {info.version}")
    print_text(f"pid       {info.pid}\nstarted   {info.started_at}\nhome      {current_home().root}")
