"""Messages: taken, refused, or known already; and the turns that they open."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ..errors import InvalidInputError, RunClosedError
from ..types.approvals import name_hash
from ..types.files import unfit_file
from ..types.interface import SENDERS, Override, Start, UserMessage
from ..types.messages import BlobRef, ContentPart, FilePart, TextPart, clean
from ..types.plain_json import size
from ..types.state import NAMED_TURNS, SEEN_IDS, RunState, Turn
from ..types.validation_errors import describe_validation_error
from ..types.wire import New, NewMessage
from .payload_limits import ID_BYTES, INBOX_BYTES, MESSAGE_BYTES, OVERRIDE_BYTES, SEEN_BYTES
from .turns import remember
from .waits import askers

# ---
# On whose behalf a run acts: who started it, until a message that the model is given brings somebody else.
#
# Calls of a reply to an earlier message still run as before: what a message brings counts from the step on that takes
# it.


Brings = Start | UserMessage | NewMessage


def take_auth(state: RunState, message: Brings) -> None:
    """The run acts as ``message`` says, if it says so."""
    if message.auth_context is not None or message.auth_ref is not None:
        state.auth_context, state.auth_ref = message.auth_context, message.auth_ref


def given(state: RunState, new: Sequence[New]) -> tuple[New, ...]:
    """``new`` as a step is given it. The run acts as its messages say from now on, and every activity is told so."""
    return tuple(_taken(state, item) if isinstance(item, NewMessage) else item for item in new)


def _taken(state: RunState, message: NewMessage) -> NewMessage:
    if message.auth_context is None and message.auth_ref is None:
        return message
    take_auth(state, message)
    return message.model_copy(update={"auth_context": None, "auth_ref": None})


def shown(raw: Any) -> str:
    """A message that is refused, as an error says it: without what somebody may have sent in the clear."""
    hidden = isinstance(raw, Mapping) and raw.get("auth_context") is not None
    try:
        return str({**raw, "auth_context": "…"} if hidden else raw)
    except (RecursionError, ValueError):  # nested thousands of times, or with an integer of thousands of digits
        return f"a {type(raw).__name__}"


# ---
# What a message may consist of: text, or parts, each a text or a file.


Content = str | BlobRef | tuple[ContentPart, ...]


def unfit_content(content: Content | None) -> str | None:
    """Why ``content`` is none that can be given to a model, if so."""
    if content is None or isinstance(content, str | BlobRef):
        return None
    if not content:
        return "content: a list of parts has at least one"
    for number, part in enumerate(content):
        if why := unfit_file(part) if isinstance(part, FilePart) else _unfit_text(part):
            return f"content.{number}: {why}"
    return None


def _unfit_text(part: TextPart) -> str | None:
    if (part.blob is None) == (part.text == ""):
        return "a text has exactly one of text and blob"
    if part.provider is not None or part.opaque is not None:
        return "opaque: what is for a provider alone stands in its replies, not in a message"
    return None


def cleaned(content: Content) -> Content:
    """``content`` as it can be carried on: text without lone surrogates, media types in lower case."""
    if isinstance(content, str):
        return clean(content)
    return content if isinstance(content, BlobRef) else tuple(_cleaned(part) for part in content)


def _cleaned(part: ContentPart) -> ContentPart:
    if isinstance(part, TextPart):
        return part.model_copy(update={"text": clean(part.text)})
    name = clean(part.name) if part.name else None
    return part.model_copy(update={"media_type": part.media_type.lower(), "name": name})


def carried(message: UserMessage) -> UserMessage:
    """``message`` as a run carries it: an input is its JSON, a text like others."""
    if message.input is None:
        return message
    text = json.dumps(message.input, ensure_ascii=False)
    return message.model_copy(update={"content": text, "input": None, "typed": True})


def kept_apart(content: Content | None) -> bool:
    """Whether some of it is in a store."""
    if content is None or isinstance(content, str):
        return False
    return isinstance(content, BlobRef) or any(part.blob is not None for part in content)


REFUSED_CHARS = 300
"""Of what ``status`` says of a message that was refused."""


def receive(state: RunState, raw: Any) -> bool:
    """Take a message: a string, or ``{"content", "id"}``. False if it was seen before or cannot be taken.

    Why it cannot is kept, shortened, for ``status``: a signal has nobody to raise an error to.
    """
    try:
        message = read_message(raw)
        _check_store(state, message)
        if _known(state, message):
            return False
        _check_sender(state, message)
        _check_room(state, message)
    except InvalidInputError as error:
        refuse(state, error.message)
        return False
    _take(state, message)
    return True


def refuse(state: RunState, why: str) -> None:
    """Keep why something that was signalled was not taken."""
    state.refused = [*state.refused, clean(why)[:REFUSED_CHARS]][-10:]


def send(state: RunState, raw: Any) -> str:
    """Take a message from somebody who waits for its answer: the ``task_id`` of its turn, also when it was seen before.

    Raises ``InvalidInputError`` for one that cannot be taken, ``RunClosedError`` where nobody would answer it.
    """
    message = check_message(state, raw)
    return _known(state, message) or _take(state, message)


def check_message(state: RunState | None, raw: Any) -> UserMessage:
    """What :func:`send` would take; None where the state is not known yet. Raises as it does."""
    message = read_message(raw)
    if state is None:
        return message
    _check_store(state, message)
    if _known(state, message):
        return message
    if state.cancelled or (state.turn is not None and state.turn.failure is not None):
        raise RunClosedError(f"run {state.context_id!r} is ending", hint="Send it again when the run has ended.")
    _check_sender(state, message)
    _check_room(state, message)
    return message


def read_message(raw: Any) -> UserMessage:
    """A message as it is sent: a string, or an object. Raises ``InvalidInputError`` that names what is wrong."""
    try:
        message = carried(UserMessage(content=raw) if isinstance(raw, str) else UserMessage.model_validate(raw))
    except ValidationError as error:
        problem = describe_validation_error(error, "message", content=True)
        raise InvalidInputError(f"{problem}: {shown(raw)[:80]}") from None
    if why := unfit(message):
        raise InvalidInputError(f"{why}: {shown(raw)[:80]}")
    return message


def unfit(message: UserMessage) -> str | None:
    """Why Temporal could not carry ``message`` on, if so."""
    for name in ("id", "task_id", "by"):
        if (found := size(getattr(message, name))) > ID_BYTES:
            return f"{name}: it has {found:,} bytes as JSON and may have {ID_BYTES:,}"
    if why := unfit_override(message.override) or unfit_content(message.content):
        return why
    found = size(message.model_dump(mode="json", exclude_none=True))
    if found <= MESSAGE_BYTES:
        return None
    return (
        f"message: it has {found:,} bytes as JSON and may have {MESSAGE_BYTES:,}; "
        "send it with perdure's client, which puts a long one into the store"
    )


def unfit_override(override: Override | None) -> str | None:
    """Why every model call could not be told of ``override``, if so."""
    found = size(override.model_dump(mode="json", exclude_none=True)) if override is not None else 0
    if found <= OVERRIDE_BYTES:
        return None
    return f"override: it has {found:,} bytes as JSON and may have {OVERRIDE_BYTES:,}; say the rest in a message"


def _check_store(state: RunState, message: UserMessage) -> None:
    """Refuse a message whose text is in a store that is not the run's."""
    if not kept_apart(message.content) or None in (message.store_id, state.store_id):
        return
    if message.store_id != state.store_id:
        what = "its text is" if isinstance(message.content, BlobRef) else "what is in it is"
        raise InvalidInputError(
            f"message: {what} in store {message.store_id}, and the run is kept in store {state.store_id}"
        )


