"""``ctx.memory``: JSON values by namespace and key, shared by all conversations of a tenant.

The writes of a call are committed together with its outcome, so each happens exactly once, whatever crashes.

What a namespace is called in the store begins with its area: that of a tenant, that of the runs without one, or that of
all. No name leads out of an area, and none reaches what the engine itself keeps in the same table.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import InvalidInputError
from ..types.messages import clean_text
from ..types.plain_json import find_json_flaw

if TYPE_CHECKING:
    from ..ports.store import MemoryWrite

MAX_VALUE_BYTES = 256 * 1024
"""Size limit of one value, as JSON."""
MAX_NAME_BYTES = 400
"""Size limit of a namespace, and of a key."""
DEFAULT_LIST_LIMIT = 1000
"""Default ``limit`` of ``list``."""

MemoryWrites = list["MemoryWrite"]

SHARED_AREA = "shared:"
"""Begins the stored names of namespaces that the runs of all tenants share: ``ctx.shared_memory``."""
_TENANTLESS_AREA = "none:"
_TENANT_AREA = "tenant:"
_ENGINE_AREA = ""
"""The engine's own namespaces have names that no area begins: ``artifacts:…``, ``paid:…``."""


def build_memory_area(tenant: str | None) -> str:
    """Return what the stored names of a tenant's namespaces begin with; None stands for the runs without a tenant."""
    if tenant is None:
        return _TENANTLESS_AREA
    return f"{_TENANT_AREA}{tenant.replace('%', '%25').replace(':', '%3A')}:"  # so that no tenant is part of another


_writes_lock = threading.Lock()
"""One lock for all calls: every tool call has a memory, few use it, and nothing under the lock takes time."""


class MemoryReader(Protocol):
    """The reading methods of ``ctx.memory`` in a tool or hook, and of ``client.memory``."""

    async def get(self, namespace: str, key: str, default: Any = None) -> Any:
        """Read one value."""

    async def list(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, Any]:
        """Read values by their keys."""


class AreaReader(MemoryReader, Protocol):
    """A memory of one area, which leads to the others: :class:`Memory`, and that of clients."""

    def _in_area(self, area: str) -> Any: ...


AnyMemory = TypeVar("AnyMemory", bound=AreaReader)


def open_engine_memory(memory: AnyMemory) -> AnyMemory:
    """Return what the engine keeps in the store beside the values of authors, whose methods lead to none of it."""
    engine: AnyMemory = memory._in_area(_ENGINE_AREA)
    return engine


class MemorySource(Protocol):
    """Reads stored values; called from any thread."""

    def recall(self, namespace: str, key: str) -> Future[bytes | None]:
        """Read one value."""

    def recall_all(self, namespace: str, prefix: str, limit: int) -> Future[dict[str, bytes]]:
        """Read the first ``limit`` values whose key begins with ``prefix``, in the order of their keys."""


