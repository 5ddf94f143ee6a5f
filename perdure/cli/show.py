"""``perdure show``: a run's conversation, cost and activity."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._terminal import escape_line, print_line, style_text
from ..errors import LIST_HINT, PerdureError, RunNotFoundError, StoreError
from .connection import StoreOptions, call_run, find_ui_url
from .events import format_unanswered
from .options import RunArgument
from .output import (
    OutputOptions,
    format_conversation,
    format_cost,
    format_duration,
    format_held_up,
    format_limit_use,
    translate_hint,
)

if TYPE_CHECKING:
    from ..artifacts import Artifact
    from ..client.run import Run
    from ..types.approvals import DecidedApproval
    from ..types.interface import Status
    from ..types.limits import LimitUse
    from ..types.messages import Message, Usage


_ENDED = ("completed", "failed", "cancelled", "terminated", "timed_out")
_COLOURS = {"completed": "green", "paused": "yellow", "held_up": "yellow"} | dict.fromkeys(_ENDED[1:], "red")
_SHOWN_CAUSES = 3


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
    tree: TreeTotals | None = None
    """None where its events cannot be read."""
    decided: list[DecidedApproval] = field(default_factory=list)
    """Decisions and answers, in the order in which they came."""
    note: str | None = None
    error: PerdureError | None = None
    """What a failed run failed with."""
    asked: str | None = None
    """The beginning of the first message, of a run without a reply."""
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


async def read_run_details(run: Run, *, full: bool = False, tree: bool = True) -> RunDetails:
    """Reads a run from Temporal and the store. What cannot be read is left out, and ``note`` says why.

    ``full`` includes the messages that summaries replaced. Without ``tree`` only the status, the messages and the error
    are read, and not the events of the run and those below it.
    """
    from ..client.decisions import merge_decisions

    status = await _read_run_status(run, decided=tree)
    ui = await find_ui_url(run.client, run.id) if tree else None
    details = RunDetails(status, None, decided=list(status.decided), ui=ui)
    try:
        details.messages = await run.transcript(full=full)
        if not details.messages:
            details.asked = (await (await run.client.store()).find_first_messages([run.id])).get(run.id)
        if tree:
            if not full and any(message.replaces for message in details.messages):
                details.full_messages = await run.transcript(full=True)
            details.artifacts = await run.artifacts()
            events = await _read_tree_events(run)
            slots = asyncio.Semaphore(_MAX_CONCURRENT_STATUS_QUERIES)
            children = await _list_runs_below(run, 1, events.children, slots)
            details.children, details.tree = _build_tree_totals(events, status, children)
            details.decided = merge_decisions(events.decided, status.decided)
    except (StoreError, RunNotFoundError) as error:
        details.note = f"the transcript cannot be read: {error.message}"
        if error.hint:
            details.note += f". {translate_hint(error.hint)}"
    if status.state in ("failed", "terminated", "timed_out"):
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
        "tree": None if details.tree is None else details.tree.serialize(),
        "limits": [use.model_dump(mode="json") for use in count_running_subagents(details)],
        "decided": [decision.model_dump(mode="json") for decision in details.decided],
        "iterations": len(details.replies),
        "usage": details.usage.model_dump(mode="json"),
        "cost_usd": details.cost,
        "error": None if error is None else {"type": type(error).__name__, "message": error.message},
        "note": details.note,
        "ui_url": details.ui,
    }


def format_run_details(details: RunDetails, *, full: bool = False) -> list[str]:
    """The text of ``perdure show``, as lines."""
    status = details.status
    state = style_text(status.state.replace("_", " "), _COLOURS.get(status.state, "cyan"))
    lines = [f"{style_text(status.context_id, 'bold')}  {state}  agent {status.agent}"]
    facts = [_format_totals(details), _format_tree_totals(details)]
    if status.limits[:-1]:  # more than the turn's iterations
        facts += map(format_limit_use, count_running_subagents(details))
    if status.version is not None:
        facts.append(f"on version {escape_line(status.version)}{', pinned' if status.version_pinned else ''}")
    facts.append(details.ui or "")
    lines += [style_text(f"  {fact}", "dim") for fact in facts if fact]
    for section in (
        format_conversation(details.messages or (), full=full, call_ids=True),
        [f"{style_text('asked', 'bold')} {escape_line(details.asked)}"] if details.asked else (),
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
        yield style_text(format_past_decision(decision), "dim")
    for standing in status.standing:
        tool = escape_line(standing.tool)
        approved = f"always approved: {tool}, by {escape_line(standing.by)} at {standing.at}"
        yield style_text(f"{approved}; `perdure revoke {status.context_id} {tool}` takes it back", "dim")
    if status.unanswered:
        yield style_text(format_unanswered(status.unanswered), "yellow")
    if details.note:
        yield style_text(details.note, "yellow")
    if details.error:
        error = f"failed: {type(details.error).__name__}: {translate_hint(str(details.error))}"
        first, *more = error.splitlines()
        yield from (style_text(line, "red") for line in (first, *(f"  {line}" for line in more)))
    elif activity := format_activity(status):
        yield style_text(activity, "yellow" if status.reason or status.held_up else "cyan")


def format_past_decision(decision: DecidedApproval) -> str:
    """A decision or an answer in a line: who, when, and its comment."""
    comment = f": {decision.comment}" if decision.comment else ""
    text = f"{decision}{format_decision_scope(decision)}{comment}"
    return escape_line(f"{decision.tool} ({decision.call_id}): {text}")


def format_decision_scope(decision: DecidedApproval) -> str:
    """What a decision changed or covers beyond its call."""
    changed = ", with other arguments" if decision.changed else ""
    return f"{changed}{', as all later calls of it' if decision.always else ''}"


def _format_totals(details: RunDetails) -> str:
    calls = len(details.replies) or details.status.iteration
    time = None if details.tree is None or details.children else details.tree.seconds
    return _join_totals(calls, "iteration", _format_usage(details.usage), details.cost, time)


def _format_tree_totals(details: RunDetails) -> str:
    if details.tree is None or not details.children:
        return ""
    tree = details.tree
    return (
        f"with its subagents: {_join_totals(tree.runs, 'run', _format_usage(tree.usage), tree.cost_usd, tree.seconds)}"
    )


def _format_usage(usage: Usage) -> str:
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out" if usage.total_tokens else ""


def _join_totals(count: int, noun: str, tokens: str, cost: float | None, seconds: float | None = None) -> str:
    counted = f"{count} {noun}{'' if count == 1 else 's'}" if count else ""
    money = "" if cost is None else format_cost(cost)
    time = "" if seconds is None else format_duration(seconds)
    return " · ".join(filter(None, (counted, tokens, money, time)))


def _format_pending_calls(status: Status) -> str:
    waits = []
    for decision, is_approval in (("approval", True), ("an answer", False)):
        pending = [call for call in status.approvals if (call.kind == "approval") == is_approval]
        names = [f"{escape_line(call.tool)} ({escape_line(call.call_id)})" for call in pending]
        waits += [f"waits for {decision}: {', '.join(names)}"] if names else []
    return f"{'; '.join(waits)}; `perdure approvals` shows more"


def format_activity(status: Status) -> str | None:
    """What an open run does or waits for, in a line; None for a closed run."""
    if status.state in _ENDED:
        return None
    resume = f"perdure resume {status.context_id}"
    if status.state == "paused" and status.at_limit is not None:
        use, option = format_limit_use(status.at_limit), f"--limit {status.at_limit.key}=<more>"
        return f"paused: {use}; `{resume} {option}` lets it go on"
    if status.state == "paused" and status.pause is not None:
        return f"{status.pause}; `{resume}` lets it go on"
    if status.state == "paused":
        return f"paused: {status.reason}; `{resume}` goes on when the cause is gone"
    names = ", ".join(call.tool for call in status.calls)
    if status.held_up:
        causes = "; ".join(format_held_up(each, status.context_id) for each in status.held_up[:_SHOWN_CAUSES])
        return f"held up: {causes}: {' '.join(status.held_up[0].error.split())}"
    if status.doing == "nothing":  # no worker answered the query
        return status.reason or status.state.replace("_", " ")
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
    call_id: str | None = None
    """The parent's call that started it; None where its events cannot be read."""
    usage: Usage | None = None
    """Tokens of the run and all runs below it, up to now; ``cost_usd`` is their cost."""
    cost_usd: float | None = None

    @property
    def total_usage(self) -> Usage:
        """``usage``; before that is known, what its status has."""
        return self.status.usage if self.usage is None else self.usage

    @property
    def total_cost_usd(self) -> float | None:
        """Dollars of ``total_usage``; None where no call had a price."""
        return self.status.cost_usd if self.usage is None else self.cost_usd


