"""``Run``: one conversation, seen from outside: its answer, its status, its transcript, and what steers it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio import exceptions as temporal
from temporalio.client import Client as TemporalClient
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from .errors import (
    InvalidInputError,
    NoWorkerError,
    PerdureError,
    RunCancelledError,
    RunClosedError,
    RunError,
    RunNotFoundError,
    RuntimeSetupError,
    ServerUnreachableError,
    StoreMismatchError,
    from_type,
)
from .runs import agent_of, closed_status, has_poller, pending_reason
from .store import Chain
from .types.messages import Message
from .types.wire import Response, Status

if TYPE_CHECKING:
    from .client import Client

NO_WORKER = 10.0
"""Seconds without a worker on the task queue after which somebody is told."""
_NOT_TAKEN = 2
"""Events of a run that no worker has taken: it was started, and a task was scheduled."""
_LOOK = 0.25
_QUERY = timedelta(seconds=5)
"""How long a worker is given to answer a query before the run counts as waiting for a worker."""
_RPC = timedelta(seconds=5)
"""How long the server is given for what it answers by itself, before it counts as unreachable."""


class Run:
    """A handle; making one asks nothing of the server. ``handle`` is Temporal's own."""

    def __init__(self, client: Client, handle: WorkflowHandle[Any, Any]) -> None:
        self._client = client
        self.handle = handle

    @property
    def id(self) -> str:
        """The ``context_id``, which is the workflow id."""
        return self.handle.id

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    async def result(self) -> Response:
        """Wait for the answer, with its messages where this client has the store.

        Raises the run's error (``MaxIterationsError``, ``AuthenticationError``, …), ``RunCancelledError``,
        ``RunNotFoundError``, or ``StoreMismatchError`` where this client has another store than the run.
        """
        try:
            raw = await self.handle.result()
        except WorkflowFailureError as error:
            raise _run_error(self.id, error) from error
        except RPCError as error:
            raise self._translated(error) from error
        response = Response.model_validate(raw)
        return response if self._client.store_url is None else await self._with_messages(response)

    async def _with_messages(self, response: Response) -> Response:
        store = await self._client.store()
        self._check_store(response.store_id, store.store_id)
        chain = Chain(store)
        update: dict[str, Any] = {"messages": tuple(await chain.load(response.head))}
        if response.blob is not None:
            text = await chain.resolve_blob(response.blob)
            update |= {"content": text, "output": text, "blob": None}
        return response.model_copy(update=update)

    async def transcript(self) -> list[Message]:
        """The conversation as the store has it now.

        Raises ``TranscriptUnavailableError`` without a store, ``StoreMismatchError`` with another than the run's.
        """
        store = await self._client.store()
        row = await store.run(self.id)
        if row is not None:
            return await Chain(store).load(row.head)
        status = await self.status()
        self._check_store(status.store_id, store.store_id)
        return await Chain(store).load(status.head)

    def _check_store(self, kept: str | None, ours: str) -> None:
        if kept is not None and kept != ours:
            raise StoreMismatchError(
                f"run {self.id!r} is kept in store {kept}, and this client has store {ours}",
                hint="Point PERDURE_STORE_URL (or store_url=…) at the store of the run's workers. "
                "The result without its messages is Temporal's: await run.handle.result()",
            )

    async def status(self) -> Status:
        """What the run is at, or waits for, and the reason where it is stuck. Raises ``RunNotFoundError``."""
        seen = await self._describe()
        if (closed := closed_status(seen)) is not None:
            return closed.model_copy(update=await self._recorded() | await self._ended(closed))
        reason = await pending_reason(self._client, seen)
        try:
            raw = await self.handle.query("status", rpc_timeout=_QUERY)
        except (RPCError, WorkflowQueryFailedError):
            agent = await agent_of(self._client, seen)
            waiting = reason or "no worker answers on its task queue"
            return Status(state="running", agent=agent, context_id=self.id, reason=waiting)
        status = Status.model_validate(raw)
        return status if status.reason or not reason else status.model_copy(update={"reason": reason})

    async def _recorded(self) -> dict[str, Any]:
        """What the store knows of a closed run."""
        if self._client.store_url is None:
            return {}
        row = await (await self._client.store()).run(self.id)
        if row is None:
            return {}
        took = Response.model_validate_json(row.result or b"{}")
        known = {"head": row.head, "iteration": row.iterations, "agent": row.agent}
        return known | {"usage": took.usage, "cost_usd": took.cost_usd}

    async def _ended(self, closed: Status) -> dict[str, Any]:
        """What its result says of a run that has ended, which its description does not."""
        if closed.state == "cancelled" or closed.reason is not None:
            return {}
        try:
            response = Response.model_validate(await self.handle.result(rpc_timeout=_RPC))
        except WorkflowFailureError as error:
            cause = _run_error(self.id, error)
            return {"reason": f"{type(cause).__name__}: {cause}"}
        except RPCError as error:
            raise self._translated(error) from error
        known = ("task_id", "head", "store_id", "usage", "cost_usd")
        return {"iteration": response.iterations} | {name: getattr(response, name) for name in known}

    async def begun(self, within: float = NO_WORKER) -> None:
        """Wait until a worker has taken the run up. Raises ``NoWorkerError`` when none is there for so many seconds.

        The run stays, and goes on when a worker comes.
        """
        deadline = asyncio.get_running_loop().time() + within
        while True:
            seen = await self._describe()
            if closed_status(seen) is not None or seen.history_length > _NOT_TAKEN:
                return
            if asyncio.get_running_loop().time() > deadline and not await has_poller(self._client, seen):
                raise NoWorkerError(
                    f"no worker has polled task queue {seen.task_queue!r} for {within:g} s",
                    hint=f"Run {self.id!r} waits for one: perdure worker FILE --task-queue {seen.task_queue}",
                )
            await asyncio.sleep(_LOOK)

    async def inject(self, message: str, *, id: str | None = None) -> None:
        """Send a message that joins the conversation at the next iteration; the same ``id`` twice counts once.

        Raises ``RunClosedError``, ``RunNotFoundError``; for a long message ``StoreMismatchError`` where this client
        has another store than the run.
        """
        sent = await self._client.as_message(message, id)
        if sent.store_id is not None:  # the run would refuse it, and nobody would hear of that
            self._check_store((await self.status()).store_id, sent.store_id)
        await self._signal("inject_user_message", sent.model_dump(mode="json", exclude_none=True))

    async def resume(self) -> None:
        """The cause of a pause is gone: the run tries the same step again."""
        await self._signal("resume")

    async def cancel(self) -> None:
        """Cancel the run: what is in flight is stopped, what is finished is kept, the transcript is closed.

        Raises ``RunClosedError``, ``RunNotFoundError``.
        """
        # Temporal takes the cancellation of a run that has ended without a word.
        if closed_status(await self._describe()) is not None:
            raise _closed(self.id)
        try:
            await self.handle.cancel()
        except RPCError as error:
            raise self._translated(error) from error

    async def _describe(self) -> WorkflowExecutionDescription:
        """What the server knows of the run. The SDK alone would try for 10 s and more to reach it."""
        try:
            async with asyncio.timeout(_RPC.total_seconds()):
                return await self.handle.describe()
        except TimeoutError:
            raise _unreachable(self._client.temporal, f"nothing for {_RPC.total_seconds():g} s") from None
        except RPCError as error:
            raise self._translated(error) from error

    async def _signal(self, name: str, *args: Any) -> None:
        try:
            await self.handle.signal(name, args=args)
        except RPCError as error:
            raise self._translated(error) from error

    def _translated(self, error: RPCError) -> PerdureError:
        return translated(self._client.temporal, self.id, error)


