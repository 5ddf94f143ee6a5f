"""``perdure send``: a message to a conversation, or the first of one."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInputError, NoWorkerError
from ..printing import print_line
from .answers import answer, delivered, print_answer
from .completion import complete_agents
from .connection import connected
from .options import (
    AttachOption,
    ByOption,
    ContextOption,
    IdleOption,
    MessageIdOption,
    Output,
    OutputOptions,
    QueueOption,
    RunArgument,
    StoreOptions,
    attached,
    json_object,
    message_of,
    print_json,
    with_files,
)

if TYPE_CHECKING:
    from ..client import Client
    from ..turn import Turn
    from ..types.files import Content
    from ..types.interface import Response


@dataclass(frozen=True)
class Letter:
    """What to say, to whom."""

    id: str
    content: Content
    message_id: str
    agent: str | None
    """Opens the conversation, if there is none of this id."""
    opening: dict[str, Any]
    """What a conversation is opened with: ``context`` and ``idle_timeout``."""


def send(
    id: RunArgument,
    message: Annotated[str, typer.Argument(help="What to say; - reads standard input.")],
    wait: Annotated[bool, typer.Option("--wait", help="Until the turn has ended; prints its answer.")] = False,
    agent: Annotated[
        str | None,
        typer.Option(
            help="Opens a conversation with this agent, if there is none of this id.",
            autocompletion=complete_agents,
            show_default=False,
        ),
    ] = None,
    attach: AttachOption = None,
    context: ContextOption = None,
    idle_timeout: IdleOption = None,
    message_id: MessageIdOption = None,
    by: ByOption = None,
    task_queue: QueueOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Say something in a conversation: it joins the turn under way, or opens the next. Prints the turn's id."""
    opening = {"context": json_object(context), "idle_timeout": idle_timeout}
    if agent is None and any(value is not None for value in opening.values()):
        raise InvalidInputError(
            "--context and --idle-timeout are what a conversation is opened with", hint="Name its agent with --agent."
        )
    letter = Letter(
        id, with_files(message_of(message), attached(attach)), message_id or uuid.uuid4().hex, agent, opening
    )

    async def go() -> tuple[Turn, Response | None]:
        async with connected(server, task_queue=task_queue, actor=by) as client:
            turn = await _sent(client, letter)
            return turn, await answer(turn.run, turn.result()) if wait else None

    turn, response = asyncio.run(go())
    if response is not None:
        print_answer(response, output)
    elif output is Output.TEXT:
        print_line(str(turn.task_id))
    else:
        print_json({"id": turn.run.id, "task_id": turn.task_id, "message_id": letter.message_id}, output=output)


async def _sent(client: Client, letter: Letter) -> Turn:
    from .find import find_run

    if letter.agent is not None:
        run = client.run(letter.id)
        sending = client.send(
            letter.agent, letter.content, id=letter.id, message_id=letter.message_id, **letter.opening
        )
    else:
        run = await find_run(client, letter.id)
        sending = run.send(letter.content, message_id=letter.message_id)
    try:
        return await delivered(run, sending)
    except NoWorkerError as error:
        raise NoWorkerError(
            error.message,
            hint=f"{error.hint}\nWhether it will be delivered is not known. Said again with --message-id "
            f"{letter.message_id} it counts once.",
        ) from None
