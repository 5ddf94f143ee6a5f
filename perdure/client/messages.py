"""Sends messages to conversations by update-with-start, and reopens closed ones.

The update's result names the turn that takes the message. Long texts and files are uploaded to the store first.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from temporalio import exceptions as temporal
from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowExecutionDescription,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import TypedSearchAttributes, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from ..encryption import reseal_auth_token
from ..errors import InvalidInputError, PerdureError, RunClosedError, RunError, RunNotFoundError, build_error
from ..loop.lifecycle import parse_start
from ..ports import Blob, Commit, timestamp
from ..temporal_service import (
    ACCEPTED_UPDATE_ENDED,
    MEMO_AGENT,
    TASK_TIMEOUT,
    build_start_attributes,
    build_unreachable_error,
    forget_search_attributes,
    is_missing_attribute,
    start_run_workflow,
)
from ..types.interface import WORKFLOW_TYPE, Override, Start, Status, UserMessage
from ..types.messages import (
    BlobRef,
    Content,
    ContentPart,
    Dataclass,
    File,
    FilePart,
    MessageInput,
    TextPart,
    clean_text,
    normalize_content,
)
from ..types.plain_json import to_plain_json
from ..types.validation_errors import describe_validation_error
from .follow import CATCH_UP_SECONDS
from .turn import Turn
from .visibility import build_closed_status

if TYPE_CHECKING:
    from .client import Client
    from .run import Run


_MAX_DELIVERIES = 20
"""How often a conversation may close while a message is being delivered."""
_RETRYABLE_DELIVERY_STATUSES = (RPCStatusCode.NOT_FOUND, RPCStatusCode.ABORTED, RPCStatusCode.ALREADY_EXISTS)
"""Statuses of a conversation that closed, or that another client opened, at the same moment."""


async def deliver_message(
    run: Run,
    message: MessageInput | None,
    *,
    message_id: str | None = None,
    task_id: str | None = None,
    override: Override | Mapping[str, Any] | None = None,
    by: str | None = None,
    auth: Mapping[str, str] | None = None,
    start: dict[str, Any] | None = None,
    task_queue: str | None = None,
) -> Turn:
    """Deliver ``message`` to a conversation; ``auth`` is the result of :func:`~perdure.encryption.seal_auth`.

    ``start`` opens the conversation if needed; without it, the input that opened it before is used.
    """
    client = run.client
    if message_id is not None and run.has_store:
        known = await (await run.store()).find_message_turn(run.id, message_id)
        if known is not None:  # also by an execution that has closed since, which Temporal's own check would miss
            return Turn(run, known)
    if task_id is not None and run.has_store:
        named = await (await run.store()).get_turn(run.id, task_id)
        if named is not None and named.status != "running":  # possibly of a closed execution: its row stays
            task_id = None
    sent = await client.build_user_message(
        message, message_id or uuid.uuid4().hex, by=by, task_id=task_id, override=override
    )
    sent = sent.model_copy(update=dict(auth or {}))
    if start is None:
        seen = await run.describe()
        start, task_queue = await build_reopen_start(run), seen.task_queue
        if build_closed_status(seen) is None:  # once it closes, its first message is in the transcript
            start.pop("message", None)
    watch = asyncio.ensure_future(run.warn_without_worker())
    try:
        task_id = await _send_message_with_start(run, sent, start, task_queue or client.task_queue)
    finally:
        watch.cancel()
    run.handle = client.temporal.get_workflow_handle(run.id)  # the message may have opened another execution
    return Turn(run, task_id)


async def _send_message_with_start(run: Run, sent: UserMessage, start: dict[str, Any], task_queue: str) -> str:
    """Send the message and return the ``task_id``. The message's id makes retries safe, whatever happened to the last
    attempt."""
    said = sent.model_dump(mode="json")
    payload = {name: value for name, value in said.items() if value is not None or name == "content"}
    attributes = await build_start_attributes(run.client.temporal, start["agent"])
    for attempt in range(_MAX_DELIVERIES):
        if attempt and run.has_store:  # taken by the execution that just closed, before it could reply
            known = await (await run.store()).find_message_turn(run.id, str(sent.id))
            if known is not None:
                return known
        operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            WORKFLOW_TYPE,
            start,
            id=run.id,
            task_queue=task_queue,
            task_timeout=TASK_TIMEOUT,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            memo={MEMO_AGENT: start["agent"]},
            search_attributes=attributes,
        )
        try:
            taken = await run.client.temporal.execute_update_with_start_workflow(
                "send_message", payload, id=sent.id, start_workflow_operation=operation
            )
        except WorkflowUpdateFailedError as error:
            await _wait_for_closing_execution(run, await operation.workflow_handle(), error)
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            _restore_cancellation()
            raise build_unreachable_error(
                run.client.temporal, "no answer to a message; sent again, its id counts once"
            ) from error
        except temporal.WorkflowAlreadyStartedError:
            continue
        except RPCError as error:
            if is_missing_attribute(error):  # the attribute was removed since the check
                forget_search_attributes(run.client.temporal)
                attributes = TypedSearchAttributes.empty
                continue
            if error.status not in _RETRYABLE_DELIVERY_STATUSES or "amespace" in error.message:
                raise run.translate_rpc_error(error) from error
        else:
            return str(taken["task_id"])
    raise RunError(f"run {run.id!r} ended {_MAX_DELIVERIES} times while a message was on its way to it")


async def _wait_for_closing_execution(
    run: Run, ending: WorkflowHandle[Any, Any], error: WorkflowUpdateFailedError
) -> None:
    """Wait for a closing execution, so that the next attempt opens the run again. Raises any other error of the update.

    Waits for the execution and not for the run: another client may have opened the run again.
    """
    cause = error.cause
    kind = cause.type if isinstance(cause, temporal.ApplicationError) else None
    if kind not in (RunClosedError.__name__, ACCEPTED_UPDATE_ENDED):
        raise build_error(kind, getattr(cause, "message", str(cause))) from error
    try:
        await ending.result()
    except WorkflowFailureError:
        pass
    except RPCError as gone:
        raise run.translate_rpc_error(gone) from gone


def _restore_cancellation() -> None:
    """Raise ``CancelledError`` where the SDK has replaced a cancellation by its own error."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def wait_for_closed_status(run: Run) -> Status | None:
    """Return the status of a closed run; None while it is open according to Temporal.

    A follower of the events sees a failure as soon as it is recorded, a moment before Temporal closes the run: this
    waits for that, at most ``CATCH_UP_SECONDS``.
    """
    seen = await run.describe()
    if build_closed_status(seen) is None and await _is_failure_recorded(run, seen):
        watch = asyncio.ensure_future(run.warn_without_worker())
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await run.client.temporal.get_workflow_handle(run.id, run_id=seen.run_id).result()
        except (WorkflowFailureError, TimeoutError):
            pass
        except RPCError as gone:
            raise run.translate_rpc_error(gone) from gone
        finally:
            watch.cancel()
        seen = await run.describe()
    return build_closed_status(seen)


