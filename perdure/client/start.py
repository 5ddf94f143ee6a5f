"""Builds the workflow's input from the arguments of a start."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Required, get_args

from pydantic import BaseModel
from typing_extensions import TypedDict

from ..encryption import AuthMapping
from ..errors import InvalidInputError, PerdureError, RunExistsError, RunNotFoundError, TranscriptCorruptedError
from ..loop.lifecycle import parse_start
from ..loop.payload_limits import RUN_ID_BYTES
from ..loop.transcript import list_open_calls
from ..ports import Commit
from ..store import Chain
from ..tools.context_type import validate_plain_context
from ..types.interface import FIRST_MESSAGE_MEMO, Mode, Override, Response
from ..types.messages import Dataclass, File, Message, MessageInput, clean_text, find_file_flaw, iter_file_parts
from ..types.session_form import from_session
from .handles import ClientHandle
from .messages import build_user_message
from .run import Run

if TYPE_CHECKING:
    from ..agent.agent import Agent


logger = logging.getLogger("perdure.client")

History = str | Run | Response | Sequence[Message] | Sequence[Mapping[str, Any]]
"""What a conversation may continue from: a head, another run, its response, messages, or a session in the flat form of
:mod:`perdure.types.session_form`."""


class _RunOptions(TypedDict, total=False):
    auth_context: AuthMapping | None
    auth_ref: str | None
    history: History | None
    override: Override | Mapping[str, Any] | None
    idle_timeout: float | str | None
    by: str | None


class StartOptions(_RunOptions, total=False):
    """Options of ``Client.start``, for the overloads of its types."""

    id: str | None
    mode: Mode
    if_exists: Literal["error", "attach"]
    max_history_events: int | None


class SendOptions(_RunOptions, total=False):
    """Options of ``Client.send``, for the overloads of its types."""

    id: Required[str]
    message_id: str | None
    task_id: str | None


_HEAD_PATTERN = re.compile(r"[0-9a-f]{64}")


async def build_start_input(
    client: ClientHandle,
    agent: str | Agent[Any, Any],
    message: MessageInput | None,
    *,
    by: str | None = None,
    mode: Mode,
    context: Any = None,
    history: History | None = None,
    override: Override | Mapping[str, Any] | None = None,
    idle_timeout: float | str | None = None,
    resume: bool = False,
    max_history_events: int | None = None,
) -> dict[str, Any]:
    """Build a ``Start`` as plain JSON. Arguments are checked against the agent's code where the client has it.

    Raises ``InvalidInputError``, ``DefinitionError``, ``TranscriptUnavailableError``.
    """
    user_message = None
    if message is not None:
        user_message = await build_user_message(client, check_message_input(agent, message), by=by)
    if mode not in get_args(Mode):
        raise InvalidInputError(f"the mode of a run is one of {', '.join(get_args(Mode))}, not {mode!r:.100}")
    head, store_id = await _resolve_history(client, history)
    start = {
        "agent": get_agent_name(agent),
        "message": user_message.model_dump(mode="json", exclude_none=True) if user_message else None,
        "mode": mode,
        "context": encode_start_context(agent, context),
        "history": head,
        "resume": resume,
        "idle_timeout": idle_timeout,
        "override": encode_override(agent, override),
        "store_id": (user_message.store_id if user_message else None) or store_id,
        "max_history_events": max_history_events,
    }
    plain = parse_start(start).model_dump(mode="json", exclude_defaults=True)
    # The type of a part is a default, and must be included.
    return plain | ({"message": start["message"]} if user_message else {})


def hash_first_message(context_id: str, start: Mapping[str, Any]) -> str | None:
    """Hash the message of a start: what was asked, not who asked, or how it is sent. The id makes it the run's own, so
    that equal hashes of short messages in a list of runs say nothing.

    None for a typed input: equal ones need not have equal JSON (sets, defaults that are made anew, added fields).
    """
    message = start.get("message") or {}
    if message.get("input") is not None or message.get("typed"):
        return None
    asked = {name: message.get(name) for name in ("content", "input", "typed")}
    text = json.dumps([context_id, asked], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


async def attach_to_run(run: Run[Any], message_hash: str | None, if_exists: str) -> Run[Any]:
    """Return the existing ``run`` for a start whose message has that hash; None for a typed input. Raises
    ``RunExistsError``, unless ``if_exists`` is "attach" and the run was started with the same message, or is not known
    to have another.
    """
    memo: Mapping[str, Any] = {}
    try:
        memo = await (await run.describe()).memo()
    except PerdureError:
        raise
    except Exception as error:  # written with another codec
        logger.debug("the memo of run %s cannot be read: %s", run.id, error)
    if message_hash is not None and memo.get(FIRST_MESSAGE_MEMO, message_hash) != message_hash:
        raise RunExistsError(
            f"there is a run {run.id!r} already, which was started with another message",
            hint="Give this one another id. To send it into that conversation: client.send(…, id=…); "
            "for that run's answer: client.run(id).result().",
        )
    if if_exists == "attach":
        return run
    hint = 'Give it another id, or attach to it with if_exists="attach".'
    raise RunExistsError(f"there is a run {run.id!r} already", hint=hint)


def get_agent_name(agent: str | Agent) -> str:
    """Return the agent's name; any other value unchanged, for the check of the input."""
    return getattr(agent, "name", agent)  # type: ignore[arg-type]  # the caller's types may be unchecked


