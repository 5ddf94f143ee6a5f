"""``perdure show``: a run's conversation, cost and activity."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import LIST_HINT, PerdureError, RunNotFoundError, StoreError
from ..terminal import escape_line, print_line, style_text
from .connection import StoreOptions, call_run, find_ui_url
from .events import format_unanswered
from .options import RunArgument
from .output import OutputOptions, format_conversation, translate_hint

if TYPE_CHECKING:
    from ..client.run import Run
    from ..toolsets import Artifact
    from ..types.approvals import DecidedApproval
    from ..types.interface import Status
    from ..types.messages import Message, Usage


@dataclass
class RunDetails:
    """All that is known of a run."""

    status: Status
    messages: list[Message] | None
    """None where this machine cannot read the transcript; ``note`` says why."""
    full_messages: list[Message] | None = None
    """The messages with those that summaries replaced, if there are any."""
    artifacts: list[Artifact] = field(default_factory=list)
    children: list[SubagentRun] = field(default_factory=list)
    """Runs of the agents that it called, each behind its parent."""
    decided: list[DecidedApproval] = field(default_factory=list)
    """Decisions and answers, in the order in which they came."""
    note: str | None = None
    error: PerdureError | None = None
    """What a failed run failed with."""
    ui: str | None = None

    @property
    def _all_messages(self) -> list[Message]:
        return self.full_messages or self.messages or []

    @property
    def replies(self) -> list[Message]:
        """The replies of models."""
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
    full: Annotated[
        bool, typer.Option("--full", help="Shorten nothing, and show the messages that summaries replaced.")
    ] = False,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Show a run: its conversation with numbered iterations, its cost, and its activity or what it waits for."""
    details = call_run(server, id, lambda run: read_run_details(run, full=full))
    if output.format != "text":
        output.print_json(serialize_run_details(details))
        return
    for line in format_run_details(details, full=full):
        print_line(line)


async def read_run_details(run: Run, *, full: bool = False) -> RunDetails:
    """Reads a run from Temporal and the store. What cannot be read is left out, and ``note`` says why.

    ``full`` includes the messages that summaries replaced.
    """
    from ..client.decisions import list_decisions

    status = await _read_run_status(run)
    details = RunDetails(status, None, decided=list(status.decided), ui=await find_ui_url(run.client, run.id))
    try:
        details.messages = await run.transcript(full=full)
        if not full and any(message.replaces for message in details.messages):
            details.full_messages = await run.transcript(full=True)
        details.artifacts = await run.artifacts()
        details.children = await _list_runs_below(run, 1, asyncio.Semaphore(_MAX_CONCURRENT_STATUS_QUERIES))
        details.decided = await list_decisions(run, status.decided)
    except (StoreError, RunNotFoundError) as error:
        details.note = f"the transcript cannot be read: {error.message}"
        if error.hint:
            details.note += f". {translate_hint(error.hint)}"
    if status.state == "failed":
        try:
            await run.result()
        except PerdureError as error:
            details.error = error
    return details


def serialize_run_details(details: RunDetails) -> dict[str, Any]:
    """The JSON of ``perdure show``."""
    messages, error = details.messages, details.error
    return {
        "id": details.status.context_id,
        "status": details.status.model_dump(mode="json"),
        "messages": None if messages is None else [message.model_dump(mode="json") for message in messages],
        "artifacts": [artifact.model_dump(mode="json", exclude={"pieces"}) for artifact in details.artifacts],
        "children": [_serialize_subagent_run(child) for child in details.children],
        "decided": [decision.model_dump(mode="json") for decision in details.decided],
        "model_calls": len(details.replies),
        "usage": details.usage.model_dump(mode="json"),
        "cost_usd": details.cost,
        "error": None if error is None else {"type": type(error).__name__, "message": error.message},
        "note": details.note,
        "ui_url": details.ui,
    }


