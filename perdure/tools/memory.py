"""``ctx.memory``: what conversations share, JSON values by namespace and key.

Writes are kept with the call and committed together with its outcome, so each happens exactly once, whatever crashes.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from ..errors import InvalidInputError
from ..ports import MemoryWrite
from ..types.messages import clean_text
from ..types.plain_json import find_json_flaw

MAX_VALUE_BYTES = 256 * 1024
"""Of one value, as JSON."""
MAX_NAME_BYTES = 400
"""Of a namespace, and of a key."""
DEFAULT_LIST_LIMIT = 1000
"""Values that ``list`` gives unless it is told otherwise."""

MemoryWrites = list[MemoryWrite]

_writes_lock = threading.Lock()
"""Of all calls together: every tool call has a memory, few use it, and what is done under it takes no time."""


class MemorySource(Protocol):
    """Reads what is kept; called from any thread."""

    def recall(self, namespace: str, key: str) -> Future[bytes | None]:
        """One value."""
        ...

    def recall_all(self, namespace: str, prefix: str, limit: int) -> Future[dict[str, bytes]]:
        """The first ``limit`` values whose key begins with ``prefix``, in the order of their keys."""
        ...


class Memory:
    """Values that outlive the conversation and are shared with every other one: ``ctx.memory``.

        seen = await ctx.memory.get("visits", user_id, 0)
        await ctx.memory.put("visits", user_id, seen + 1)

    A value is plain JSON of at most 256 KiB; namespace and key are texts of 1 to 400 bytes. A read sees what is kept
    and what this call has written itself. What a call writes is kept together with its outcome, in one transaction:
    all of it exactly once, also when workers are lost in between, or nothing where the tool ends in an error or is
    cancelled. Two calls that change one key at the same time do not wait for each other: the last that ends counts.

    Safe from every thread. A plain ``def`` function uses :attr:`blocking`. ``Memory()`` alone is a memory of its own,
    for tests: ``ToolContext(memory=Memory())``.
    """

    __slots__ = ("_closed", "_kept", "_places", "_writes")

    def __init__(self, kept: MemorySource | None = None, writes: MemoryWrites | None = None) -> None:
        """The engine gives ``kept``, and takes from ``writes`` what the call has written, one entry for each key."""
        self._kept = kept
        self._writes: MemoryWrites = [] if writes is None else writes
        self._places: dict[tuple[str, str], int] = {}
        self._closed = False

    @property
    def waits(self) -> bool:
        """Whether a read waits for a store that cannot be read."""
        return bool(getattr(self._kept, "waiting_reads", 0))

    async def get(self, namespace: str, key: str, default: Any = None) -> Any:
        """The value, ``default`` where there is none. Raises ``InvalidInputError`` for what is no namespace or key."""
        own = self._get_own_write(namespace, key)
        if own is None and self._kept is not None:
            return _decode_memory_value(await asyncio.wrap_future(self._kept.recall(namespace, key)), default)
        return _decode_memory_value(own.value if own else None, default)

    async def put(self, namespace: str, key: str, value: Any) -> None:
        """Keep ``value``. Raises ``InvalidInputError`` for what is no plain JSON, or too large."""
        self._record_write(build_memory_write(namespace, key, value))

    async def _put_if_unchanged(self, namespace: str, key: str, before: Any, value: Any) -> None:
        """Keep ``value`` if ``before``, as it was read, is still there when the call's outcome is kept (None: nothing).

        Else the call runs once more: only for those that do nothing but write here. Raises as :meth:`put`.
        """
        own = self._get_own_write(namespace, key)
        if own is not None:  # what was there before this call is what counts
            checked, was = own.checked, own.before
        else:
            checked, was = True, None if before is None else build_memory_write(namespace, key, before).value
        write = build_memory_write(namespace, key, value)
        self._record_write(MemoryWrite(namespace, key, write.value, checked, was))

    async def delete(self, namespace: str, key: str) -> None:
        """Forget the value, if there is one. Raises ``InvalidInputError`` as :meth:`get`."""
        self._record_write(build_memory_delete(namespace, key))

    async def list(self, namespace: str, prefix: str = "", *, limit: int = DEFAULT_LIST_LIMIT) -> dict[str, Any]:
        """The first ``limit`` values whose key begins with ``prefix``, by their keys, in the order of these.

        Raises ``InvalidInputError`` as :meth:`get`.
        """
        own = self._list_own_writes(namespace, prefix, limit)
        kept: dict[str, bytes] = {}
        if self._kept is not None:
            kept = await asyncio.wrap_future(self._kept.recall_all(namespace, prefix, limit + len(own)))
        return _merge_memory_values(kept, own, limit)

    @property
    def blocking(self) -> BlockingMemory:
        """The same for plain ``def`` functions: nothing is awaited."""
        return BlockingMemory(self)

    def absorb(self, writes: MemoryWrites) -> None:
        """Take over what another memory of the same call has written."""
        for write in writes:
            self._record_write(write)

    def close(self) -> None:
        """The call has ended: from now on a write raises ``RuntimeError`` instead of being lost."""
        with _writes_lock:
            self._closed = True

    def _get_own_write(self, namespace: str, key: str) -> MemoryWrite | None:
        """What this call wrote under the key."""
        check_memory_name("namespace", namespace)
        check_memory_name("key", key)
        with _writes_lock:
            place = self._places.get((namespace, key))
            return None if place is None else self._writes[place]

    def _list_own_writes(self, namespace: str, prefix: str, limit: int) -> dict[str, bytes | None]:
        """What this call wrote in the namespace, deletions too."""
        check_memory_list(namespace, prefix, limit)
        with _writes_lock:
            return {
                write.key: write.value
                for write in self._writes
                if write.namespace == namespace and write.key.startswith(prefix)
            }

    def _record_write(self, write: MemoryWrite) -> None:
        name = (write.namespace, write.key)
        with _writes_lock:
            if self._closed:
                raise RuntimeError(
                    f"memory {write.namespace!r}, key {write.key!r}: the call that this memory belongs to has ended, "
                    "and nothing would keep the write. Write before the function returns."
                )
            place = self._places.setdefault(name, len(self._writes))
            self._writes[place : place + 1] = [write]


class BlockingMemory:
    """:class:`Memory` for plain ``def`` functions: ``ctx.memory.blocking.get("visits", user_id)``."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def get(self, namespace: str, key: str, default: Any = None) -> Any:
        """See :meth:`Memory.get`."""
        own, kept = self._memory._get_own_write(namespace, key), self._memory._kept
        if own is None and kept is not None:
            _check_may_block("get")
            return _decode_memory_value(kept.recall(namespace, key).result(), default)
        return _decode_memory_value(own.value if own else None, default)

    def put(self, namespace: str, key: str, value: Any) -> None:
        """See :meth:`Memory.put`."""
        self._memory._record_write(build_memory_write(namespace, key, value))

    def delete(self, namespace: str, key: str) -> None:
        """See :meth:`Memory.delete`."""
        self._memory._record_write(build_memory_delete(namespace, key))

    def list(self, namespace: str, prefix: str = "", *, limit: int = DEFAULT_LIST_LIMIT) -> dict[str, Any]:
        """See :meth:`Memory.list`."""
        own, kept = self._memory._list_own_writes(namespace, prefix, limit), self._memory._kept
        if kept is None:
            return _merge_memory_values({}, own, limit)
        _check_may_block("list")
        return _merge_memory_values(kept.recall_all(namespace, prefix, limit + len(own)).result(), own, limit)


