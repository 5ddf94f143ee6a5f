"""``perdure server``: the Temporal dev server of this machine; ``perdure env`` points the ``temporal`` CLI at it."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .._terminal import print_line
from ..errors import ServerUnreachableError
from .connection import ServerOptions
from .options import Commands
from .output import OutputOptions

if TYPE_CHECKING:
    from ..embedded.record import ServerInfo


def env(server: ServerOptions, output: OutputOptions) -> None:
    """Print exports for the temporal CLI: eval "$(perdure env)". Starts nothing, and prints no keys."""
    from ..embedded.address import resolve_target

    target = asyncio.run(resolve_target(**asdict(server)))
    variables = {"TEMPORAL_ADDRESS": target.address, "TEMPORAL_NAMESPACE": target.namespace}
    if server.profile:  # has the keys and certificates
        variables["TEMPORAL_PROFILE"] = server.profile
    output.print_result(variables, (f"export {name}={shlex.quote(value)}" for name, value in variables.items()))


def install(output: OutputOptions) -> None:
    """Find the dev server's binary, or download it once, and print its path."""
    from ..embedded.binary import ensure_binary

    binary = asyncio.run(ensure_binary())
    if output.format == "text":
        print_line(f"Temporal server {binary.server_version}, from {binary.source}", error=True)
    path = str(binary.path)
    output.print_result({"path": path, "version": binary.server_version, "source": binary.source}, path)


def start(output: OutputOptions) -> None:
    """Start the server if it does not run. It goes on when this command ends."""
    from ..embedded.server import ensure_server

    _print_server_info(asyncio.run(ensure_server()), output)


def stop(output: OutputOptions) -> None:
    """Stop the server. Runs stay in its database and go on when it is started again."""
    from ..embedded.server import stop_server

    stopped = asyncio.run(stop_server())
    output.print_result({"stopped": stopped}, "stopped" if stopped else "no embedded server runs")


def status(output: OutputOptions) -> None:
    """Show the server; exit code 4 if it does not run."""
    from ..embedded.record import find_running_server

    info = asyncio.run(find_running_server())
    if info is None:
        raise ServerUnreachableError("no embedded server runs", hint="Start one with `perdure server start`.")
    _print_server_info(info, output)


def setup(
    create: Annotated[bool, typer.Option("--create", help="Create the namespace, if it does not exist.")] = False,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Register perdure's search attributes on any server, so that one query finds what waits. Safe to repeat."""
    from ..embedded.address import connect, resolve_target
    from ..temporal.attributes import register_search_attributes
    from ..temporal.namespaces import ensure_namespace
    from ..types.interface import SEARCH_ATTRIBUTES

    async def register() -> tuple[str, str, tuple[str, ...]]:
        target = await resolve_target(**asdict(server))
        client = await connect(target)
        if create:
            await ensure_namespace(client.service_client, target.namespace)
        added = await register_search_attributes(client.service_client, target.namespace)
        return target.address, target.namespace, added

    address, namespace, added = asyncio.run(register())
    there = [name for name in SEARCH_ATTRIBUTES if name not in added]
    lines = [f"namespace {namespace} at {address}"]
    lines += [f"{'added' if name in added else 'there'}  {name} ({kind})" for name, kind in SEARCH_ATTRIBUTES.items()]
    value = {"address": address, "namespace": namespace, "added": list(added), "there": there}
    output.print_result(value, lines)


def _print_server_info(info: ServerInfo, output: OutputOptions) -> None:
    from ..embedded.home import current_home

    facts = {
        "address": info.address,
        "ui": info.ui_url,
        "version": info.version,
        "pid": info.pid,
        "started": info.started_at,
        "home": current_home().root,
    }
    value = asdict(info) | {"ui_url": info.ui_url}
    output.print_result(value, (f"{name:<9} {fact}" for name, fact in facts.items()))


app = Commands(help="The Temporal dev server of this machine, and the setup of any server.", no_args_is_help=True)
app.add(install, start, stop, status, setup)
