"""``perdure inject``, ``interrupt``, ``cancel``, ``close`` and ``resume``: what steers a run that is there."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInputError, NoWorkerError
from ..terminal import print_line
from .connection import act_on_run, open_client
from .options import (
    AttachOption,
    ByOption,
    ContextOption,
    IdleOption,
    MessageIdOption,
    OutputFormat,
    OutputOptions,
    RunArgument,
    ServerOptions,
    StoreOptions,
    TaskQueueOption,
    build_content,
    complete_agents,
    parse_json_object,
    print_json,
    read_attachments,
    read_message_argument,
)
from .output import print_answer, wait_for_answer, wait_for_delivery

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.run import Run
    from ..client.turn import Turn
    from ..types.interface import Response
    from ..types.messages import Content


# ---
# ``perdure send``: a message to a conversation, or the first of one.


@dataclass(frozen=True)
class OutgoingMessage:
    """What to say, to whom."""

    id: str
    content: Content
    message_id: str
    agent: str | None
    """Opens the conversation, if there is none of this id."""
    conversation_options: dict[str, Any]
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
    task_queue: TaskQueueOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Say something in a conversation: it joins the turn under way, or opens the next. Prints the turn's id."""
    opening = {"context": parse_json_object(context), "idle_timeout": idle_timeout}
    if agent is None and any(value is not None for value in opening.values()):
        raise InvalidInputError(
            "--context and --idle-timeout are what a conversation is opened with", hint="Name its agent with --agent."
        )
    letter = OutgoingMessage(
        id,
        build_content(read_message_argument(message), read_attachments(attach)),
        message_id or uuid.uuid4().hex,
        agent,
        opening,
    )

    async def go() -> tuple[Turn, Response | None]:
        async with open_client(server, task_queue=task_queue, actor=by) as client:
            turn = await _send_message(client, letter)
            return turn, await wait_for_answer(turn.run, turn.result()) if wait else None

    turn, response = asyncio.run(go())
    if response is not None:
        print_answer(response, output)
    elif output is OutputFormat.TEXT:
        print_line(str(turn.task_id))
    else:
        print_json({"id": turn.run.id, "task_id": turn.task_id, "message_id": letter.message_id}, output=output)


async def _send_message(client: Client, letter: OutgoingMessage) -> Turn:
    from .connection import find_run

    if letter.agent is not None:
        run = client.run(letter.id)
        sending = client.send(
            letter.agent, letter.content, id=letter.id, message_id=letter.message_id, **letter.conversation_options
        )
    else:
        run = await find_run(client, letter.id)
        sending = run.send(letter.content, message_id=letter.message_id)
    try:
        return await wait_for_delivery(run, sending)
    except NoWorkerError as error:
        raise NoWorkerError(
            error.message,
            hint=f"{error.hint}\nWhether it will be delivered is not known. Said again with --message-id "
            f"{letter.message_id} it counts once.",
        ) from None


LimitOption = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=VALUE", help="Raise a limit: cost_usd=5, turn.tokens=50000; again for more."),
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Until the run has ended.")]


def inject(
    id: RunArgument,
    message: Annotated[str, typer.Argument(help="What the model is to read before its next reply; - reads stdin.")],
    attach: AttachOption = None,
    message_id: MessageIdOption = None,
    by: ByOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Send a message into a run; it joins the conversation at the next iteration."""
    said = build_content(read_message_argument(message), read_attachments(attach))

    async def act(run: Run) -> dict[str, Any]:
        await run.inject(said, id=message_id)
        return {"id": run.id, "injected": True}

    done = act_on_run(server, id, act, by=by)
    _print_outcome(done, "the message joins {id} at its next iteration", output)


def interrupt(
    id: RunArgument,
    message: Annotated[
        str | None, typer.Argument(help="What to go on with; - reads stdin.", show_default=False)
    ] = None,
    attach: AttachOption = None,
    message_id: MessageIdOption = None,
    by: ByOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Stop what a run is at. With a message it goes on with that; without, the turn ends as it stands."""
    if message is None and attach:
        raise InvalidInputError("what is attached goes with a message", hint='perdure interrupt ID "Look at this." …')
    said = None if message is None else build_content(read_message_argument(message), read_attachments(attach))

    async def act(run: Run) -> dict[str, Any]:
        await run.interrupt(said, id=message_id)
        return {"id": run.id, "interrupted": True}

    done = act_on_run(server, id, act, by=by)
    after = "its turn ends" if said is None else "it goes on with the message"
    _print_outcome(done, f"{{id}} stops what it is at; {after}", output)


def cancel(
    id: RunArgument,
    wait: WaitOption = False,
    by: ByOption = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Cancel a run: what is in flight is stopped, what is finished is kept, every tool call has a result."""

    async def act(run: Run) -> dict[str, Any]:
        await run.cancel()
        return {"id": run.id, "status": await _wait_for_run_end(run) if wait else "cancelling"}

    said = act_on_run(server, id, act, by=by)
    _print_outcome(said, "{id} is {status}" if wait else "{id} was told to stop", output)


def close(
    id: RunArgument,
    wait: WaitOption = False,
    by: ByOption = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """End a session after the turn that it is at. A message opens it again."""

    async def act(run: Run) -> dict[str, Any]:
        await run.close()
        return {"id": run.id, "status": await _wait_for_run_end(run) if wait else "closing"}

    said = act_on_run(server, id, act, by=by)
    _print_outcome(said, "{id} is {status}" if wait else "{id} ends after its turn", output)


def resume(
    id: RunArgument,
    limit: LimitOption = None,
    by: ByOption = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Let a paused run try the same step again; open a failed, cancelled or timed-out one again where it ended.

    One that is paused at a limit goes on when that is raised.
    """
    raised = parse_limits(limit)

    async def act(run: Run) -> dict[str, Any]:
        before = await run.status()
        if before.at_limit is not None and not raised:
            raise InvalidInputError(
                f"run {run.id} is paused: {before.at_limit}",
                hint=f"Raise that limit: perdure resume {run.id} --limit {before.at_limit.key}=<more>",
            )
        await run.resume(limits=raised)
        return {"id": run.id, "resumed": True, "was": before.state}

    said = act_on_run(server, id, act, by=by)
    ended = said["was"] in ("completed", "failed", "cancelled")
    text = "{id} was {was}, and goes on from where it ended" if ended else "{id} tries the step again that it paused at"
    if raised and not ended:
        text = "{id} may use more"
    _print_outcome(said, text, output)


def parse_limits(given: list[str] | None) -> dict[str, Any]:
    """What ``--limit`` says, as ``Run.resume`` takes it. Raises ``InvalidInputError``."""
    from ..loop import parse_run_limits

    limits: dict[str, Any] = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not equals or not value:
            raise InvalidInputError(f"--limit {one}: it has no value", hint="For instance --limit cost_usd=5")
        scope, dot, inner = name.partition(".")
        if dot and scope == "turn":
            limits.setdefault("turn", {})[inner] = value
        else:
            limits[name] = value
    if limits:
        parse_run_limits(limits)
    return limits


async def _wait_for_run_end(run: Run) -> str:
    """Wait for the end of the run, whatever it is."""
    from ..errors import PerdureError, RunCancelledError

    try:
        await run.result()
    except RunCancelledError:
        return "cancelled"
    except PerdureError:
        return "failed"
    return "completed"


def _print_outcome(said: dict[str, Any], text: str, output: OutputFormat) -> None:
    if output is OutputFormat.TEXT:
        print_line(text.format(**said))
    else:
        print_json(said, output=output)