def _check_sender(state: RunState, message: UserMessage) -> None:
    """Refuse a message of one person more than can be remembered."""
    sender, known = name_hash(message.by), [] if _opens_turn(state) else askers(state)
    if sender is not None and sender not in known and len(known) >= SENDERS:
        raise InvalidInputError(
            f"by: {SENDERS:,} people have written in this turn, and a run remembers no more",
            hint="Send it when the turn has ended, or as one of them.",
        )


def _check_room(state: RunState, message: UserMessage) -> None:
    """Refuse a message that does not fit beside those that wait: the run could not be continued as new with them."""
    count, waiting = _count_waiting(state)
    found = waiting + size(message.model_dump(mode="json", exclude_none=True))
    if found > INBOX_BYTES and count:
        raise InvalidInputError(
            f"message: with the {count:,} that wait for the model it has {found:,} bytes as JSON and may have "
            f"{INBOX_BYTES:,}",
            hint="Send it again when the model was given those, or with perdure's client, which puts a long message "
            "into the store.",
        )


def _count_waiting(state: RunState) -> tuple[int, int]:
    """The messages that no model was given, some perhaps in a step that was interrupted: how many, and their bytes.

    They are measured anew only where some were taken out since the last was taken: thousands may wait. Changes nothing,
    as an update's validator asks, which does not run in replay.
    """
    messages = [item for item in state.carry if isinstance(item, NewMessage)]
    if len(messages) + len(state.inbox) == state.waiting:
        return state.waiting, state.waiting_bytes
    messages += [item for item in state.inbox if isinstance(item, NewMessage)]
    return len(messages), sum(size(item.model_dump(mode="json", exclude_none=True)) for item in messages)


