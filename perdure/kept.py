"""``client.memory``: what conversations share, for programs that are no tool."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from .errors import StoreError
from .ports import Commit, MemoryWrite, Store
from .tools.memory import LISTED, check_list, check_name, memory_delete, memory_write


class KeptMemory:
    """:class:`perdure.tools.Memory` from outside: every write is kept when the method returns."""

    def __init__(self, store: Callable[..., Awaitable[Store]]) -> None:
        """``store`` is ``Client.store``."""
        self._store = store

    async def get(self, namespace: str, key: str, default: Any = None) -> Any:
        """The value, ``default`` where there is none. Raises ``InvalidInputError``, ``StoreError``."""
        check_name("namespace", namespace)
        check_name("key", key)
        body = await (await self._known()).recall(namespace, key)
        return default if body is None else json.loads(body)

    async def put(self, namespace: str, key: str, value: Any) -> None:
        """Keep ``value``. Raises ``InvalidInputError`` for what is no plain JSON, or too large; ``StoreError``."""
        await self._write(memory_write(namespace, key, value))

    async def delete(self, namespace: str, key: str) -> None:
        """Forget the value, if there is one. Raises ``InvalidInputError``, ``StoreError``."""
        await self._write(memory_delete(namespace, key))

    async def list(self, namespace: str, prefix: str = "", *, limit: int = LISTED) -> dict[str, Any]:
        """The first ``limit`` values whose key begins with ``prefix``, by their keys, in the order of these."""
        check_list(namespace, prefix, limit)
        found = await (await self._known()).recall_all(namespace, prefix, limit=limit)
        return {key: json.loads(body) for key, body in found.items()}

    async def _write(self, write: MemoryWrite) -> None:
        await (await self._store(create=True)).commit(Commit(memory=[write]))

    async def _known(self) -> Store:
        """A value that is not found where there is no store would be taken for one that was never put."""
        store = await self._store()
        if not store.store_id:
            raise StoreError(f"there is no store at {store.place} yet", hint="Start a worker, which makes it.")
        return store
