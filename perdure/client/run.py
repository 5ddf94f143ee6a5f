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
from ..loop import parse_run_limits
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
from ..types.files import MessageInput
from ..types.interface import READ_ERROR_TYPE, STATUS_ATTRIBUTE, Override, Response, Status, parse_output
from ..types.messages import FilePart, Message
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
"""Seconds without a worker on the task queue after which somebody is told."""
_UNTAKEN_HISTORY_LENGTH = 2
"""Events of a run that no worker has taken: it was started, and a task was scheduled."""
_TAKEN_POLL_SECONDS = 0.25
ANSWER_TIMEOUT = timedelta(seconds=5)
"""How long a worker is given to say what the workflow has, before the run counts as waiting for a worker."""
_INPUT_RETRY_SECONDS = 0.05
"""Seconds until a workflow is asked again that has not read its input yet."""
_SERVER_TIMEOUT = timedelta(seconds=5)
"""How long the server is given for what it answers by itself, before it counts as unreachable."""


class Run:
    """A conversation. Making a handle asks nothing of the server. ``handle`` is Temporal's own.

    Every verb that steers takes ``by``, who does it; by default the client's ``actor``.
    """

    def __init__(self, client: Client, handle: WorkflowHandle[Any, Any], agent: Agent | str | None = None) -> None:
        """``agent``, where its code is here, is the run's: outputs are then of its type."""
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
        """Wait for the answer, with its messages where this client has the store.

        Raises the run's error (``MaxIterationsError``, ``AuthenticationError``, …), ``RunCancelledError``,
        ``RunNotFoundError``, or ``StoreMismatchError`` where this client has another store than the run. Where no
        worker is there for 10 s, a warning is logged.
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
        """What happens in the run, behind number ``after``, until it has ended; without ``wait`` what happened so far.

        ``after`` is the ``seq`` of the last event that was seen: whoever comes back with it misses nothing, and sees
        nothing twice. Events come from the store; following adds nothing to Temporal's history.

        With what happens in the runs that its calls of other agents begin, and in theirs, in one order: these events
        have a ``path``, and the ``context_id`` of their run. ``children=False`` leaves them out.

        Raises ``RunNotFoundError``; ``InvalidInputError`` for an ``after`` that is no number;
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
        """``response`` with what only the store has, where this client has it. Raises ``StoreMismatchError``,
        ``ParseError``."""
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
        """The conversation as the store has it now; with ``full`` also what summaries of it stand for.

        Raises ``TranscriptUnavailableError`` without a store, ``StoreMismatchError`` with another than the run's.
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
        """The bytes of a file of the transcript; see :meth:`Client.file`."""
        return await self.client.file(part)

    async def artifacts(self) -> list[Artifact]:
        """What the agent has written with the toolset ``Artifacts``: the last version of each, by name."""
        return await toolsets.list_artifacts(self.client.memory, self.id)

    async def artifact(self, name: str, version: int | None = None) -> str:
        """The text of one, of its last version unless told otherwise. Raises ``InvalidInputError`` for one that is not
        there."""
        found = await toolsets.find_artifact(self.client.memory, self.id, name, version)
        return await toolsets.read_artifact_text(self.client.memory, self.id, found)

    def check_store(self, kept: str | None, ours: str, place: str = "") -> None:
        """Raise ``StoreMismatchError`` if ``kept``, where the run is, is not ``ours``, the store at ``place``."""
        if kept is not None and kept != ours:
            has = f"has store {ours}" if ours else f"finds no store at {place}"
            raise StoreMismatchError(
                f"run {self.id!r} is kept in store {kept}, and this client {has}",
                hint="Point PERDURE_STORE_URL (or store_url=…) at the store of the run's workers. "
                "The result without its messages is Temporal's: await run.handle.result()",
            )

    async def status(self) -> Status:
        """What the run is at, or waits for, and the reason where it is stuck. Raises ``RunNotFoundError``."""
        seen = await self.describe()
        if (closed := build_closed_status(seen)) is not None:
            return closed.model_copy(update=await self._read_recorded_status() | await self._read_closed_result(closed))
        reason = await find_pending_reason(self.client, seen)
        try:
            status = Status.model_validate(await self.ask_workflow("status"))
        except RunClosedError:  # in this very moment
            return await self.status()
        except PerdureError as error:
            return await self._build_unanswered_status(seen, reason or _describe_missing_answer(error))
        return status if status.reason or not reason else status.model_copy(update={"reason": reason})

    async def _build_unanswered_status(self, seen: WorkflowExecutionDescription, reason: str) -> Status:
        """What Temporal and the store know of an open run for which no worker answers."""
        told = attribute_of(seen, STATUS_ATTRIBUTE)
        known: dict[str, Any] = {
            "agent": await find_agent_name(self.client, seen),
            "state": told if told in ("waiting", "paused") else "running",
            "approvals": await read_pending_memo(seen) or (),
        }
        try:
            known |= await self._read_recorded_status()
        except PerdureError as error:  # the store is away too
            logger.debug("the store cannot tell of run %s: %s", self.id, error)
        return Status.model_validate({"context_id": self.id, "reason": reason, **known})

    async def _read_recorded_status(self) -> dict[str, Any]:
        """What the store knows of a closed run."""
        if self.client.store_url is None:
            return {}
        row = await (await self.client.store()).get_run(self.id)
        if row is None:
            return {}
        took = Response.model_validate_json(row.result or b"{}")
        known: dict[str, Any] = {"head": row.head, "iteration": row.iterations, "agent": row.agent}
        return known | {"usage": took.usage, "cost_usd": took.cost_usd, "unanswered": took.unanswered}

    async def _read_closed_result(self, closed: Status) -> dict[str, Any]:
        """What its result says of a run that has ended, which its description does not."""
        if closed.state == "cancelled" or closed.reason is not None:
            return {}
        try:
            last = self.client.temporal.get_workflow_handle(self.id)  # of which the description is
            response = Response.model_validate(await last.result(rpc_timeout=_SERVER_TIMEOUT))
        except WorkflowFailureError as error:
            cause = build_run_error(self.id, error)
            return {"reason": f"{type(cause).__name__}: {cause}"}
        except RPCError as error:
            raise self.translate_rpc_error(error) from error
        known = ("task_id", "head", "store_id", "usage", "cost_usd", "unanswered")
        return {"iteration": response.iterations} | {name: getattr(response, name) for name in known}

    async def begun(self, within: float = NO_WORKER_SECONDS) -> None:
        """Wait until a worker has taken the run up. Raises ``NoWorkerError`` when none is there for so many seconds.

        The run stays, and goes on when a worker comes.
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
        """Log a warning if nobody has polled the run's task queue lately, so many seconds from now."""
        await asyncio.sleep(within)
        try:
            seen = await self.describe()
            if build_closed_status(seen) is None and not await has_poller(self.client, seen, lately=True):
                logger.warning(
                    "run %s waits: no worker polls task queue %r; `perdure worker FILE --task-queue %s` serves it",
                    *(self.id, seen.task_queue, seen.task_queue),
                )
        except (PerdureError, RPCError) as error:  # whoever waits is told by the wait itself
            logger.debug("cannot tell whether a worker serves run %s: %s", self.id, error)

    async def ask_workflow(self, view: Literal["status", "turn"], task_id: str | None = None) -> Any:
        """The answer of the workflow's query ``view``, by an update that is refused: a query may wedge an open run, see
        docs/decisions/025-queries.md.

        All who ask the same share one update, so that a run without a worker keeps its other nine for decisions and
        messages. Who finds one under way asks once more: it may have begun before what the caller has just done.
        Raises ``NoWorkerError`` where none answers for 5 s, ``RunClosedError``, ``RunNotFoundError``,
        ``ServerUnreachableError``.
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
        """How the update ``read`` was refused."""
        # Not the run's own handle: somebody may have opened it again since, and the update is of the last execution.
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
            if (task := asyncio.current_task()) is not None and task.cancelling():  # which the SDK takes for no answer
                raise asyncio.CancelledError from error
            raise NoWorkerError(
                f"no worker answers for run {self.id!r}", hint="`perdure show` and its worker's log say more."
            ) from error
        except RPCError as error:
            raise self.translate_rpc_error(error) from error
        raise AssertionError("the update is never accepted")

    async def query_closed_execution(self, run_id: str, view: Literal["status", "turn"], *args: Any) -> Any:
        """Query an execution that has ended: it has no workflow task any more that a query could wedge.

        None where no worker answers. Empty where one does, and cannot say: the run had not begun, or was terminated
        with events that no workflow task had brought.
        """
        try:
            ended = self.client.temporal.get_workflow_handle(self.id, run_id=run_id)
            return await ended.query(view, args=args, rpc_timeout=ANSWER_TIMEOUT)
        except WorkflowQueryFailedError:
            return {}
        except RPCError:
            return None

    async def describe(self) -> WorkflowExecutionDescription:
        """What the server knows of the run. The SDK alone would try for 10 s and more to reach it."""
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
        """What Temporal's refusal means here."""
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
        """Send a message (text, or a list of texts and ``File``) and get the turn that it joins or opens; the same
        ``message_id`` twice counts once.

        ``task_id`` names the turn that the message opens; the name of an earlier turn is not given a second time: the
        ``task_id`` of what this returns is the turn's.

        A conversation that has ended goes on from its end, in a new execution with what the last one was started with.
        None asks for a turn without a message. ``auth_context``, ``auth_ref``: see ``Client.send``.
        Raises ``RunNotFoundError``, ``InvalidInputError``.
        """
        auth = seal_auth(self.client.temporal, self.id, auth_context, auth_ref)
        return await deliver_message(
            self, message, message_id=message_id, task_id=task_id, override=override, by=by, auth=auth
        )

    async def children(self) -> list[Run]:
        """The runs that its calls of other agents, and branches of its steps, have begun so far, in their order. Needs
        the store.

        A call that was not let begin is among them, and its run is not found. Raises ``TranscriptUnavailableError``.
        """
        return [self.client.run(name) for name in await list_child_runs(self)]

    def turn(self, task_id: str | None = None) -> Turn:
        """The turn of that id; without one the present turn, or the last one. Nothing is asked of the server yet."""
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
        """Stop the model call and the tools that are in flight. What was finished is kept; every open call gets a
        result that says so. With a message the turn goes on with it; without one it ends (``finish_reason`` is
        ``"interrupted"``), and a session waits for the next message. Between two turns there is nothing to stop.

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
        """Let a paused run try the same step again; open a run that failed, was cancelled, was terminated or timed
        out once more, from where its conversation ended.

        ``limits`` raises limits: ``{"cost_usd": 5, "max_iterations": 80, "turn": {"tokens": 50_000}}``. They are what
        the run may use from its start, not what is added; those of a turn are for the present one. Of several people
        who raise one the highest counts. A run that is paused at a limit goes on when that is raised. One that is
        opened again begins to count anew.

        Raises ``RunClosedError`` for a run that has completed: send it a message instead; ``RunStuckError`` for one
        whose workflow task fails again and again; ``InvalidInputError`` for ``limits`` that do not fit.
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
        """Cancel the run: what is in flight is stopped, what is finished is kept, the transcript is closed.

        Raises ``RunClosedError``, ``RunNotFoundError``.
        """
        # Temporal takes the cancellation of a run that has ended without a word.
        if build_closed_status(await self.describe()) is not None:
            raise build_closed_error(self.id)
        try:
            # The handle may be of an execution that has failed since, and somebody else has opened the run again.
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
        """Start another run that goes on from here, or from behind iteration ``at`` as ``perdure show`` numbers it.

        It shares what was said before, so it costs one row however long that is, and each goes on by itself. It has
        the run's agent, mode, context and override; ``model`` and ``override`` change the agent. ``results`` puts
        other texts in the place of tool results, by call id; without ``at`` it goes on behind their calls. A call
        that has not finished gets a result that says so. Without a message the model is asked on the conversation as
        it stands; where that ends with a reply, the fork waits for a message. On whose behalf it acts is not taken
        over: ``auth_context``, ``auth_ref``.

        Raises ``InvalidInputError`` for an iteration or call that there is not, ``RunExistsError`` for a known ``id``,
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
        """Where this conversation and ``other`` part. Raises as :meth:`transcript`."""
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
        """Approve a call that waits, by default the only one; with ``arguments``, to be made with these instead.

        ``hash`` is that of what was looked at, as ``status``, the event and ``on_approval`` hooks show it: what waits
        with another one is not approved. Without it, what waits under the id at this moment is.
        ``always`` approves every call of the tool in this conversation, also those that wait beside it, until
        :meth:`revoke`. Whoever sends the same decision once more gets it back.
        The tool checks changed arguments as it does the model's: what does not fit is an error for the model.
        Raises ``ApprovalDecidedError`` (it names who was quicker), ``ApprovalExpiredError``, ``InvalidInputError`` for
        a call that does not wait and for an approval by who asked for the call, where that is not allowed;
        ``RunClosedError``, ``RunNotFoundError``.
        """
        changes: dict[str, Any] = {"arguments": arguments, "always": always}
        return await decide_pending_call(self, call_id, "approve", by=by, comment=comment, digest=hash, **changes)

    async def deny(
        self, call_id: str | None = None, *, by: str | None = None, comment: str | None = None
    ) -> DecidedApproval:
        """Deny a call that waits, by default the only one: the model is told who did, and the ``comment``.

        Of its tool no approval stands any longer. Raises as :meth:`approve`.
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
        """Answer a call that waits for it, by default the only one: what its tool asks (``ctx.ask``), or the result of
        a call that a client runs (``callback_tool``).

        ``value`` is plain JSON, or what pydantic makes that of; a long text goes by way of the store. ``error`` says
        why there is none: a callback's result is that error, and ``ctx.ask`` raises it. Whoever sends the same answer
        once more gets back what it was: of a call that asks again, each further question is answered under its
        ``hash``, as ``status`` shows it.
        Raises ``ApprovalDecidedError`` (it names who was quicker), ``ApprovalExpiredError``, ``InvalidInputError`` for
        a call that waits for no answer and for what does not fit its form; ``RunClosedError``, ``RunNotFoundError``.
        """
        return await answer_pending_call(self, call_id, value, error=error, by=by, digest=hash)

    async def revoke(self, tool: str, *, by: str | None = None) -> list[StandingApproval]:
        """Let later calls of ``tool`` wait again, which somebody has approved for ``always``; what had stood.

        Raises ``InvalidInputError`` where nothing does, ``RunClosedError``, ``RunNotFoundError``.
        """
        return await revoke_approval(self, tool, by)

    async def _signal_message(self, name: str, message: MessageInput, id: str | None, by: str | None) -> None:
        sent = await self.client.build_user_message(message, id, by=by)
        if sent.store_id is not None:  # the run would refuse it, and nobody would hear of that
            self.check_store((await self.status()).store_id, sent.store_id)
        await self._signal(name, sent.model_dump(mode="json", exclude_none=True))

    async def _signal(self, name: str, *args: Any) -> None:
        try:
            await self.handle.signal(name, args=args)
        except RPCError as error:
            raise self.translate_rpc_error(error) from error


def _describe_missing_answer(error: PerdureError) -> str:
    """Why there is no answer, in a line."""
    return "no worker answers on its task queue" if isinstance(error, NoWorkerError) else str(error.message)