def format_run_details(details: RunDetails, *, full: bool = False) -> list[str]:
    """The text of ``perdure show``, as lines."""
    status = details.status
    colour = {"completed": "green", "failed": "red", "cancelled": "red", "paused": "yellow"}.get(status.state, "cyan")
    state = style_text(status.state, colour)
    lines = [f"{style_text(status.context_id, 'bold')}  {state}  agent {status.agent}"]
    facts = [_format_totals(details)]
    if status.limits[:-1]:  # more than the turn's iterations
        facts += map(str, status.limits)
    facts.append(details.ui or "")
    lines += [style_text(f"  {fact}", "dim") for fact in facts if fact]
    for section in (
        format_conversation(details.messages or (), full=full),
        [f"{style_text('artifact', 'bold')} {artifact}" for artifact in details.artifacts],
        [line for child in details.children for line in _format_subagent_run(child)],
        list(_format_closing_lines(details)),
    ):
        if section_lines := list(section):
            lines += ["", *section_lines]
    return lines


def _format_closing_lines(details: RunDetails) -> Iterator[str]:
    status = details.status
    for decision in details.decided:
        yield style_text(_format_past_decision(decision), "dim")
    for standing in status.standing:
        tool = escape_line(standing.tool)
        approved = f"always approved: {tool}, by {escape_line(standing.by)} at {standing.at}"
        yield style_text(f"{approved}; `perdure revoke {status.context_id} {tool}` takes it back", "dim")
    if status.unanswered:
        yield style_text(format_unanswered(status.unanswered), "yellow")
    if details.note:
        yield style_text(details.note, "yellow")
    if details.error:
        first, *more = f"failed: {type(details.error).__name__}: {details.error}".splitlines()
        yield from (style_text(line, "red") for line in (first, *(f"  {line}" for line in more)))
    elif activity := format_activity(status):
        yield style_text(activity, "yellow" if status.reason else "cyan")


def _format_past_decision(decision: DecidedApproval) -> str:
    comment = f": {decision.comment}" if decision.comment else ""
    text = f"{decision}{format_decision_scope(decision)}{comment}"
    return escape_line(f"{decision.name} ({decision.call_id}): {text}")


def format_decision_scope(decision: DecidedApproval) -> str:
    """What a decision changed or covers beyond its call."""
    changed = ", with other arguments" if decision.changed else ""
    return f"{changed}{', as all later calls of it' if decision.always else ''}"


def _format_totals(details: RunDetails) -> str:
    calls, usage = len(details.replies) or details.status.iteration, details.usage
    tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out" if usage.total_tokens else ""
    return _join_totals(calls, "model call", tokens, details.cost)


def _join_totals(count: int, noun: str, tokens: str, cost: float | None) -> str:
    counted = f"{count} {noun}{'' if count == 1 else 's'}" if count else ""
    return " · ".join(filter(None, (counted, tokens, "" if cost is None else f"${cost:.4f}")))


def _format_pending_calls(status: Status) -> str:
    waits = []
    for decision, is_approval in (("approval", True), ("an answer", False)):
        names = [escape_line(call.name) for call in status.approvals if (call.kind == "approval") == is_approval]
        waits += [f"waits for {decision}: {', '.join(names)}"] if names else []
    return f"{'; '.join(waits)}; `perdure approvals` shows more"


def format_activity(status: Status) -> str | None:
    """What an open run does or waits for, in a line; None for a closed run."""
    if status.state in ("completed", "failed", "cancelled"):
        return None
    resume = f"perdure resume {status.context_id}"
    if status.state == "paused" and status.at_limit is not None:
        return f"paused: {status.at_limit}; `{resume} --limit {status.at_limit.key}=<more>` lets it go on"
    if status.state == "paused" and status.pause is not None:
        return f"{status.pause}; `{resume}` lets it go on"
    if status.state == "paused":
        return f"paused: {status.reason}; `{resume}` goes on when the cause is gone"
    names = ", ".join(call.name for call in status.calls)
    if status.doing == "nothing":  # no worker answered the query
        return status.reason or status.state
    doing = {
        "model": "the model thinks",
        "compacting": "summing up what was said",
        "tools": f"tools: {names or 'done'}",
        "branches": f"branches: {names}",
        "approval": _format_pending_calls(status),
        "answer": _format_pending_calls(status),
        "message": "waits for a message",
        "closing": "recording the end",
    }[status.doing]
    activity = f"iteration {status.iteration + (status.doing == 'model')} · {doing}"
    if status.queued and status.doing == "tools":  # messages that a model call was given stay queued until its reply
        activity += f" · {status.queued} message{'s' if status.queued > 1 else ''} waiting to be read"
    if status.pause is not None:
        return f"{activity} · then {status.pause}"
    return f"{activity} · {status.reason}" if status.reason else activity