async def _is_failure_recorded(run: Run, seen: WorkflowExecutionDescription) -> bool:
    if not run.has_store:
        return False
    try:
        row = await (await run.store()).get_run(run.id)
    except PerdureError:
        return False  # Temporal's state counts then
    if row is None or row.status not in ("failed", "cancelled"):
        return False
    # Ignore a failure of an earlier execution: a run that was reset continues after it.
    return row.asked_at >= timestamp(seen.start_time)


async def build_reopen_start(run: Run) -> dict[str, Any]:
    """Build the input of a new execution of a conversation: the input of its last one, continued from its end.

    It has the first message only if no execution has recorded it. Raises ``RunNotFoundError``, ``InvalidInputError``
    for a run that was started with invalid input.
    """
    raw, scope, recorded, parent_id = await _read_last_start(run)
    state = raw.get("state")
    if isinstance(state, dict):  # it had continued as new
        raw = {**state, "override": state.get("overrides")}
    start = {name: raw[name] for name in Start.model_fields if raw.get(name) is not None}
    if run.has_store:
        store = await run.store()
        row = await store.get_run(run.id)
        recorded = recorded or (row is not None and row.scope.startswith(scope))
        if store.store_id:
            start.setdefault("store_id", store.store_id)
    if recorded:
        start.pop("message", None)
    if parent_id and (token := start.get("auth_context")):  # the next execution has no parent in Temporal
        start["auth_context"] = reseal_auth_token(run.client.temporal, token, parent_id, run.id)
    parse_start(start)
    return {**start, "resume": True}


async def reopen_run(run: Run, start: dict[str, Any], *, by: str | None = None) -> WorkflowHandle[Any, Any]:
    """Start a run that did not complete again, from the end of its conversation, with a turn without a message."""
    client = run.client
    message = start.get("message") or {"content": None, "by": by or client.actor}
    seen = await run.describe()
    try:
        return await start_run_workflow(
            client.temporal,
            run.id,
            {**start, "message": message},
            task_queue=seen.task_queue,
            reuse=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
        )
    except temporal.WorkflowAlreadyStartedError:  # another client was first
        return client.temporal.get_workflow_handle(run.id)


async def _read_last_start(run: Run) -> tuple[dict[str, Any], str, bool, str]:
    """Read the input of the run's last execution, the scope of its calls, whether an activity of it has completed, and
    the id of its parent run."""
    client = run.client.temporal
    seen = await run.describe()
    handle = client.get_workflow_handle(run.id, run_id=seen.run_id)
    found: tuple[dict[str, Any], str] | None = None
    parent_id = ""
    async for event in handle.fetch_history_events():
        if found is None:
            started = event.workflow_execution_started_event_attributes
            (raw,) = await client.data_converter.decode(started.input.payloads) or [None]
            if not isinstance(raw, dict):
                raise InvalidInputError(f"run {run.id!r} was not started as a conversation", hint="Start another one.")
            found, parent_id = (raw, started.first_execution_run_id), started.parent_workflow_execution.workflow_id
        elif event.HasField("activity_task_completed_event_attributes"):
            return *found, True, parent_id
    if found is None:
        raise RunNotFoundError(f"run {run.id!r} has no history any more", hint="Start another one with history=….")
    return *found, False, parent_id


