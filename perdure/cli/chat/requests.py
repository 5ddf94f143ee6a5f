"""The approvals and questions that wait in a chat, and what a line that was typed meanwhile means for them."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import InvalidInputError
from ...terminal import escape_line, style_text, truncate_text
from ..output import format_call
from ..show import format_past_decision

if TYPE_CHECKING:
    from ...types.approvals import DecidedApproval, PendingApproval

_ARGUMENT_CHARS = 4000
"""Characters of a call's arguments, or of a question, that are printed: what is approved must be seen."""
_CHOICES_SHOWN = 20
_APPROVING, _DENYING, _ALWAYS = ("y", "yes"), ("n", "no"), ("a", "always")


@dataclass(frozen=True)
class PendingRequest:
    """A call of run ``run_id``, the chat's own or a subagent's, that waits."""

    run_id: str
    call: PendingApproval

    def is_same(self, other: PendingRequest) -> bool:
        """Whether both are one wait: a call may ask again, and a model may use an id again."""
        ours, theirs = self.call, other.call
        if (self.run_id, ours.call_id, ours.hash) != (other.run_id, theirs.call_id, theirs.hash):
            return False
        return None in (ours.since, theirs.since) or ours.since == theirs.since

    def is_in(self, requests: Sequence[PendingRequest]) -> bool:
        """Whether it is one of ``requests``."""
        return any(map(self.is_same, requests))

    @property
    def label(self) -> str:
        """Its tool and call, for a line of the terminal."""
        return f"{escape_line(self.call.name)} ({escape_line(self.call.call_id)})"


@dataclass(frozen=True)
class ApprovalEntry:
    """A line that decides on a call."""

    request: PendingRequest
    approved: bool
    comment: str | None = None
    always: bool = False


@dataclass(frozen=True)
class AnswerEntry:
    """A line that answers a question, with a value or with the reason why there is none."""

    request: PendingRequest
    value: Any = None
    error: str | None = None