# ---
# The runs of subagents below a run.

_MAX_CONCURRENT_STATUS_QUERIES = 20
"""Concurrent queries of runs: each may have to wait for a worker that does not answer."""


@dataclass(frozen=True, slots=True)
class SubagentRun:
    """A run below the one that is shown."""

    depth: int
    """From 1."""
    status: Status
    background: bool
    """Its parent goes on while it runs."""


async def _list_runs_below(run: Run, depth: int, slots: asyncio.Semaphore) -> list[SubagentRun]:
    """The runs below ``run``, each behind its parent, without children that never started.

    Raises ``TranscriptUnavailableError`` without a store, ``StoreError``.
    """
    from ..client.follow import list_child_runs

    async def list_subtree(child: Run, background: bool) -> list[SubagentRun]:
        try:
            async with slots:
                status = await _read_run_status(child)
        except RunNotFoundError:
            return []
        return [SubagentRun(depth, status, background), *await _list_runs_below(child, depth + 1, slots)]

    children = [(run.client.run(name), background) for name, background in (await list_child_runs(run)).items()]
    subtrees = await asyncio.gather(*(list_subtree(child, background) for child, background in children))
    return [child for subtree in subtrees for child in subtree]


async def _read_run_status(run: Run) -> Status:
    """The status, or what the store knows of a run that Temporal has deleted. Raises ``RunNotFoundError``."""
    from ..types.interface import Response, Status

    try:
        return await run.status()
    except RunNotFoundError:
        row = await (await run.client.store()).get_run(run.id)
        if row is None:
            raise RunNotFoundError(f"there is no run {run.id!r}", hint=LIST_HINT) from None
    response = Response.model_validate_json(row.result or b"{}")
    facts: dict[str, Any] = {"state": row.status, "agent": row.agent, "context_id": run.id}
    facts |= {"head": row.head, "iteration": row.iterations, "usage": response.usage, "cost_usd": response.cost_usd}
    return Status.model_validate({**facts, "unanswered": response.unanswered})


def _serialize_subagent_run(run: SubagentRun) -> dict[str, Any]:
    status = run.status
    return {
        "id": status.context_id,
        "depth": run.depth,
        "agent": status.agent,
        "background": run.background,
        "state": status.state,
        "iterations": status.iteration,
        "tokens": status.usage.total_tokens,
        "cost_usd": status.cost_usd,
        "activity": _format_subagent_activity(status),
    }


def _format_subagent_run(run: SubagentRun) -> Iterator[str]:
    """Its usage is that of its own model calls and of all runs below it."""
    status, indent = run.status, "  " * run.depth
    background = " in background" if run.background else ""
    tokens = f"{status.usage.total_tokens:,} tokens" if status.usage.total_tokens else ""
    totals = _join_totals(status.iteration, "iteration", tokens, status.cost_usd)
    facts = f"agent {status.agent}{background}{f' · {totals}' if totals else ''}"
    yield f"{indent}{status.context_id}  {status.state}  {facts}"
    if activity := _format_subagent_activity(status):
        yield f"{indent}  {activity}"


def _format_subagent_activity(status: Status) -> str | None:
    """What an open run does, or why a failed one failed."""
    return format_activity(status) or (status.reason if status.state == "failed" else None)
