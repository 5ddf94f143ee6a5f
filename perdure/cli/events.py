"""``perdure events``: what happened in a run, and with ``-f`` what happens, until it has ended."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from ..terminal import escape_line, render_text, style_text
from .connection import open_client
from .options import OutputFormat, OutputOptions, RunArgument, StoreOptions, print_json
from .output import INTERRUPTED, format_arguments

if TYPE_CHECKING:
    from ..types.events import (
        ApprovalDecided,
        ApprovalRevoked,
        BranchCompleted,
        ConversationCompacted,
        Event,
        LimitReached,
        MessageWithheld,
        ModelCompleted,
        RunEvent,
        StepTaken,
        ToolCompleted,
        TurnEvent,
    )


# ---
# What happens in a run, as a person reads it: replies as they are written, and a line for everything else.


_EXCERPT_LINES = 3
_EXCERPT_CHARS = 300
_BRIEF_EVENT_TYPES = ("message.withheld", "model.completed", "approval.requested", "approval.decided", "limit", "error")
"""What is told of subagents in brief."""


class EventPrinter:
    """Writes events as they come: text of replies to ``text``, everything else, a line each, to ``beside``; both are
    stdout unless they are given.

    ``brief``: a run's and a turn's ordinary course is not told. Of subagents a line says which one it is, and their
    replies are told when they are whole; in brief, only the calls they make and what somebody may have to see to.
    """

    def __init__(
        self, text: TextIO | None = None, beside: TextIO | None = None, *, colour: bool = False, brief: bool = False
    ) -> None:
        from ..client.event_reader import LiveText

        self._text = text or sys.stdout
        self._beside = beside or sys.stdout
        self._colour = colour
        self._brief = brief
        self._live = LiveText()
        self._open = False
        """Whether the last line of text is not ended yet."""

    def print_event(self, event: Event) -> None:
        """Write what there is to say of it."""
        if piece := self._live.feed(event):
            self._text.write(render_text(piece))
            self._text.flush()
            self._open = not piece.endswith("\n")
        lines = list(self._format_subagent_event(event) if event.path else self._format_event(event))
        if event.path and not lines:
            return
        if event.type == "model.completed" or lines:
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
        who = self._apply_style(f"[{format_subagent_path(event)}]", "dim")
        if event.type == "model.completed" and event.text.strip() and not self._brief:
            yield f"{who} {_format_excerpt(event.text)}"
        for line in self._format_event(event):
            yield f"{who} {line}"

    def _format_event(self, event: Event) -> Iterator[str]:
        match event.type:
            case "run":
                yield from self._format_run_event(event)
            case "turn":
                yield from self._format_turn_event(event)
            case "message.injected":
                if not self._brief:
                    author = f"user {event.by or ''}".rstrip()
                    yield self._apply_style(f"{author}: {_format_excerpt(event.content) or '…'}", "cyan")
            case "message.withheld":
                yield self._apply_style(_format_withheld(event), "yellow")
            case "model.completed":
                for call in format_calls(event):
                    yield self._apply_style(call, "blue")
            case "model.retracted":
                yield self._apply_style(format_retraction(event.reason), "yellow")
            case "tool.progress":
                yield self._apply_style(f"… {escape_line(event.name)}: {escape_line(event.message)}", "dim")
            case "tool.completed":
                yield self._format_tool_result(event)
            case "approval.requested":
                said = "…" if event.arguments is None else format_arguments(event.arguments)
                waits = f"? {escape_line(event.name)}({escape_line(said)}) waits for approval: {event.call_id}"
                yield self._apply_style(waits, "yellow")
            case "approval.reminded":
                waits = f"still waits for approval: {event.call_id} (reminder {event.number})"
                yield self._apply_style(f"? {escape_line(event.name)} {waits}", "yellow")
            case "approval.decided":
                yield self._apply_style(
                    f"({event.decision}: {escape_line(event.name)}{_format_decision_details(event)})", "yellow"
                )
            case "approval.revoked":
                yield self._apply_style(_format_revocation(event), "yellow")
            case "question.asked":
                asks = (
                    f"asks: {_format_excerpt(event.question)}" if event.kind == "question" else "waits for its result"
                )
                yield self._apply_style(f"? {escape_line(event.name)} {asks} ({event.call_id})", "yellow")
            case "question.answered":
                said = json.dumps(event.value, ensure_ascii=False) if event.error is None else f"no: {event.error}"
                by = f" by {escape_line(event.by)}" if event.by else ""
                yield self._apply_style(f"(answered: {escape_line(event.name)}{by}: {_format_excerpt(said)})", "yellow")
            case "step":
                yield self._apply_style(_format_step(event), "yellow")
            case "branch.started":
                asked = "…" if event.blob is not None else _format_excerpt(event.message)
                yield self._apply_style(f"⑂ {escape_line(event.agent)}{f': {asked}' if asked else ''}", "blue")
            case "branch.completed":
                yield self._format_branch_result(event)
            case "compacted":
                yield self._apply_style(_format_compaction(event), "yellow")
            case "limit":
                yield self._apply_style(f"({format_limit(event)})", "yellow")
            case "error":
                when = "" if event.retry_in is None else f" in {event.retry_in:,.0f} s"
                then = "" if event.final else f" (it is tried again{when})"
                yield self._apply_style(f"error: {event.error_type}: {_format_excerpt(event.error)}{then}", "red")

    def _format_run_event(self, event: RunEvent) -> Iterator[str]:
        ordinary = ("started", "waiting", "completed")
        if event.state in ordinary and self._brief:
            return
        said = ": ".join(part for part in (event.error_type, event.error or event.reason) if part)
        style = "dim" if event.state in ordinary else "yellow"
        yield self._apply_style(
            f"run {event.state.replace('_', ' ')}{f' ({_format_excerpt(said)})' if said else ''}", style
        )

    def _format_turn_event(self, event: TurnEvent) -> Iterator[str]:
        if event.unanswered:
            yield self._apply_style(f"({format_unanswered(event.unanswered)})", "yellow")
        if self._brief and event.state in ("started", "completed"):
            return
        cost = "" if event.cost_usd is None else f", ${event.cost_usd:.4f}"
        took = f" ({event.usage.total_tokens:,} tokens{cost})" if event.state == "completed" else ""
        yield self._apply_style(f"turn {event.state}{took}", "dim")

    def _format_tool_result(self, event: ToolCompleted) -> str:
        said = _format_excerpt(event.content) if event.blob is None else f"{event.blob.size:,} bytes"
        files = "".join(f" [{file.name or file.media_type}]" for file in event.files)
        mark, style = ("✗", "red") if event.is_error else ("←", "dim")
        by = f" (answered by {escape_line(event.answered_by)})" if event.answered_by else ""
        return self._apply_style(f"{mark} {escape_line(event.name)}{by}: {said}{files}", style)

    def _format_branch_result(self, event: BranchCompleted) -> str:
        if event.error_type is not None:
            return self._apply_style(
                f"✗ {escape_line(event.agent)}: {event.error_type}: {_format_excerpt(event.error or '')}", "red"
            )
        said = _format_excerpt(event.content) if event.blob is None else f"{event.blob.size:,} bytes"
        return self._apply_style(f"← {escape_line(event.agent)}: {said}", "dim")

    def _apply_style(self, text: str, style: str) -> str:
        return style_text(text, style, on=self._colour)


def format_subagent_path(event: Event) -> str:
    """Which one it is of, seen from the run that is followed: ``researcher/1 critic/2``, as their runs' ids end."""
    numbers = event.context_id.rsplit("/", len(event.path))[1:]
    return " ".join(f"{escape_line(step.agent)}/{number}" for step, number in zip(event.path, numbers, strict=False))


