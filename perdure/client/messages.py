"""Sends messages to conversations by update-with-start, and reopens closed ones.

The update's result names the turn that takes the message. Long texts and files are uploaded to the store first.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowUpdateStage,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from .._config import get_shared_task_queue
from .._encryption import reseal_auth_token
from ..errors import (
    InvalidInputError,
    PerdureError,
    RunClosedError,
    RunError,
    RunNotFoundError,
    TranscriptCorruptedError,
)
from ..loop.requests import merge_overrides, parse_start
from ..temporal.attributes import build_start_attributes, forget_search_attributes
from ..temporal.errors import build_unreachable_error, is_missing_attribute
from ..temporal.start import TASK_TIMEOUT, start_run_workflow
from ..types.client_tools import ClientTool
from ..types.interface import (
    FIRST_MESSAGE_MEMO,
    LABELS,
    WORKFLOW_TYPE,
    Start,
    Status,
    UserMessage,
    build_run_memo,
    check_run_labels,
)
from ..types.messages import MessageInput
from .audit import audit_steering
from .follow import CATCH_UP_SECONDS
from .handles import RunHandle
from .message_content import AnyOverride, build_user_message
from .progress import retry_while_not_ready
from .tasks import background_task
from .visibility import build_closed_status, find_last_head

_MAX_DELIVERIES = 20
"""How often a conversation may close while a message is being delivered."""
_RETRYABLE_DELIVERY_STATUSES = (RPCStatusCode.NOT_FOUND, RPCStatusCode.ABORTED, RPCStatusCode.ALREADY_EXISTS)
"""Statuses of a conversation that closed, or that another client opened, at the same moment."""


async def deliver_message(
    run: RunHandle,
    message: MessageInput | None,
    *,
    message_id: str | None = None,
    task_id: str | None = None,
    override: AnyOverride | None = None,
    client_tools: Sequence[ClientTool | Mapping[str, Any]] | None = None,
    by: str | None = None,
    auth: Mapping[str, str] | None = None,
    start: dict[str, Any] | None = None,
) -> str:
    """Deliver ``message`` to a conversation; ``auth`` is the result of :func:`~perdure._encryption.seal_auth`.

    ``start`` opens the conversation if needed; without it, the input that opened it before is used.
    """
    client = run.client
    # Also a message to an execution that has closed since, which Temporal's own check would miss.
    if message_id is not None and (known_task_id := await _find_message_turn(run, message_id)) is not None:
        return known_task_id
    if task_id is not None and run.has_store:
        row = await (await client.store()).get_turn(run.id, task_id)
        if row is not None and row.status != "running":  # possibly of a closed execution: its row stays
            task_id = None
    user_message = await build_user_message(
        client,
        message,
        id=message_id or uuid.uuid4().hex,
        by=by,
        task_id=task_id,
        override=override,
        client_tools=client_tools,
    )
    user_message = user_message.model_copy(update=dict(auth or {}))
    if start is not None:
        user_message = user_message.model_copy(update={name: start[name] for name in LABELS if name in start})
    async with (
        audit_steering(client, "send", run.id, by=by, detail=f"message {user_message.id}"),
        background_task(run.warn_without_worker()),
    ):
        task_id = await _send_until_taken(run, user_message, start)
    run.handle = client.temporal.get_workflow_handle(run.id)  # the message may have opened another execution
    return task_id


async def _find_message_turn(run: RunHandle, message_id: str) -> str | None:
    """Return the ``task_id`` of the turn that has taken the message, according to the store; else None."""
    return await (await run.client.store()).find_message_turn(run.id, message_id) if run.has_store else None


async def _send_until_taken(run: RunHandle, message: UserMessage, start: dict[str, Any] | None) -> str:
    """Send the message until an execution has taken it, and return the ``task_id``. The message's id makes retries
    safe, whatever happened to the last attempt.

    The first attempt supposes that the conversation is open, or with ``start`` new, and asks nothing before it. Only an
    execution that is known to have closed gets a successor: what it has not recorded, that is given.
    """
    message_id = str(message.id)
    fields = message.model_dump(mode="json")
    payload = {name: value for name, value in fields.items() if value is not None or name == "content"}
    opening = None if start is None else _Opening(start, run.client.task_queue)

    async def send() -> Any:
        if opening is None:
            return await _send_to_open_run(run, payload, message_id)
        return await _send_with_start(run, payload, message_id, opening)

    for attempt in range(_MAX_DELIVERIES):
        if attempt:
            # It may have been taken by the execution that just closed, before that could reply.
            if (task_id := await _find_message_turn(run, message_id)) is not None:
                return task_id
            opening = await _build_opening(run, start)
        result = await retry_while_not_ready(run, send)
        if result is not None:
            return str(result["task_id"])
    raise RunError(f"run {run.id!r} ended {_MAX_DELIVERIES} times while a message was on its way to it")


@dataclass(frozen=True)
class _Opening:
    """The execution that a message opens if none is open."""

    start: dict[str, Any]
    task_queue: str
    memo: Mapping[str, Any] = field(default_factory=dict)
    """Its memo, beside that of every run."""
    reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.REJECT_DUPLICATE
    """Whether it may follow an execution that has closed."""
    has_attributes: bool = True
    """Whether it is started with search attributes: the run sets them itself, too."""


async def _build_opening(run: RunHandle, start: dict[str, Any] | None) -> _Opening | None:
    """Build what a message opens, with the first message of the last execution, if nothing has recorded that, and with
    its tenant and user; None for an open conversation without ``start``.

    Raises ``RunNotFoundError`` without ``start``, ``InvalidInputError`` if ``start`` has another tenant or user.
    """
    task_queue = run.client.task_queue
    try:
        description = await run.describe()
    except RunNotFoundError:
        if start is None:
            raise
        return _Opening(start, task_queue)
    if build_closed_status(description) is None:
        return None if start is None else _Opening(start, task_queue)
    memo = await _read_conversation_memo(description)
    await check_end_stored(run, description)
    if start is None:
        start, task_queue = await build_reopen_start(run), get_shared_task_queue(description.task_queue)
        return _Opening(start, task_queue, memo, WorkflowIDReusePolicy.ALLOW_DUPLICATE)
    labels = {name: memo[name] for name in LABELS if name in memo}
    check_run_labels(run.id, labels, **{name: start.get(name) for name in labels})
    start = start | labels
    if description.status is not WorkflowExecutionStatus.COMPLETED:
        with suppress(RunNotFoundError, InvalidInputError):  # its history is deleted, or it is not a conversation's
            last_start = await build_reopen_start(run)
            start = start | {name: value for name, value in last_start.items() if name == "message"}
    return _Opening(start, task_queue, memo, WorkflowIDReusePolicy.ALLOW_DUPLICATE)


async def _send_to_open_run(run: RunHandle, payload: dict[str, Any], message_id: str) -> Any:
    """Send the message to an open conversation, and return the result; None if it closes meanwhile, or has closed."""
    handle = run.client.temporal.get_workflow_handle(run.id)
    run_id: str | None = None
    try:
        with run.temporal_errors(_build_no_answer_error(run)):
            try:
                update = await handle.start_update(
                    "send_message", payload, id=message_id, wait_for_stage=WorkflowUpdateStage.COMPLETED
                )
                run_id = update.workflow_run_id
                return await update.result()
            except RPCError as error:
                if not _is_delivery_retryable(error):
                    raise
    except RunClosedError:
        await run.wait_for_close(run_id)
    return None


async def _send_with_start(run: RunHandle, payload: dict[str, Any], message_id: str, opening: _Opening) -> Any:
    """Send the message to the conversation, which it opens if none is open, and return the result; None if that closes
    meanwhile, or may not be opened."""
    temporal, start = run.client.temporal, opening.start
    attributes = await build_start_attributes(temporal, start) if opening.has_attributes else None
    operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        WORKFLOW_TYPE,
        start,
        id=run.id,
        task_queue=opening.task_queue,
        task_timeout=TASK_TIMEOUT,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        id_reuse_policy=opening.reuse,
        memo={**build_run_memo(start), **opening.memo},
        search_attributes=attributes,
    )
    # The SDK keeps the error of a failed start in a future: the task reads it, whether or not it is needed below.
    async with background_task(operation.workflow_handle()) as started:
        await asyncio.sleep(0)  # the task begins to wait for the future
        try:
            with run.temporal_errors(_build_no_answer_error(run)):
                try:
                    return await temporal.execute_update_with_start_workflow(
                        "send_message", payload, id=message_id, start_workflow_operation=operation
                    )
                except WorkflowAlreadyStartedError:
                    pass
                except RPCError as error:
                    if attributes and is_missing_attribute(error):  # the attribute was removed since the check
                        forget_search_attributes(temporal)
                        return await _send_with_start(run, payload, message_id, replace(opening, has_attributes=False))
                    if not _is_delivery_retryable(error):
                        raise
        except RunClosedError:
            # The next attempt opens the run again. This waits for the execution and not for the run: another client
            # may have opened it again.
            await run.wait_for_close((await started).result_run_id)
    return None


def _build_no_answer_error(run: RunHandle) -> PerdureError:
    return build_unreachable_error(run.client.temporal, "no answer to a message; sent again, its id counts once")


def _is_delivery_retryable(error: RPCError) -> bool:
    return error.status in _RETRYABLE_DELIVERY_STATUSES and "amespace" not in error.message


async def wait_for_closed_status(run: RunHandle) -> Status | None:
    """Return the status of a closed run; None while it is open according to Temporal.

    A follower of the events sees a failure as soon as it is recorded, a moment before Temporal closes the run: this
    waits for that, at most ``CATCH_UP_SECONDS``.
    """
    description = await run.describe()
    if build_closed_status(description) is None and await _is_failure_recorded(run, description):
        async with background_task(run.warn_without_worker()):
            with suppress(TimeoutError):
                async with asyncio.timeout(CATCH_UP_SECONDS):
                    await run.wait_for_close(description.run_id)
        description = await run.describe()
    return build_closed_status(description)


async def _is_failure_recorded(run: RunHandle, description: WorkflowExecutionDescription) -> bool:
    from ..ports.times import timestamp

    if not run.has_store:
        return False
    try:
        row = await (await run.client.store()).get_run(run.id)
    except PerdureError:
        return False  # Temporal's state counts then
    # A failure of an earlier execution does not count: a run that was reset continues after it.
    begun = timestamp(description.start_time)
    return row is not None and row.status in ("failed", "cancelled") and row.asked_at >= begun


async def build_reopen_start(run: RunHandle, *, from_store: bool = False) -> dict[str, Any]:
    """Build the input of a new execution of a conversation: the input of its last one, continued from its end.

    It has the first message only if no execution has recorded it; ``from_store``: if the store has no transcript.
    Raises ``RunNotFoundError``, ``InvalidInputError`` for a run that was started with invalid input.
    """
    temporal = run.client.temporal
    last = temporal.get_workflow_handle(run.id, run_id=(await run.describe()).run_id)
    events = last.fetch_history_events()
    with run.temporal_errors():
        first_event = await anext(events, None)
    if first_event is None:
        raise RunNotFoundError(f"the history of run {run.id!r} is deleted", hint="Start another one with history=….")
    raw = await decode_start(run, first_event)
    start = {name: raw[name] for name in Start.model_fields if raw.get(name) is not None}
    started = first_event.workflow_execution_started_event_attributes
    row, asked_at = None, ""  # when the last call that wrote the conversation's row was scheduled
    if run.has_store:
        store = await run.client.store()
        row = await store.get_run(run.id)
        asked_at = row.asked_at if row is not None and row.scope.startswith(started.first_execution_run_id) else ""
        if store.store_id:
            start.setdefault("store_id", store.store_id)
        for name in LABELS if row is not None else ():
            if (value := getattr(row, name)) is not None:
                start[name] = value
    if from_store:
        if row is not None and row.head is not None:
            start["message"] = {"content": None}
    elif "message" in start and await _is_first_message_recorded(run, start["message"], events, asked_at):
        start.pop("message")
    parent_id = started.parent_workflow_execution.workflow_id
    if parent_id and (token := start.get("auth_context")):  # the next execution has no parent in Temporal
        start["auth_context"] = reseal_auth_token(temporal, token, parent_id, run.id)
    parse_start(start)
    return {**start, "resume": True}


async def _is_first_message_recorded(
    run: RunHandle, message: Any, events: AsyncIterator[HistoryEvent], asked_at: str
) -> bool:
    """Whether a model call or an ending that was given the first message has recorded it: it has completed, or was
    collected, or it or a later one wrote the row, whose call was scheduled at ``asked_at``.

    Others prove nothing: a pause before the first call, a step that waits for its branches, a summary, which writes the
    row too. A call before a summary that is not known to have recorded the message was refused.
    """
    from ..ports.times import timestamp
    from ..types.wire import CLOSE_ACTIVITY, COLLECT_ACTIVITY, COMPACT_ACTIVITY, MODEL_ACTIVITY

    has_content = not isinstance(message, dict) or any(message.get(name) is not None for name in ("content", "input"))
    scheduled: dict[int, str] = {}  # the calls that were given messages: when, by the id of their event
    collecting = set[int]()  # ids of the events of what collects them
    with run.temporal_errors():
        async for event in events:
            if event.HasField("activity_task_scheduled_event_attributes"):
                asked = event.activity_task_scheduled_event_attributes
                name = asked.activity_type.name
                if name in (MODEL_ACTIVITY, CLOSE_ACTIVITY):
                    model_input = await _decode_first_payload(run, asked.input.payloads)
                    if not has_content or _has_new_message(model_input):
                        scheduled[event.event_id] = timestamp(event.event_time.ToDatetime(UTC))
                elif name == COLLECT_ACTIVITY and scheduled:
                    collecting.add(event.event_id)
                elif name == COMPACT_ACTIVITY:
                    scheduled.clear()
            elif event.HasField("activity_task_completed_event_attributes"):
                completed = event.activity_task_completed_event_attributes
                if completed.scheduled_event_id in scheduled.keys() | collecting:
                    output = await _decode_first_payload(run, completed.result.payloads)
                    if completed.scheduled_event_id in collecting and isinstance(output, dict):
                        output = output.get("model") or output.get("close")
                        if output is None:  # of a tool, or nothing was recorded
                            continue
                    if not (isinstance(output, dict) and output.get("branches")):
                        return True
                    scheduled.pop(completed.scheduled_event_id, None)
    return bool(scheduled) and asked_at >= min(scheduled.values())


def _has_new_message(model_input: Any) -> bool:
    new = model_input.get("new") if isinstance(model_input, dict) else None
    return any(isinstance(item, dict) and item.get("kind", "message") == "message" for item in new or ())


async def _decode_first_payload(run: RunHandle, payloads: Sequence[Payload]) -> Any:
    return next(iter(await run.client.temporal.data_converter.decode(payloads)), None)


async def decode_start(run: RunHandle, first_event: HistoryEvent) -> dict[str, Any]:
    """Decode the input of an execution, for one that continued as new its state, from its first event. Raises
    ``InvalidInputError`` if it is not the input of a conversation."""
    raw = await _decode_first_payload(run, first_event.workflow_execution_started_event_attributes.input.payloads)
    state = raw.get("state") if isinstance(raw, dict) else None
    if isinstance(state, dict):
        asked = state.get("caller_overrides")
        raw = {**state, "override": state.get("overrides"), "caller_request": {"override": asked} if asked else None}
    if not isinstance(raw, dict):
        raise InvalidInputError(f"run {run.id!r} was not started as a conversation", hint="Start another one.")
    return raw


async def is_end_stored(run: RunHandle, execution: WorkflowExecutionDescription) -> bool:
    """Whether the store has the head that the last events of ``execution`` name, where this client has its store."""
    with run.temporal_errors():
        known_end = await find_last_head(run.client.temporal, execution) if run.has_store else None
    if known_end is None:
        return True
    head, store_id = known_end
    store = await run.client.store()
    row = await store.get_run(run.id)
    if store.store_id != store_id or (row is not None and row.head == head):
        return True
    try:
        await store.read_nodes(head)
    except TranscriptCorruptedError:
        return False
    return True


async def check_end_stored(run: RunHandle, execution: WorkflowExecutionDescription) -> None:
    """Check that a closed conversation continues from where ``execution`` ended: a store that was restored from a
    backup may be older. Raises ``TranscriptCorruptedError``."""
    if not await is_end_stored(run, execution):
        store = await run.client.store()
        raise TranscriptCorruptedError(
            f"the store {store.place} does not have the end of run {run.id!r}: an older backup, or deleted",
            hint=f"Restore a newer backup, or go on from what it has: `perdure resume {run.id} --from-store`; what "
            "came after that may be done and paid for again.",
        )


async def reopen_run(
    run: RunHandle,
    override: dict[str, Any],
    *,
    by: str | None = None,
    lost: WorkflowExecutionDescription | None = None,
) -> WorkflowHandle[Any, Any]:
    """Start a run that did not complete again, from the end of its conversation, with a turn without a message.
    ``override`` is merged over that of the run.

    ``lost`` is the execution whose end the store does not have: the run starts from what it has, or from its first
    message, if it has nothing. If that execution is open it is terminated first.
    """
    temporal = run.client.temporal
    description = lost or await run.describe()
    start = await build_reopen_start(run, from_store=lost is not None)
    by = by or run.client.actor
    if lost is None:
        await check_end_stored(run, description)
        start["message"] = start.get("message") or {"content": None, "by": by}
    elif build_closed_status(description) is None:
        reason = f"by {by}: continues from what the store has"
        with suppress(RunClosedError, RunNotFoundError), run.temporal_errors():  # another client was first
            await temporal.get_workflow_handle(run.id, run_id=description.run_id).terminate(reason=reason)
    if override:
        start["override"] = merge_overrides(start.get("override") or {}, override)
    task_queue = get_shared_task_queue(description.task_queue)
    memo = await _read_conversation_memo(description)
    policies = WorkflowIDReusePolicy
    reuse = policies.ALLOW_DUPLICATE if lost is not None else policies.ALLOW_DUPLICATE_FAILED_ONLY
    try:
        return await start_run_workflow(temporal, run.id, start, task_queue=task_queue, reuse=reuse, memo=memo)
    except WorkflowAlreadyStartedError:  # another client was first
        return temporal.get_workflow_handle(run.id)


async def _read_conversation_memo(execution: WorkflowExecutionDescription) -> dict[str, Any]:
    """Read what the memo of the conversation's next execution has of this one's: the hash of its first message, its
    tenant and its user; empty where it has none."""
    try:
        memo = await execution.memo()
    except Exception:  # written with another codec
        return {}
    kept = (FIRST_MESSAGE_MEMO, *LABELS)
    return {name: value for name, value in memo.items() if name in kept and isinstance(value, str)}
