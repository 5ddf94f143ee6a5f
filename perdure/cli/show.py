"""``perdure show``: one run: its conversation, what it cost, what it is at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import LIST_HINT, PerdureError, RunNotFoundError, StoreError
from ..terminal import escape_line, print_line
from .connection import find_ui_url, open_client
from .options import OutputFormat, OutputOptions, RunArgument, StoreOptions, print_json

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.run import Run
    from ..toolsets import Artifact
    from ..types.approvals import DecidedApproval
    from ..types.interface import Status
    from ..types.messages import Message, Usage


# ---
# What people decided, answered and approved for all calls of a tool, as ``perdure show`` says it.


def format_decisions(past: Sequence[DecidedApproval]) -> list[str]:
    """Who approved, denied or answered which call, a line each, in their order."""
    return [_format_past_decision(one) for one in past]


def format_standing_approvals(status: Status) -> list[str]:
    """Who has approved every call of which tool, a line each."""
    return [
        f"always approved: {escape_line(one.tool)}, by {escape_line(one.by)} at {one.at}; "
        f"`perdure revoke {status.context_id} {escape_line(one.tool)}` takes it back"
        for one in status.standing
    ]


def _format_past_decision(one: DecidedApproval) -> str:
    how = ", with other arguments" if one.changed else ""
    how += ", as all later calls of it" if one.always else ""
    how += f": {one.comment}" if one.comment else ""
    return escape_line(f"{one.name} ({one.call_id}): {one}{how}")


@dataclass
class RunDetails:
    """All that is known of a run."""

    status: Status
    messages: list[Message] | None
    """None where this machine cannot read the transcript; ``note`` says why."""
    full_messages: list[Message] | None = None
    """With what summaries stand for, where that is more."""
    artifacts: list[Artifact] = field(default_factory=list)
    children: list[SubagentRun] = field(default_factory=list)
    """Runs of the agents that it called, each behind its parent."""
    decided: list[DecidedApproval] = field(default_factory=list)
    """What people decided and answered, in the order in which it was told."""
    note: str | None = None
    error: PerdureError | None = None
    """What a failed run failed with."""
    ui: str | None = None

    @property
    def _all_messages(self) -> list[Message]:
        return self.full_messages or self.messages or []

    @property
    def replies(self) -> list[Message]:
        """What models said."""
        return [message for message in self._all_messages if message.role == "assistant"]

    @property
    def usage(self) -> Usage:
        """Tokens, of the transcript if it is there: a closed run's status has none."""
        from ..types.messages import Usage

        counted = [message.usage for message in self._all_messages if message.usage is not None]
        return sum(counted, Usage()) if counted else self.status.usage

    @property
    def cost(self) -> float | None:
        """Dollars; None where no call had a price."""
        prices = [message.cost_usd for message in self._all_messages if message.cost_usd is not None]
        return sum(prices) if prices else self.status.cost_usd


