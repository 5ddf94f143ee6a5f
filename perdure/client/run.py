"""A run's handle: reads its result, status, transcript and events, and steers it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError as NoAnswer
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from .. import toolsets
from ..encryption import AuthMapping, seal_auth
from ..errors import (
    InvalidInputError,
    NoWorkerError,
    PerdureError,
    RunClosedError,
    RunNotFoundError,
    RunStuckError,
    StoreMismatchError,
    build_error,
)
from ..loop.lifecycle import parse_run_limits
from ..loop.turns import merge_overrides
from ..ports import Store
from ..store import Chain
from ..store.transcripts import load_full_conversation
from ..temporal_service import (
    build_closed_error,
    build_run_error,
    build_unreachable_error,
    find_failing_task,
    translate_rpc_error,
)
from ..toolsets import Artifact
from ..types.approvals import DecidedApproval, StandingApproval
from ..types.events import Event
from ..types.interface import READ_ERROR_TYPE, STATUS_ATTRIBUTE, Override, Response, Status, parse_output
from ..types.messages import FilePart, Message, MessageInput
from .decisions import answer_pending_call, decide_pending_call, revoke_approval
from .follow import follow_run, list_child_runs, wait_for_pause
from .fork import Difference, compare_transcripts, start_fork
from .inbox import read_pending_memo
from .messages import build_reopen_start, deliver_message, reopen_run, wait_for_closed_status
from .turn import Turn
from .visibility import attribute_of, build_closed_status, find_agent_name, find_pending_reason, has_poller

if TYPE_CHECKING:
    from ..agent.agent import Agent
    from .client import Client


logger = logging.getLogger("perdure.client")

NO_WORKER_SECONDS = 10.0
"""Seconds without a worker on the task queue after which a warning is logged or an error raised."""
_UNTAKEN_HISTORY_LENGTH = 2
"""Length of the history of a run that no worker has taken: it was started, and a task was scheduled."""
_TAKEN_POLL_SECONDS = 0.25
ANSWER_TIMEOUT = timedelta(seconds=5)
"""How long a worker may take to return the workflow's status, before the run counts as waiting for a worker."""
_INPUT_RETRY_SECONDS = 0.05
"""Seconds until a workflow that has not read its input yet is asked again."""
_SERVER_TIMEOUT = timedelta(seconds=5)
"""How long the server may take for what it answers without a worker, before it counts as unreachable."""


