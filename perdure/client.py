"""``Client``: starts runs, finds them, and reads the store. Needs no agent's code."""

from __future__ import annotations

import asyncio
import atexit
import json
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from temporalio.client import Client as TemporalClient
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, TLSConfig

from . import config
from .embedded.address import connect, resolve
from .errors import InvalidInputError, RunExistsError, TranscriptUnavailableError
from .loop import parse_start
from .ports import Blob, Commit, Store
from .run import Run, translated
from .runs import RunSummary, list_runs
from .store import open_store
from .types.messages import clean
from .types.wire import WORKFLOW, UserMessage

if TYPE_CHECKING:
    from .agent import Agent

TASK_TIMEOUT = timedelta(seconds=5)
"""Of one workflow task: how long a run stands still whose worker was killed in the middle of one. Temporal's own
default is 10 s; a task here takes milliseconds, and a replay of the longest history about two seconds."""
SENT_BYTES = 128 * 1024
"""A longer message goes by way of the store: Temporal refuses what is larger than 2 MB, and history would keep it."""
ID_BYTES = 1000
"""What Temporal takes for a workflow id."""


class Client:
    """A Temporal client that knows agents. ``temporal`` is Temporal's own client.

    ``store_url`` is where transcripts are (``PERDURE_STORE_URL``); without it everything works but reading them.
    ``actor`` is who acts, where a call does not say.
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
        self.store_url = config.store_url(store_url)
        self.task_queue = config.task_queue(task_queue)
        self.actor = config.user(actor)
        self._store: Store | None = None
        _settle_at_exit()
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
        target = await resolve(
            address=address,
            namespace=namespace,
            profile=profile,
            api_key=api_key,
            tls=tls,
            start=start_server,
        )
        temporal = await connect(target)
        if store_url is None and target.embedded is not None:
            store_url = config.store_url() or config.home_store_url()
        return cls(temporal, store_url=store_url, task_queue=task_queue, actor=actor)

    async def start(
        self,
        agent: str | Agent,
        message: str | None = None,
        *,
        id: str | None = None,
        if_exists: Literal["error", "attach"] = "error",
        context: Mapping[str, Any] | None = None,
        max_history_events: int | None = None,
    ) -> Run:
        """Start a run. ``id`` is its ``context_id``; without one it gets one.

        ``context`` is the author's own data, plain JSON. Raises ``RunExistsError`` for a known id, unless
        ``if_exists="attach"`` returns that run; ``InvalidInputError`` for what cannot be sent.
        """
        name = getattr(agent, "name", agent)
        context_id = _checked_id(id) or f"{name}-{uuid.uuid4().hex[:12]}"
        sent = None if message is None else await self.as_message(message)
        start = {
            "agent": name,
            "message": sent.model_dump(exclude_none=True) if sent else None,
            "context": _checked_context(context),
            "store_id": sent.store_id if sent else None,
            "max_history_events": max_history_events,
        }
        try:
            handle = await self.temporal.start_workflow(
                WORKFLOW,
                parse_start(start).model_dump(mode="json", exclude_none=True),
                id=context_id,
                task_queue=self.task_queue,
                task_timeout=TASK_TIMEOUT,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                memo={"agent": name},
            )
        except WorkflowAlreadyStartedError:
            if if_exists == "attach":
                return self.run(context_id)
            raise RunExistsError(
                f"there is a run {context_id!r} already",
                hint='Give it another id, or attach to it with if_exists="attach".',
            ) from None
        except RPCError as error:
            raise translated(self.temporal, context_id, error) from error
        return Run(self, handle)

    def run(self, id: str) -> Run:
        """The run of that id; nothing is asked of the server yet."""
        return Run(self, self.temporal.get_workflow_handle(id))

    async def list(self, *, agent: str | None = None, status: str | None = None, limit: int = 50) -> list[RunSummary]:
        """Runs, the newest first: from Temporal, and from the store those that Temporal has forgotten."""
        return await list_runs(self, agent=agent, status=status, limit=limit)

    async def store(self) -> Store:
        """The open store. Raises ``TranscriptUnavailableError`` without one, ``StoreError`` if it cannot be opened."""
        if self.store_url is None:
            raise TranscriptUnavailableError(
                "this client has no store, so it cannot read transcripts or send long messages",
                hint="Give it store_url=… or set PERDURE_STORE_URL to the store of the workers.",
            )
        async with self._opening:
            if self._store is None:
                store = open_store(self.store_url)
                await store.open()
                self._store = store
            return self._store

    async def as_message(self, text: str, id: str | None = None) -> UserMessage:
        """``text`` as it is sent: a long one is put into the store first.

        Raises ``InvalidInputError`` for a long text when there is no store.
        """
        if not isinstance(text, str):
            raise InvalidInputError(f"a message must be text, not {type(text).__name__}")
        text = clean(text)
        blob = Blob.of(text)
        size = len(blob.body)
        if size <= SENT_BYTES:
            return UserMessage(content=text, id=id)
        if self.store_url is None:
            raise InvalidInputError(
                f"the message has {size:,} bytes; more than {SENT_BYTES:,} go by way of the store, "
                "and this client has none",
                hint="Give the client store_url=… or set PERDURE_STORE_URL to the store of the workers.",
            )
        store = await self.store()
        await store.commit(Commit(blobs=[blob]))
        return UserMessage(content=blob.ref, id=id, store_id=store.store_id)

    async def close(self) -> None:
        """Close the store; Temporal's client needs no closing."""
        async with self._opening:
            store, self._store = self._store, None
            if store is not None:
                await store.close()


def _checked_id(id: str | None) -> str | None:
    if id is not None and (not isinstance(id, str) or not id or id != clean(id) or len(id.encode()) > ID_BYTES):
        raise InvalidInputError(
            f"the id of a run is a text of 1 to {ID_BYTES:,} bytes, not {id!r:.100}",
            hint="Leave it out, and the run gets one.",
        )
    return id


def _checked_context(context: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Plain JSON; how large it may be is the loop's to say, for every client."""
    if not context:
        return None
    try:
        given = dict(context)
        json.dumps(given, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"the context of a run is a dictionary of plain JSON: {error}",
            hint="Give ids, numbers and texts; tools load the rest.",
        ) from None
    return given


@cache
def _settle_at_exit() -> None:
    """Give the SDK's threads a moment before the interpreter goes.

    They hand results to Python; one that does so while the interpreter ends kills the process with SIGSEGV, after its
    work is done. Measured on programs that connect, ask once and end: 2 of 40 died, with this 0 of 60.
    """
    atexit.register(time.sleep, 0.05)