class Memory:
    """Values that outlive the conversation and are shared with all others of its tenant: ``ctx.memory``.

        seen = await ctx.memory.get("visits", user_id, 0)
        await ctx.memory.put("visits", user_id, seen + 1)

    A value is plain JSON of at most 256 KiB; namespace and key are texts of 1 to 400 bytes. A read sees the stored
    values and the call's own writes. The writes of a call are stored together with its outcome, in one transaction:
    all of them exactly once, also when workers are lost in between, or none if the tool ends in an error or is
    cancelled. Two calls that change one key at the same time do not wait for each other: the last that ends counts.

    Safe from every thread. A plain ``def`` function uses :attr:`blocking`. ``Memory()`` has no store behind it, for
    tests: ``ToolContext(memory=Memory())``.
    """

    __slots__ = ("_area", "_source", "_writes")

    def __init__(
        self, kept: MemorySource | None = None, writes: MemoryWrites | None = None, *, tenant: str | None = None
    ) -> None:
        """The engine passes ``kept``, the stored values, and commits ``writes``, to which the call's writes go: one for
        each key. ``tenant`` is the run's."""
        self._source = kept
        self._area = build_memory_area(tenant)
        self._writes = _CallWrites([] if writes is None else writes)

    def _in_area(self, area: str) -> Memory:
        """Return the memory of another area, whose writes are those of the same call."""
        memory = copy.copy(self)
        memory._area = area
        return memory

    @property
    def shared(self) -> Memory:
        """The memory of all tenants: ``ctx.shared_memory``."""
        return self._in_area(SHARED_AREA)

    @property
    def waits(self) -> bool:
        """Whether a read is waiting for a store that cannot be read."""
        return bool(getattr(self._source, "waiting_reads", 0))

    async def get(self, namespace: str, key: str, default: Any = None) -> Any:
        """Return the value, or ``default`` if there is none. Raises ``InvalidInputError`` for an invalid namespace or
        key."""
        own_write = self._get_own_write(namespace, key)
        if own_write is None and self._source is not None:
            stored = await asyncio.wrap_future(self._source.recall(self._area + namespace, key))
            return _decode_memory_value(stored, default)
        return _decode_memory_value(own_write.value if own_write else None, default)

    async def put(self, namespace: str, key: str, value: Any) -> None:
        """Store ``value``. Raises ``InvalidInputError`` if it is not plain JSON, or too large."""
        self._writes.record(build_memory_write(namespace, key, value, area=self._area))

    async def _put_if_unchanged(self, namespace: str, key: str, before: Any, value: Any) -> None:
        """Store ``value`` if ``before``, as it was read (None: no value), is still stored when the call's outcome is.

        Else the call runs once more: only for calls that do nothing but write here. Raises as :meth:`put`.
        """
        own_write = self._get_own_write(namespace, key)
        if own_write is not None:  # what counts is what was stored before this call
            checked, expected = own_write.checked, own_write.before
        else:
            checked, expected = (
                True,
                None if before is None else build_memory_write(namespace, key, before, area=self._area).value,
            )
        write = build_memory_write(namespace, key, value, area=self._area)
        self._writes.record(replace(write, checked=checked, before=expected))

    async def delete(self, namespace: str, key: str) -> None:
        """Delete the value, if there is one. Raises ``InvalidInputError`` as :meth:`get`."""
        self._writes.record(build_memory_delete(namespace, key, area=self._area))

    async def list(self, namespace: str, prefix: str = "", *, limit: int = DEFAULT_LIST_LIMIT) -> dict[str, Any]:
        """Return the first ``limit`` values whose key begins with ``prefix``, by key, in the order of the keys.

        Raises ``InvalidInputError`` as :meth:`get`.
        """
        own_writes = self._list_own_writes(namespace, prefix, limit)
        stored: dict[str, bytes] = {}
        if self._source is not None:
            name = self._area + namespace
            stored = await asyncio.wrap_future(self._source.recall_all(name, prefix, limit + len(own_writes)))
        return _merge_memory_values(stored, own_writes, limit)

    @property
    def blocking(self) -> BlockingMemory:
        """The same methods for plain ``def`` functions, not async."""
        return BlockingMemory(self)

    def absorb(self, writes: MemoryWrites) -> None:
        """Add the writes of another memory of the same call, each in its own area."""
        for write in writes:
            self._writes.record(write)

    def close(self) -> None:
        """Close the memory when the call has ended: later writes raise ``RuntimeError`` instead of being lost."""
        self._writes.close()

    def _get_own_write(self, namespace: str, key: str) -> MemoryWrite | None:
        """Return the call's own write of the key."""
        check_memory_name("namespace", namespace)
        check_memory_name("key", key)
        return self._writes.find(self._area + namespace, key)

    def _list_own_writes(self, namespace: str, prefix: str, limit: int) -> dict[str, bytes | None]:
        """Return the call's own writes in the namespace by key, None for deletions."""
        check_memory_list(namespace, prefix, limit)
        return self._writes.list(self._area + namespace, prefix)


class _CallWrites:
    """The writes of one call, by the stored names, whatever areas they are in."""

    __slots__ = ("_closed", "_indexes", "_writes")

    def __init__(self, writes: MemoryWrites) -> None:
        self._writes = writes
        self._indexes: dict[tuple[str, str], int] = {}
        self._closed = False

    def find(self, namespace: str, key: str) -> MemoryWrite | None:
        with _writes_lock:
            index = self._indexes.get((namespace, key))
            return None if index is None else self._writes[index]

    def list(self, namespace: str, prefix: str) -> dict[str, bytes | None]:
        with _writes_lock:
            return {
                write.key: write.value
                for write in self._writes
                if write.namespace == namespace and write.key.startswith(prefix)
            }

    def record(self, write: MemoryWrite) -> None:
        with _writes_lock:
            if self._closed:
                name = f"memory {write.namespace!r}, key {write.key!r}"
                raise RuntimeError(
                    f"{name}: the tool call has ended, so the write would be lost. Write before the function returns."
                )
            index = self._indexes.setdefault((write.namespace, write.key), len(self._writes))
            self._writes[index : index + 1] = [write]

    def close(self) -> None:
        with _writes_lock:
            self._closed = True