@dataclass(frozen=True, slots=True)
class TreeTotals:
    """What a run and all runs below it have used up to now."""

    runs: int
    usage: Usage
    cost_usd: float | None
    """None where no call had a price."""
    seconds: float | None
    """From the first event to the last, or to now for an open run; also while it waited."""

    def serialize(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "usage": self.usage.model_dump(mode="json")}


@dataclass
class _TreeEvents:
    """What the events of a run and of all runs below it say."""

    children: dict[str, dict[str, bool]] = field(default_factory=dict)
    """By run the runs that it has started, in their order, each with whether it runs in background."""
    calls: dict[str, str] = field(default_factory=dict)
    """By run the parent's call that started it."""
    used: dict[str, tuple[Usage, float | None]] = field(default_factory=dict)
    """By run the tokens and dollars of its own model calls."""
    decided: list[DecidedApproval] = field(default_factory=list)
    """Decisions and answers of the run itself."""
    times: tuple[str, ...] = ()
    """Of the first event and the last."""


async def _read_tree_events(run: Run) -> _TreeEvents:
    """Reads all events once. Raises as ``Run.events``."""
    from ..client.decisions import extract_decision
    from ..client.follow import extract_child_run
    from ..types.messages import Usage

    tree = _TreeEvents()
    async with aclosing(run.events(wait=False)) as events:
        async for event in events:
            tree.times = (*tree.times[:1], event.at) if event.at else tree.times
            if event.path:
                tree.calls[event.context_id] = event.path[-1].call_id
            elif (decision := extract_decision(event)) is not None:
                tree.decided.append(decision)
            if (child := extract_child_run(event)) is not None:
                tree.children.setdefault(event.context_id, {}).setdefault(*child)
            if event.type in ("model.completed", "compacted"):
                paid = event.usage, event.cost_usd
                tree.used[event.context_id] = _add_use(tree.used.get(event.context_id, (Usage(), None)), paid)
    return tree