def build_memory_write(namespace: str, key: str, value: Any) -> MemoryWrite:
    """The change that keeps ``value``. Raises ``InvalidInputError`` that names the key, the reason and the way out."""
    check_memory_name("namespace", namespace)
    check_memory_name("key", key)
    if why := find_json_flaw(
        value
    ):  # JSON would also make keys that are not text into texts, and a read would miss them
        raise InvalidInputError(
            f"memory {namespace!r}, key {key!r}: the value must be plain JSON: {why}",
            hint="Keep text, numbers, booleans, None, lists, and dictionaries by text; "
            "of a pydantic model its model_dump(mode='json').",
        )
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    if len(body) > MAX_VALUE_BYTES:
        raise InvalidInputError(
            f"memory {namespace!r}, key {key!r}: the value has {len(body):,} bytes as JSON; "
            f"most is {MAX_VALUE_BYTES:,}",
            hint="Keep its parts under keys of their own, or large data elsewhere and its address here.",
        )
    return MemoryWrite(namespace, key, body)


def build_memory_delete(namespace: str, key: str) -> MemoryWrite:
    """The change that forgets a value. Raises ``InvalidInputError``."""
    check_memory_name("namespace", namespace)
    check_memory_name("key", key)
    return MemoryWrite(namespace, key, None)


def check_memory_name(what: str, name: Any, *, least: int = 1) -> None:
    """Raise ``InvalidInputError`` for what is no namespace, key or (``least=0``) prefix."""
    # NUL is text that PostgreSQL cannot hold.
    if (
        isinstance(name, str)
        and name == clean_text(name)
        and "\0" not in name
        and least <= len(name.encode()) <= MAX_NAME_BYTES
    ):
        return
    raise InvalidInputError(
        f"memory: the {what} is a text of {least} to {MAX_NAME_BYTES} bytes, not {name!r:.100}",
        hint="For instance get('profile', user_id): a namespace for the kind of data, a key within it.",
    )


def check_memory_list(namespace: Any, prefix: Any, limit: Any) -> None:
    """Raise ``InvalidInputError`` for what cannot be listed."""
    check_memory_name("namespace", namespace)
    check_memory_name("prefix", prefix, least=0)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidInputError(
            f"memory: limit is a whole number of at least 1, not {limit!r:.100}",
            hint=f"Leave it out for {DEFAULT_LIST_LIMIT:,}.",
        )


def _decode_memory_value(body: bytes | None, default: Any) -> Any:
    return default if body is None else json.loads(body)


def _merge_memory_values(kept: Mapping[str, bytes], own: Mapping[str, bytes | None], limit: int) -> dict[str, Any]:
    found = {key: body for key, body in {**kept, **own}.items() if body is not None}
    return {key: json.loads(found[key]) for key in sorted(found)[:limit]}


def _check_may_block(verb: str) -> None:
    """Raise ``RuntimeError`` on a thread with a running event loop, which the wait would stop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"ctx.memory.blocking.{verb} in an async function would stop its event loop: "
        f"write await ctx.memory.{verb}(…) there"
    )
