"""A run's handle: reads its result, status, transcript and events, and steers it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError as NoAnswer
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from .._encryption import AuthMapping, seal_auth
from ..errors import (
    InvalidInputError,
    NoWorkerError,
    PerdureError,
    RunClosedError,
    RunNotFoundError,
    StoreMismatchError,
    build_error,
    join_sentences,
)
from ..store import Chain
from ..store.transcripts import load_full_conversation
from ..temporal.errors import build_run_error, build_unreachable_error, build_update_error, translate_rpc_error
from ..types.approvals import DecidedApproval, StandingApproval
from ..types.client_tools import ClientTool
from ..types.interface import READ_ERROR_TYPE, STATUS_ATTRIBUTE, OutputT, Response, Status, parse_output
from ..types.messages import FilePart, Message, MessageInput
from .audit import audit_steering
from .decisions import WaitRef, answer_pending_call, decide_pending_call, read_past_decisions, revoke_approval
from .follow import follow_run, list_child_runs
from .message_content import AnyOverride, build_user_message
from .messages import deliver_message
from .pauses import cancel_run, pause_run, resume_run, terminate_run
from .progress import (
    build_no_worker_error,
    describe_missing_worker,
    find_pending_reason,
    has_poller,
    retry_while_not_ready,
)
from .run_states import add_held_up
from .streams import StreamReader, build_output_form
from .tasks import background_task
from .turn import ANSWER_TIMEOUT, Turn
from .visibility import (
    attribute_of,
    build_closed_status,
    find_agent_name,
    read_deployment_version,
    read_end_fields,
    read_pending_memo,
)

if TYPE_CHECKING:
    from ..agent.spec import AgentSpec
    from ..artifacts import Artifact
    from ..ports.store import Store
    from ..types.events import Event
    from .client import Client
    from .fork import Difference

logger = logging.getLogger("perdure.client")

NO_WORKER_SECONDS = 10.0
"""Seconds without a worker on the task queue after which a warning is logged or an error raised."""
UNTAKEN_HISTORY_LENGTH = 2
"""Length of the history of a run that no worker has taken: it was started, and a task was scheduled."""
_TAKEN_POLL_SECONDS = 0.25
_INPUT_RETRY_SECONDS = 0.05
"""Seconds until a workflow that has not read its input yet is asked again."""
_SERVER_TIMEOUT = timedelta(seconds=5)
"""How long the server may take for what it answers without a worker, before it counts as unreachable."""


class Run(StreamReader[OutputT]):
    """A conversation. Making a handle sends no request. ``handle`` is Temporal's own.

    Every method that steers the run takes ``by``, the actor; by default the client's ``actor``.
    """

    def __init__(
        self,
        client: Client,
        handle: WorkflowHandle[Any, Any],
        agent: AgentSpec[Any, OutputT] | str | None = None,
        *,
        output: Any = None,
    ) -> None:
        """Outputs have the type of ``agent``, for clients with its code, or ``output``. Raises ``DefinitionError``."""
        self.client = client
        self.handle = handle
        self.output_form = build_output_form(handle.id, agent, output)

    @property
    def id(self) -> str:
        """The ``context_id``, which is the workflow id."""
        return self.handle.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def result(self) -> Response[OutputT]:
        """Wait for the response, with its messages where this client has the store.

        Raises the run's error (``MaxIterationsError``, ``AuthenticationError``, …), ``RunCancelledError``,
        ``RunNotFoundError``, or ``StoreMismatchError`` where this client has another store than the run. Logs a warning
        if no worker polls the task queue for 10 s.
        """
        async with background_task(self.warn_without_worker()):
            with self.temporal_errors():
                raw = await self.handle.result()
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

    async def with_messages(self, response: Response[Any]) -> Response[OutputT]:
        """Return ``response`` with its messages and long text from the store, where this client has it. Raises
        ``StoreMismatchError``, ``ParseError``."""
        if self.has_store:
            response = await self._load_response(response)
        return response.model_copy(update={"output": self.output_form.read_output(response)})

    async def _load_response(self, response: Response) -> Response:
        store = await self.client.store()
        self.check_store(response.store_id, store)
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
        head = await self.read_head(store)
        return list(await (load_full_conversation(store, head) if full else Chain(store).load(head)))

    async def read_head(self, store: Store) -> str | None:
        """Return the conversation's current head; for one without messages of its own, the head that it was started
        on. Raises ``StoreMismatchError``."""
        row = await store.get_run(self.id)
        if row is not None:
            return row.head
        status = await self.status(decided=False)
        self.check_store(status.store_id, store)
        return status.head

    async def file(self, part: FilePart) -> bytes:
        """Return the bytes of a file of the transcript; see :meth:`Client.file`."""
        return await self.client.file(part)

    async def artifacts(self) -> list[Artifact]:
        """List the artifacts that the agent has written with the toolset ``Artifacts``: the last version of each, by
        name."""
        from ..artifacts import list_artifacts

        return await list_artifacts(self.client.memory, self.id)

    async def artifact(self, name: str, version: int | None = None) -> str:
        """Return the text of an artifact, by default of its last version. Raises ``InvalidInputError`` for an unknown
        one."""
        from ..artifacts import find_artifact, read_artifact_text

        artifact = await find_artifact(self.client.memory, self.id, name, version)
        return await read_artifact_text(self.client.memory, self.id, artifact)

    def check_store(self, store_id: str | None, store: Store) -> None:
        """Raise ``StoreMismatchError`` if ``store_id``, that of the run's store, is not that of ``store``."""
        if store_id not in (None, store.store_id):
            has = f"has store {store.store_id}" if store.store_id else f"finds no store at {store.place}"
            raise StoreMismatchError(
                f"run {self.id!r} is kept in store {store_id}, and this client {has}",
                hint="Point PERDURE_STORE_URL (or store_url=…) at the store of the run's workers. "
                "The result without its messages is Temporal's: await run.handle.result()",
            )

    async def status(self, *, decided: bool = True) -> Status:
        """Return the run's status: what it does or waits for, and the reason where it is stuck. Raises
        ``RunNotFoundError``.

        ``decided``: also what was decided in a run that has ended, which is read from its events.
        """
        description = await self.describe()
        if (closed := build_closed_status(description)) is not None:
            fields = await self._read_recorded_status()
            if decided:
                fields["decided"] = await read_past_decisions(self, closed, description.run_id)
            return closed.model_copy(update=fields | await read_end_fields(self, closed, description.run_id))
        reason = await find_pending_reason(self.client, description)
        version = read_deployment_version(description)
        try:
            status = Status.model_validate(await self.ask_workflow("status"))
        except RunClosedError:  # closed between the two requests
            return await self.status(decided=decided)
        except PerdureError as error:
            missing = error.message
            if isinstance(error, NoWorkerError):
                missing = await describe_missing_worker(self.client, description)
            return await self._build_unanswered_status(description, reason or missing)
        status = status.model_copy(update=version | ({} if status.reason or not reason else {"reason": reason}))
        return await add_held_up(self, status, description)

    async def _build_unanswered_status(self, description: WorkflowExecutionDescription, reason: str) -> Status:
        """Build the status of an open run for which no worker answers, from Temporal and the store."""
        indexed_status = attribute_of(description, STATUS_ATTRIBUTE)
        fields: dict[str, Any] = {
            "context_id": self.id,
            "reason": reason,
            "agent": await find_agent_name(self.client, description),
            "state": indexed_status if indexed_status in ("waiting", "paused") else "running",
            **read_deployment_version(description),
            "approvals": await read_pending_memo(description) or (),
        }
        try:
            fields |= await self._read_recorded_status()
        except PerdureError as error:  # the store is unavailable too
            logger.debug("the status of run %s cannot be read from the store: %s", self.id, error)
        return await add_held_up(self, Status.model_validate(fields), description)

    async def _read_recorded_status(self) -> dict[str, Any]:
        """Read the recorded fields of the run's status from the store."""
        row = await (await self.client.store()).get_run(self.id) if self.has_store else None
        if row is None:
            return {}
        response = Response.model_validate_json(row.result or b"{}")
        fields: dict[str, Any] = {"head": row.head, "iteration": row.iterations, "agent": row.agent}
        return fields | {name: getattr(response, name) for name in ("usage", "cost_usd", "unanswered")}

    async def read_end(self, run_id: str) -> Response | PerdureError:
        """Return the response of the closed execution ``run_id``, or the error that it ended with."""
        execution = self.client.temporal.get_workflow_handle(self.id, run_id=run_id)
        with self.temporal_errors():
            try:
                return Response.model_validate(await execution.result(follow_runs=False, rpc_timeout=_SERVER_TIMEOUT))
            except WorkflowFailureError as error:
                return build_run_error(self.id, error)

    async def wait_for_close(self, run_id: str | None = None) -> None:
        """Wait until the run has closed, however it ends; with ``run_id`` that execution and those that continue it."""
        execution = self.client.temporal.get_workflow_handle(self.id, run_id=run_id)
        with self.temporal_errors(), suppress(WorkflowFailureError):
            await execution.result()

    async def begun(self, within: float = NO_WORKER_SECONDS) -> None:
        """Wait until a worker has taken the run. Raises ``NoWorkerError`` if none does within ``within`` seconds and
        none polls the task queue that gets the run.

        The run stays open, and continues when a worker starts.
        """
        deadline = asyncio.get_running_loop().time() + within
        while True:
            description = await self.describe()
            if build_closed_status(description) is not None or description.history_length > UNTAKEN_HISTORY_LENGTH:
                return
            if asyncio.get_running_loop().time() > deadline and not await has_poller(self.client, description):
                raise await build_no_worker_error(self.client, description, within)
            await asyncio.sleep(_TAKEN_POLL_SECONDS)

    async def warn_without_worker(self) -> None:
        """After ``NO_WORKER_SECONDS``, log a warning if no worker has polled the run's task queue lately."""
        await asyncio.sleep(NO_WORKER_SECONDS)
        try:
            description = await self.describe()
            closed = build_closed_status(description) is not None
            if not closed and not await has_poller(self.client, description, lately=True):
                missing = await build_no_worker_error(self.client, description, NO_WORKER_SECONDS)
                logger.warning("run %s waits: %s", self.id, join_sentences(missing.message, missing.hint))
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
        # Not the run's own handle: another client may have reopened it, and the update must go to the last execution.
        latest = self.client.temporal.get_workflow_handle(self.id)
        payload = {"view": view, "task_id": task_id, "asker": uuid.uuid4().hex}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ANSWER_TIMEOUT.total_seconds()
        asked_before = False
        while True:
            seconds = max(deadline - loop.time(), 0.1)
            refusal = await retry_while_not_ready(
                self, lambda: self._read_update_refusal(latest, payload, deadline), within=seconds
            )
            if refusal.type == READ_ERROR_TYPE and refusal.details:
                details = refusal.details[0]
                if asked_before or details["asker"] == payload["asker"]:
                    return details["answer"]
                asked_before = True
            elif refusal.type != RunNotFoundError.__name__ or loop.time() > deadline:
                raise build_error(refusal.type, refusal.message)
            else:  # it has not read its input yet
                await asyncio.sleep(_INPUT_RETRY_SECONDS)

    async def _read_update_refusal(
        self, latest: WorkflowHandle[Any, Any], payload: dict[str, Any], deadline: float
    ) -> ApplicationError:
        """Send the update ``read`` and return the error that it was refused with."""
        seconds = max(deadline - asyncio.get_running_loop().time(), 0.1)
        update_id = f"read-{payload['view']}-{payload['task_id'] or ''}"
        hint = "`perdure show` and its worker's log say more."
        with self.temporal_errors(NoWorkerError(f"no worker answers for run {self.id!r}", hint=hint)):
            try:
                async with asyncio.timeout(seconds):
                    await latest.execute_update("read", payload, id=update_id, rpc_timeout=timedelta(seconds=seconds))
            except WorkflowUpdateFailedError as error:
                if isinstance(error.cause, ApplicationError):
                    return error.cause
                raise
        raise AssertionError("the update is never accepted")

    async def describe(self) -> WorkflowExecutionDescription:
        """Return the server's description of the run, within ``_SERVER_TIMEOUT``: the SDK alone would try for 10 s and
        more."""
        seconds = _SERVER_TIMEOUT.total_seconds()
        with self.temporal_errors(build_unreachable_error(self.client.temporal, f"nothing for {seconds:g} s")):
            async with asyncio.timeout(seconds):
                return await self.handle.describe()

    @contextmanager
    def temporal_errors(self, no_answer: PerdureError | None = None) -> Generator[None]:
        """Translate the errors that Temporal's client raises in the block; a timeout becomes ``no_answer``."""
        try:
            yield
        except WorkflowFailureError as error:
            raise build_run_error(self.id, error) from error
        except WorkflowUpdateFailedError as error:
            raise build_update_error(self.id, error) from error
        except (NoAnswer, TimeoutError) as error:
            task = asyncio.current_task()
            if isinstance(error, NoAnswer) and task is not None and task.cancelling():  # the SDK reports both so
                raise asyncio.CancelledError from error
            if no_answer is None:
                raise
            raise no_answer from error
        except RPCError as error:
            raise translate_rpc_error(self.client.temporal, self.id, error) from error

    # --- steering

    async def send(
        self,
        message: MessageInput | None,
        *,
        message_id: str | None = None,
        task_id: str | None = None,
        override: AnyOverride | None = None,
        client_tools: Sequence[ClientTool | Mapping[str, Any]] | None = None,
        auth_context: AuthMapping | None = None,
        auth_ref: str | None = None,
        by: str | None = None,
    ) -> Turn[OutputT]:
        """Send a message (text, or a list of texts and ``File``) and return the turn that it joins or opens; the same
        ``message_id`` twice counts once.

        ``task_id`` names the turn that the message opens. The name of an earlier turn is not used again: the returned
        turn has the ``task_id`` that applies.

        A closed conversation continues from its end, in a new execution with the input of the last one. None opens a
        turn without a message. ``client_tools``, ``auth_context``, ``auth_ref``: see ``Client.send``. Raises
        ``RunNotFoundError``, ``InvalidInputError``.
        """
        options: Any = {"override": override, "client_tools": client_tools, "by": by}
        auth = seal_auth(self.client.temporal, self.id, auth_context, auth_ref)
        joined = await deliver_message(self, message, message_id=message_id, task_id=task_id, auth=auth, **options)
        return Turn(self, joined)

    async def children(self) -> list[Run]:
        """List the runs that its calls of other agents, and branches of its steps, have started so far, in their order.
        Needs the store.

        The run of a call that was not allowed to start is listed, and is not found. Raises
        ``TranscriptUnavailableError``.
        """
        return [self.client.run(name) for name in await list_child_runs(self)]

    def turn(self, task_id: str | None = None) -> Turn[OutputT]:
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
        is ``"interrupted"``), and a session waits for the next message. Between two turns it has no effect. Raises
        ``RunClosedError``, ``RunNotFoundError``."""
        if message is None:
            await self._signal("interrupt", {"by": by or self.client.actor})
        else:
            await self._signal_message("interrupt", message, id, by)

    async def close(self, *, by: str | None = None) -> None:
        """End a session after its current turn. Raises ``RunClosedError``, ``RunNotFoundError``."""
        await self._signal("close", {"by": by or self.client.actor})

    async def pause(self, *, reason: str | None = None, children: bool = False, by: str | None = None) -> None:
        """Pause the run: the model call and the tools in progress end, and nothing else begins until :meth:`resume`.

        Messages, approvals and answers that come meanwhile are kept; :meth:`cancel` and :meth:`interrupt` work. A turn
        that has its answer by then ends as usual. ``status().pause`` has who paused it, and why; the first pause
        counts. Subagents in progress continue, unless ``children`` pauses them, and those below them, too.

        Raises ``RunClosedError``, ``RunNotFoundError``; ``InvalidInputError`` for a ``reason`` over 1,000 characters;
        with ``children`` ``NoWorkerError``, when this run is paused and its subagents are not known.
        """
        await pause_run(self, reason=reason, children=children, by=by or self.client.actor)

    async def resume(
        self,
        *,
        limits: Mapping[str, Any] | None = None,
        children: bool = False,
        from_store: bool = False,
        by: str | None = None,
    ) -> None:
        """Let a paused run retry the step that it paused at; reopen a run that failed, was cancelled, was terminated or
        timed out, from the end of its conversation; its limits count from zero.

        ``limits`` raises limits: ``{"cost_usd": 5, "turn": {"tokens": 50_000}}``, as totals since the start of the run
        or of the current turn; the highest of several values counts. ``children`` resumes the subagents in progress,
        too. ``from_store`` is for a store that is an older backup: the run starts again from what that has, and later
        calls may be made and paid for again. Raises ``RunClosedError`` for a run that has completed: send it a message;
        ``RunStuckError`` if its workflow task fails repeatedly; ``InvalidInputError`` for ``limits``, or if nothing
        is lost."""
        await resume_run(self, limits=limits, children=children, by=by or self.client.actor, from_store=from_store)

    async def cancel(self, *, by: str | None = None) -> None:
        """Cancel the run: calls in progress are stopped, finished work is kept, the transcript is closed.

        Raises ``RunClosedError``, ``RunNotFoundError``."""
        await cancel_run(self, by=by or self.client.actor)

    async def terminate(self, reason: str | None = None, *, by: str | None = None) -> None:
        """End the run at once, also without a worker, where :meth:`cancel` needs one. Calls in progress are closed as
        lost when the conversation continues. Raises ``RunClosedError``, ``RunNotFoundError``."""
        await terminate_run(self, reason, by=by or self.client.actor)

    async def fork(
        self,
        message: MessageInput | None = None,
        *,
        at: int | None = None,
        id: str | None = None,
        model: str | tuple[str, ...] | None = None,
        results: Mapping[str, str] | None = None,
        override: AnyOverride | None = None,
        context: Any = None,
        auth_context: AuthMapping | None = None,
        auth_ref: str | None = None,
        by: str | None = None,
    ) -> Run[OutputT]:
        """Start another run that continues from the end of this one, or from after iteration ``at`` as ``perdure show``
        numbers it.

        It shares the messages before, which costs one row, and the two runs are independent. It has the run's agent,
        mode, context and override; ``model`` and ``override`` change the agent, ``context`` fields of the context.
        ``results`` replaces the texts of tool results, by call id; without ``at`` the fork continues after the
        iteration of their calls. A call that has not finished gets a result that says so. Without a message the model
        is called with the conversation as it stands; where that ends with a reply, the fork waits for a message. The
        auth context is not inherited: ``auth_context``, ``auth_ref``.

        Raises ``InvalidInputError`` for an unknown iteration or call, ``RunExistsError`` for an existing ``id``,
        ``RunNotFoundError``, ``TranscriptUnavailableError`` without a store."""
        from .fork import start_fork

        fork_id = await start_fork(
            self, message, at=at, id=id, model=model, results=results, override=override, context=context, by=by,
            auth=(auth_context, auth_ref),
        )  # fmt: skip
        fork: Run[OutputT] = self.client.run(fork_id)
        fork.output_form = self.output_form
        return fork

    async def diff(self, other: Run) -> Difference:
        """Compare the transcripts of this conversation and ``other``. Raises as :meth:`transcript`."""
        if not isinstance(other, Run):
            raise InvalidInputError(f"diff needs a Run, not {other!r:.100}", hint="For instance client.run(id).")
        from .fork import compare_transcripts

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
        wait = WaitRef(call_id, hash)
        return await decide_pending_call(
            self, wait, "approve", by=by, comment=comment, arguments=arguments, always=always
        )

    async def deny(
        self, call_id: str | None = None, *, by: str | None = None, comment: str | None = None, hash: str | None = None
    ) -> DecidedApproval:
        """Deny a pending call, by default the only one: the model gets the name of the approver and the ``comment``.

        ``hash`` is as of :meth:`approve`. Also revokes the tool's standing approval. Raises as :meth:`approve`.
        """
        return await decide_pending_call(self, WaitRef(call_id, hash), "deny", by=by, comment=comment)

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
        return await answer_pending_call(self, WaitRef(call_id, hash), value, error=error, by=by)

    async def revoke(self, tool: str, *, by: str | None = None) -> list[StandingApproval]:
        """Revoke the standing approval (``always``) of ``tool``: later calls wait again. Returns the revoked approvals.

        Raises ``InvalidInputError`` if there is none, ``RunClosedError``, ``RunNotFoundError``.
        """
        return await revoke_approval(self, tool, by)

    async def _signal_message(self, name: str, message: MessageInput, id: str | None, by: str | None) -> None:
        sent = await build_user_message(self.client, message, id=id, by=by)
        if sent.store_id is not None:  # a signal's refusal by the run would not reach the caller
            self.check_store((await self.status(decided=False)).store_id, await self.client.store())
        await self._signal(name, sent.model_dump(mode="json", exclude_none=True))

    async def _signal(self, name: str, arg: dict[str, Any]) -> None:
        verb = "inject" if name == "inject_user_message" else name
        async with audit_steering(self.client, verb, self.id, by=arg.get("by"), detail=arg.get("id")):
            with self.temporal_errors():
                await self.handle.signal(name, arg)
