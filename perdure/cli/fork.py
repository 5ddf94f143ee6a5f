"""``perdure fork`` and ``perdure diff``: another run from a point of a conversation, and where two of them part."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInputError
from ..terminal import print_line
from .connection import act_on_run, find_run, open_client
from .options import (
    AttachOption,
    ByOption,
    OutputFormat,
    OutputOptions,
    RunArgument,
    StoreOptions,
    build_content,
    print_json,
    read_attachments,
    read_message_argument,
)

if TYPE_CHECKING:
    from ..client.fork import Difference
    from ..client.run import Run
    from ..types.messages import Message


def fork(
    id: RunArgument,
    message: Annotated[
        str | None, typer.Argument(help="What to go on with; - reads stdin.", show_default=False)
    ] = None,
    at: Annotated[
        int | None, typer.Option(help="Behind which iteration, as `show` numbers them; else the end.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another model for the fork.", show_default=False)] = None,
    result: Annotated[
        list[str] | None,
        typer.Option("--result", metavar="CALL=TEXT", help="Another result of a tool call; again for more."),
    ] = None,
    new_id: Annotated[str | None, typer.Option("--id", help="Id of the fork.", show_default=False)] = None,
    attach: AttachOption = None,
    by: ByOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Start another run that goes on from a point of this one. Both go on by themselves."""
    if message is None and attach:
        raise InvalidInputError("what is attached goes with a message", hint='perdure fork ID "Look at this." …')
    said = None if message is None else build_content(read_message_argument(message), read_attachments(attach))
    given = parse_results(result)

    async def act(run: Run) -> dict[str, Any]:
        branch = await run.fork(said, at=at, id=new_id, model=model, results=given)
        return {"id": branch.id, "of": run.id, "at": at}

    done = act_on_run(server, id, act, by=by)
    if output is OutputFormat.TEXT:
        print_line(str(done["id"]))
    else:
        print_json(done, output=output)


def diff(
    left: RunArgument,
    right: Annotated[str, typer.Argument(metavar="OTHER", help="Id of the other run.")],
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Show where two conversations part, and what each has from there on."""

    async def go() -> tuple[str, str, Difference]:
        async with open_client(server) as client:
            one, other = await find_run(client, left), await find_run(client, right)
            return one.id, other.id, await one.diff(other)

    one, other, found = asyncio.run(go())
    if output is not OutputFormat.TEXT:
        print_json(_serialize_difference(one, other, found), output=output)
        return
    for line in format_difference(one, other, found, full=full):
        print_line(line)


def parse_results(given: list[str] | None) -> dict[str, str]:
    """What ``--result`` says, by call id. Raises ``InvalidInputError``."""
    results: dict[str, str] = {}
    for one in given or ():
        call, equals, text = one.partition("=")
        if not call or not equals:
            raise InvalidInputError(f"--result {one}: it has no text", hint='For instance --result call_1="42"')
        results[call] = text
    return results


def format_difference(one: str, other: str, found: Difference, *, full: bool = False) -> Iterator[str]:
    """For people."""
    from ..terminal import style_text
    from .output import can_colour_stdout, format_conversation

    colour = can_colour_stdout()
    if found.same:
        yield f"{one} and {other} say the same, up to iteration {found.iteration}"
        return
    since = f"after iteration {found.iteration}" if found.iteration else "from their beginning"
    yield style_text(f"{one} and {other} part {since}", "bold", on=colour)
    for mark, name, own in (("-", one, found.left), ("+", other, found.right)):
        yield ""
        yield style_text(f"{mark} {name}", "red" if mark == "-" else "green", on=colour)
        behind, since_reply = _prepend_last_reply(found.shared, own)
        said = list(format_conversation(behind, full=full, colour=colour, since=since_reply))
        yield from said or ["(nothing more)"]


def _prepend_last_reply(shared: tuple[Message, ...], own: tuple[Message, ...]) -> tuple[tuple[Message, ...], int]:
    """``own`` with the reply whose results it begins with, and how many replies stand before that."""
    replies = sum(message.role == "assistant" for message in shared)
    if not own or own[0].role != "tool":
        return own, replies
    asks = max((place for place, message in enumerate(shared) if message.role == "assistant"), default=len(shared))
    return (*shared[asks:], *own), replies - (asks < len(shared))


def _serialize_difference(one: str, other: str, found: Difference) -> dict[str, Any]:
    """For ``-o json``."""
    sides = ((one, found.left), (other, found.right))
    left, right = (
        {"id": name, "messages": [message.model_dump(mode="json") for message in own]} for name, own in sides
    )
    return {"iteration": found.iteration, "shared": len(found.shared), "left": left, "right": right}
