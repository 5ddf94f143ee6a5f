"""``perdure events``: what happened in a run, and with ``-f`` what happens, until it has ended."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from ..terminal import printable, rendered, styled
from .connection import connected
from .options import Output, OutputOptions, RunArgument, StoreOptions, print_json
from .rendering import INTERRUPTED, arguments

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


_RESULT_LINES = 3
_RESULT_CHARS = 300
_BRIEFLY = ("message.withheld", "model.completed", "approval.requested", "approval.decided", "limit", "error")
"""What is told of subagents in brief."""


class EventLines:
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

    def show(self, event: Event) -> None:
        """Write what there is to say of it."""
        if piece := self._live.feed(event):
            self._text.write(rendered(piece))
            self._text.flush()
            self._open = not piece.endswith("\n")
        lines = list(self._of_subagent(event) if event.path else self._lines(event))
        if event.path and not lines:
            return
        if event.type == "model.completed" or lines:
            self.end_line()
        for line in lines:
            self._beside.write(rendered(f"{printable(line)}\n"))
        self._beside.flush()

    def end_line(self) -> None:
        """Begin a new line, if text stands on the last one."""
        if self._open:
            self._text.write("\n")
            self._text.flush()
            self._open = False

    def _of_subagent(self, event: Event) -> Iterator[str]:
        if self._brief and event.type not in _BRIEFLY:
            return
        who = self._styled(f"[{subagent(event)}]", "dim")
        if event.type == "model.completed" and event.text.strip() and not self._brief:
            yield f"{who} {_cut(event.text)}"
        for line in self._lines(event):
            yield f"{who} {line}"

    def _lines(self, event: Event) -> Iterator[str]:
        match event.type:
            case "run":
                yield from self._run(event)
            case "turn":
                yield from self._turn(event)
            case "message.injected":
                if not self._brief:
                    yield self._styled(f"user {event.by or ''}".rstrip() + f": {_cut(event.content) or '…'}", "cyan")
            case "message.withheld":
                yield self._styled(_withheld(event), "yellow")
            case "model.completed":
                for call in called(event):
                    yield self._styled(call, "blue")
            case "model.retracted":
                yield self._styled(retracted(event.reason), "yellow")
            case "tool.progress":
                yield self._styled(f"… {printable(event.name)}: {printable(event.message)}", "dim")
            case "tool.completed":
                yield self._result(event)
            case "approval.requested":
                said = "…" if event.arguments is None else arguments(event.arguments)
                waits = f"? {printable(event.name)}({printable(said)}) waits for approval: {event.call_id}"
                yield self._styled(waits, "yellow")
            case "approval.reminded":
                again = f"? {printable(event.name)} still waits for approval: {event.call_id} (reminder {event.number})"
                yield self._styled(again, "yellow")
            case "approval.decided":
                yield self._styled(f"({event.decision}: {printable(event.name)}{_by(event)})", "yellow")
            case "approval.revoked":
                yield self._styled(_revoked(event), "yellow")
            case "question.asked":
                asks = f"asks: {_cut(event.question)}" if event.kind == "question" else "waits for its result"
                yield self._styled(f"? {printable(event.name)} {asks} ({event.call_id})", "yellow")
            case "question.answered":
                said = json.dumps(event.value, ensure_ascii=False) if event.error is None else f"no: {event.error}"
                by = f" by {printable(event.by)}" if event.by else ""
                yield self._styled(f"(answered: {printable(event.name)}{by}: {_cut(said)})", "yellow")
            case "step":
                yield self._styled(_step(event), "yellow")
            case "branch.started":
                asked = "…" if event.blob is not None else _cut(event.message)
                yield self._styled(f"⑂ {printable(event.agent)}{f': {asked}' if asked else ''}", "blue")
            case "branch.completed":
                yield self._branch(event)
            case "compacted":
                yield self._styled(_compacted(event), "yellow")
            case "limit":
                yield self._styled(f"({reached(event)})", "yellow")
            case "error":
                when = "" if event.retry_in is None else f" in {event.retry_in:,.0f} s"
                then = "" if event.final else f" (it is tried again{when})"
                yield self._styled(f"error: {event.error_type}: {_cut(event.error)}{then}", "red")

    def _run(self, event: RunEvent) -> Iterator[str]:
        ordinary = ("started", "waiting", "completed")
        if event.state in ordinary and self._brief:
            return
        said = ": ".join(part for part in (event.error_type, event.error or event.reason) if part)
        style = "dim" if event.state in ordinary else "yellow"
        yield self._styled(f"run {event.state.replace('_', ' ')}{f' ({_cut(said)})' if said else ''}", style)

    def _turn(self, event: TurnEvent) -> Iterator[str]:
        if event.unanswered:
            yield self._styled(f"({unanswered(event.unanswered)})", "yellow")
        if self._brief and event.state in ("started", "completed"):
            return
        cost = "" if event.cost_usd is None else f", ${event.cost_usd:.4f}"
        took = f" ({event.usage.total_tokens:,} tokens{cost})" if event.state == "completed" else ""
        yield self._styled(f"turn {event.state}{took}", "dim")

    def _result(self, event: ToolCompleted) -> str:
        said = _cut(event.content) if event.blob is None else f"{event.blob.size:,} bytes"
        files = "".join(f" [{file.name or file.media_type}]" for file in event.files)
        mark, style = ("✗", "red") if event.is_error else ("←", "dim")
        by = f" (answered by {printable(event.answered_by)})" if event.answered_by else ""
        return self._styled(f"{mark} {printable(event.name)}{by}: {said}{files}", style)

    def _branch(self, event: BranchCompleted) -> str:
        if event.error_type is not None:
            return self._styled(f"✗ {printable(event.agent)}: {event.error_type}: {_cut(event.error or '')}", "red")
        said = _cut(event.content) if event.blob is None else f"{event.blob.size:,} bytes"
        return self._styled(f"← {printable(event.agent)}: {said}", "dim")

    def _styled(self, text: str, style: str) -> str:
        return styled(text, style, on=self._colour)


def subagent(event: Event) -> str:
    """Which one it is of, seen from the run that is followed: ``researcher/1 critic/2``, as their runs' ids end."""
    numbers = event.context_id.rsplit("/", len(event.path))[1:]
    return " ".join(f"{printable(step.agent)}/{number}" for step, number in zip(event.path, numbers, strict=False))


