"""Messages to a run: checks, the inbox, repeated ids, the turns that they open, and whose authority they carry."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from ..errors import InvalidInputError, RunClosedError
from ..types.interface import Start, UserMessage, check_run_labels
from ..types.messages import BlobRef, ContentPart, TextPart, clean_text
from ..types.plain_json import measure_json
from ..types.state import MAX_NAMED_TURNS, MAX_SEEN_IDS, RunState, TurnState
from ..types.wire import NewItem, NewMessage
from .finish import REMINDER_ID
from .payload_limits import INBOX_BYTES, MESSAGE_IDS_BYTES, measure_model
from .requests import MessageContent, parse_message, replace_caller_overrides
from .turns import remember_turn
from .waits import check_requester_room, record_requester, record_requesters

# ---
# The auth context that a run acts with: that of its start, until a message that the model is given brings another. And
# the caller for whom it works: who has sent the last of those messages, whatever it brings.
#
# Calls of a reply to an earlier message run as before: a message's sender counts from the step on that takes it.


AuthSource = Start | UserMessage | NewMessage


def set_auth(state: RunState, message: AuthSource) -> None:
    """Set the run's auth context and reference to those of ``message``, if it has any."""
    if message.auth_context is not None or message.auth_ref is not None:
        state.auth_context, state.auth_ref = message.auth_context, message.auth_ref


def set_caller(state: RunState, message: UserMessage | NewMessage) -> None:
    """Set the caller for whom the run works to the sender of ``message``: of one that names none it is unknown."""
    caller = message.by if message.on_behalf_of is None else message.on_behalf_of
    state.caller = clean_text(caller) if caller else None


def take_message_sender(state: RunState, new: Sequence[NewItem]) -> tuple[NewItem, ...]:
    """Let the run work for the senders of the messages in ``new``, and act with their auth context; return ``new``
    without that."""
    stripped = list(new)
    for index, item in enumerate(new):
        if not isinstance(item, NewMessage) or (item.id == REMINDER_ID and item.by is None):
            continue
        set_caller(state, item)
        if item.auth_context is not None or item.auth_ref is not None:
            set_auth(state, item)
            stripped[index] = item.model_copy(update={"auth_context": None, "auth_ref": None})
    return tuple(stripped)


# ---
# Content of a message: text, or parts, each a text or a file.


def clean_content(content: MessageContent) -> MessageContent:
    """Return ``content`` in the form that is kept: text without lone surrogates, media types in lower case."""
    if isinstance(content, str):
        return clean_text(content)
    return content if isinstance(content, BlobRef) else tuple(map(_clean_content_part, content))


def _clean_content_part(part: ContentPart) -> ContentPart:
    if isinstance(part, TextPart):
        return part.model_copy(update={"text": clean_text(part.text)})
    name = clean_text(part.name) if part.name else None
    return part.model_copy(update={"media_type": part.media_type.lower(), "name": name})


def has_stored_content(content: MessageContent | None) -> bool:
    """Whether some of ``content`` is in a store."""
    if content is None or isinstance(content, str):
        return False
    return isinstance(content, BlobRef) or any(part.blob is not None for part in content)


REFUSED_CHARS = 300
"""Characters of a refusal that ``status.refused`` keeps."""


def receive_message(state: RunState, raw: Any) -> bool:
    """Accept a message from a signal: a string, or ``{"content", "id"}``. False if it was seen before or is refused.

    The reason of a refusal is kept, shortened, in ``status.refused``: a signal has no error to raise.
    """
    try:
        message = parse_message(raw)
        _check_message_store(state, message)
        _check_message_labels(state, message)
        if _find_known_turn(state, message):
            return False
        check_requester_room(state, message.by, opens_turn=_will_open_turn(state))
        _check_inbox_room(state, message)
    except InvalidInputError as error:
        record_refusal(state, error.message)
        return False
    _add_to_inbox(state, message)
    return True


