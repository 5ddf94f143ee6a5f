"""``Client``: starts runs, sends messages, lists runs and approvals, and reads the store and the shared memory. It
needs no code of an agent."""

from __future__ import annotations

import asyncio
import atexit
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, overload

from temporalio import client as api
from temporalio.client import Client as TemporalClient
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import TLSConfig
from typing_extensions import Unpack

from .. import _config as config
from .._encryption import AuthMapping, seal_auth
from ..errors import InvalidInputError, RunNotFoundError, TranscriptUnavailableError
from ..store import Chain, open_store
from ..store.cache import ByteLRU
from ..temporal.start import build_schedule_action, start_run_workflow
from ..types.approvals import PendingKind
from ..types.client_tools import ClientTool
from ..types.interface import FIRST_MESSAGE_MEMO, STORE_MEMO, Mode, OutputT
from ..types.messages import FilePart, Message, MessageInput, clean_text, decode_file_data
from ..types.run_ids import SCHEDULE_PREFIX, build_run_id, build_run_id_error, split_run_id
from .agents import warn_of_unknown_agent
from .audit import audit_steering
from .message_content import STORE_HINT, AnyOverride
from .messages import deliver_message
from .run import Run
from .run_ids import claim_run_id, find_message_target
from .run_states import RunSummary
from .start import (
    History,
    SendOptions,
    StartOptions,
    attach_to_run,
    build_start_input,
    check_client_tools,
    check_message_input,
    check_override,
    get_agent_name,
    hash_first_message,
)
from .turn import Turn
from .visibility import create_store

if TYPE_CHECKING:
    from ..agent.spec import AgentSpec
    from ..context.run_context import ContextT
    from ..ports.store import Store
    from ..ports.waits import WaitGroup, WaitOrder
    from .bulk_actions import BulkActions
    from .grants import McpGrants

    # What few programs use is imported when it is called: each program imports this module.
    from .inbox import PendingCall
    from .memory import KeptMemory
    from .pages import WaitPage
    from .retention import Deletion, GarbageReport
    from .run_pages import RunPage
    from .schedules import Overlap, Schedule, ScheduleStatus
    from .tokens import ApiTokens
    from .webhook_subscriptions import Webhooks

KNOWN_ENDS_BYTES = 8 * 1024 * 1024
"""Budget of :attr:`Client.known_ends`: some ten thousand ends."""