class Run:
    """A conversation. Making a handle sends no request. ``handle`` is Temporal's own.

    Every method that steers the run takes ``by``, the actor; by default the client's ``actor``.
    """

    def __init__(self, client: Client, handle: WorkflowHandle[Any, Any], agent: Agent | str | None = None) -> None:
        """``agent``, where the client has its code, is the run's agent: outputs then have its output type."""
        self.client = client
        self.handle = handle
        self._read_output: Callable[[Any], Any] | None = getattr(agent, "read_output", None)

    @property
    def id(self) -> str:
        """The ``context_id``, which is the workflow id."""
        return self.handle.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def result(self) -> Response:
        """Wait for the response, with its messages where this client has the store.

        Raises the run's error (``MaxIterationsError``, ``AuthenticationError``, …), ``RunCancelledError``,
        ``RunNotFoundError``, or ``StoreMismatchError`` where this client has another store than the run. Logs a warning
        if no worker polls the task queue for 10 s.
        """
        watch = asyncio.ensure_future(self.warn_without_worker())
        try:
            raw = await self.handle.result()
        except WorkflowFailureError as error:
            raise build_run_error(self.id, error) from error
        except RPCError as error:
            raise self.translate_rpc_error(error) from error
        finally:
            watch.cancel()
        return await self.with_messages(Response.model_validate(raw))

    def events(self, after: int = 0, *, wait: bool = True, children: bool = True) -> AsyncGenerator[Event]:
        """Yield the events of the run after number ``after`` until it has ended; without ``wait`` only those recorded
        so far.

        ``after`` is the ``seq`` of the last event that was seen: a follower that continues from it gets every later
        event exactly once. Events come from the store; following adds nothing to Temporal's history.

        Includes the events of the runs that its calls of other agents start, and of the runs below those, in one order:
        these events have a ``path``, and the ``context_id`` of their run. ``children=False`` leaves them out.

        Raises ``RunNotFoundError``; ``InvalidInputError`` for an ``after`` that is not an integer;
        ``TranscriptUnavailableError`` without a store; ``StoreError`` where the store cannot be read for a minute.
        """
        return follow_run(self, after, wait=wait, children=children)

    @property
    def has_store(self) -> bool:
        """Whether this client can read transcripts."""
        return self.client.store_url is not None

    async def store(self) -> Store:
        """See :meth:`Client.store`."""
        return await self.client.store()

    async def with_messages(self, response: Response) -> Response:
        """Return ``response`` with its messages and long text from the store, where this client has it. Raises
        ``StoreMismatchError``, ``ParseError``."""
        whole = await self._load_response(response) if self.has_store else response
        if self._read_output is None or not whole.typed or whole.blob is not None:
            return whole
        return whole.model_copy(update={"output": self._read_output(whole.output)})

    async def _load_response(self, response: Response) -> Response:
        store = await self.store()
        self.check_store(response.store_id, store.store_id, store.place)
        chain = Chain(store)
        update: dict[str, Any] = {"messages": tuple(await chain.load(response.head))}
        if response.blob is not None:
            text = await chain.resolve_blob(response.blob)
            update |= {"content": text, "output": parse_output(text) if response.typed else text, "blob": None}
        return response.model_copy(update=update)

    async def transcript(self, *, full: bool = False) -> list[Message]:
        """Load the conversation from the store as it is now; with ``full`` also the messages that summaries replace.

        Raises ``TranscriptUnavailableError`` without a store, ``StoreMismatchError`` with another one than the run's.
        """
        store = await self.client.store()
        row = await store.get_run(self.id)
        if row is not None:
            head = row.head
        else:
            status = await self.status()
            self.check_store(status.store_id, store.store_id, store.place)
            head = status.head
        return await (load_full_conversation(store, head) if full else Chain(store).load(head))

    async def file(self, part: FilePart) -> bytes:
        """Return the bytes of a file of the transcript; see :meth:`Client.file`."""
        return await self.client.file(part)

    async def artifacts(self) -> list[Artifact]:
        """List the artifacts that the agent has written with the toolset ``Artifacts``: the last version of each, by
        name."""
        return await toolsets.list_artifacts(self.client.memory, self.id)

    async def artifact(self, name: str, version: int | None = None) -> str:
        """Return the text of an artifact, by default of its last version. Raises ``InvalidInputError`` for an unknown
        one."""
        found = await toolsets.find_artifact(self.client.memory, self.id, name, version)
        return await toolsets.read_artifact_text(self.client.memory, self.id, found)

    def check_store(self, kept: str | None, ours: str, place: str = "") -> None:
        """Raise ``StoreMismatchError`` if ``kept``, the id of the run's store, is not ``ours``, that of the store at
        ``place``."""
        if kept is not None and kept != ours:
            has = f"has store {ours}" if ours else f"finds no store at {place}"
            raise StoreMismatchError(
                f"run {self.id!r} is kept in store {kept}, and this client {has}",
                hint="Point PERDURE_STORE_URL (or store_url=…) at the store of the run's workers. "
                "The result without its messages is Temporal's: await run.handle.result()",
            )

    async def status(self) -> Status:
        """Return the run's status: what it does or waits for, and the reason where it is stuck. Raises
        ``RunNotFoundError``."""
        seen = await self.describe()
        if (closed := build_closed_status(seen)) is not None:
            return closed.model_copy(update=await self._read_recorded_status() | await self._read_closed_result(closed))
        reason = await find_pending_reason(self.client, seen)
        try:
            status = Status.model_validate(await self.ask_workflow("status"))
        except RunClosedError:  # closed between the two requests
            return await self.status()
        except PerdureError as error:
            return await self._build_unanswered_status(seen, reason or _describe_missing_answer(error))
        return status if status.reason or not reason else status.model_copy(update={"reason": reason})

    async def _build_unanswered_status(self, seen: WorkflowExecutionDescription, reason: str) -> Status:
        """Build the status of an open run for which no worker answers, from Temporal and the store."""
        told = attribute_of(seen, STATUS_ATTRIBUTE)
        known: dict[str, Any] = {
            "agent": await find_agent_name(self.client, seen),
            "state": told if told in ("waiting", "paused") else "running",
            "approvals": await read_pending_memo(seen) or (),
        }
        try:
            known |= await self._read_recorded_status()
        except PerdureError as error:  # the store is unavailable too
            logger.debug("the store cannot tell of run %s: %s", self.id, error)
        return Status.model_validate({"context_id": self.id, "reason": reason, **known})

    async def _read_recorded_status(self) -> dict[str, Any]:
        """Read the recorded fields of the run's status from the store."""
        if self.client.store_url is None:
            return {}
        row = await (await self.client.store()).get_run(self.id)
        if row is None:
            return {}
        took = Response.model_validate_json(row.result or b"{}")
        known: dict[str, Any] = {"head": row.head, "iteration": row.iterations, "agent": row.agent}
        return known | {"usage": took.usage, "cost_usd": took.cost_usd, "unanswered": took.unanswered}

    async def _read_closed_result(self, closed: Status) -> dict[str, Any]:
        """Read the fields of a closed run's status that its result has and its description does not."""
        if closed.state == "cancelled" or closed.reason is not None:
            return {}
        try:
            last = self.client.temporal.get_workflow_handle(self.id)  # the execution that was described
            response = Response.model_validate(await last.result(rpc_timeout=_SERVER_TIMEOUT))
        except WorkflowFailureError as error:
            cause = build_run_error(self.id, error)
            return {"reason": f"{type(cause).__name__}: {cause}"}
        except RPCError as error:
            raise self.translate_rpc_error(error) from error
        known = ("task_id", "head", "store_id", "usage", "cost_usd", "unanswered")
        return {"iteration": response.iterations} | {name: getattr(response, name) for name in known}

    async def begun(self, within: float = NO_WORKER_SECONDS) -> None:
        """Wait until a worker has taken the run. Raises ``NoWorkerError`` if none does within ``within`` seconds and
        none polls the task queue.

        The run stays open, and continues when a worker starts.
        """
        deadline = asyncio.get_running_loop().time() + within
        while True:
            seen = await self.describe()
            if build_closed_status(seen) is not None or seen.history_length > _UNTAKEN_HISTORY_LENGTH:
                return
            if asyncio.get_running_loop().time() > deadline and not await has_poller(self.client, seen):
                raise NoWorkerError(
                    f"no worker has polled task queue {seen.task_queue!r} for {within:g} s",
                    hint=f"Run {self.id!r} waits for one: perdure worker FILE --task-queue {seen.task_queue}",
                )
            await asyncio.sleep(_TAKEN_POLL_SECONDS)

    async def warn_without_worker(self, within: float = NO_WORKER_SECONDS) -> None:
        """After ``within`` seconds, log a warning if no worker has polled the run's task queue lately."""
        await asyncio.sleep(within)
        try:
            seen = await self.describe()
            if build_closed_status(seen) is None and not await has_poller(self.client, seen, lately=True):
                logger.warning(
                    "run %s waits: no worker polls task queue %r; `perdure worker FILE --task-queue %s` serves it",
                    *(self.id, seen.task_queue, seen.task_queue),
                )
        except (PerdureError, RPCError) as error:  # the wait itself raises the error
            logger.debug("cannot tell whether a worker serves run %s: %s", self.id, error)

    async def ask_workflow(self, view: Literal["status", "turn"], task_id: str | None = None) -> Any:
        """Return the workflow's ``view`` by an update that the workflow refuses with the answer: a query may wedge an
        open run, see docs/decisions/025-queries.md.

        All clients that ask for the same view share one update, so that a run without a worker keeps its other nine for
        decisions and messages. A client that finds one in progress asks once more: it may have begun before the
        caller's last action. Raises ``NoWorkerError`` if no worker answers within 5 s, ``RunClosedError``,
        ``RunNotFoundError``, ``ServerUnreachableError``.
        """
        asker, shared = uuid.uuid4().hex, False
        loop = asyncio.get_running_loop()
        until = loop.time() + ANSWER_TIMEOUT.total_seconds()
        while True:
            cause = await self._read_update_refusal(
                {"view": view, "task_id": task_id, "asker": asker}, until - loop.time()
            )
            if cause.type == READ_ERROR_TYPE and cause.details:
                details = cause.details[0]
                if shared or details["asker"] == asker:
                    return details["answer"]
                shared = True
            elif cause.type != RunNotFoundError.__name__ or loop.time() > until:
                raise build_error(cause.type, cause.message)
            else:  # it has not read its input yet
                await asyncio.sleep(_INPUT_RETRY_SECONDS)

    async def _read_update_refusal(self, asked: dict[str, Any], within: float) -> ApplicationError:
        """Send the update ``read`` and return the error that it was refused with."""
        # Not the run's own handle: another client may have reopened it, and the update must go to the last execution.
        latest = self.client.temporal.get_workflow_handle(self.id)
        within = max(within, 0.1)
        shared = f"read-{asked['view']}-{asked['task_id'] or ''}"
        try:
            async with asyncio.timeout(within):
                await latest.execute_update("read", asked, id=shared, rpc_timeout=timedelta(seconds=within))
        except WorkflowUpdateFailedError as error:
            if isinstance(error.cause, ApplicationError):
                return error.cause
            raise build_error(None, str(error.cause)) from error
        except (NoAnswer, TimeoutError) as error:
            if (
                task := asyncio.current_task()
            ) is not None and task.cancelling():  # the SDK reports a cancellation as a missing answer
                raise asyncio.CancelledError from error
            raise NoWorkerError(
                f"no worker answers for run {self.id!r}", hint="`perdure show` and its worker's log say more."
            ) from error
        except RPCError as error:
            raise self.translate_rpc_error(error) from error
        raise AssertionError("the update is never accepted")

    async def query_closed_execution(self, run_id: str, view: Literal["status", "turn"], *args: Any) -> Any:
        """Query a closed execution: it has no workflow task left that a query could wedge.

        None if no worker answers. Empty if the query fails: the run had not begun, or was terminated with events that
        no workflow task had processed.
        """
        try:
            ended = self.client.temporal.get_workflow_handle(self.id, run_id=run_id)
            return await ended.query(view, args=args, rpc_timeout=ANSWER_TIMEOUT)
        except WorkflowQueryFailedError:
            return {}
        except RPCError:
            return None

    async def describe(self) -> WorkflowExecutionDescription:
        """Return the server's description of the run, within ``_SERVER_TIMEOUT``: the SDK alone would try for 10 s and
        more."""
        try:
            async with asyncio.timeout(_SERVER_TIMEOUT.total_seconds()):
                return await self.handle.describe()
        except TimeoutError:
            raise build_unreachable_error(
                self.client.temporal, f"nothing for {_SERVER_TIMEOUT.total_seconds():g} s"
            ) from None
        except RPCError as error:
            raise self.translate_rpc_error(error) from error

    def translate_rpc_error(self, error: RPCError) -> PerdureError:
        """Translate Temporal's error for this run."""
        return translate_rpc_error(self.client.temporal, self.id, error)

    # --- steering

    async def send(
        self,
        message: MessageInput | None,
        *,
        message_id: str | None = None,
        task_id: str | None = None,
        override: Override | Mapping[str, Any] | None = None,
        auth_context: AuthMapping | None = None,
        auth_ref: str | None = None,
        by: str | None = None,
    ) -> Turn:
        """Send a message (text, or a list of texts and ``File``) and return the turn that it joins or opens; the same
        ``message_id`` twice counts once.

        ``task_id`` names the turn that the message opens. The name of an earlier turn is not used again: the returned
        turn has the ``task_id`` that applies.

        A closed conversation continues from its end, in a new execution with the input of the last one. None opens a
        turn without a message. ``auth_context``, ``auth_ref``: see ``Client.send``. Raises ``RunNotFoundError``,
        ``InvalidInputError``.
        """
        auth = seal_auth(self.client.temporal, self.id, auth_context, auth_ref)
        return await deliver_message(
            self, message, message_id=message_id, task_id=task_id, override=override, by=by, auth=auth
        )

    async def children(self) -> list[Run]:
        """List the runs that its calls of other agents, and branches of its steps, have started so far, in their order.
        Needs the store.

        The run of a call that was not allowed to start is listed, and is not found. Raises
        ``TranscriptUnavailableError``.
        """
        return [self.client.run(name) for name in await list_child_runs(self)]

    def turn(self, task_id: str | None = None) -> Turn:
        """Return a handle of the turn; without an id of the current turn, or the last one. Sends no request."""
        return Turn(self, task_id)

    async def inject(self, message: MessageInput, *, id: str | None = None, by: str | None = None) -> None:
        """Send a message that joins the conversation at the next iteration; the same ``id`` twice counts once.

        Raises ``RunClosedError``, ``RunNotFoundError``; for a long message ``StoreMismatchError`` where this client
        has another store than the run.
        """
        await self._signal_message("inject_user_message", message, id, by)

    async def interrupt(
        self, message: MessageInput | None = None, *, id: str | None = None, by: str | None = None
    ) -> None:
        """Stop the model call and the tools in progress. What was finished is kept; every open call gets a result that
        says that it was interrupted. With a message the turn continues with it; without one it ends (``finish_reason``
        is ``"interrupted"``), and a session waits for the next message. Between two turns it has no effect.

        Raises ``RunClosedError``, ``RunNotFoundError``.
        """
        if message is None:
            await self._signal("interrupt", {"by": by or self.client.actor})
        else:
            await self._signal_message("interrupt", message, id, by)

    async def close(self, *, by: str | None = None) -> None:
        """End a session after its current turn. Raises ``RunClosedError``, ``RunNotFoundError``."""
        await self._signal("close", {"by": by or self.client.actor})

    async def resume(self, *, limits: Mapping[str, Any] | None = None, by: str | None = None) -> None:
        """Let a paused run retry the same step; reopen a run that failed, was cancelled, was terminated or timed out,
        from the end of its conversation.

        ``limits`` raises limits: ``{"cost_usd": 5, "max_iterations": 80, "turn": {"tokens": 50_000}}``. They are totals
        since the start of the run, not increments; those of a turn apply to the current one. If several callers raise a
        limit, the highest value counts. A run that is paused at a limit continues when that is raised. A reopened run
        begins to count anew.

        Raises ``RunClosedError`` for a run that has completed: send it a message instead; ``RunStuckError`` for one
        whose workflow task fails again and again; ``InvalidInputError`` for invalid ``limits``.
        """
        raised = parse_run_limits(limits).model_dump(mode="json", exclude_none=True) if limits else {}
        closed = await wait_for_closed_status(self)
        if closed is None:
            if (failing := await find_failing_task(self.client.temporal, await self.describe())) is not None:
                raise RunStuckError(f"run {self.id!r} is not paused: {failing}", hint=failing.way_out)
            await wait_for_pause(self)
            said = {"limits": raised} if raised else {}
            await self._signal("resume", {**said, "by": by or self.client.actor})
        elif closed.state == "completed":
            raise RunClosedError(f"run {self.id!r} has completed", hint="Send it a message, and it goes on from there.")
        else:
            start = await build_reopen_start(self)
            if raised:
                start["override"] = merge_overrides(start.get("override") or {}, {"limits": raised})
            self.handle = await reopen_run(self, start, by=by)

    async def cancel(self, *, by: str | None = None) -> None:
        """Cancel the run: calls in progress are stopped, finished work is kept, the transcript is closed.

        Raises ``RunClosedError``, ``RunNotFoundError``.
        """
        # Temporal accepts the cancellation of a closed run without an error.
        if build_closed_status(await self.describe()) is not None:
            raise build_closed_error(self.id)
        try:
            # The handle may be of an execution that has failed since, while another client has reopened the run.
            await self.client.temporal.get_workflow_handle(self.id).cancel(reason=f"by {by or self.client.actor}")
        except RPCError as error:
            raise self.translate_rpc_error(error) from error

    async def fork(
        self,
        message: MessageInput | None = None,
        *,
        at: int | None = None,
        id: str | None = None,
        model: str | tuple[str, ...] | None = None,
        results: Mapping[str, str] | None = None,
        override: Override | Mapping[str, Any] | None = None,
        auth_context: AuthMapping | None = None,
        auth_ref: str | None = None,
        by: str | None = None,
    ) -> Run:
        """Start another run that continues from the end of this one, or from after iteration ``at`` as ``perdure show``
        numbers it.

        It shares the messages before, so it costs one row whatever their number, and the two runs are independent. It
        has the run's agent, mode, context and override; ``model`` and ``override`` change the agent. ``results``
        replaces the texts of tool results, by call id; without ``at`` the fork continues after the iteration of their
        calls. A call that has not finished gets a result that says so. Without a message the model is called with the
        conversation as it stands; where that ends with a reply, the fork waits for a message. The auth context is not
        inherited: ``auth_context``, ``auth_ref``.

        Raises ``InvalidInputError`` for an unknown iteration or call, ``RunExistsError`` for an existing ``id``,
        ``RunNotFoundError``, ``TranscriptUnavailableError`` without a store.
        """
        return await start_fork(
            self,
            message,
            at=at,
            id=id,
            model=model,
            results=results,
            override=override,
            auth=(auth_context, auth_ref),
            by=by,
        )

    async def diff(self, other: Run) -> Difference:
        """Compare the transcripts of this conversation and ``other``. Raises as :meth:`transcript`."""
        if not isinstance(other, Run):
            raise InvalidInputError(f"{other!r:.100} is no run", hint="Of one that has an id: client.run(id).")
        return compare_transcripts(await self.transcript(), await other.transcript())

    async def approve(
        self,
        call_id: str | None = None,
        *,
        by: str | None = None,
        comment: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        always: bool = False,
        hash: str | None = None,
    ) -> DecidedApproval:
        """Approve a pending call, by default the only one; with ``arguments``, to be made with these instead.

        ``hash`` is that of the call that was reviewed, as ``status``, the event and ``on_approval`` hooks show it: a
        pending call with another hash is not approved. Without it, the call that waits under the id at this moment is
        approved. ``always`` approves every call of the tool in this conversation, also other pending ones, until
        :meth:`revoke`. Sending the same decision again returns it again. The tool validates changed arguments as it
        does the model's: a mismatch is an error for the model. Raises ``ApprovalDecidedError`` (it names who decided
        first), ``ApprovalExpiredError``, ``InvalidInputError`` for a call that is not pending and for an approval by
        the requester of the call, where that is not allowed; ``RunClosedError``, ``RunNotFoundError``.
        """
        changes: dict[str, Any] = {"arguments": arguments, "always": always}
        return await decide_pending_call(self, call_id, "approve", by=by, comment=comment, digest=hash, **changes)

    async def deny(
        self, call_id: str | None = None, *, by: str | None = None, comment: str | None = None
    ) -> DecidedApproval:
        """Deny a pending call, by default the only one: the model gets the name of the approver and the ``comment``.

        Also revokes the tool's standing approval. Raises as :meth:`approve`.
        """
        return await decide_pending_call(self, call_id, "deny", by=by, comment=comment)

    async def answer(
        self,
        call_id: str | None = None,
        value: Any = None,
        *,
        error: str | None = None,
        by: str | None = None,
        hash: str | None = None,
    ) -> DecidedApproval:
        """Answer a pending call, by default the only one: a question of its tool (``ctx.ask``), or the result of a call
        that a client runs (``callback_tool``).

        ``value`` is plain JSON, or a value that pydantic converts to it; a long text goes into the store. ``error``
        says why there is no value: a callback's result is that error, and ``ctx.ask`` raises it. Sending the same
        answer again returns the first result: if a call asks again, each further question is answered under its
        ``hash``, as ``status`` shows it. Raises ``ApprovalDecidedError`` (it names who answered first),
        ``ApprovalExpiredError``, ``InvalidInputError`` for a call that does not wait for an answer and for a value that
        does not fit its form; ``RunClosedError``, ``RunNotFoundError``.
        """
        return await answer_pending_call(self, call_id, value, error=error, by=by, digest=hash)

    async def revoke(self, tool: str, *, by: str | None = None) -> list[StandingApproval]:
        """Revoke the standing approval (``always``) of ``tool``: later calls wait again. Returns the revoked approvals.

        Raises ``InvalidInputError`` if there is none, ``RunClosedError``, ``RunNotFoundError``.
        """
        return await revoke_approval(self, tool, by)

    async def _signal_message(self, name: str, message: MessageInput, id: str | None, by: str | None) -> None:
        sent = await self.client.build_user_message(message, id, by=by)
        if sent.store_id is not None:  # a signal's refusal by the run would not reach the caller
            self.check_store((await self.status()).store_id, sent.store_id)
        await self._signal(name, sent.model_dump(mode="json", exclude_none=True))

    async def _signal(self, name: str, *args: Any) -> None:
        try:
            await self.handle.signal(name, args=args)
        except RPCError as error:
            raise self.translate_rpc_error(error) from error


def _describe_missing_answer(error: PerdureError) -> str:
    """Describe in one line why there is no answer."""
    return "no worker answers on its task queue" if isinstance(error, NoWorkerError) else str(error.message)