# ---
# Message content as it is sent: long texts and the bytes of files go into the store, and a message refers to them.


MAX_INLINE_BYTES = 128 * 1024
"""Bytes of text in one message. Longer texts go into the store: Temporal refuses payloads over 2 MB, and history would
keep them."""

STORE_HINT = "Give the client store_url=… or set PERDURE_STORE_URL to the store of the workers."

UploadedContent = str | BlobRef | tuple[ContentPart, ...]


async def build_user_message(
    client: Client,
    content: MessageInput | None,
    facts: dict[str, Any],
    override: Override | Mapping[str, Any] | None = None,
) -> UserMessage:
    """Implement ``Client.build_user_message``. ``facts`` are the message's other fields."""
    try:
        message = UserMessage.model_validate({"content": None, **facts})
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, "message")) from None
    if override is not None:
        message = message.model_copy(update={"override": _parse_message_override(override)})
    if content is None:
        return message
    if isinstance(content, Mapping | BaseModel | Dataclass):
        return await _attach_input(client, message, content)
    said, store_id = await upload_content(client, content)
    return message.model_copy(update={"content": said, "store_id": store_id})


async def _attach_input(client: Client, message: UserMessage, value: object) -> UserMessage:
    """Attach an input as plain JSON, readable to any client; a long one is uploaded as text."""
    try:
        plain = to_plain_json(value)
    except ValueError as error:
        raise InvalidInputError(f"the input cannot be written as JSON: {error}", hint="Give plain values.") from None
    text = json.dumps(plain, ensure_ascii=False)
    if len(text) * 4 <= MAX_INLINE_BYTES or len(text.encode()) <= MAX_INLINE_BYTES:
        return message.model_copy(update={"input": plain})
    said, store_id = await upload_content(client, text)
    return message.model_copy(update={"content": said, "store_id": store_id, "typed": True})


def _parse_message_override(given: Override | Mapping[str, Any]) -> Override:
    if isinstance(given, Override):
        return given
    try:
        return Override.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, "override", prefix="override")) from None


async def upload_content(client: Client, content: Content) -> tuple[UploadedContent, str | None]:
    """Return ``content`` in the form of a message, and the id of the store if some of it was uploaded.

    Raises ``InvalidInputError`` for an invalid message, and where a store is needed and the client has none.
    """
    blobs: list[Blob] = []
    said: UploadedContent
    if isinstance(content, str):
        text = _upload_long_text(clean_text(content), MAX_INLINE_BYTES, blobs)
        said = text.blob or text.text
    else:
        said = await _upload_parts(normalize_content(content), blobs)
    if not blobs:
        return said, None
    if client.store_url is None:
        _raise_store_needed(said, blobs)
    store = await client.store(create=True)
    await store.commit(Commit(blobs=blobs))
    return said, store.store_id


async def _upload_parts(content: list[str | File], blobs: list[Blob]) -> tuple[ContentPart, ...]:
    parts: list[ContentPart] = []
    left = MAX_INLINE_BYTES
    for piece in content:
        if isinstance(piece, str):
            part = _upload_long_text(clean_text(piece), left, blobs)
            left -= len(part.text.encode())
            parts.append(part)
        elif piece.data is None:
            parts.append(piece.part)
        else:
            blob = await asyncio.to_thread(Blob.from_content, piece.data)
            blobs.append(blob)
            parts.append(FilePart(media_type=piece.media_type, name=piece.name, blob=blob.ref))
    return tuple(parts)


def _upload_long_text(text: str, room: int, blobs: list[Blob]) -> TextPart:
    if len(text) * 4 <= room or len(text.encode()) <= room:
        return TextPart(text=text)
    blob = Blob.from_content(text)
    blobs.append(blob)
    return TextPart(blob=blob.ref)


def _raise_store_needed(said: UploadedContent, blobs: list[Blob]) -> None:
    if not isinstance(said, str | BlobRef) and any(isinstance(part, FilePart) and part.blob for part in said):
        raise InvalidInputError(
            "files go by way of the store, and this client has none", hint=f"{STORE_HINT} Or send File.at(url)."
        )
    size = sum(len(blob.body) for blob in blobs)
    raise InvalidInputError(
        f"the message has {size:,} bytes; more than {MAX_INLINE_BYTES:,} go by way of the store, "
        "and this client has none",
        hint=STORE_HINT,
    )