def called(event: ModelCompleted) -> Iterator[str]:
    """The calls of a reply, each in a line."""
    for call in event.calls:
        said = "…" if call.arguments is None else arguments(call.arguments)
        yield f"→ {printable(call.name)}({printable(said)})"


def _withheld(event: MessageWithheld) -> str:
    """What a model's API refused, and where that stands."""
    where = f" of message {printable(event.id)}" if event.id else ""
    where = f" of call {printable(event.call_id)}" if event.call_id else where
    return f"(withheld: {printable(event.what)}{where}: {_cut(event.reason)})"


def _by(event: ApprovalDecided) -> str:
    """Who decided, and with what words."""
    by = f" by {printable(event.by)}" if event.by else ""
    changed = ", with other arguments" if event.arguments is not None else ""
    changed += (
        ", as all later calls of it" if event.always else f", standing since {event.standing}" if event.standing else ""
    )
    return f"{by}{changed}{f': {_cut(event.comment)}' if event.comment else ''}"


def _revoked(event: ApprovalRevoked) -> str:
    """Whose approvals of a tool's calls somebody took back."""
    by, names = f" by {printable(event.by)}" if event.by else "", ", ".join(map(printable, event.approved_by))
    return f"(revoked{by}: {printable(event.name)} waits for approval again; all its calls were approved by {names})"


def _compacted(event: ConversationCompacted) -> str:
    messages = f"{event.messages_before:,} messages are {event.messages_after:,} now"
    return f"(summed up: {messages}, {event.tokens_before:,} tokens about {event.tokens_after:,})"


def _step(event: StepTaken) -> str:
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
    return f"(step: {printable('; '.join(part for part in said if part))})"


def reached(event: LimitReached) -> str:
    """What a person is told of a limit."""
    from ..types.limits import LimitUse

    used = event.limit if event.used is None else event.used
    return f"at a limit: {LimitUse(name=event.kind, scope=event.scope, used=used, allowed=event.limit)}"


def unanswered(ids: Sequence[str]) -> str:
    """What a person is told of messages that a limit has left without an answer."""
    what = "a message" if len(ids) == 1 else f"{len(ids)} messages"
    named = ", ".join(printable(one) for one in ids if one)
    return f"at a limit: {what} got no answer{f' ({named})' if named else ''}"


def retracted(reason: str) -> str:
    """What a person is told of a reply that does not count."""
    return "(interrupted)" if reason == "Interrupted" else f"(that does not count: {reason})"


def _cut(text: str) -> str:
    """The beginning of ``text``, in one line."""
    lines = text[:_RESULT_CHARS].strip().splitlines()
    shown = " ⏎ ".join(printable(line) for line in lines[:_RESULT_LINES])
    more = len(text) > _RESULT_CHARS or len(lines) > _RESULT_LINES
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
        from .rendering import colours

        lines = EventLines(colour=colours())
        listed = []
        async with connected(server) as client:
            run = await find_run(client, id)
            found = run.turn(turn) if turn is not None else run
            async for event in found.events(after, wait=follow, children=children):
                if output is Output.TEXT:
                    lines.show(event)
                elif output is Output.JSONL:
                    print_json(event.model_dump(mode="json", exclude_none=True), output=output)
                    sys.stdout.flush()
                else:
                    listed.append(event.model_dump(mode="json", exclude_none=True))
        lines.end_line()
        if output is Output.JSON:
            print_json(listed, output=output)

    try:
        asyncio.run(go())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