def format_calls(event: ModelCompleted) -> Iterator[str]:
    """The calls of a reply, each in a line."""
    for call in event.calls:
        said = "…" if call.arguments is None else format_arguments(call.arguments)
        yield f"→ {escape_line(call.name)}({escape_line(said)})"


def _format_withheld(event: MessageWithheld) -> str:
    """What a model's API refused, and where that stands."""
    where = f" of message {escape_line(event.id)}" if event.id else ""
    where = f" of call {escape_line(event.call_id)}" if event.call_id else where
    return f"(withheld: {escape_line(event.what)}{where}: {_format_excerpt(event.reason)})"


def _format_decision_details(event: ApprovalDecided) -> str:
    """Who decided, and with what words."""
    by = f" by {escape_line(event.by)}" if event.by else ""
    changed = ", with other arguments" if event.arguments is not None else ""
    changed += (
        ", as all later calls of it" if event.always else f", standing since {event.standing}" if event.standing else ""
    )
    return f"{by}{changed}{f': {_format_excerpt(event.comment)}' if event.comment else ''}"


def _format_revocation(event: ApprovalRevoked) -> str:
    """Whose approvals of a tool's calls somebody took back."""
    by, names = f" by {escape_line(event.by)}" if event.by else "", ", ".join(map(escape_line, event.approved_by))
    return f"(revoked{by}: {escape_line(event.name)} waits for approval again; all its calls were approved by {names})"


