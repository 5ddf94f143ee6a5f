"""What can be read of a run: its answer, its status, its transcript. :class:`perdure.run.Run` steers it, too."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable
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

from .errors import NoWorkerError, PerdureError, RunClosedError, RunNotFoundError, StoreMismatchError, from_type
from .following import follow
from .listed import status_of
from .noted import noted
from .ports import Store
from .runs import agent_of, closed_status, has_poller, pending_reason
from .store import Chain
from .store.whole import whole
from .toolsets import Artifact, artifacts
from .translate import run_error, translated, unreachable
from .types.events import Event
from .types.interface import READ, Response, Status, plain_output
from .types.messages import FilePart, Message

if TYPE_CHECKING:
    from .agent import Agent
    from .client import Client

logger = logging.getLogger("perdure.client")

NO_WORKER = 10.0
"""Seconds without a worker on the task queue after which somebody is told."""
_NOT_TAKEN = 2
"""Events of a run that no worker has taken: it was started, and a task was scheduled."""
_LOOK = 0.25
ANSWER = timedelta(seconds=5)
"""How long a worker is given to say what the workflow has, before the run counts as waiting for a worker."""
_AGAIN = 0.05
"""Seconds until a workflow is asked again that has not read its input yet."""
_RPC = timedelta(seconds=5)
"""How long the server is given for what it answers by itself, before it counts as unreachable."""


class Reading:
    """A handle; making one asks nothing of the server. ``handle`` is Temporal's own."""

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
            raise run_error(self.id, error) from error
        except RPCError as error:
            raise self.translated(error) from error
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
        return follow(self, after, wait=wait, children=children)

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
        whole = await self._whole(response) if self.has_store else response
        if self._read_output is None or not whole.typed or whole.blob is not None:
            return whole
        return whole.model_copy(update={"output": self._read_output(whole.output)})

    async def _whole(self, response: Response) -> Response:
        store = await self.store()
        self.check_store(response.store_id, store.store_id, store.place)
        chain = Chain(store)
        update: dict[str, Any] = {"messages": tuple(await chain.load(response.head))}
        if response.blob is not None:
            text = await chain.resolve_blob(response.blob)
            update |= {"content": text, "output": plain_output(text) if response.typed else text, "blob": None}
        return response.model_copy(update=update)

    async def transcript(self, *, full: bool = False) -> list[Message]:
        """The conversation as the store has it now; with ``full`` also what summaries of it stand for.

        Raises ``TranscriptUnavailableError`` without a store, ``StoreMismatchError`` with another than the run's.
        """
        store = await self.client.store()
        row = await store.run(self.id)
        if row is not None:
            head = row.head
        else:
            status = await self.status()
            self.check_store(status.store_id, store.store_id, store.place)
            head = status.head
        return await (whole(store, head) if full else Chain(store).load(head))

    async def file(self, part: FilePart) -> bytes:
        """The bytes of a file of the transcript; see :meth:`Client.file`."""
        return await self.client.file(part)

    async def artifacts(self) -> list[Artifact]:
        """What the agent has written with the toolset ``Artifacts``: the last version of each, by name."""
        return await artifacts.listed(self.client.memory, self.id)

    async def artifact(self, name: str, version: int | None = None) -> str:
        """The text of one, of its last version unless told otherwise. Raises ``InvalidInputError`` for one that is not
        there."""
        found = await artifacts.found(self.client.memory, self.id, name, version)
        return await artifacts.text(self.client.memory, self.id, found)

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
        if (closed := closed_status(seen)) is not None:
            return closed.model_copy(update=await self._recorded() | await self._ended(closed))
        reason = await pending_reason(self.client, seen)
        try:
            status = Status.model_validate(await self.ask_workflow("status"))
        except RunClosedError:  # in this very moment
            return await self.status()
        except PerdureError as error:
            return await self._unanswered(seen, reason or _silence(error))
        return status if status.reason or not reason else status.model_copy(update={"reason": reason})

    async def _unanswered(self, seen: WorkflowExecutionDescription, reason: str) -> Status:
        """What Temporal and the store know of an open run for which no worker answers."""
        told = status_of(seen)
        known: dict[str, Any] = {
            "agent": await agent_of(self.client, seen),
            "state": told if told in ("waiting", "paused") else "running",
            "approvals": await noted(seen) or (),
        }
        try:
            known |= await self._recorded()
        except PerdureError as error:  # the store is away too
            logger.debug("the store cannot tell of run %s: %s", self.id, error)
        return Status.model_validate({"context_id": self.id, "reason": reason, **known})

    async def _recorded(self) -> dict[str, Any]:
        """What the store knows of a closed run."""
        if self.client.store_url is None:
            return {}
        row = await (await self.client.store()).run(self.id)
        if row is None:
            return {}
        took = Response.model_validate_json(row.result or b"{}")
        known: dict[str, Any] = {"head": row.head, "iteration": row.iterations, "agent": row.agent}
        return known | {"usage": took.usage, "cost_usd": took.cost_usd, "unanswered": took.unanswered}

    async def _ended(self, closed: Status) -> dict[str, Any]:
        """What its result says of a run that has ended, which its description does not."""
        if closed.state == "cancelled" or closed.reason is not None:
            return {}
        try:
            last = self.client.temporal.get_workflow_handle(self.id)  # of which the description is
            response = Response.model_validate(await last.result(rpc_timeout=_RPC))
        except WorkflowFailureError as error:
            cause = run_error(self.id, error)
            return {"reason": f"{type(cause).__name__}: {cause}"}
        except RPCError as error:
            raise self.translated(error) from error
        known = ("task_id", "head", "store_id", "usage", "cost_usd", "unanswered")
        return {"iteration": response.iterations} | {name: getattr(response, name) for name in known}

    async def begun(self, within: float = NO_WORKER) -> None:
        """Wait until a worker has taken the run up. Raises ``NoWorkerError`` when none is there for so many seconds.

        The run stays, and goes on when a worker comes.
        """
        deadline = asyncio.get_running_loop().time() + within
        while True:
            seen = await self.describe()
            if closed_status(seen) is not None or seen.history_length > _NOT_TAKEN:
                return
            if asyncio.get_running_loop().time() > deadline and not await has_poller(self.client, seen):
                raise NoWorkerError(
                    f"no worker has polled task queue {seen.task_queue!r} for {within:g} s",
                    hint=f"Run {self.id!r} waits for one: perdure worker FILE --task-queue {seen.task_queue}",
                )
            await asyncio.sleep(_LOOK)

    async def warn_without_worker(self, within: float = NO_WORKER) -> None:
        """Log a warning if nobody has polled the run's task queue lately, so many seconds from now."""
        await asyncio.sleep(within)
        try:
            seen = await self.describe()
            if closed_status(seen) is None and not await has_poller(self.client, seen, lately=True):
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
        until = loop.time() + ANSWER.total_seconds()
        while True:
            cause = await self._refusal({"view": view, "task_id": task_id, "asker": asker}, until - loop.time())
            if cause.type == READ and cause.details:
                details = cause.details[0]
                if shared or details["asker"] == asker:
                    return details["answer"]
                shared = True
            elif cause.type != RunNotFoundError.__name__ or loop.time() > until:
                raise from_type(cause.type, cause.message)
            else:  # it has not read its input yet
                await asyncio.sleep(_AGAIN)

    async def _refusal(self, asked: dict[str, Any], within: float) -> ApplicationError:
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
            raise from_type(None, str(error.cause)) from error
        except (NoAnswer, TimeoutError) as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():  # which the SDK takes for no answer
                raise asyncio.CancelledError from error
            raise NoWorkerError(
                f"no worker answers for run {self.id!r}", hint="`perdure show` and its worker's log say more."
            ) from error
        except RPCError as error:
            raise self.translated(error) from error
        raise AssertionError("the update is never accepted")

    async def query_ended(self, run_id: str, view: Literal["status", "turn"], *args: Any) -> Any:
        """Query an execution that has ended: it has no workflow task any more that a query could wedge.

        None where no worker answers. Empty where one does, and cannot say: the run had not begun, or was terminated
        with events that no workflow task had brought.
        """
        try:
            ended = self.client.temporal.get_workflow_handle(self.id, run_id=run_id)
            return await ended.query(view, args=args, rpc_timeout=ANSWER)
        except WorkflowQueryFailedError:
            return {}
        except RPCError:
            return None

    async def describe(self) -> WorkflowExecutionDescription:
        """What the server knows of the run. The SDK alone would try for 10 s and more to reach it."""
        try:
            async with asyncio.timeout(_RPC.total_seconds()):
                return await self.handle.describe()
        except TimeoutError:
            raise unreachable(self.client.temporal, f"nothing for {_RPC.total_seconds():g} s") from None
        except RPCError as error:
            raise self.translated(error) from error

    def translated(self, error: RPCError) -> PerdureError:
        """What Temporal's refusal means here."""
        return translated(self.client.temporal, self.id, error)


def _silence(error: PerdureError) -> str:
    """Why there is no answer, in a line."""
    return "no worker answers on its task queue" if isinstance(error, NoWorkerError) else str(error.message)