def _build_tree_totals(
    events: _TreeEvents, status: Status, children: Sequence[SubagentRun]
) -> tuple[list[SubagentRun], TreeTotals]:
    """``children`` with their calls and totals, and the totals of the tree.

    By the events, which have each paid call once: a run counts what a subagent used only when that has ended.
    """
    from ..types.messages import Usage

    used, times = events.used, events.times

    def sum_use(status: Status, below: Sequence[SubagentRun]) -> tuple[Usage, float | None]:
        total: tuple[Usage, float | None] = (Usage(), None)
        for context_id in (status.context_id, *(child.status.context_id for child in below)):
            total = _add_use(total, used.get(context_id, (Usage(), None)))
        # A summary that came to nothing has no event.
        usage = max(total[0], status.usage, key=lambda usage: usage.total_tokens)
        return usage, max((cost for cost in (total[1], status.cost_usd) if cost is not None), default=None)

    totals = [
        replace(child, call_id=events.calls.get(child.status.context_id), usage=usage, cost_usd=cost)
        for index, child in enumerate(children)
        for usage, cost in [sum_use(child.status, children[index + 1 : _find_subtree_end(children, index)])]
    ]
    usage, cost = sum_use(status, children)
    seconds = None
    if times:
        closed = status.state in _ENDED
        end = datetime.fromisoformat(times[-1]) if closed else datetime.now(UTC)
        seconds = max((end - datetime.fromisoformat(times[0])).total_seconds(), 0.0)
    return totals, TreeTotals(1 + len(children), usage, cost, seconds)


