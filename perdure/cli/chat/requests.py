"""The approvals and questions that wait in a chat, and what a line that was typed meanwhile means for them."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..._terminal import escape_line, style_text, truncate_text
from ...client.decisions import RunWait
from ...errors import InvalidInputError
from ..mcp import build_login_command
from ..output import find_own_summary, format_call
from ..show import format_past_decision

if TYPE_CHECKING:
    from ...types.approvals import DecidedApproval

_ARGUMENT_CHARS = 4000
"""Characters of a call's arguments, or of a question, that are printed: what is approved must be seen."""
_CHOICES_SHOWN = 20
_APPROVING, _DENYING, _ALWAYS = ("y", "yes"), ("n", "no"), ("a", "always")


@dataclass(frozen=True)
class ApprovalEntry:
    """A line that decides on a call."""

    request: RunWait
    approved: bool
    comment: str | None = None
    always: bool = False


@dataclass(frozen=True)
class AnswerEntry:
    """A line that answers a question, with a value or with the reason why there is none."""

    request: RunWait
    value: Any = None
    error: str | None = None


class PendingRequests:
    """What waits, and for which of it a line is typed.

    A line belongs to the request that the prompt showed when its first character was typed: another client may decide
    in between, and a ``y`` must not approve the call that is shown next.
    """

    def __init__(self, run_id: str, server_options: Sequence[str] = ()) -> None:
        """``run_id`` is that of the chat's run; ``server_options`` are words for the commands that are printed."""
        self._run_id = run_id
        self._server_options = server_options
        self._waiting: list[RunWait] = []
        """In the order of their arrival, so that the prompt does not change while its request waits."""
        self._decided: list[RunWait] = []
        """Decided in this chat: a status that was read before may still have them."""
        self._shown: RunWait | None = None
        self._typed_for: RunWait | None = None
        self._is_typing = False

    def update(self, waiting: Sequence[RunWait], decided: Mapping[tuple[str, str], DecidedApproval]) -> Iterator[str]:
        """Take over what waits now, and yield the lines about what is new and what others have decided.

        ``decided`` has the last decision by run and call.
        """
        before = self._waiting
        new = [request for request in waiting if not request.is_in(before)]
        self._waiting = [*(request for request in before if request.is_in(waiting)), *new]
        for request in before:
            if not request.is_in(waiting) and not request.is_in(self._decided):
                past = decided.get((request.run_id, request.call.call_id))
                gone = f"({self._format_label(request)} waits no longer)"
                yield style_text(gone, "yellow") if past is None else self.format_decided(request, past)
        for request in new:
            if not request.is_in(self._decided):
                yield from self._format_request(request)

    def clear(self) -> None:
        """The turn is over: nothing waits."""
        self._waiting, self._decided = [], []

    def set_decided(self, request: RunWait, decided: bool) -> None:
        """Do not ask for ``request`` any more, or ask again."""
        self._decided = [other for other in self._decided if not other.is_same(request)]
        if decided:
            self._decided.append(request)

    def confirm_decided(self, request: RunWait) -> None:
        """The decision has arrived."""
        self._waiting = [other for other in self._waiting if not other.is_same(request)]

    @property
    def open_requests(self) -> list[RunWait]:
        """What can be decided here: not the results that other programs send."""
        return [one for one in self._waiting if one.call.kind != "callback" and not one.is_in(self._decided)]

    def format_prompt(self) -> str | None:
        """Format the line above the prompt. Return None if nothing waits.

        It names the request that is being answered, by default the first pending one. The next line answers it.
        """
        waiting = self.open_requests
        typed_for = self._typed_for if self._is_typing else None
        self._shown = typed_for if typed_for and typed_for.is_in(waiting) else next(iter(waiting), None)
        if self._shown is None:
            return None
        label, place = self._format_label(self._shown), f" (1 of {len(waiting)})" if len(waiting) > 1 else ""
        if self._shown.call.kind == "approval":
            return f"approve {label}?{place}  y · n · n: why · a always · else a message"
        return f"answer {label}{place}  /no why: no answer · /say …: a message"

    def format_left(self) -> Iterator[str]:
        """What still waits when the user leaves, and how it is decided later."""
        for request in self._waiting:
            if request.call.kind != "callback":  # also one whose decision is on its way: it may be sent twice
                command, *value = ("approve",) if request.call.kind == "approval" else ("answer", "VALUE")
                text = self._format_command(command, request.run_id, request.call.call_id, *value)
                yield f"{self._format_label(request)} still waits: {text}"

    def _format_command(self, command: str, *arguments: str, options: Sequence[str] = ()) -> str:
        options = [*options, *self._server_options]
        words = [*arguments, *options]
        if any(argument.startswith("-") for argument in arguments):  # a call's id, from a model's server, is no option
            words = [*options, "--", *arguments]
        return escape_line(shlex.join(["perdure", command, *words]))

    def format_decided(self, request: RunWait, decided: DecidedApproval) -> str:
        """Who has decided on ``request``, in a line."""
        return style_text(f"({self._format_place(request)}{format_past_decision(decided)})", "yellow")

    def _format_label(self, request: RunWait) -> str:
        """The summary, or the tool, and the call; the run if it is a subagent's: calls of two runs may have one id."""
        call = request.call
        name = find_own_summary(call.summary, call.tool) or escape_line(call.tool)
        return f"{self._format_place(request)}{name} ({escape_line(call.call_id)})"

    def _format_place(self, request: RunWait) -> str:
        return "" if request.run_id == self._run_id else f"[{escape_line(request.run_id)}] "

    # --- lines

    def follow_text(self, text: str) -> None:
        """Take notice of the text on the line."""
        if not text:
            self._is_typing = False
        elif not self._is_typing:
            self._is_typing, self._typed_for = True, self._shown

    def read_line(self, text: str) -> str | ApprovalEntry | AnswerEntry:
        """What the line says: a message, a decision or an answer.

        Raises ``InvalidInputError`` for an answer that does not fit, and for a request that was decided meanwhile. That
        line never becomes one for another request; it is a message where none waits.
        """
        self.follow_text(text)
        request = self._typed_for
        if request is None:
            return text
        if (message := _read_command(text, "/say", "a message")) is not None:
            return message
        entry = _read_decision(request, text) if request.call.kind == "approval" else _read_answer(request, text)
        if isinstance(entry, str):
            return entry
        if not request.is_in(self.open_requests):
            if not self.open_requests:
                self._typed_for = None
            gone = f"{self._format_label(request)} waits no longer: {truncate_text(text, 100)!r} was not sent"
            hint = "Empty the line for what is asked now, or send it as a message: /say …"
            raise InvalidInputError(gone, hint=hint if self._typed_for and isinstance(entry, AnswerEntry) else None)
        return entry

    def _format_request(self, request: RunWait) -> Iterator[str]:
        call = request.call
        if call.kind == "approval":
            text = format_call(call.tool, call.arguments, full=True)
            shown, call_id = truncate_text(text, _ARGUMENT_CHARS), escape_line(call.call_id)
            summary = find_own_summary(call.summary, call.tool)
            yield style_text(f"? {self._format_place(request)}{summary or shown}  {call_id}", "yellow")
            if summary:
                yield style_text(f"  {shown}", "yellow")
            if call.arguments is None or len(text) > _ARGUMENT_CHARS:
                command = self._format_command("show", request.run_id, options=["--full"])
                yield style_text(f"  its arguments are long: {command}", "yellow")
        else:
            question = call.question or "a client sends its result"
            first, *more = truncate_text(question, _ARGUMENT_CHARS).splitlines() or [""]
            yield style_text(f"? {self._format_label(request)}: {escape_line(first)}", "yellow")
            yield from (style_text(f"  {escape_line(line)}", "yellow") for line in more)
            if len(question) > _ARGUMENT_CHARS:
                yield style_text(f"  the question is long: {self._format_command('approvals')}", "yellow")
            if call.consent is not None:
                yield style_text(f"  first: {escape_line(build_login_command(call.consent))}", "yellow")
            yield from (style_text(f"  {line}", "yellow") for line in _format_form(call.form))
        if call.expires is not None:
            then = f", then it counts as {'approved' if call.on_expiry == 'approve' else 'denied'}"
            yield style_text(f"  until {escape_line(call.expires)}{then if call.kind == 'approval' else ''}", "yellow")