def _known(state: RunState, message: UserMessage) -> str | None:
    """The turn of a message that was taken before. An empty id is none: it would make all such messages one."""
    return state.seen.get(clean(message.id)) if message.id else None


def _take(state: RunState, message: UserMessage) -> str:
    """Put ``message`` into the inbox; the turn that it joins or opens."""
    if _opens_turn(state):
        open_turn(state, message.task_id)
    turn = state.turn
    assert turn is not None, "a message always has a turn"
    if (sender := name_hash(message.by)) is not None and sender not in turn.said_by:
        turn.said_by.append(sender)
    if message.override is not None:
        turn.overrides = message.override.model_dump(mode="json", exclude_none=True)
    sent = clean(message.id) if message.id else None
    if sent is not None:
        state.seen[sent] = turn.task_id
        while len(state.seen) > SEEN_IDS or size(state.seen) > SEEN_BYTES:
            del state.seen[next(iter(state.seen))]
    if message.content is not None:
        by = clean(message.by) if message.by else None
        said, kept = cleaned(message.content), message.store_id
        new = NewMessage(
            content=said,
            id=sent,
            by=by,
            store_id=kept,
            typed=message.typed,
            auth_context=message.auth_context,
            auth_ref=message.auth_ref,
        )
        count, found = _count_waiting(state)
        state.waiting = count + 1
        state.waiting_bytes = found + size(new.model_dump(mode="json", exclude_none=True))
        state.inbox.append(new)
        if state.interrupt == "stop":  # whoever interrupted has something to say after all
            state.interrupt = "go on"
    else:
        take_auth(state, message)
    return turn.task_id


def _opens_turn(state: RunState) -> bool:
    """Whether the next message opens a turn. It joins earlier messages that still wait for their answer."""
    turn = state.turn
    if turn is None or state.cancelled:
        return turn is None
    return state.mode == "session" and turn.answer is not None and turn.failure is None and not state.inbox


def open_turn(state: RunState, task_id: str | None = None) -> None:
    """Open the next turn, under ``task_id`` unless a turn has that already."""
    remember(state)
    if state.turn is not None and (state.turn.overrides or {}).get("limits"):
        # They were for that turn. Kept, they could end this one before a model call says what the agent allows.
        state.limits = state.limits.model_copy(update={"run": None, "turn": None})
    state.turns += 1
    state.recorded = False
    state.turn = Turn(
        task_id=_named(state, clean(task_id or "")) or f"{_prefix(state)}{state.turns}",
        usage_before=state.usage,
        cost_before=state.cost_usd,
        worked_before=state.worked,
        tool_calls_before=state.tool_calls,
    )


def _named(state: RunState, task_id: str) -> str | None:
    """``task_id``, unless it is empty, or the id of another turn: in the store it would take the place of that one."""
    name = hashlib.sha256(task_id.encode()).hexdigest()[:16]
    known = {past.task_id for past in state.past} | set(state.seen.values())
    if not task_id or task_id in known or name in state.named or task_id.startswith(_prefix(state)):
        return None
    state.named = [*state.named, name][-NAMED_TURNS:]
    return task_id


def _prefix(state: RunState) -> str:
    """Of the ids that turns get here: the end of the scope, as run ids begin with the time, and a conversation may have
    several executions a minute."""
    return f"{state.scope[-12:]}-"
