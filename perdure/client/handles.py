"""What functions of this package need of a client, a run and a turn, as protocols: ``Run`` imports their modules."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionDescription, WorkflowHandle

from ..errors import PerdureError
from ..store.cache import ByteLRU
from ..types.interface import Response, Status, TurnStatus

if TYPE_CHECKING:
    from ..ports.store import Store


class ClientHandle(Protocol):
    """A client's connection and store; see :class:`~perdure.client.client.Client`."""

    temporal: TemporalClient
    store_url: str | None
    task_queue: str
    actor: str
    known_ends: ByteLRU[Any]

    async def store(self, *, create: bool = False) -> Store: ...
    def run(self, id: str) -> RunHandle: ...


class RunHandle(Protocol):
    """A run as Temporal and the store show it; see :class:`~perdure.client.run.Run`."""

    handle: WorkflowHandle[Any, Any]

    @property
    def client(self) -> ClientHandle: ...
    @property
    def id(self) -> str: ...
    @property
    def has_store(self) -> bool: ...
    async def status(self, *, decided: bool = True) -> Status: ...
    async def describe(self) -> WorkflowExecutionDescription: ...
    async def ask_workflow(self, view: Literal["status", "turn"], task_id: str | None = None) -> Any: ...
    async def read_head(self, store: Store) -> str | None: ...
    async def read_end(self, run_id: str) -> Response | PerdureError: ...
    async def wait_for_close(self, run_id: str | None = None) -> None: ...
    async def warn_without_worker(self) -> None: ...
    def check_store(self, store_id: str | None, store: Store) -> None: ...
    def temporal_errors(self, no_answer: PerdureError | None = None) -> AbstractContextManager[None]: ...


class TurnHandle(Protocol):
    """A turn of a run; see :class:`~perdure.client.turn.Turn`."""

    task_id: str

    @property
    def run(self) -> RunHandle: ...
    async def status(self) -> TurnStatus: ...
    async def over(self) -> bool: ...