def check_run_id(id: str | None) -> str | None:
    """Return ``id``. Raises ``InvalidInputError`` for an invalid run id."""
    if id is None or (isinstance(id, str) and id == clean_text(id) and 0 < len(id.encode()) <= RUN_ID_BYTES):
        return id
    raise InvalidInputError(
        f"the id of a run is a text of 1 to {RUN_ID_BYTES:,} bytes, not {id!r:.100}",
        hint="Leave it out, and the run gets one.",
    )


def check_message_input(agent: str | Agent[Any, Any], message: MessageInput | None) -> MessageInput | None:
    """Return ``message``; where the client has the agent's code, an input as plain JSON that fits its type. Raises
    ``InvalidInputError``."""
    if isinstance(agent, str) or message is None or isinstance(message, str | bytes | Sequence | File):
        return message
    if not agent.takes_input and not isinstance(message, Mapping | BaseModel | Dataclass):
        return message  # the content is checked where it is sent
    return agent.check_input(message)


def encode_start_context(agent: str | Agent[Any, Any], context: Any) -> dict[str, Any] | None:
    """Encode the context as plain JSON; its size limit is checked by the loop, for every client."""
    if hasattr(agent, "check_context"):
        return agent.check_context(context) or None
    if not context:
        return None
    plain = context.model_dump(mode="json") if hasattr(context, "model_dump") else context
    return validate_plain_context(get_agent_name(agent), plain)


def encode_override(
    agent: str | Agent[Any, Any], override: Override | Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Encode only the fields of the override that are set. Raises ``DefinitionError`` where the client has the agent's
    code."""
    if override is None:
        return None
    if hasattr(agent, "overridden"):
        agent.overridden(override)
    return override.model_dump(mode="json", exclude_unset=True) if isinstance(override, Override) else dict(override)


async def _resolve_history(client: ClientHandle, history: History | None) -> tuple[str | None, str | None]:
    """Return the head to continue from, and the id of the store that has it."""
    if history is None:
        return None, None
    if isinstance(history, str):
        if not _HEAD_PATTERN.fullmatch(history):
            raise InvalidInputError(
                f"history: {history!r:.100} is not the head of a transcript",
                hint="Give messages, a Run, a Response, or a head (64 hexadecimal digits); of a run: client.run(id).",
            )
        return history, None
    if isinstance(history, Response):
        return history.head, history.store_id
    if isinstance(history, Run):
        status = await history.status()
        if status.head is None:
            raise RunNotFoundError(f"run {history.id!r} has no transcript yet", hint="Wait for its first reply.")
        return status.head, status.store_id
    return await _write_history(client, history)


async def _write_history(
    client: ClientHandle, history: Sequence[Message] | Sequence[Mapping[str, Any]]
) -> tuple[str | None, str | None]:
    messages = _parse_history_messages(history)
    if open_calls := list_open_calls(messages):
        raise InvalidInputError(
            f"history: tool call {open_calls[0].id!r} of {open_calls[0].name} has no result, which no provider accepts",
            hint="Add a message with its tool result, or leave the call out.",
        )
    if not messages:
        return None, None
    for part in iter_file_parts(messages):
        if flaw := find_file_flaw(part):
            raise InvalidInputError(f"history: {flaw}")
    store = await client.store(create=True)
    chain = Chain(store)
    try:
        await chain.load_files(messages)
    except TranscriptCorruptedError as error:
        raise InvalidInputError(
            f"history: one of its files: {error.message}", hint="Give its bytes: File(data)."
        ) from None
    # The messages that a summary replaces belong to another conversation, possibly in another store.
    messages = [message.model_copy(update={"replaces": None}) if message.replaces else message for message in messages]
    node, blobs = chain.extend(None, messages)
    await store.commit(Commit(nodes=[node], blobs=blobs))
    return node.hash, store.store_id


def _parse_history_messages(history: Sequence[Message] | Sequence[Mapping[str, Any]]) -> list[Message]:
    entries = list(history)
    messages = [entry for entry in entries if isinstance(entry, Message)]
    if len(messages) == len(entries):
        return messages
    mappings = [entry for entry in entries if isinstance(entry, Mapping)]
    if len(mappings) == len(entries):
        return from_session(mappings)
    others = [type(entry).__name__ for entry in entries if not isinstance(entry, Message | Mapping)]
    raise InvalidInputError(
        "history: a list of Message, or of the dictionaries of a session, is expected, not of "
        + (others[0] if others else "both"),
        hint='For instance [Message.user("hi"), Message.assistant("Hello.")].',
    )