def is_decision(text: str) -> bool:
    """Whether the line would decide on a call."""
    return text.lower() in (*_APPROVING, *_DENYING, *_ALWAYS) or text.lower().startswith(("n:", "no:"))


def _read_command(text: str, command: str, wanted: str) -> str | None:
    """What stands behind ``command``; None for another line. Raises ``InvalidInputError`` if nothing does."""
    word, *rest = text.split(maxsplit=1) or [""]
    if word.lower() != command:
        return None
    if not rest:
        raise InvalidInputError(f"{command} needs {wanted}: {command} …")
    return rest[0].strip()


def _read_decision(request: RunWait, text: str) -> str | ApprovalEntry:
    if not is_decision(text):
        return text
    word, _, comment = text.partition(":")
    if word.lower() in _DENYING:
        return ApprovalEntry(request, approved=False, comment=comment.strip() or None)
    return ApprovalEntry(request, approved=True, always=word.lower() in _ALWAYS)


def _read_answer(request: RunWait, text: str) -> AnswerEntry:
    from ...types.forms import find_form_mismatch

    if (reason := _read_command(text, "/no", "a reason")) is not None:
        return AnswerEntry(request, error=reason)
    form = request.call.form or {}
    choices = _list_numbered_choices(form)
    if text.isdecimal() and len(text) < 4 and 1 <= int(text) <= len(choices):
        return AnswerEntry(request, choices[int(text) - 1])
    if form.get("type") == "boolean" and text.lower() in (*_APPROVING, *_DENYING):
        return AnswerEntry(request, text.lower() in _APPROVING)
    value: Any = text
    if find_form_mismatch(form, text) is not None:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
        if (mismatch := find_form_mismatch(form, value)) is not None:
            raise InvalidInputError(f"the answer does not fit: {mismatch}")
    return AnswerEntry(request, value)


def _list_numbered_choices(form: Mapping[str, Any]) -> list[str]:
    """The choices that may be given by their numbers: texts of which none is itself a number."""
    choices = form.get("enum")
    if not isinstance(choices, list) or not all(
        isinstance(one, str) and not one.strip().isdecimal() for one in choices
    ):
        return []
    return choices[:_CHOICES_SHOWN]


def _format_form(form: Mapping[str, Any] | None) -> Iterator[str]:
    """What an answer must be, in few words where they say all."""
    if not form or form == {"type": "string"}:
        return
    if choices := _list_numbered_choices(form):
        yield from (f"{number}) {escape_line(choice)}" for number, choice in enumerate(choices, 1))
        if len(form["enum"]) > len(choices):
            yield f"… {len(form['enum'])} choices in all"
    elif form.get("type") == "boolean":
        yield "y or n"
    elif form.get("type") in ("number", "integer") and "enum" not in form:
        yield f"a {form['type']}" if form["type"] == "number" else "a whole number"
    else:
        yield f"as JSON: {escape_line(truncate_text(json.dumps(form, ensure_ascii=False), _ARGUMENT_CHARS))}"