def _format_compaction(event: ConversationCompacted) -> str:
    messages = f"{event.messages_before:,} messages are {event.messages_after:,} now"
    return f"(summed up: {messages}, {event.tokens_before:,} tokens about {event.tokens_after:,})"


def _format_step(event: StepTaken) -> str:
    """What the policy has changed, in a line."""
    settings = [f"{name}={'(none)' if value is None else value}" for name, value in event.settings.items()]
    said = [
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
    return f"(step: {escape_line('; '.join(part for part in said if part))})"


def format_limit(event: LimitReached) -> str:
    """What a person is told of a limit."""
    from ..types.limits import LimitUse

    used = event.limit if event.used is None else event.used
    return f"at a limit: {LimitUse(name=event.kind, scope=event.scope, used=used, allowed=event.limit)}"


def format_unanswered(ids: Sequence[str]) -> str:
    """What a person is told of messages that a limit has left without an answer."""
    what = "a message" if len(ids) == 1 else f"{len(ids)} messages"
    named = ", ".join(escape_line(one) for one in ids if one)
    return f"at a limit: {what} got no answer{f' ({named})' if named else ''}"


def format_retraction(reason: str) -> str:
    """What a person is told of a reply that does not count."""
    return "(interrupted)" if reason == "Interrupted" else f"(that does not count: {reason})"


def _format_excerpt(text: str) -> str:
    """The beginning of ``text``, in one line."""
    lines = text[:_EXCERPT_CHARS].strip().splitlines()
    shown = " ⏎ ".join(escape_line(line) for line in lines[:_EXCERPT_LINES])
    more = len(text) > _EXCERPT_CHARS or len(lines) > _EXCERPT_LINES
    return f"{shown} …" if more else shown


def events(
    id: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run, or the turn, has ended.")
    ] = False,
    after: Annotated[int, typer.Option(min=0, help="Only those behind this number.")] = 0,
    turn: Annotated[
        str | None, typer.Option(metavar="TASK", help="Only those of this turn.", show_default=False)
    ] = None,
    children: Annotated[
        bool, typer.Option("--children/--no-children", help="With those of the subagents that it called.")
    ] = True,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Print what happened in a run. A follower that was cut off goes on with --after and the last number it saw."""

    async def go() -> None:
        from .connection import find_run
        from .output import can_colour_stdout

        lines = EventPrinter(colour=can_colour_stdout())
        listed = []
        async with open_client(server) as client:
            run = await find_run(client, id)
            found = run.turn(turn) if turn is not None else run
            async for event in found.events(after, wait=follow, children=children):
                if output is OutputFormat.TEXT:
                    lines.print_event(event)
                elif output is OutputFormat.JSONL:
                    print_json(event.model_dump(mode="json", exclude_none=True), output=output)
                    sys.stdout.flush()
                else:
                    listed.append(event.model_dump(mode="json", exclude_none=True))
        lines.end_line()
        if output is OutputFormat.JSON:
            print_json(listed, output=output)

    try:
        asyncio.run(go())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
