"""The commands ``send``, ``inject``, ``interrupt``, ``cancel``, ``terminate``, ``close``, ``delete``, ``pause`` and
``resume``."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import (
    AgentNotFoundError,
    InvalidInputError,
    PerdureError,
    RunCancelledError,
    RunNotFoundError,
    RunStuckError,
    RuntimeSetupError,
)
from .bulk import BulkOptions, act_on_all
from .connection import ActorOptions, ActorStoreOptions, call_client, call_run, find_run
from .options import (
    AttachOption,
    ContextOption,
    IdleOption,
    MessageIdOption,
    OptionalRunArgument,
    RunArgument,
    TaskQueueOption,
    complete_agents,
    parse_json_object,
    read_message,
    read_optional_message,
)
from .output import OutputOptions, format_limit_use
from .run import wait_for_answer, wait_for_delivery, wait_while_served

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.retention import Deletion
    from ..client.run import Run
    from ..client.turn import Turn
    from ..types.interface import Response


def send(
    id: RunArgument,
    message: Annotated[str, typer.Argument(help="The message; - reads standard input.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end of the turn, and print its answer.")] = False,
    agent: Annotated[
        str | None,
        typer.Option(help="Open a conversation with this agent if none has this id.", autocompletion=complete_agents),
    ] = None,
    attach: AttachOption = None,
    context: ContextOption = None,
    idle_timeout: IdleOption = None,
    message_id: MessageIdOption = None,
    task_queue: TaskQueueOption = None,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Send a message to a conversation. It joins the turn under way, or opens the next. Prints the turn's id."""
    opening: dict[str, Any] = {"context": parse_json_object(context), "idle_timeout": idle_timeout}
    if agent is None and any(value is not None for value in opening.values()):
        hint = "Name its agent with --agent."
        raise InvalidInputError("--context and --idle-timeout apply only to a new conversation", hint=hint)
    content = read_message(message, attach)
    message_id = message_id or uuid.uuid4().hex

    async def send_message(client: Client) -> tuple[Turn, Response | None]:
        run = client.run(id) if agent is not None else await find_run(client, id)
        if agent is not None:
            from ..types.run_ids import split_run_id

            await _check_opening(run, agent)
            tenant = split_run_id(id)[0]
            sending = client.send(agent, content, id=id, message_id=message_id, tenant=tenant, **opening)
        else:
            sending = run.send(content, message_id=message_id)
        turn = await wait_for_delivery(run, sending, message_id)
        return turn, await wait_for_answer(run, turn.result) if wait else None

    turn, response = call_client(server, send_message, task_queue=task_queue)
    if response is not None:
        output.print_answer(response)
    else:
        output.print_result({"id": turn.run.id, "task_id": turn.task_id, "message_id": message_id}, turn.task_id)


async def _check_opening(run: Run, agent: str) -> None:
    """Raises ``AgentNotFoundError`` for an agent that is not known, unless the conversation exists."""
    from ..client.agents import refuse_unknown_agent

    try:
        await refuse_unknown_agent(run.client, agent)
    except AgentNotFoundError as error:
        if run.client.store_url is not None and await (await run.client.store()).get_run(run.id) is not None:
            return
        try:
            await run.describe()
        except RunNotFoundError:
            raise error from None


Outcome = tuple[dict[str, Any], str]
"""What became of a run: as fields of JSON, and as a line of text."""
LimitOption = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=VALUE", help="Raise a limit: cost_usd=5, turn.tokens=50000; repeatable."),
]
ChildrenOption = Annotated[bool, typer.Option("--children", help="Its subagents in progress, too.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for the end of the run.")]


