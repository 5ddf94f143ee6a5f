"""``perdure inject``, ``cancel`` and ``resume``: what steers a run that is there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .connection import Server, connected
from .options import (
    AddressOption,
    JsonOption,
    NamespaceOption,
    Output,
    OutputOption,
    ProfileOption,
    RunArgument,
    StoreOption,
    chosen,
    print_json,
)

if TYPE_CHECKING:
    from ..run import Run


def inject(
    id: RunArgument,
    message: Annotated[str, typer.Argument(help="What the model is to read before its next reply.")],
    message_id: Annotated[str | None, typer.Option(help="The same id twice counts once.", show_default=False)] = None,
    address: AddressOption = None,
    namespace: NamespaceOption = None,
    profile: ProfileOption = None,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Send a message into a run; it joins the conversation at the next iteration."""

    async def act(run: Run) -> dict[str, Any]:
        await run.inject(message, id=message_id)
        return {"id": run.id, "injected": True}

    server = Server(address, namespace, profile, store_url)
    _print(_on_run(server, id, act), "the message joins {id} at its next iteration", chosen(output, as_json))


def cancel(
    id: RunArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Until the run has ended.")] = False,
    address: AddressOption = None,
    namespace: NamespaceOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Cancel a run: what is in flight is stopped, what is finished is kept, every tool call has a result."""

    async def act(run: Run) -> dict[str, Any]:
        await run.cancel()
        ended = await _ended(run) if wait else None
        return {"id": run.id, "status": ended or "cancelling"}

    said = _on_run(Server(address, namespace, profile), id, act)
    _print(said, "{id} is {status}" if wait else "{id} was told to stop", chosen(output, as_json))


def resume(
    id: RunArgument,
    address: AddressOption = None,
    namespace: NamespaceOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Let a paused run try the same step again, once the cause of the pause is gone."""

    async def act(run: Run) -> dict[str, Any]:
        await run.resume()
        return {"id": run.id, "resumed": True}

    said = _on_run(Server(address, namespace, profile), id, act)
    _print(said, "{id} tries the step again that it paused at", chosen(output, as_json))


def _on_run(server: Server, id: str, act: Any) -> dict[str, Any]:
    from .find import find_run

    async def go() -> dict[str, Any]:
        async with connected(server) as client:
            said: dict[str, Any] = await act(await find_run(client, id))
            return said

    return asyncio.run(go())


async def _ended(run: Run) -> str:
    """Wait for the end of the run, whatever it is."""
    from ..errors import PerdureError, RunCancelledError

    try:
        await run.result()
    except RunCancelledError:
        return "cancelled"
    except PerdureError:
        return "failed"
    return "completed"


def _print(said: dict[str, Any], text: str, output: Output) -> None:
    if output is Output.TEXT:
        print(text.format(**said))
    else:
        print_json(said, output=output)