def record_refusal(state: RunState, reason: str) -> None:
    """Keep the reason why a signal was refused, for ``status.refused``: the latest 10."""
    state.refused = [*state.refused, clean_text(reason)[:REFUSED_CHARS]][-10:]


def accept_message(state: RunState, raw: Any) -> str:
    """Accept a message from an update; return the ``task_id`` of its turn, also if the message was seen before.

    Raises ``InvalidInputError`` for an invalid message, ``RunClosedError`` if the run is ending.
    """
    message = check_message(state, raw)
    return _find_known_turn(state, message) or _add_to_inbox(state, message)


def check_message(state: RunState | None, raw: Any) -> UserMessage:
    """Parse and check a message as :func:`accept_message` does, without accepting it. Raises as it does.

    With ``state`` None (the input is not read yet) only ``raw`` is checked.
    """
    message = parse_message(raw)
    if state is None:
        return message
    _check_message_store(state, message)
    _check_message_labels(state, message)
    if _find_known_turn(state, message):
        return message
    if state.cancelled or (state.turn is not None and state.turn.failure is not None):
        raise RunClosedError(f"run {state.context_id!r} is ending", hint="Send it again when the run has ended.")
    check_requester_room(state, message.by, opens_turn=_will_open_turn(state))
    _check_inbox_room(state, message)
    return message


def _check_message_store(state: RunState, message: UserMessage) -> None:
    """Refuse a message with content, or with client tools, in a store that is not the run's."""
    is_stored = has_stored_content(message.content)
    if not (is_stored or isinstance(message.client_tools, BlobRef)) or None in (message.store_id, state.store_id):
        return
    if message.store_id != state.store_id:
        what = "its content is" if is_stored else "its client tools are"
        raise InvalidInputError(
            f"message: {what} in store {message.store_id}, and the run is kept in store {state.store_id}"
        )


def _check_message_labels(state: RunState, message: UserMessage) -> None:
    """Refuse a message to the conversation of another tenant or user."""
    own = {"tenant": state.tenant, "user": state.user}
    check_run_labels(state.context_id, own, tenant=message.tenant, user=message.user)


def _check_inbox_room(state: RunState, message: UserMessage) -> None:
    """Refuse a message that does not fit beside the waiting ones: the run could not be continued as new with them."""
    count, byte_count = _count_waiting_messages(state)
    size = byte_count + measure_model(message)
    if size > INBOX_BYTES and count:
        raise InvalidInputError(
            f"message: with the {count:,} that wait for the model it has {size:,} bytes as JSON and may have "
            f"{INBOX_BYTES:,}",
            hint="Send it again when the model was given those, or with perdure's client, which puts a long message "
            "into the store.",
        )


def _count_waiting_messages(state: RunState) -> tuple[int, int]:
    """Count the messages that no model call was given, some perhaps of an interrupted step: number, and bytes of JSON.

    They are measured anew only if some were taken out since the last was added: thousands may wait. The state is not
    changed: an update's validator calls this, and does not run in replay.
    """
    messages = [item for item in state.unsent if isinstance(item, NewMessage)]
    if len(messages) + len(state.inbox) == state.measured_inbox_count:
        return state.measured_inbox_count, state.measured_inbox_bytes
    messages += [item for item in state.inbox if isinstance(item, NewMessage)]
    return len(messages), sum(map(measure_model, messages))


def _find_known_turn(state: RunState, message: UserMessage) -> str | None:
    """Return the turn of a message that was accepted before. An empty id counts as none, else all such messages would
    be one."""
    return state.turn_by_message_id.get(clean_text(message.id)) if message.id else None


