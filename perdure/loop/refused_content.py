"""Withhold content that a model's API refuses, so that one bad image or message does not end a conversation.

A reply records what the model was not given (``Message.withheld``), and the next call leaves it out too. So the set is
part of the transcript: forks, compactions and later executions have it, and no message is edited.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import BadRequestError, ContentFilterError, ProviderError
from ..types.messages import FilePart, Message, Part, TextPart, ToolResultPart, Withheld, clean_text
from .finish import REMINDER_ID
from .transcript import SUMMARY_ID

MAX_WITHHOLD_TRIES = 8
"""How many times one model call is retried with content withheld. Refused requests cost nothing but time."""
REASON_CHARS = 200
"""Characters of the API's message that the transcript keeps."""
_REFUSAL_ERRORS = (BadRequestError, ContentFilterError)
"""Errors that are refusals; not their subclasses: a conversation that is too long is compacted instead."""


@dataclass(frozen=True, slots=True)
class WithholdableUnit:
    """A file, message or tool result that can be withheld."""

    withheld: Withheld
    digests: frozenset[str]
    """SHA-256 of its text or bytes, by which an error names it (``ProviderError.refused``)."""


class ContentWithholder:
    """What one model call leaves out. After an error, :meth:`withhold` chooses what to leave out of a retry.

    Only content after the last reply is withheld: a model has answered everything before it. First what the error
    names; else each file alone, the newest first, and then all of them. A content filter may also have refused a user
    message or a tool result: they are tried after the files, the newest first. ``resend`` first sends everything that
    was withheld before; what is refused again is withheld again.
    """

    def __init__(
        self, messages: Sequence[Message], before: Sequence[Withheld], *, resend: bool = False, texts: bool = True
    ) -> None:
        """``messages`` are the request's, ``before`` is what the last call left out. Without ``texts`` only files are
        withheld."""
        self._messages = messages
        withheld_before = {withheld.key: withheld for withheld in before}
        self._resent, self._base = (withheld_before, {}) if resend else ({}, withheld_before)
        self._trial: dict[str, Withheld] = {}
        self._queue: Iterator[Sequence[WithholdableUnit]] | None = None
        self._named = False
        """Whether the queue has only what an error named: a message of several files, for instance."""
        self._texts = texts
        self._tries = 0

    @property
    def messages(self) -> Sequence[Message]:
        """The request's messages, with placeholders for what is withheld."""
        keys = {*self._base, *self._trial}
        return [withhold_from_message(message, keys) for message in self._messages] if keys else self._messages

    @property
    def withheld(self) -> tuple[Withheld, ...]:
        """What the request leaves out."""
        return (*self._base.values(), *self._trial.values())

    def withhold(self, error: ProviderError) -> bool:
        """Choose what to leave out after ``error``; False if it is not a refusal, or nothing is left to try."""
        if type(error) not in _REFUSAL_ERRORS or self._tries >= MAX_WITHHOLD_TRIES:
            return False
        self._tries += 1
        if self._resent:
            self._base, self._resent = self._resent, {}
            return True
        units = [unit for unit in self._list_new_units() if unit.withheld.key not in self._base]
        if error.refused is not None and not self._named:
            named = [unit for unit in units if unit.digests & error.refused]
            named = [unit for unit in named if unit.withheld.kind == "file"] or named
            if not named and self._queue is None:
                return False
            if named:  # the error names something for the first time: what the trial left out was refused too
                self._base |= self._trial | (_build_withheld(named, error) if len(named) == 1 else {})
                self._trial, self._named = {}, len(named) > 1
                self._queue = self._iter_trials(named) if self._named else None
                if not self._named:
                    return True
        if self._queue is None:
            self._queue = self._iter_trials(self._list_suspects(units, error))
        trial = next(self._queue, ())
        self._trial = _build_withheld(trial, error)
        return bool(trial)

    def _list_new_units(self) -> list[WithholdableUnit]:
        """List the units after the last reply, the newest first."""
        new = list(itertools.takewhile(lambda message: not _is_model_reply(message), reversed(self._messages)))
        return [unit for message in new for unit in reversed(list(_iter_withholdable_units(message)))]

    def _list_suspects(self, units: Sequence[WithholdableUnit], error: ProviderError) -> Sequence[WithholdableUnit]:
        """List the units to try if the error names none."""
        suspects = [unit for unit in units if unit.withheld.kind == "file"]
        if self._texts and isinstance(error, ContentFilterError):
            suspects += [unit for unit in units if unit.withheld.kind != "file"]
        return suspects

    def _iter_trials(self, units: Sequence[WithholdableUnit]) -> Iterator[Sequence[WithholdableUnit]]:
        for unit in units[: MAX_WITHHOLD_TRIES - self._tries]:
            yield (unit,)
        if len(units) > 1:
            yield units


def find_last_withheld(messages: Sequence[Message]) -> tuple[Withheld, ...]:
    """Return what the model call of the latest reply in ``messages`` left out."""
    return next((message.withheld for message in reversed(messages) if _is_model_reply(message)), ())