class PendingRequests:
    """What waits, and for which of it a line is typed.

    A line belongs to the request that the prompt showed when its first character was typed: another client may decide
    in between, and a ``y`` must not approve the call that is shown next.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._waiting: list[PendingRequest] = []
        self._decided: list[PendingRequest] = []
        """Decided in this chat: a status that was read before may still have them."""
        self._shown: PendingRequest | None = None
        self._typed_for: PendingRequest | None = None
        self._is_typing = False

    def update(
        self, waiting: Sequence[PendingRequest], decided: Mapping[tuple[str, str], DecidedApproval]
    ) -> Iterator[str]:
        """Take over what waits now, and yield the lines about what is new and what others have decided.

        ``decided`` has the last decision by run and call.
        """
        before, self._waiting = self._waiting, list(waiting)
        for request in before:
            if not request.is_in(self._waiting) and not request.is_in(self._decided):
                past = decided.get((request.run_id, request.call.call_id))
                text = f"{request.label} waits no longer" if past is None else format_past_decision(past)
                yield style_text(f"({text})", "yellow")
        for request in self._waiting:
            if not request.is_in(before) and not request.is_in(self._decided):
                yield from self._format_request(request)

    def clear(self) -> None:
        """The turn is over: nothing waits."""
        self._waiting, self._decided = [], []

    def set_decided(self, request: PendingRequest, decided: bool) -> None:
        """Do not ask for ``request`` any more, or ask again."""
        self._decided = [other for other in self._decided if not other.is_same(request)]
        if decided:
            self._decided.append(request)

    def confirm_decided(self, request: PendingRequest) -> None:
        """The decision has arrived."""
        self._waiting = [other for other in self._waiting if not other.is_same(request)]

    @property
    def open_requests(self) -> list[PendingRequest]:
        """What can be decided here: not the results that other programs send."""
        return [one for one in self._waiting if one.call.kind != "callback" and not one.is_in(self._decided)]

    def format_prompt(self) -> str | None:
        """The line above the prompt for the first request; None if nothing waits. The next line is typed for it."""
        waiting = self.open_requests
        self._shown = waiting[0] if waiting else None
        if self._shown is None:
            return None
        place = f" (1 of {len(waiting)})" if len(waiting) > 1 else ""
        if self._shown.call.kind == "approval":
            return f"approve {self._shown.label}?{place}  y · n · n: why · a always · else a message"
        return f"answer {self._shown.label}{place}  /no why: no answer · /say …: a message"

    def format_left(self) -> Iterator[str]:
        """What still waits when the user leaves, and how it is decided later."""
        for request in self._waiting:
            if request.call.kind != "callback":  # also one whose decision is on its way: it may be sent twice
                verb, value = ("approve", "") if request.call.kind == "approval" else ("answer", " VALUE")
                command = shlex.join(["perdure", verb, request.run_id, request.call.call_id])
                yield f"{request.label} still waits: {escape_line(command)}{value}"

    # --- lines

    def follow_text(self, text: str) -> None:
        """Take notice of the text on the line."""
        if not text:
            self._is_typing = False
        elif not self._is_typing:
            self._is_typing, self._typed_for = True, self._shown

    def read_line(self, text: str) -> str | ApprovalEntry | AnswerEntry:
        """What the line says: a message, a decision or an answer.

        Raises ``InvalidInputError`` for an answer that does not fit, and for a request that was decided meanwhile. The
        text then stays for the request that is shown next.
        """
        self.follow_text(text)
        request = self._typed_for
        if request is None:
            return text
        if text.startswith("/say ") and (message := text[len("/say ") :].strip()):
            return message
        entry = _read_decision(request, text) if request.call.kind == "approval" else _read_answer(request, text)
        if isinstance(entry, str):
            return entry
        if not request.is_in(self.open_requests):
            self._typed_for = next(iter(self.open_requests), None)
            raise InvalidInputError(f"{request.label} waits no longer: {truncate_text(text, 100)!r} was not sent")
        return entry

    def _format_request(self, request: PendingRequest) -> Iterator[str]:
        call = request.call
        where = "" if request.run_id == self._run_id else f"[{escape_line(request.run_id)}] "
        if call.kind == "approval":
            text = format_call(call.name, call.arguments, full=True)
            yield style_text(f"? {where}{truncate_text(text, _ARGUMENT_CHARS)}", "yellow")
            if call.arguments is None or len(text) > _ARGUMENT_CHARS:
                yield style_text(f"  its arguments are long: perdure show {request.run_id} --full", "yellow")
        else:
            question = call.question or "a client sends its result"
            first, *more = truncate_text(question, _ARGUMENT_CHARS).splitlines() or [""]
            yield style_text(f"? {where}{request.label}: {escape_line(first)}", "yellow")
            yield from (style_text(f"  {escape_line(line)}", "yellow") for line in more)
            yield from (style_text(f"  {line}", "yellow") for line in _format_form(call.form))
        if call.expires is not None:
            then = f", then it counts as {'approved' if call.on_expiry == 'approve' else 'denied'}"
            yield style_text(f"  until {escape_line(call.expires)}{then if call.kind == 'approval' else ''}", "yellow")


def is_decision(text: str) -> bool:
    """Whether the line would decide on a call."""
    return text.lower() in (*_APPROVING, *_DENYING, *_ALWAYS) or text.lower().startswith(("n:", "no:"))


def _read_decision(request: PendingRequest, text: str) -> str | ApprovalEntry:
    if not is_decision(text):
        return text
    word, _, comment = text.partition(":")
    if word.lower() in _DENYING:
        return ApprovalEntry(request, approved=False, comment=comment.strip() or None)
    return ApprovalEntry(request, approved=True, always=word.lower() in _ALWAYS)


def _read_answer(request: PendingRequest, text: str) -> AnswerEntry:
    from ...types.forms import find_form_mismatch

    if text.startswith("/no ") and (reason := text[len("/no ") :].strip()):
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