class BlockingMemory:
    """:class:`Memory` for plain ``def`` functions: ``ctx.memory.blocking.get("visits", user_id)``."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def get(self, namespace: str, key: str, default: Any = None) -> Any:
        """See :meth:`Memory.get`."""
        own_write, source = self._memory._get_own_write(namespace, key), self._memory._source
        if own_write is None and source is not None:
            _check_may_block("get")
            return _decode_memory_value(source.recall(self._memory._area + namespace, key).result(), default)
        return _decode_memory_value(own_write.value if own_write else None, default)

    def put(self, namespace: str, key: str, value: Any) -> None:
        """See :meth:`Memory.put`."""
        self._memory._writes.record(build_memory_write(namespace, key, value, area=self._memory._area))

    def delete(self, namespace: str, key: str) -> None:
        """See :meth:`Memory.delete`."""
        self._memory._writes.record(build_memory_delete(namespace, key, area=self._memory._area))

    def list(self, namespace: str, prefix: str = "", *, limit: int = DEFAULT_LIST_LIMIT) -> dict[str, Any]:
        """See :meth:`Memory.list`."""
        own_writes, source = self._memory._list_own_writes(namespace, prefix, limit), self._memory._source
        stored: dict[str, bytes] = {}
        if source is not None:
            _check_may_block("list")
            name = self._memory._area + namespace
            stored = source.recall_all(name, prefix, limit + len(own_writes)).result()
        return _merge_memory_values(stored, own_writes, limit)


def build_memory_write(namespace: str, key: str, value: Any, *, area: str) -> MemoryWrite:
    """Build the write of ``value``. Raises ``InvalidInputError`` that names the key, the reason and the way out."""
    from ..ports.store import MemoryWrite

    check_memory_name("namespace", namespace)
    check_memory_name("key", key)
    owner = f"memory {namespace!r}, key {key!r}: the value"
    # JSON would also make keys that are not text into texts, and a read would miss them.
    if why := find_json_flaw(value):
        hint = "Store texts, numbers, lists, dictionaries with text keys; for a model its model_dump(mode='json')."
        raise InvalidInputError(f"{owner} must be plain JSON: {why}", hint=hint)
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    if len(body) > MAX_VALUE_BYTES:
        hint = "Store its parts under keys of their own, or large data elsewhere and its address here."
        raise InvalidInputError(f"{owner} has {len(body):,} bytes as JSON; most is {MAX_VALUE_BYTES:,}", hint=hint)
    return MemoryWrite(area + namespace, key, body)


def build_memory_delete(namespace: str, key: str, *, area: str) -> MemoryWrite:
    """Build the deletion of a value. Raises ``InvalidInputError``."""
    from ..ports.store import MemoryWrite

    check_memory_name("namespace", namespace)
    check_memory_name("key", key)
    return MemoryWrite(area + namespace, key, None)


def check_memory_name(kind: str, name: Any, *, least: int = 1) -> None:
    """Raise ``InvalidInputError`` for an invalid namespace, key or (``least=0``) prefix."""
    # PostgreSQL cannot store NUL in a text.
    is_text = isinstance(name, str) and name == clean_text(name) and "\0" not in name
    if not is_text or not least <= len(name.encode()) <= MAX_NAME_BYTES:
        reason = f"memory: the {kind} is a text of {least} to {MAX_NAME_BYTES} bytes, not {name!r:.100}"
        hint = "For instance get('profile', user_id): a namespace for the kind of data, a key within it."
        raise InvalidInputError(reason, hint=hint)


def check_memory_list(namespace: Any, prefix: Any, limit: Any) -> None:
    """Raise ``InvalidInputError`` for invalid arguments of ``list``."""
    check_memory_name("namespace", namespace)
    check_memory_name("prefix", prefix, least=0)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        hint = f"Leave it out for {DEFAULT_LIST_LIMIT:,}."
        raise InvalidInputError(f"memory: limit is a whole number of at least 1, not {limit!r:.100}", hint=hint)


def _decode_memory_value(body: bytes | None, default: Any) -> Any:
    return default if body is None else json.loads(body)


def _merge_memory_values(
    stored: Mapping[str, bytes], own_writes: Mapping[str, bytes | None], limit: int
) -> dict[str, Any]:
    values = {key: body for key, body in {**stored, **own_writes}.items() if body is not None}
    return {key: json.loads(values[key]) for key in sorted(values)[:limit]}


def _check_may_block(verb: str) -> None:
    """Raise ``RuntimeError`` on a thread with a running event loop, which the wait would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    way_out = f"write await ctx.memory.{verb}(…) there"
    raise RuntimeError(f"ctx.memory.blocking.{verb} in an async function would block its event loop: {way_out}")
