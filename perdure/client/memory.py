"""``client.memory``: the memory that the conversations of a tenant share, for programs other than tools.

Apart because it needs the code of tools, which most clients do without: their import is cheaper.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ..context.memory import (
    DEFAULT_LIST_LIMIT,
    SHARED_AREA,
    build_memory_area,
    build_memory_delete,
    build_memory_write,
    check_memory_list,
    check_memory_name,
)
from ..errors import StoreError
from ..ports.store import Commit, MemoryWrite, Store


class KeptMemory:
    """:class:`perdure.tools.Memory` for clients: every write is committed when the method returns.

    ``client.memory`` is that of the runs without a tenant; :meth:`of_tenant` returns a tenant's, and :attr:`shared` the
    one that all share.
    """

    def __init__(self, store: Callable[..., Awaitable[Store]], area: str | None = None) -> None:
        """``store`` is ``Client.store``; ``area`` begins the stored names of namespaces."""
        self._store = store
        self._area = build_memory_area(None) if area is None else area

    def of_tenant(self, tenant: str | None) -> KeptMemory:
        """Return the memory of a tenant's runs (``ctx.memory`` there); None stands for the runs without a tenant."""
        return self._in_area(build_memory_area(tenant))

    @property
    def shared(self) -> KeptMemory:
        """The memory of all tenants: ``ctx.shared_memory``."""
        return self._in_area(SHARED_AREA)

    def _in_area(self, area: str) -> KeptMemory:
        return KeptMemory(self._store, area)

    async def get(self, namespace: str, key: str, default: Any = None) -> Any:
        """Return the value, or ``default`` if there is none. Raises ``InvalidInputError``, ``StoreError``."""
        check_memory_name("namespace", namespace)
        check_memory_name("key", key)
        body = await (await self._open_existing_store()).recall(self._area + namespace, key)
        return default if body is None else json.loads(body)

    async def put(self, namespace: str, key: str, value: Any) -> None:
        """Write ``value``. Raises ``InvalidInputError`` for a value that is not plain JSON or too large;
        ``StoreError``."""
        await self._write(build_memory_write(namespace, key, value, area=self._area))

    async def delete(self, namespace: str, key: str) -> None:
        """Delete the value, if there is one. Raises ``InvalidInputError``, ``StoreError``."""
        await self._write(build_memory_delete(namespace, key, area=self._area))

    async def list(self, namespace: str, prefix: str = "", *, limit: int = DEFAULT_LIST_LIMIT) -> dict[str, Any]:
        """Return the first ``limit`` values whose key begins with ``prefix``, by key, in the order of the keys."""
        check_memory_list(namespace, prefix, limit)
        rows = await (await self._open_existing_store()).recall_all(self._area + namespace, prefix, limit=limit)
        return {key: json.loads(body) for key, body in rows.items()}

    async def _write(self, write: MemoryWrite) -> None:
        await (await self._store(create=True)).commit(Commit(memory=[write]))

    async def _open_existing_store(self) -> Store:
        """Open the store; raise ``StoreError`` if it does not exist, because a missing value would look like one never
        written."""
        store = await self._store()
        if not store.store_id:
            raise StoreError(f"there is no store at {store.place} yet", hint="Start a worker: it creates the store.")
        return store