class Client:
    """A client for agent runs. ``temporal`` is Temporal's own client.

    ``store_url`` is the store of the transcripts (``PERDURE_STORE_URL``); without it everything works but reading them.
    ``actor`` is the default of ``by`` in all methods.
    """

    def __init__(
        self,
        temporal: TemporalClient,
        *,
        store_url: str | None = None,
        task_queue: str | None = None,
        actor: str | None = None,
    ) -> None:
        self.temporal = temporal
        self.store_url = config.resolve_store_url(store_url)
        self.task_queue = config.resolve_task_queue(task_queue)
        self.actor = config.resolve_user(actor)
        self.known_ends: ByteLRU[Any] = ByteLRU(KNOWN_ENDS_BYTES)
        """Ends that do not change any more, and are asked for once: of executions what ``status`` shows of
        their result, of completed turns when the call was scheduled that has written their row."""
        self._store: Store | None = None
        _register_exit_delay()
        self._opening = asyncio.Lock()

    @classmethod
    async def connect(
        cls,
        *,
        address: str | None = None,
        namespace: str | None = None,
        profile: str | None = None,
        api_key: str | None = None,
        tls: bool | TLSConfig | None = None,
        store_url: str | None = None,
        task_queue: str | None = None,
        actor: str | None = None,
        start_server: bool = False,
    ) -> Client:
        """Connect to the server that the arguments name, else ``TEMPORAL_*`` or a profile, else the embedded one.

        Raises ``ServerUnreachableError``. The embedded server comes with the store under ``PERDURE_HOME``.
        """
        from ..embedded.address import connect, resolve_target

        target = await resolve_target(
            address=address, namespace=namespace, profile=profile, api_key=api_key, tls=tls, start=start_server
        )
        temporal = await connect(target)
        if store_url is None and target.embedded is not None:
            store_url = config.resolve_store_url() or config.get_home_store_url()
        return cls(temporal, store_url=store_url, task_queue=task_queue, actor=actor)

    @overload
    async def start(
        self,
        agent: AgentSpec[ContextT, OutputT],
        message: MessageInput | None = None,
        *,
        context: ContextT | Mapping[str, Any] | None = None,
        **options: Unpack[StartOptions],
    ) -> Run[OutputT]: ...
    @overload
    async def start(
        self,
        agent: str,
        message: MessageInput | None = None,
        *,
        context: Any = None,
        output: type[OutputT],
        **options: Unpack[StartOptions],
    ) -> Run[OutputT]: ...
    @overload
    async def start(
        self,
        agent: str,
        message: MessageInput | None = None,
        *,
        context: Any = None,
        output: Any = None,
        **options: Unpack[StartOptions],
    ) -> Run[Any]: ...
    async def start(
        self,
        agent: str | AgentSpec[Any, Any],
        message: MessageInput | None = None,
        *,
        id: str | None = None,
        mode: Mode = "run",
        if_exists: Literal["error", "attach"] = "error",
        context: Any = None,
        output: Any = None,
        auth_context: AuthMapping | None = None,
        auth_ref: str | None = None,
        history: History | None = None,
        override: AnyOverride | None = None,
        client_tools: Sequence[ClientTool | Mapping[str, Any]] | None = None,
        idle_timeout: float | str | None = None,
        max_history_events: int | None = None,
        by: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
    ) -> Run[Any]:
        """Start a run.

        Args:
            agent: The agent, or its name.
            message: Text, or a list of texts and ``File``. For an agent with an input type an instance of it, or a
                mapping.
            context: The author's own data: plain JSON, or an instance of the agent's context type.
            output: The type of outputs, for an ``agent`` given by its name; plain JSON by default.
            **options: Those of ``StartOptions``.

        Raises:
            RunExistsError: The id exists. With ``if_exists="attach"`` only if that run was started with another
                message (typed inputs are not compared), or for another user.
            RunIdError: No new run may have the id.
            InvalidInputError, DefinitionError: An argument is wrong.
            AuthContextUnavailableError: There is no key to encrypt ``auth_context`` with.
        """
        options: Any = {"history": history, "idle_timeout": idle_timeout, "tenant": tenant, "user": user}
        start = await build_start_input(
            self, agent, message, by=by, mode=mode, context=context, override=override, client_tools=client_tools,
            max_history_events=max_history_events, **options,
        )  # fmt: skip
        context_id = await claim_run_id(self, id, start)
        run = Run(self, self.temporal.get_workflow_handle(context_id), agent, output=output)
        start |= seal_auth(self.temporal, context_id, auth_context, auth_ref)
        message_hash = hash_first_message(context_id, start)
        memo = {FIRST_MESSAGE_MEMO: message_hash} if message_hash else {}
        if self._store is not None and self._store.store_id:
            memo[STORE_MEMO] = self._store.store_id
        labels = {"agent": start["agent"], "tenant": tenant, "user": user}
        await warn_of_unknown_agent(self, start["agent"])
        async with audit_steering(self, "start", context_id, by=by, detail=f"agent {start['agent']}", labels=labels):
            try:
                queue = self.task_queue
                run.handle = await start_run_workflow(self.temporal, context_id, start, task_queue=queue, memo=memo)
            except WorkflowAlreadyStartedError:
                return await attach_to_run(run, start, message_hash, if_exists)
        return run

    @overload
    async def send(
        self,
        agent: AgentSpec[ContextT, OutputT],
        message: MessageInput | None,
        *,
        context: ContextT | Mapping[str, Any] | None = None,
        **options: Unpack[SendOptions],
    ) -> Turn[OutputT]: ...
    @overload
    async def send(
        self,
        agent: str,
        message: MessageInput | None,
        *,
        context: Any = None,
        output: type[OutputT],
        **options: Unpack[SendOptions],
    ) -> Turn[OutputT]: ...
    @overload
    async def send(
        self,
        agent: str,
        message: MessageInput | None,
        *,
        context: Any = None,
        output: Any = None,
        **options: Unpack[SendOptions],
    ) -> Turn[Any]: ...
    async def send(
        self,
        agent: str | AgentSpec[Any, Any],
        message: MessageInput | None,
        *,
        id: str,
        message_id: str | None = None,
        task_id: str | None = None,
        context: Any = None,
        output: Any = None,
        auth_context: AuthMapping | None = None,
        auth_ref: str | None = None,
        history: History | None = None,
        override: AnyOverride | None = None,
        client_tools: Sequence[ClientTool | Mapping[str, Any]] | None = None,
        idle_timeout: float | str | None = None,
        by: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
    ) -> Turn[Any]:
        """Send a message to the conversation ``id``, and return the turn that it joins or opens.

        A conversation that does not exist is opened as a session; a closed one continues from its end. Concurrent
        senders are safe.

        Args:
            agent: The agent, or its name.
            message: As of :meth:`start`. None opens a turn without a message.
            context: The author's own data of a conversation that is opened: plain JSON, or an instance of the agent's
                context type.
            output: The type of outputs, for an ``agent`` given by its name; plain JSON by default.
            **options: Those of ``SendOptions``.

        Returns when the workflow has accepted the message, which needs a worker. Raises as :meth:`start`.
        """
        if id is None:
            raise InvalidInputError("send needs the id of a conversation", hint='For instance id="user-7".')
        tools = check_client_tools(agent, client_tools)
        # A client that continues a conversation need not repeat what it was opened with.
        opened = agent if context is not None else get_agent_name(agent)
        options: Any = {"history": history, "idle_timeout": idle_timeout, "tenant": tenant, "user": user}
        start = await build_start_input(
            self, opened, None, by=by, mode="session", context=context, resume=True, **options
        )
        context_id, opening = await find_message_target(self, id, start)
        run = Run(self, self.temporal.get_workflow_handle(context_id), agent, output=output)
        if opening is not None:
            await warn_of_unknown_agent(self, start["agent"])
        if self.store_url is not None and (store_id := (await self.store()).store_id):
            start.setdefault("store_id", store_id)
        try:
            joined = await deliver_message(
                run, check_message_input(agent, message), message_id=message_id, task_id=task_id,
                override=check_override(agent, override), client_tools=tools, by=by, start=opening,
                auth=seal_auth(self.temporal, context_id, auth_context, auth_ref),
            )  # fmt: skip
        except RunNotFoundError as error:
            raise (error if opening is not None else build_run_id_error()) from None
        return Turn(run, joined)

    @overload
    def run(self, id: str, agent: AgentSpec[Any, OutputT], *, tenant: str | None = None) -> Run[OutputT]: ...
    @overload
    def run(
        self, id: str, agent: str | None = None, *, output: type[OutputT], tenant: str | None = None
    ) -> Run[OutputT]: ...
    @overload
    def run(self, id: str, agent: str | None = None, *, output: Any = None, tenant: str | None = None) -> Run[Any]: ...
    def run(
        self, id: str, agent: str | AgentSpec[Any, Any] | None = None, *, output: Any = None, tenant: str | None = None
    ) -> Run[Any]:
        """Return a handle of the run; sends no request. With its ``agent``, outputs have the agent's output type; with
        ``output`` that type. ``id`` is the run's (``run.id``), or with ``tenant`` its name. Raises ``DefinitionError``
        for an ``output`` that pydantic cannot take."""
        return Run(self, self.temporal.get_workflow_handle(build_run_id(id, tenant)), agent, output=output)

    async def schedule(
        self,
        agent: str | AgentSpec[ContextT, Any],
        message: MessageInput,
        *,
        id: str,
        cron: str | Sequence[str] | None = None,
        every: float | str | timedelta | None = None,
        timezone: str | None = None,
        overlap: Overlap = "skip",
        paused: bool = False,
        note: str | None = None,
        if_exists: Literal["error", "replace"] = "error",
        mode: Mode = "run",
        context: ContextT | Mapping[str, Any] | None = None,
        auth_context: AuthMapping | None = None,
        auth_ref: str | None = None,
        history: History | None = None,
        override: AnyOverride | None = None,
        idle_timeout: float | str | None = None,
        max_history_events: int | None = None,
        by: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
    ) -> Schedule:
        """Start a run at certain times, by a schedule in Temporal: ``cron`` (one expression or several, in
        ``timezone``, else in UTC), ``every`` (seconds, or text like ``"1h"``), or both.

        Each run is a conversation of its own, ``schedule:<id>-<time>``. ``overlap`` applies to a run that is due while
        the last one is open, for instance waiting for an approval: "skip" leaves it out. ``if_exists="replace"``
        replaces a schedule of that id; a paused one stays paused. The rest is as of :meth:`start`; but ``auth_context``
        is sealed for one run: use ``auth_ref``. Raises ``ScheduleExistsError``, and as :meth:`start`.
        """
        from .schedules import (
            Schedule,
            build_schedule_spec,
            check_schedule_arguments,
            create_schedule,
            get_overlap_policy,
        )

        check_schedule_arguments(id, message, auth_context=auth_context, if_exists=if_exists, paused=paused, note=note)
        spec = build_schedule_spec(cron, every, timezone)
        policy = api.SchedulePolicy(overlap=get_overlap_policy(overlap))
        start = await build_start_input(
            self, agent, message, by=by, mode=mode, context=context, history=history, override=override,
            idle_timeout=idle_timeout, max_history_events=max_history_events, tenant=tenant, user=user,
            resume=True,  # a time that is backfilled twice, or triggered twice within its second, has the same id
        )  # fmt: skip
        schedule_id = await claim_run_id(self, id, start)
        start |= seal_auth(self.temporal, schedule_id, None, auth_ref)
        runs_id = build_run_id(SCHEDULE_PREFIX + split_run_id(schedule_id)[1], tenant)
        action = build_schedule_action(runs_id, start, task_queue=self.task_queue)
        state = api.ScheduleState(note=None if note is None else clean_text(note), paused=paused)
        wanted = api.Schedule(action=action, spec=spec, policy=policy, state=state)
        labels = {"agent": get_agent_name(agent), "tenant": tenant, "user": user}
        await warn_of_unknown_agent(self, get_agent_name(agent))
        async with audit_steering(self, "schedule.create", schedule_id, by=by, detail=labels["agent"], labels=labels):
            return Schedule(self, await create_schedule(self.temporal, schedule_id, wanted, if_exists))

    def get_schedule(self, id: str, *, tenant: str | None = None) -> Schedule:
        """Return a handle of the schedule; sends no request. ``id`` is the schedule's, or with ``tenant`` its name."""
        from .schedules import Schedule

        return Schedule(self, self.temporal.get_schedule_handle(build_run_id(id, tenant)))

    async def schedules(self, *, agent: str | None = None, limit: int = 100) -> list[ScheduleStatus]:
        """List the schedules that start agents, or only ``agent``, by their ids; a new one appears after a moment."""
        from .schedules import list_schedules

        return await list_schedules(self, agent, limit)

    async def list(
        self,
        *,
        agent: str | None = None,
        status: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        roots: bool = False,
        query: str | None = None,
        limit: int = 50,
    ) -> list[RunSummary]:
        """List runs, the newest first: from Temporal, and from the store those that Temporal no longer has.

        ``tenant`` and ``user`` leave out all runs of others, and all without one. A run that a plain client or a
        schedule has started is among those of its tenant from its first reply on.
        ``roots`` leaves out runs that another run, or another workflow, has started: of runs that Temporal no longer
        has, those whose events the store has below another run's. ``query`` is a filter of
        Temporal's visibility (``StartTime > '2026-01-31T00:00:00Z'``); runs that only the store has are left out then.
        Both combine with the others. Raises ``InvalidInputError`` for a query that Temporal refuses, and for a
        ``status`` that needs search attributes that the namespace does not have.
        """
        labels = {"tenant": tenant, "user": user}
        from .run_lists import list_runs

        return await list_runs(self, agent=agent, status=status, roots=roots, query=query, limit=limit, **labels)

    async def list_page(
        self,
        *,
        agent: str | None = None,
        status: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        roots: bool = True,
        started_from: datetime | None = None,
        started_before: datetime | None = None,
        updated_from: datetime | None = None,
        error: str | None = None,
        search: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """List runs in pages of at most ``limit`` (200): :meth:`list` with a ``cursor``, that of the page before.
        ``started_from`` and ``started_before`` are times with a time zone, the first one inclusive; ``updated_from`` is
        when their last step was recorded.

        ``error`` is the class of the error that they failed with (``"AuthenticationError"``). ``search`` is words that
        are in the id, in the first message or in the error; letters of ASCII count in either case. A search looks at
        5,000 runs for a page, so a page may be empty before the end.

        The newest start comes first. With a status that Temporal alone knows (an open one, terminated, timed out) the
        order is that of its visibility. A run that changes meanwhile may come twice. Raises ``InvalidInputError``, also
        for a cursor of other filters; ``TranscriptUnavailableError`` for a search without a store.
        """
        from .run_pages import RunFilters, list_run_page

        return await list_run_page(
            self,
            RunFilters(
                *(agent, status, tenant, user, roots, started_from, started_before, updated_from, error, search)
            ),
            limit=limit,
            cursor=cursor,
        )

    async def list_waits(
        self,
        *,
        agent: str | None = None,
        kind: PendingKind | None = None,
        tool: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        text: str | None = None,
        order: WaitOrder = "since",
        group: WaitGroup | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> WaitPage:
        """List the calls of all runs that wait for an approval, an answer or a client, from the store's table: the
        longest waiting first; with ``order="expiry"`` those that expire, the soonest first; with ``"amount"`` those
        that have one, the largest first. ``group``, one of ``"tool"``, ``"user"`` and ``"tenant"``, lists the calls of
        each together. ``text`` occurs in a call's summary, its tool or its run's id. In pages, as :meth:`list_page`.

        Temporal is asked for the runs of the page, whose calls may be decided already. Raises ``InvalidInputError``,
        ``TranscriptUnavailableError`` without a store.
        """
        from .pages import list_wait_page

        return await list_wait_page(
            self, agent=agent, kind=kind, tool=tool, tenant=tenant, user=user, text=text, order=order, group=group,
            limit=limit, cursor=cursor,
        )  # fmt: skip

    async def delete(self, id: str, *, lost: bool = False, by: str | None = None) -> Deletion:
        """Delete a run that has ended, and the runs below it: their rows in the store at once, their executions in
        Temporal if the server allows it. Transcripts, texts and files stay until :meth:`collect_garbage` finds that
        nothing refers to them. What was paid, and the audit trail, stay.

        ``lost``: also a run without a recorded end that Temporal does not know any more. Raises ``RunOpenError``,
        ``RunNotFoundError``; ``InvalidInputError`` for a subagent's run; ``StoreMismatchError``, ``StoreError``.
        """
        from .retention import delete_run

        return await delete_run(self, id, lost=lost, by=by)

    async def collect_garbage(
        self, *, older_than: float | str | timedelta, dry_run: bool = False, batch: int = 200, lost: bool = False
    ) -> GarbageReport:
        """Delete from the store what is older than ``older_than`` (at least ``"2d"``): runs that have ended, with their
        turns and events, and parts of transcripts, large texts and files to which nothing refers any more.

        Beside live traffic, in batches of ``batch`` rows (at most 500); it can be stopped and repeated at any time.
        With ``dry_run`` nothing is deleted. ``lost``: also runs without a recorded end that Temporal does not know any
        more, for instance after they were terminated. Raises ``InvalidInputError``, also for a namespace of Temporal
        that does not have the runs of this store; ``StoreError``, ``ServerUnreachableError``.
        """
        from .retention import collect_garbage

        return await collect_garbage(self, older_than=older_than, dry_run=dry_run, batch=batch, lost=lost)

    async def approvals(self, *, agent: str | None = None) -> Sequence[PendingCall]:
        """List the pending calls (approvals, questions and callbacks) of all runs, or of those of ``agent``; the
        longest waiting first."""
        from .inbox import list_pending_calls

        return await list_pending_calls(self, agent=agent)

    def share_store(self, store: Store) -> None:
        """Work with an open store of the caller's, who closes it."""
        self._store, self.store_url = store, self.store_url or "shared"

    async def store(self, *, create: bool = False) -> Store:
        """Return the open store. If it does not exist yet, reads find nothing; with ``create`` it is made.

        Raises ``TranscriptUnavailableError`` without a store URL, ``StoreError`` if the store cannot be opened, or is
        not made because runs of the task queue are kept in a store that is missing.
        """
        if self.store_url is None:
            raise TranscriptUnavailableError(
                "this client has no store, so it cannot read transcripts or send long messages", hint=STORE_HINT
            )
        async with self._opening:
            store = self._store or open_store(
                self.store_url,
                blob_url=config.get_blob_url(),
                blob_bytes=config.get_blob_bytes(),
                outbox=config.get_outbox(),
            )
            if not store.store_id:
                await store.open(create=False)
                self._store = store
            if create and not store.store_id:
                await create_store(store, self.temporal, self.task_queue)
            return store

    async def file(self, part: FilePart) -> bytes:
        """Return the bytes of a file in a transcript.

        Raises ``TranscriptUnavailableError`` without a store, ``TranscriptCorruptedError`` if the store does not have
        them, ``InvalidInputError`` for a file at a URL.
        """
        if part.data is not None:
            return decode_file_data(part)
        if part.blob is None:
            raise InvalidInputError(
                f"the store does not have the file: it is at {part.url}", hint="Fetch it from there."
            )
        files = await Chain(await self.store()).load_files([Message(role="user", parts=(part,))])
        return files[part.blob.hash]

    @property
    def memory(self) -> KeptMemory:
        """The memory that the runs without a tenant share (``ctx.memory``), read and written at once;
        ``client.memory.of_tenant("acme")`` is a tenant's, ``client.memory.shared`` that of all. Needs the store."""
        from .memory import KeptMemory

        return KeptMemory(self.store)

    @property
    def tokens(self) -> ApiTokens:
        """The API tokens of the HTTP service. Needs the store."""
        from .tokens import ApiTokens

        return ApiTokens(self)

    @property
    def grants(self) -> McpGrants:
        """The grants for MCP servers at which a person signs in. Needs the store."""
        from .grants import McpGrants

        return McpGrants(self)

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks that runs' events are delivered to. Needs the store."""
        from .webhook_subscriptions import Webhooks

        return Webhooks(self)

    @property
    def bulk_actions(self) -> BulkActions:
        """Resumes or cancels all runs that match a filter. Needs the store."""
        from .bulk_actions import BulkActions

        return BulkActions(self)

    async def close(self) -> None:
        """Close the store; Temporal's client needs no closing."""
        async with self._opening:
            store, self._store = self._store, None
            if store is not None:
                await store.close()


@cache
def _register_exit_delay() -> None:
    """Delay the exit of the interpreter by a moment, for the SDK's threads.

    They pass results to Python; one that does so while the interpreter exits kills the process with SIGSEGV, after its
    work is done. Measured on programs that connect, send one request and exit: 2 of 40 died, with the delay 0 of 60.
    """
    atexit.register(time.sleep, 0.05)