def translated(temporal: TemporalClient, id: str, error: RPCError) -> PerdureError:
    """What Temporal's refusal means for run ``id``."""
    if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
        return _unreachable(temporal, error.message)
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        return InvalidInputError(f"Temporal refuses run {id!r:.100}: {error.message}")
    if error.status != RPCStatusCode.NOT_FOUND:
        return RunError(f"Temporal refused: {error.message}")
    if "amespace" in error.message:
        return RuntimeSetupError(
            f"Temporal: {error.message}", hint="Create the namespace, or name another one: TEMPORAL_NAMESPACE."
        )
    if "already completed" in error.message:
        return _closed(id)
    return RunNotFoundError(f"there is no run {id!r}", hint="`perdure list` shows the runs there are.")


def _unreachable(temporal: TemporalClient, why: str) -> ServerUnreachableError:
    return ServerUnreachableError(
        f"the Temporal server at {temporal.service_client.config.target_host} does not answer: {why}",
        hint="Runs are kept there and go on when the server is back.",
    )


def _closed(id: str) -> RunClosedError:
    return RunClosedError(f"run {id!r} has ended", hint="Start another one.")


def _run_error(id: str, error: WorkflowFailureError) -> PerdureError:
    cause = error.cause
    if isinstance(cause, temporal.ApplicationError):
        return from_type(cause.type, cause.message)
    if isinstance(cause, temporal.CancelledError):
        return RunCancelledError(f"run {id!r} was cancelled")
    if isinstance(cause, temporal.TerminatedError):
        return RunCancelledError(f"run {id!r} was terminated: {cause.message}")
    if isinstance(cause, temporal.TimeoutError):
        return RunError(f"run {id!r} ran into its workflow timeout")
    return RunError(f"run {id!r} failed: {cause}")
