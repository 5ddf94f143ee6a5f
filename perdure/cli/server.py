"""``perdure server``: the Temporal dev server of this machine."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import typer

from .options import JsonOption, Output, OutputOption, chosen, print_json

if TYPE_CHECKING:
    from ..embedded.record import ServerInfo

app = typer.Typer(help="The embedded Temporal dev server of this machine.", no_args_is_help=True)


@app.command()
def install(output: OutputOption = Output.TEXT, as_json: JsonOption = False) -> None:
    """Find the dev server's binary, or fetch it once; prints its path."""
    from ..embedded.binary import ensure_binary

    binary = asyncio.run(ensure_binary())
    output = chosen(output, as_json)
    if output is not Output.TEXT:
        facts = {"path": str(binary.path), "version": binary.server_version, "source": binary.source}
        print_json(facts, output=output)
        return
    sys.stderr.write(f"Temporal server {binary.server_version}, from {binary.source}\n")
    print(binary.path)


@app.command()
def start(output: OutputOption = Output.TEXT, as_json: JsonOption = False) -> None:
    """Start the server, unless it runs. It stays when this command ends."""
    from ..embedded.server import ensure_server

    _print(asyncio.run(ensure_server()), chosen(output, as_json))


@app.command()
def stop(output: OutputOption = Output.TEXT, as_json: JsonOption = False) -> None:
    """Stop the server. Runs stay in its database and go on when it is started again."""
    from ..embedded.server import stop_server

    stopped, output = asyncio.run(stop_server()), chosen(output, as_json)
    if output is not Output.TEXT:
        print_json({"stopped": stopped}, output=output)
        return
    print("stopped" if stopped else "no embedded server runs")


@app.command()
def status(output: OutputOption = Output.TEXT, as_json: JsonOption = False) -> None:
    """Show the server that runs; exit code 4 when none does."""
    from ..embedded.server import running_server
    from ..errors import ServerUnreachableError

    info = asyncio.run(running_server())
    if info is None:
        raise ServerUnreachableError("no embedded server runs", hint="Start one with `perdure server start`.")
    _print(info, chosen(output, as_json))


def _print(info: ServerInfo, output: Output) -> None:
    if output is not Output.TEXT:
        from dataclasses import asdict

        print_json(asdict(info) | {"ui_url": info.ui_url}, output=output)
        return
    from ..embedded.home import current_home

    print(f"address   {info.address}\nui        {info.ui_url}\nversion   {info.version}")
    print(f"pid       {info.pid}\nstarted   {info.started_at}\nhome      {current_home().root}")
