"""``perdure events``: prints what happened in a run, and with ``-f`` what happens until it has ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from .._terminal import escape_line, render_text, style_text
from .connection import StoreOptions, call_run, watch_for_outages
from .options import RunArgument
from .output import OutputOptions, format_call, format_cost, format_limit_use

if TYPE_CHECKING:
    from ..client.run import Run
    from ..types.events import (
        ApprovalDecided,
        ApprovalRevoked,
        BranchCompleted,
        Event,
        LimitReached,
        MessageWithheld,
        RunEvent,
        StepTaken,
        ToolCompleted,
        TurnEvent,
    )
    from ..types.messages import BlobRef


# ---
# Events as text: replies as they are written, and a line for everything else.

_EXCERPT_LINES = 3
_EXCERPT_CHARS = 300
_BRIEF_EVENT_TYPES = ("message.withheld", "model.completed", "approval.requested", "approval.decided", "limit", "error")
"""Events of subagents that are printed in brief mode."""


class EventPrinter:
    """Writes text of replies to ``text``, and a line for each other event to ``beside``; both are stdout by default.

    ``brief`` omits ordinary run and turn events. Events of subagents are prefixed with the subagent's path; their
    replies are printed when complete, or in brief mode omitted except for tool calls, approvals and errors.
    """

    def __init__(self, text: TextIO | None = None, beside: TextIO | None = None, *, brief: bool = False) -> None:
        from ..client.streams import LiveText

        self._text = text or sys.stdout
        self._beside = beside or sys.stdout
        self._brief = brief
        self._live = LiveText()
        self._open = False
        """Whether the last line of text is not ended yet."""

    def print_event(self, event: Event) -> None:
        """Write what is shown of ``event``."""
        if piece := self._live.feed(event):
            self._text.write(render_text(piece))
            self._text.flush()
            self._open = not piece.endswith("\n")
        lines = list(self._format_subagent_event(event) if event.path else format_event(event, brief=self._brief))
        if lines or (event.type == "model.completed" and not event.path):
            self.end_line()
        for line in lines:
            self._beside.write(render_text(f"{escape_line(line)}\n"))
        self._beside.flush()

    def end_line(self) -> None:
        """Begin a new line, if text stands on the last one."""
        if self._open:
            self._text.write("\n")
            self._text.flush()
            self._open = False

    def _format_subagent_event(self, event: Event) -> Iterator[str]:
        if self._brief and event.type not in _BRIEF_EVENT_TYPES:
            return
        label = style_text(f"[{format_subagent_path(event)}]", "dim")
        if event.type == "model.completed" and event.text.strip() and not self._brief:
            yield f"{label} {_format_excerpt(event.text)}"
        for line in format_event(event, brief=self._brief):
            yield f"{label} {line}"


def format_event(event: Event, *, brief: bool = False) -> Iterator[str]:
    """The lines of an event, but not the text of a reply. ``brief`` omits ordinary run and turn events."""
    for style, line in _format_event(event, brief=brief):
        yield style_text(line, style)


def _format_event(event: Event, *, brief: bool) -> Iterator[tuple[str, str]]:
    """Each line with its style."""
    match event.type:
        case "run":
            yield from _format_run_event(event, brief=brief)
        case "turn":
            yield from _format_turn_event(event, brief=brief)
        case "message.injected":
            if not brief:
                author = f"user {event.by or ''}".rstrip()
                yield "cyan", f"{author}: {_format_excerpt(event.content) or '…'}"
        case "message.withheld":
            yield "yellow", _format_withheld(event)
        case "model.completed":
            for call in event.calls:
                yield "blue", f"→ {format_call(call.name, call.arguments)}"
            if event.finish_reason == "length" and (not brief or event.calls or not event.text):
                yield "yellow", "(cut by the output limit)"
        case "model.retracted":
            interrupted = event.reason == "Interrupted"
            yield "yellow", "(interrupted)" if interrupted else f"(reply discarded: {event.reason})"
        case "tool.progress":
            yield "dim", f"… {escape_line(event.name)}: {escape_line(event.message)}"
        case "tool.completed":
            yield _format_tool_result(event)
        case "approval.requested":
            yield "yellow", f"? {format_call(event.name, event.arguments)} waits for approval: {event.call_id}"
        case "approval.reminded":
            reminder = f"{event.call_id} (reminder {event.number})"
            yield "yellow", f"? {escape_line(event.name)} still waits for approval: {reminder}"
        case "approval.decided":
            yield "yellow", f"({event.decision}: {escape_line(event.name)}{_format_decision_details(event)})"
        case "approval.revoked":
            yield "yellow", _format_revocation(event)
        case "question.asked":
            question = event.kind == "question"
            waits = f"asks: {_format_excerpt(event.question)}" if question else "waits for its result"
            yield "yellow", f"? {escape_line(event.name)} {waits} ({event.call_id})"
        case "question.answered":
            answer = json.dumps(event.value, ensure_ascii=False) if event.error is None else f"no: {event.error}"
            yield "yellow", f"(answered: {escape_line(event.name)}{_format_actor(event.by)}: {_format_excerpt(answer)})"
        case "step":
            yield "yellow", _format_step(event)
        case "branch.started":
            message = "…" if event.blob is not None else _format_excerpt(event.message)
            yield "blue", f"⑂ {escape_line(event.agent)}{f': {message}' if message else ''}"
        case "branch.completed":
            yield _format_branch_result(event)
        case "compacted":
            messages = f"{event.messages_before:,} messages are {event.messages_after:,} now"
            yield "yellow", f"(summed up: {messages}, {event.tokens_before:,} tokens about {event.tokens_after:,})"
            if event.warning is not None:
                yield "yellow", f"({_format_excerpt(event.warning)})"
        case "limit":
            yield "yellow", f"({_format_limit(event)})"
        case "error":
            delay = "" if event.retry_in is None else f" in {event.retry_in:,.0f} s"
            retry = "" if event.final else f" (it is tried again{delay})"
            yield "red", f"error: {event.error_type}: {_format_excerpt(event.error)}{retry}"


def _format_run_event(event: RunEvent, *, brief: bool) -> Iterator[tuple[str, str]]:
    ordinary = event.state in ("started", "idle", "completed")
    if ordinary and brief:
        return
    reason = ": ".join(part for part in (event.error_type, event.error or event.reason) if part)
    state = f"{event.state.replace('_', ' ')}{_format_actor(event.by)}"
    line = f"run {state}{f' ({_format_excerpt(reason)})' if reason else ''}"
    yield "dim" if ordinary else "yellow", line


def _format_turn_event(event: TurnEvent, *, brief: bool) -> Iterator[tuple[str, str]]:
    if event.unanswered:
        yield "yellow", f"({format_unanswered(event.unanswered)})"
    if brief and event.state in ("started", "completed"):
        return
    cost = "" if event.cost_usd is None else f", {format_cost(event.cost_usd)}"
    usage = f" ({event.usage.total_tokens:,} tokens{cost})" if event.state == "completed" else ""
    yield "dim", f"turn {event.state}{usage}"


def _format_tool_result(event: ToolCompleted) -> tuple[str, str]:
    files = "".join(f" [{file.name or file.media_type}]" for file in event.files)
    style, mark = ("red", "✗") if event.is_error else ("dim", "←")
    by = "" if event.answered_by is None else f" (answered by {escape_line(event.answered_by) or 'a client'})"
    return style, f"{mark} {escape_line(event.name)}{by}: {_format_content(event.content, event.blob)}{files}"


def _format_branch_result(event: BranchCompleted) -> tuple[str, str]:
    agent = escape_line(event.agent)
    if event.error_type is not None:
        return "red", f"✗ {agent}: {event.error_type}: {_format_excerpt(event.error or '')}"
    return "dim", f"← {agent}: {_format_content(event.content, event.blob)}"


def _format_content(content: str, blob: BlobRef | None) -> str:
    return _format_excerpt(content) if blob is None else f"{blob.size:,} bytes"


def _format_actor(by: str | None) -> str:
    return f" by {escape_line(by)}" if by else ""


def format_subagent_path(event: Event) -> str:
    """The subagent's path from the run that is followed: ``researcher/1 critic/2``, with the numbers at the end of
    the ids of their runs."""
    numbers = [part.rpartition("-")[2] for part in event.context_id.rsplit("/", len(event.path))[1:]]
    return " ".join(f"{escape_line(step.agent)}/{number}" for step, number in zip(event.path, numbers, strict=False))


def _format_withheld(event: MessageWithheld) -> str:
    where = f" of message {escape_line(event.id)}" if event.id else ""
    where = f" of call {escape_line(event.call_id)}" if event.call_id else where
    return f"(withheld: {escape_line(event.what)}{where}: {_format_excerpt(event.reason)})"


def _format_decision_details(event: ApprovalDecided) -> str:
    scope = f", standing since {event.standing}" if event.standing else ""
    scope = ", as all later calls of it" if event.always else scope
    changed = ", with other arguments" if event.arguments is not None else ""
    comment = f": {_format_excerpt(event.comment)}" if event.comment else ""
    return f"{_format_actor(event.by)}{changed}{scope}{comment}"


def _format_revocation(event: ApprovalRevoked) -> str:
    by, names = _format_actor(event.by), ", ".join(map(escape_line, event.approved_by))
    return f"(revoked{by}: {escape_line(event.name)} waits for approval again; all its calls were approved by {names})"


def _format_step(event: StepTaken) -> str:
    """What the step policy has changed."""
    settings = [f"{name}={'(none)' if value is None else value}" for name, value in event.settings.items()]
    changes = [
        f"model {event.model}" if event.model else "",
        f"settings {', '.join(settings)}" if settings else "",
        "other instructions" if event.instructions else "",
        *(f"+{name}" for name in event.tools_added),
        *(f"-{name}" for name in event.tools_removed),
        f"{len(event.results)} of the results changed" if event.results else "",
        "a message" if event.injected == 1 else f"{event.injected} messages" if event.injected else "",
        "the conversation edited" if event.edited else "",
        "finished" if event.finished else "",
        f"kept for the {' and the '.join(event.kept)}" if event.kept else "",
    ]
    return f"(step: {escape_line('; '.join(filter(None, changes)))})"


def _format_limit(event: LimitReached) -> str:
    from ..types.limits import LimitUse

    used = event.limit if event.used is None else event.used
    use = LimitUse(name=event.kind, scope=event.scope, used=used, allowed=event.limit)
    return f"at a limit: {format_limit_use(use)}"


def format_unanswered(ids: Sequence[str]) -> str:
    """A line for the messages that a limit has left without an answer."""
    messages = "a message" if len(ids) == 1 else f"{len(ids)} messages"
    named = ", ".join(map(escape_line, filter(None, ids)))
    return f"at a limit: {messages} got no answer{f' ({named})' if named else ''}"


def _format_excerpt(text: str) -> str:
    """The beginning of ``text``, in one line."""
    lines = text[:_EXCERPT_CHARS].strip().splitlines()
    shown = " ⏎ ".join(escape_line(line) for line in lines[:_EXCERPT_LINES])
    return f"{shown} …" if len(text) > _EXCERPT_CHARS or len(lines) > _EXCERPT_LINES else shown


def events(
    id: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run, or the turn, has ended.")
    ] = False,
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    turn: Annotated[str | None, typer.Option(metavar="TASK", help="Only events of this turn.")] = None,
    children: Annotated[bool, typer.Option("--children/--no-children", help="Include events of subagents.")] = True,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Print the events of a run. To go on after an interruption, give --after the last number that was printed."""

    async def print_events(run: Run) -> None:
        printer, listed = EventPrinter(), []
        source = run.turn(turn) if turn is not None else run
        printed = after

        async def print_new_events() -> None:
            nonlocal printed
            async for event in source.events(printed, wait=follow, children=children):
                printed = max(event.seq, printed)
                if output.format == "text":
                    printer.print_event(event)
                    continue
                value = event.model_dump(mode="json", exclude_none=True)
                if output.format == "jsonl":
                    output.print_json(value)
                else:
                    listed.append(value)

        if follow:
            async with watch_for_outages(run.client) as server:
                await server.retry(print_new_events)
        else:
            await print_new_events()
        printer.end_line()
        if output.format == "json":
            output.print_json(listed)

    call_run(server, id, print_events)