def show(
    id: RunArgument,
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing, and show what summaries stand for.")] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Show a run: its conversation with numbered iterations, what it cost, and what it is at or waits for."""

    async def go() -> RunDetails:
        from .connection import find_run

        async with open_client(server) as client:
            return await read_run_details(client, await find_run(client, id), full=full)

    shown = asyncio.run(go())
    if output is not OutputFormat.TEXT:
        print_json(serialize_run_details(shown), output=output)
        return
    for line in format_run_details(shown, full=full):
        print_line(line)


async def read_run_details(client: Client, run: Run, *, full: bool = False) -> RunDetails:
    """Ask Temporal and the store; what one of them does not know or cannot say is left out, and said so.

    ``full``: the messages that summaries stand for, too.
    """
    from ..client.decisions import list_decisions

    status = await read_run_status(run)
    shown = RunDetails(status, None, decided=list(status.decided), ui=await find_ui_url(client, run.id))
    try:
        shown.messages = await run.transcript(full=full)
        if not full and any(message.replaces for message in shown.messages):
            shown.full_messages = await run.transcript(full=True)
        shown.artifacts = await run.artifacts()
        shown.children = await list_subagent_runs(run)
        shown.decided = await list_decisions(run, status.decided)
    except (StoreError, RunNotFoundError) as error:
        shown.note = f"the transcript cannot be read: {error.message}" + (f" {error.hint}" if error.hint else "")
    if status.state == "failed":
        try:
            await run.result()
        except PerdureError as error:
            shown.error = error
    return shown


def serialize_run_details(shown: RunDetails) -> dict[str, Any]:
    """For ``-o json``."""

    return {
        "id": shown.status.context_id,
        "status": shown.status.model_dump(mode="json"),
        "messages": None if shown.messages is None else [message.model_dump(mode="json") for message in shown.messages],
        "artifacts": [one.model_dump(mode="json", exclude={"pieces"}) for one in shown.artifacts],
        "children": serialize_subagent_runs(shown.children),
        "decided": [one.model_dump(mode="json") for one in shown.decided],
        "model_calls": len(shown.replies),
        "usage": shown.usage.model_dump(mode="json"),
        "cost_usd": shown.cost,
        "error": None if shown.error is None else {"type": type(shown.error).__name__, "message": shown.error.message},
        "note": shown.note,
        "ui_url": shown.ui,
    }


def format_run_details(shown: RunDetails, *, full: bool = False) -> list[str]:
    """For people."""
    from ..terminal import style_text
    from .events import format_unanswered
    from .output import can_colour_stdout, format_conversation

    colour = can_colour_stdout()
    status = shown.status
    tint = {"completed": "green", "failed": "red", "cancelled": "red", "paused": "yellow"}.get(status.state, "cyan")
    state = style_text(status.state, tint, on=colour)
    said = [f"{style_text(status.context_id, 'bold', on=colour)}  {state}  agent {status.agent}"]
    if counts := _format_totals(shown):
        said.append(style_text(f"  {counts}", "dim", on=colour))
    if shown.status.limits[:-1]:  # more than the turn's iterations
        said += [style_text(f"  {use}", "dim", on=colour) for use in shown.status.limits]
    if shown.ui:
        said.append(style_text(f"  {shown.ui}", "dim", on=colour))
    said.append("")
    if shown.messages:
        said += [*format_conversation(shown.messages, full=full, colour=colour), ""]
    for one in shown.artifacts:
        said.append(f"{style_text('artifact', 'bold', on=colour)} {one}")
    if shown.artifacts:
        said.append("")
    said += format_subagent_runs(shown.children)
    if shown.children:
        said.append("")
    said += [
        style_text(line, "dim", on=colour)
        for line in (*format_decisions(shown.decided), *format_standing_approvals(status))
    ]
    if status.unanswered:
        said.append(style_text(format_unanswered(status.unanswered), "yellow", on=colour))
    if shown.note:
        said.append(style_text(shown.note, "yellow", on=colour))
    if shown.error:
        first, *more = f"failed: {type(shown.error).__name__}: {shown.error}".splitlines()
        said += [style_text(line, "red", on=colour) for line in (first, *(f"  {line}" for line in more))]
    elif doing := format_activity(status):
        said.append(style_text(doing, "yellow" if status.reason else "cyan", on=colour))
    return said[:-1] if not said[-1] else said


def _format_totals(shown: RunDetails) -> str:
    calls, usage = len(shown.replies) or shown.status.iteration, shown.usage
    said = [f"{calls} model call{'' if calls == 1 else 's'}"] if calls else []
    if usage.total_tokens:
        said.append(f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out")
    if shown.cost is not None:
        said.append(f"${shown.cost:.4f}")
    return " · ".join(said)


def _format_pending_calls(status: Status) -> str:
    from ..terminal import escape_line

    said = []
    for what, asked in (("approval", True), ("an answer", False)):
        names = ", ".join(escape_line(one.name) for one in status.approvals if (one.kind == "approval") == asked)
        said += [f"waits for {what}: {names}"] if names else []
    return f"{'; '.join(said)}; `perdure approvals` shows more"


def format_activity(status: Status) -> str | None:
    """What an open run is at, or waits for, in a line; None for a closed one."""
    if status.state in ("completed", "failed", "cancelled"):
        return None
    if status.state == "paused" and status.at_limit is not None:
        raising = f"perdure resume {status.context_id} --limit {status.at_limit.key}=<more>"
        return f"paused: {status.at_limit}; `{raising}` lets it go on"
    if status.state == "paused":
        return f"paused: {status.reason}; `perdure resume {status.context_id}` goes on when the cause is gone"
    if status.doing == "nothing":  # nobody answered the query
        return status.reason or status.state
    if status.doing == "tools":
        at = "tools: " + (", ".join(call.name for call in status.calls) or "done")
    elif status.doing == "branches":
        at = "branches: " + ", ".join(call.name for call in status.calls)
    elif status.doing == "message":
        at = "waits for a message"
    else:
        at = {
            "model": "the model thinks",
            "compacting": "summing up what was said",
            "closing": "recording the end",
            "approval": _format_pending_calls(status),
            "answer": _format_pending_calls(status),
        }[status.doing]
    at = f"iteration {status.iteration + (status.doing == 'model')} · {at}"
    if status.queued and status.doing == "tools":  # what a model call was given is queued until it has answered
        at += f" · {status.queued} message{'s' if status.queued > 1 else ''} waiting to be read"
    return f"{at} · {status.reason}" if status.reason else at


# ---
# The runs that a run's calls of other agents have begun, and theirs: how each stands, and what it took.


_MAX_CONCURRENT_STATUS_QUERIES = 20
"""Runs that are asked at once: each may have to wait for a worker that does not answer."""


@dataclass(frozen=True, slots=True)
class SubagentRun:
    """A run below the one that is shown."""

    depth: int
    """From 1."""
    status: Status
    background: bool
    """Its parent goes on while it runs."""


async def list_subagent_runs(run: Run) -> list[SubagentRun]:
    """The runs below ``run``, each behind its parent. One that was not let begin is left out.

    Raises ``TranscriptUnavailableError`` without a store, ``StoreError``.
    """
    return await _list_runs_below(run, 1, asyncio.Semaphore(_MAX_CONCURRENT_STATUS_QUERIES))


async def _list_runs_below(run: Run, depth: int, turn: asyncio.Semaphore) -> list[SubagentRun]:
    from ..client.follow import list_child_runs

    children = [(run.client.run(name), background) for name, background in (await list_child_runs(run)).items()]
    branches = await asyncio.gather(*(_list_subtree(child, depth, background, turn) for child, background in children))
    return [one for branch in branches for one in branch]


async def _list_subtree(run: Run, depth: int, background: bool, turn: asyncio.Semaphore) -> list[SubagentRun]:
    try:
        async with turn:
            status = await read_run_status(run)
    except RunNotFoundError:
        return []
    return [SubagentRun(depth, status, background), *await _list_runs_below(run, depth + 1, turn)]


async def read_run_status(run: Run) -> Status:
    """Its status, of one that Temporal has forgotten as far as the store knows it. Raises ``RunNotFoundError``."""
    from ..types.interface import Response, Status

    try:
        return await run.status()
    except RunNotFoundError:
        row = await (await run.client.store()).get_run(run.id)
        if row is None:
            hint = LIST_HINT
            raise RunNotFoundError(f"there is no run {run.id!r}", hint=hint) from None
    took = Response.model_validate_json(row.result or b"{}")
    facts: dict[str, Any] = {"state": row.status, "agent": row.agent, "context_id": run.id}
    facts |= {"head": row.head, "iteration": row.iterations, "usage": took.usage, "cost_usd": took.cost_usd}
    facts["unanswered"] = took.unanswered
    return Status.model_validate(facts)


def serialize_subagent_runs(below: Sequence[SubagentRun]) -> list[dict[str, Any]]:
    """For ``-o json``."""
    return [
        {
            "id": one.status.context_id,
            "depth": one.depth,
            "agent": one.status.agent,
            "background": one.background,
            "state": one.status.state,
            "iterations": one.status.iteration,
            "tokens": one.status.usage.total_tokens,
            "cost_usd": one.status.cost_usd,
            "activity": _format_subagent_activity(one.status),
        }
        for one in below
    ]


def format_subagent_runs(below: Sequence[SubagentRun]) -> Iterator[str]:
    """For people: what a run took is said with what all below it took."""
    for run in below:
        one, indent = run.status, "  " * run.depth
        took = [f"{one.iteration} iteration{'' if one.iteration == 1 else 's'}"] if one.iteration else []
        if one.usage.total_tokens:
            took.append(f"{one.usage.total_tokens:,} tokens")
        if one.cost_usd is not None:
            took.append(f"${one.cost_usd:.4f}")
        who = f"agent {one.agent}{' in background' if run.background else ''}"
        said = " · ".join([who, *took])
        yield f"{indent}{one.context_id}  {one.state}  {said}"
        if doing := _format_subagent_activity(one):
            yield f"{indent}  {doing}"


def _format_subagent_activity(status: Status) -> str | None:
    """What one that goes on is at, and why one that failed did."""

    return format_activity(status) or (status.reason if status.state == "failed" else None)
