"""``perdure fork`` and ``perdure diff``: start a run from a point of a conversation, and compare two conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._terminal import style_text
from ..errors import InvalidInputError
from .connection import ActorStoreOptions, StoreOptions, call_client, call_run, find_run
from .options import AttachOption, RunArgument, read_optional_message
from .output import OutputOptions, format_conversation

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.fork import Difference
    from ..client.run import Run
    from ..types.messages import Message


def fork(
    id: RunArgument,
    message: Annotated[str | None, typer.Argument(help="A message for the fork to go on with; - reads stdin.")] = None,
    at: Annotated[
        int | None, typer.Option(help="After which iteration, as `show` numbers them; by default the last.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another model for the fork.")] = None,
    result: Annotated[
        list[str] | None,
        typer.Option("--result", metavar="CALL=TEXT", help="Another result of a tool call; repeatable."),
    ] = None,
    new_id: Annotated[str | None, typer.Option("--id", help="Id of the fork.")] = None,
    attach: AttachOption = None,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Start another run that goes on from a point of this one. This run is not changed."""
    content = read_optional_message(message, attach, "fork")
    results = _parse_results(result)

    async def fork_run(run: Run) -> None:
        branch = await run.fork(content, at=at, id=new_id, model=model, results=results)
        output.print_result({"id": branch.id, "of": run.id, "at": at}, branch.id)

    call_run(server, id, fork_run)


def _parse_results(options: list[str] | None) -> dict[str, str]:
    """The values of ``--result``, by call id. Raises ``InvalidInputError``."""
    results: dict[str, str] = {}
    for option in options or ():
        call, equals, text = option.partition("=")
        if not call or not equals:
            raise InvalidInputError(f"--result {option}: it has no text", hint='For instance --result call_1="42"')
        results[call] = text
    return results


def diff(
    left: RunArgument,
    right: Annotated[str, typer.Argument(metavar="OTHER", help="Id of the other run.")],
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Show where two conversations part, and the messages of each from there on."""

    async def compare(client: Client) -> tuple[str, str, Difference]:
        left_run, right_run = await find_run(client, left), await find_run(client, right)
        return left_run.id, right_run.id, await left_run.diff(right_run)

    left_id, right_id, difference = call_client(server, compare)
    value = {
        "iteration": difference.iteration,
        "shared": len(difference.shared),
        "left": _serialize_side(left_id, difference.left),
        "right": _serialize_side(right_id, difference.right),
    }
    output.print_result(value, _format_difference(left_id, right_id, difference, full=full))


def _serialize_side(id: str, messages: tuple[Message, ...]) -> dict[str, Any]:
    return {"id": id, "messages": [message.model_dump(mode="json") for message in messages]}


def _format_difference(left_id: str, right_id: str, difference: Difference, *, full: bool) -> Iterator[str]:
    if difference.same:
        yield f"{left_id} and {right_id} say the same, up to iteration {difference.iteration}"
        return
    since = f"after iteration {difference.iteration}" if difference.iteration else "from their beginning"
    yield style_text(f"{left_id} and {right_id} part {since}", "bold")
    sides = (("-", "red", left_id, difference.left), ("+", "green", right_id, difference.right))
    for mark, colour, run_id, messages in sides:
        yield ""
        yield style_text(f"{mark} {run_id}", colour)
        shown, replies = _prepend_last_reply(difference.shared, messages)
        yield from list(format_conversation(shown, full=full, since=replies)) or ["(nothing more)"]


def _prepend_last_reply(shared: tuple[Message, ...], own: tuple[Message, ...]) -> tuple[tuple[Message, ...], int]:
    """``own`` with the reply whose tool results it begins with, and the number of replies before that."""
    replies = sum(message.role == "assistant" for message in shared)
    if not own or own[0].role != "tool":
        return own, replies
    last = max((index for index, message in enumerate(shared) if message.role == "assistant"), default=len(shared))
    return (*shared[last:], *own), replies - (last < len(shared))