def _add_to_inbox(state: RunState, message: UserMessage) -> str:
    """Put ``message`` into the inbox; return the ``task_id`` of the turn that it joins or opens."""
    if _will_open_turn(state):
        open_turn(state, message.task_id)
    turn = state.turn
    assert turn is not None, "a message always has a turn"
    record_requester(state, message.by)
    record_requesters(state, message.asked_by)
    if message.override is not None:
        turn.overrides = message.override.model_dump(mode="json", exclude_none=True)
    if message.caller_request is not None:
        turn.is_external = True
        if message.caller_request.override is not None:
            asked = message.caller_request.override.model_dump(mode="json", exclude_none=True)
            turn.caller_overrides = replace_caller_overrides(turn.caller_overrides, asked)
    if message.client_tools is not None:
        turn.client_tools = message.client_tools or None
    message_id = clean_text(message.id) if message.id else None
    if message_id is not None:
        _remember_message_id(state, message_id, turn.task_id)
    if message.content is None:
        set_auth(state, message)
        set_caller(state, message)
        return turn.task_id
    by = clean_text(message.by) if message.by else None
    new = NewMessage(
        content=clean_content(message.content),
        id=message_id,
        by=by,
        store_id=message.store_id,
        typed=message.typed,
        auth_context=message.auth_context,
        auth_ref=message.auth_ref,
        on_behalf_of=message.on_behalf_of,
    )
    count, byte_count = _count_waiting_messages(state)
    state.measured_inbox_count, state.measured_inbox_bytes = count + 1, byte_count + measure_model(new)
    state.inbox.append(new)
    if state.interrupt == "stop":  # a message follows the interrupt: the turn goes on with it
        state.interrupt = "go on"
    return turn.task_id


def _remember_message_id(state: RunState, message_id: str, task_id: str) -> None:
    """Remember the message, and forget the earliest ones that are too many. Only these are measured: thousands of
    messages may come in one workflow task."""
    if not state.turn_by_message_id_bytes:
        state.turn_by_message_id_bytes = measure_json(state.turn_by_message_id)
    state.turn_by_message_id[message_id] = task_id
    state.turn_by_message_id_bytes += measure_json({message_id: task_id})
    while len(state.turn_by_message_id) > MAX_SEEN_IDS or state.turn_by_message_id_bytes > MESSAGE_IDS_BYTES:
        earliest = next(iter(state.turn_by_message_id))
        state.turn_by_message_id_bytes -= measure_json({earliest: state.turn_by_message_id.pop(earliest)})


def _will_open_turn(state: RunState) -> bool:
    """Whether the next message opens a turn. It joins earlier messages that still wait for their answer."""
    turn = state.turn
    if turn is None or state.cancelled:
        return turn is None
    return state.mode == "session" and turn.answer is not None and turn.failure is None and not state.inbox


def open_turn(state: RunState, task_id: str | None = None) -> None:
    """Open the next turn, under ``task_id`` unless a turn has that already."""
    remember_turn(state)
    if state.turn is not None and any(
        (changes or {}).get("limits") for changes in (state.turn.overrides, state.turn.caller_overrides)
    ):
        # They were the last turn's. Kept, they could end this one before a model call reports what the agent allows.
        state.limits = state.limits.model_copy(update={"run": None, "turn": None})
    state.turns += 1
    state.recorded = False
    state.turn = TurnState(
        task_id=_claim_task_id(state, clean_text(task_id or "")) or f"{_build_task_id_prefix(state)}{state.turns}",
        usage_before=state.usage,
        cost_before=state.cost_usd,
        worked_before=state.worked,
        tool_calls_before=state.tool_calls,
    )


def _claim_task_id(state: RunState, task_id: str) -> str | None:
    """Return ``task_id``, or None if it is empty, or may be another turn's, which it would replace in the store."""
    name = hashlib.sha256(task_id.encode()).hexdigest()[:16]
    known = {past.task_id for past in state.past_turns} | set(state.turn_by_message_id.values())
    if (
        not task_id
        or task_id in known
        or name in state.used_task_hashes
        or task_id.startswith(_build_task_id_prefix(state))
    ):
        return None
    state.used_task_hashes = [*state.used_task_hashes, name][-MAX_NAMED_TURNS:]
    return task_id


def _build_task_id_prefix(state: RunState) -> str:
    """Build the prefix of generated turn ids: the end of the scope, as run ids begin with the time, and a conversation
    may have several executions a minute."""
    return f"{state.scope[-12:]}-"