def filter_present_withheld(withheld: Sequence[Withheld], messages: Iterable[Message]) -> tuple[Withheld, ...]:
    """Select those of ``withheld`` that are in ``messages``; the others were summarised, or removed by author code."""
    if not withheld:
        return ()
    keys = {unit.withheld.key for message in messages for unit in _iter_withholdable_units(message)}
    return tuple(entry for entry in withheld if entry.key in keys)


def withhold_from_message(message: Message, keys: Collection[str]) -> Message:
    """Replace each part of ``message`` that ``keys`` name by a placeholder; ``message`` itself if there are none."""
    parts: list[Part]
    if message.role == "user":
        if _build_message_key(message) in keys:
            return message.model_copy(update={"parts": (TextPart(text=_build_withheld_placeholder("this message")),)})
        parts = [
            TextPart(text=_build_withheld_placeholder(_describe_withheld_file(part)))
            if isinstance(part, FilePart) and _build_file_key(part, message.id or "") in keys
            else part
            for part in message.parts
        ]
    elif message.role == "tool":
        parts = [_withhold_result(part, keys) if isinstance(part, ToolResultPart) else part for part in message.parts]
    else:
        return message
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    return message.model_copy(update={"parts": tuple(parts)})


def _withhold_result(part: ToolResultPart, keys: Collection[str]) -> ToolResultPart:
    if _build_result_key(part) in keys:
        return part.model_copy(update={"content": _build_withheld_placeholder("this result"), "files": ()})
    files = tuple(file for file in part.files if _build_file_key(file, part.call_id) not in keys)
    if len(files) == len(part.files):
        return part
    notes = [_build_withheld_placeholder(_describe_withheld_file(file)) for file in part.files if file not in files]
    content = "\n".join([part.content, *notes] if part.content else notes)
    return part.model_copy(update={"content": content, "files": files})


def _build_withheld_placeholder(what: str) -> str:
    return f"[Withheld: {what}. The model's API refused it, so you cannot see it. Say so where it matters.]"


def _is_model_reply(message: Message) -> bool:
    """Whether a model wrote the message, so that its API has accepted the messages before it."""
    return message.role == "assistant" and bool(message.model) and message.finish_reason != "veto"


def _iter_withholdable_units(message: Message) -> Iterator[WithholdableUnit]:
    """Yield the units of ``message`` that can be withheld."""
    if message.role == "user":
        for part in message.parts:
            if isinstance(part, FilePart):
                yield _build_file_unit(part, message.id or "", id=message.id)
        if message.id not in (REMINDER_ID, SUMMARY_ID):
            whole = Withheld(key=_build_message_key(message), kind="message", what="message", id=message.id)
            yield WithholdableUnit(whole, frozenset().union(*map(_compute_part_digests, message.parts)))
    for result in message.tool_results:
        for file in result.files:
            yield _build_file_unit(file, result.call_id, call_id=result.call_id)
        what = f"result of {result.name}"
        whole = Withheld(key=_build_result_key(result), kind="result", what=what, call_id=result.call_id)
        yield WithholdableUnit(whole, frozenset((_hash_text(result.content),)))


def _build_file_unit(file: FilePart, owner: str, **place: str | None) -> WithholdableUnit:
    """Build the unit of a file; ``place``: the id of its message, or of its call."""
    key, what = _build_file_key(file, owner), _describe_withheld_file(file)
    return WithholdableUnit(
        Withheld.model_validate({"key": key, "kind": "file", "what": what, **place}), _compute_part_digests(file)
    )


def _build_withheld(units: Iterable[WithholdableUnit], error: ProviderError) -> dict[str, Withheld]:
    reason = clean_text(f"{type(error).__name__}: {error.message}")[:REASON_CHARS]
    return {unit.withheld.key: unit.withheld.model_copy(update={"reason": reason}) for unit in units}


def _describe_withheld_file(file: FilePart) -> str:
    return f"{file.media_type} {file.name}" if file.name else file.media_type


def _compute_part_digests(part: Part) -> frozenset[str]:
    if isinstance(part, TextPart):
        return frozenset((_hash_text(part.text),))
    if not isinstance(part, FilePart):
        return frozenset()
    return frozenset((part.blob.hash if part.blob is not None else _hash_text(part.url or part.data or ""),))


def _build_file_key(file: FilePart, owner: str) -> str:
    """Build the key of a file. ``owner`` is the id of its message or call, so that a file sent again is tried again."""
    return _hash_key_parts("file", owner, file.media_type, *_compute_part_digests(file))


def _build_message_key(message: Message) -> str:
    return _hash_key_parts(
        "message", message.id or "", *(digest for part in message.parts for digest in _compute_part_digests(part))
    )


def _build_result_key(result: ToolResultPart) -> str:
    return _hash_key_parts("result", result.call_id, _hash_text(result.content))


def _hash_key_parts(*parts: str) -> str:
    return _hash_text(json.dumps(parts))[:32]


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