def inject(
    id: RunArgument,
    message: Annotated[str, typer.Argument(help="What the model is to read before its next reply; - reads stdin.")],
    attach: AttachOption = None,
    message_id: MessageIdOption = None,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Send a message into a run. It joins the conversation at the next iteration."""
    content = read_message(message, attach)

    async def act(run: Run) -> Outcome:
        await run.inject(content, id=message_id)
        return {"injected": True}, f"the message joins {run.id} at its next iteration"

    _act_and_print(server, id, act, output)


def interrupt(
    id: RunArgument,
    message: Annotated[str | None, typer.Argument(help="A message for the run to go on with; - reads stdin.")] = None,
    attach: AttachOption = None,
    message_id: MessageIdOption = None,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Stop the model call and tools in flight. With a message the turn goes on with that; without, it ends."""
    content = read_optional_message(message, attach, "interrupt")

    async def act(run: Run) -> Outcome:
        await run.interrupt(content, id=message_id)
        then = "its turn ends" if content is None else "it goes on with the message"
        return {"interrupted": True}, f"{run.id} stops what it is at; {then}"

    _act_and_print(server, id, act, output)


def cancel(
    id: OptionalRunArgument = None,
    wait: WaitOption = False,
    task_queue: TaskQueueOption = None,
    *,
    bulk: BulkOptions,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Cancel a run, or with --all those that match. Calls in flight are stopped, finished work is kept, and every tool
    call has a result."""
    if bulk.everything:
        act_on_all("cancel", id, bulk, server, output, task_queue)
        return
    id = bulk.check_single(id)  # noqa: A001  # as the argument

    async def act(run: Run) -> Outcome:
        await run.cancel()
        if wait:
            return await _wait_for_run_end(run)
        return {"status": "cancelling"}, f"{run.id} was told to stop"

    _act_and_print(server, id, act, output)


def terminate(
    id: RunArgument,
    reason: Annotated[str | None, typer.Option("--reason", "-m", help="Why, for Temporal's history.")] = None,
    *,
    server: ActorOptions,
    output: OutputOptions,
) -> None:
    """End a run at once, also without a worker. Calls in flight are lost; a message goes on from there. See cancel."""

    async def act(run: Run) -> Outcome:
        await run.terminate(reason)
        return {"status": "terminated"}, f"{run.id} is terminated"

    _act_and_print(server, id, act, output)


def close(id: RunArgument, wait: WaitOption = False, *, server: ActorOptions, output: OutputOptions) -> None:
    """End a session after its present turn. A message opens it again."""

    async def act(run: Run) -> Outcome:
        await run.close()
        if wait:
            return await _wait_for_run_end(run)
        return {"status": "closing"}, f"{run.id} ends after its turn"

    _act_and_print(server, id, act, output)


def delete(
    id: RunArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete it: this cannot be undone.")] = False,
    lost: Annotated[
        bool, typer.Option("--lost", help="Also a run without a recorded end that Temporal does not know any more.")
    ] = False,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Delete a run that has ended, and its subagents' runs, from the store and from Temporal."""
    if not yes:
        raise InvalidInputError(f"{id} would be deleted, and cannot be restored", hint=f"perdure delete {id} --yes")

    async def delete_run(client: Client) -> Deletion:
        return await client.delete(id, lost=lost)

    deleted = call_client(server, delete_run)
    facts = {"id": id, "runs": deleted.runs, "executions": deleted.executions}
    output.print_result(facts, f"{id} is deleted: runs: {deleted.runs}, executions in Temporal: {deleted.executions}")


def pause(
    id: RunArgument,
    reason: Annotated[str | None, typer.Option("--reason", help="Why, for those who see that it is paused.")] = None,
    children: ChildrenOption = False,
    *,
    server: ActorOptions,
    output: OutputOptions,
) -> None:
    """Pause a run until it is resumed. What is in flight ends first; messages and decisions are kept."""

    async def act(run: Run) -> Outcome:
        before = await run.status()
        await run.pause(reason=reason, children=children)
        if before.pause is not None:
            return {"status": "pausing", "was": before.state}, f"{run.id} was {before.pause} already"
        return {"status": "pausing", "was": before.state}, f"{run.id} pauses as soon as what is in flight has ended"

    _act_and_print(server, id, act, output)


def resume(
    id: OptionalRunArgument = None,
    limit: LimitOption = None,
    children: ChildrenOption = False,
    from_store: Annotated[
        bool, typer.Option("--from-store", help="The store is an older backup: go on from what it has of the run.")
    ] = False,
    task_queue: TaskQueueOption = None,
    *,
    bulk: BulkOptions,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Let a paused run go on, with the step that it paused at; continue a failed, cancelled or timed-out run where it
    ended.

    A run that is paused at a limit continues when the limit is raised. With --all all runs that match are resumed.
    """
    limits = parse_limits(limit)
    if bulk.everything:
        if limits or children or from_store:
            raise InvalidInputError(
                "--limit, --children and --from-store are for one run", hint="Leave them out, or --all."
            )
        act_on_all("resume", id, bulk, server, output, task_queue)
        return
    id = bulk.check_single(id)  # noqa: A001  # as the argument

    async def act(run: Run) -> Outcome:
        from ..client.messages import wait_for_closed_status
        from ..types.run_states import ENDED_STATES

        # A failure is recorded a moment before the run has closed.
        before = await wait_for_closed_status(run) or await run.status()
        if before.at_limit is not None and not limits and not from_store:
            hint = f"Raise that limit: perdure resume {run.id} --limit {before.at_limit.key}=<more>"
            raise InvalidInputError(f"run {run.id} is paused: {format_limit_use(before.at_limit)}", hint=hint)
        await run.resume(limits=limits, children=children, from_store=from_store)
        if from_store:
            then = "goes on from what the store has; send messages that came later again"
        elif before.state in ENDED_STATES:
            then = f"was {before.state}, and goes on from where it ended"
        elif limits:
            then = "may use more"
        elif before.pause is not None:
            then = f"was {before.pause}; it goes on"
        elif before.state == "paused":
            then = "tries the step again that it paused at"
        else:
            then = "was not paused"
        return {"resumed": True, "was": before.state}, f"{run.id} {then}"

    _act_and_print(server, id, act, output)


def parse_limits(options: list[str] | None) -> dict[str, Any]:
    """The values of ``--limit``, as ``Run.resume`` takes them. Raises ``InvalidInputError``."""
    from ..loop.requests import parse_run_limits

    limits: dict[str, Any] = {}
    for option in options or ():
        name, _, value = option.partition("=")
        if not value:
            raise InvalidInputError(f"--limit {option}: it has no value", hint="For instance --limit cost_usd=5")
        scope, _, turn_limit = name.partition(".")
        if turn_limit and scope == "turn":
            limits.setdefault("turn", {})[turn_limit] = value
        else:
            limits[name] = value
    if limits:
        parse_run_limits(limits)
    return limits


async def _wait_for_run_end(run: Run) -> Outcome:
    """Raises ``NoWorkerError``, ``RunStuckError`` if no worker can end the run."""
    status = "completed"
    try:
        await wait_while_served(run, run.result())
    except (RuntimeSetupError, RunStuckError):
        raise
    except RunCancelledError:
        status = "cancelled"
    except PerdureError:
        status = "failed"
    return {"status": status}, f"{run.id} is {status}"


def _act_and_print(
    server: ActorOptions | ActorStoreOptions, id: str, act: Callable[[Run], Awaitable[Outcome]], output: OutputOptions
) -> None:
    """Do ``act`` to the run that ``id`` names, and print the outcome."""

    async def act_on_run(run: Run) -> None:
        facts, text = await act(run)
        output.print_result({"id": run.id, **facts}, text)

    call_run(server, id, act_on_run)