def _add_use(use: tuple[Usage, float | None], more: tuple[Usage, float | None]) -> tuple[Usage, float | None]:
    costs = [cost for cost in (use[1], more[1]) if cost is not None]
    return use[0] + more[0], sum(costs) if costs else None


def _find_subtree_end(children: Sequence[SubagentRun], index: int) -> int:
    """The index of the first run behind ``children[index]`` that is not below it."""
    depth = children[index].depth
    behind = range(index + 1, len(children))
    return next((other for other in behind if children[other].depth <= depth), len(children))


def count_running_subagents(details: RunDetails) -> list[LimitUse]:
    """The limits of the run, with what subagents have used that its open calls wait for.

    The run itself counts them when they have ended. Those in background count as their whole share until then.
    """
    background = {row.context_id for row in details.status.background}
    awaited = {call.context_id for call in details.status.calls if call.context_id} - background
    running = [child for child in details.children if child.depth == 1 and child.status.context_id in awaited]
    more = {
        "tokens": sum(child.usage.total_tokens for child in running if child.usage is not None),
        "cost_usd": sum(child.cost_usd for child in running if child.cost_usd is not None),
    }
    return [use.model_copy(update={"used": use.used + more.get(use.name, 0)}) for use in details.status.limits]


async def _list_runs_below(
    run: Run, depth: int, children: Mapping[str, Mapping[str, bool]], slots: asyncio.Semaphore
) -> list[SubagentRun]:
    """The runs below ``run``, each behind its parent, without ``children`` that never started.

    Raises ``StoreError``.
    """

    async def list_subtree(child: Run, background: bool) -> list[SubagentRun]:
        try:
            async with slots:
                status = await _read_run_status(child, decided=False)
        except RunNotFoundError:
            return []
        return [SubagentRun(depth, status, background), *await _list_runs_below(child, depth + 1, children, slots)]

    own = children.get(run.id, {}).items()
    subtrees = await asyncio.gather(*(list_subtree(run.client.run(name), background) for name, background in own))
    return [child for subtree in subtrees for child in subtree]


async def _read_run_status(run: Run, *, decided: bool) -> Status:
    """The status, or what the store knows of a run that Temporal has deleted. Raises ``RunNotFoundError``."""
    from ..types.interface import Response, Status

    try:
        return await run.status(decided=decided)
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
        "call_id": run.call_id,
        "state": status.state,
        "iterations": status.iteration,
        "tokens": run.total_usage.total_tokens,
        "cost_usd": run.total_cost_usd,
        "activity": _format_subagent_activity(status),
    }


def _format_subagent_run(run: SubagentRun) -> Iterator[str]:
    """Its usage is that of its own model calls and of all runs below it."""
    status, indent = run.status, "  " * run.depth
    background = " in background" if run.background else ""
    count = run.total_usage.total_tokens
    totals = _join_totals(status.iteration, "iteration", f"{count:,} tokens" if count else "", run.total_cost_usd)
    call = "" if run.call_id is None else f"call {escape_line(run.call_id)}"
    facts = " · ".join(filter(None, (f"agent {status.agent}{background}", totals, call)))
    yield f"{indent}{status.context_id}  {status.state.replace('_', ' ')}  {facts}"
    if activity := _format_subagent_activity(status):
        yield f"{indent}  {activity}"


def _format_subagent_activity(status: Status) -> str | None:
    """What an open run does, or why a failed one failed."""
    return format_activity(status) or (status.reason if status.state == "failed" else None)
