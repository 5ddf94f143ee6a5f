"""The transcript as a chain of content-addressed nodes, like commits: hashing, loading, extending, caching.

A node's hash covers its parent's hash and its own bytes, so a head identifies one conversation permanently. A worker
caches the decoded messages of the nodes that it used last; everything loaded from the store is verified first. Also
``CachedJournal``, a cache of recorded outcomes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from ..errors import InvalidInputError, TranscriptCorruptedError
from ..ports import Blob, Claim, Commit, EventBatch, Journal, Node, Transcripts
from ..types.messages import (
    BlobRef,
    FilePart,
    Message,
    Part,
    TextPart,
    ToolResultPart,
    decode_file_data,
    encode_canonical,
    iter_file_parts,
    parse_messages,
)
from ..types.validation_errors import describe_validation_error
from ..types.wire import INLINE_BYTES

# ---
# Least-recently-used caches that share one budget in bytes, for a worker's copies of immutable data.


V = TypeVar("V")

CACHE_BYTES = 256 * 1024 * 1024
"""Default budget of all caches of a worker."""
ENTRY_BYTES = 500
"""Bytes of an entry besides its value, measured with tracemalloc: its key (a hash), itself, and its two places."""


class CacheBudget:
    """A budget in bytes that several caches share: the least recently used entry of any of them is evicted first.

    Not thread-safe.
    """

    def __init__(self, bytes: int = CACHE_BYTES) -> None:
        self.bytes = bytes
        self.used = 0
        self.order: OrderedDict[int, _Entry] = OrderedDict()
        """Entries by ``id``, the least recently used first."""

    def shrink(self) -> None:
        """Evict entries until the budget is kept."""
        while self.used > self.bytes:
            _, entry = self.order.popitem(last=False)
            self.used -= entry.size
            entry.cache.drop_evicted(entry.key)


class _Entry:
    __slots__ = ("cache", "key", "size", "value")

    def __init__(self, cache: ByteLRU[Any], key: str, value: Any, size: int) -> None:
        self.cache = cache
        self.key = key
        self.value = value
        self.size = size


class ByteLRU(Generic[V]):
    """A cache of values by key, each with its size, within a budget of its own (``budget`` bytes) or a shared one.

    A value that alone exceeds the budget is not kept, and evicts nothing. Not thread-safe.
    """

    def __init__(self, budget: int | CacheBudget, on_evict: Callable[[str], None] | None = None) -> None:
        self.budget = CacheBudget(budget) if isinstance(budget, int) else budget
        self._entries: dict[str, _Entry] = {}
        self._on_evict = on_evict

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def peek(self, key: str) -> V | None:
        """Return the value, without counting as use."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def get(self, key: str) -> V | None:
        """Return the value and mark it as the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self.budget.order.move_to_end(id(entry))
        value: V = entry.value
        return value

    def touch(self, keys: list[str]) -> None:
        """Mark the cached ones of ``keys`` as used, in this order."""
        move, entries = self.budget.order.move_to_end, self._entries
        for key in keys:
            if key in entries:
                move(id(entries[key]))

    def put(self, key: str, value: V, size: int) -> None:
        """Keep ``value`` (``size`` bytes, without its key and the cache's own objects) as the most recently used."""
        self.remove(key)
        entry = _Entry(self, key, value, size + ENTRY_BYTES)
        budget = self.budget
        if entry.size > budget.bytes:
            if self._on_evict is not None:
                self._on_evict(key)
            return
        self._entries[key] = entry
        budget.order[id(entry)] = entry
        budget.used += entry.size
        budget.shrink()

    def remove(self, key: str) -> None:
        """Drop the value, if there is one. That is not reported as an eviction."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            del self.budget.order[id(entry)]
            self.budget.used -= entry.size

    def drop_evicted(self, key: str) -> None:
        """Remove ``key``, which the budget has evicted."""
        del self._entries[key]
        if self._on_evict is not None:
            self._on_evict(key)


_MESSAGE_BYTES = 1500  # a decoded message besides its text, measured with tracemalloc
_SLICE_BYTES = 256 * 1024  # decoded between two turns of the event loop: about 2 ms
_MAX_KNOWN_ENDS = 256  # ends of cached chains that are passed to the store

_RESTORE_HINT = "Restore it from a backup and `resume` the run, or fork the run from a head that is intact."


def hash_node(parent: str | None, body: bytes) -> str:
    """Return the hash of a node: sha256 (hexadecimal) over version, parent and body.

    The header distinguishes a root from any parent and has the length of the parent: no two pairs give the same bytes.
    """
    link = "root" if parent is None else f"parent {len(parent)}\n{parent}"
    digest = hashlib.sha256(f"perdure node v1 {link}\n".encode())
    digest.update(body)
    return digest.hexdigest()


def hash_blob(body: bytes) -> str:
    """Return the hash of a blob: sha256 of its bytes, hexadecimal."""
    return hashlib.sha256(body).hexdigest()


@dataclass(frozen=True, slots=True)
class _DecodedNode:
    """A decoded node."""

    hash: str
    parent: str | None
    messages: tuple[Message, ...]


class Chain:
    """Loads and extends transcripts by their heads. One per worker and store, used from one event loop.

    ``cache`` bounds its decoded nodes and files.
    """

    def __init__(self, transcripts: Transcripts, *, cache: CacheBudget | None = None) -> None:
        self._transcripts = transcripts
        cache = cache or CacheBudget()
        self._files: ByteLRU[bytes] = ByteLRU(cache)
        self._decoded_nodes: ByteLRU[_DecodedNode] = ByteLRU(cache, self._drop_end)
        self._ends: dict[str, None] = {}
        """Cached nodes without a cached child, the latest last: where a load may stop."""

    async def load(self, head: str | None) -> list[Message]:
        """Load the conversation up to ``head``, with large texts from blobs. Empty without a head.

        Messages that were loaded or remembered before are the same objects again. Raises ``StoreError``, and
        ``TranscriptCorruptedError`` for a node or blob that is missing or altered.
        """
        fresh: dict[str, _DecodedNode] = {}  # the nodes that this load read, also if they exceed the cache
        while True:
            links, gap = self._walk_cached(head, fresh)
            if gap is None:
                break
            await self._fetch_nodes(gap, fresh)
        links.reverse()
        # The head last, so that a chain is evicted from its root.
        self._decoded_nodes.touch([link.hash for link in links])
        if head in self._ends:
            self._ends[head] = self._ends.pop(head)
        return [message for link in links for message in link.messages]

    def extend(self, head: str | None, messages: Sequence[Message]) -> tuple[Node, list[Blob]]:
        """Build the node that appends ``messages`` to ``head``, and the blobs that it refers to. Writes nothing.

        Raises ``InvalidInputError`` for messages that could not be read back: a node is never changed.

        Text of more than ``INLINE_BYTES`` (UTF-8) is stored as a blob, and so is every file that is given as bytes.
        """
        blobs: list[Blob] = []
        try:
            body = encode_canonical([_move_message_to_blobs(message, blobs) for message in messages])
            parse_messages(body)
        except ValueError as error:  # ValidationError, UnicodeEncodeError
            why = describe_validation_error(error, "JSON") if isinstance(error, ValidationError) else str(error)[:500]
            raise InvalidInputError(
                f"the messages were not stored, since they could not be read back: {why}",
                hint="Their values must be plain JSON: finite numbers, no lone surrogates, at most 150 levels.",
            ) from None
        return Node(hash_node(head, body), head, body), blobs

    def remember(self, node: Node, messages: Sequence[Message]) -> None:
        """Cache a node that was just written, so that loading it is free and returns the same objects.

        ``messages`` are those that ``extend`` was given. Messages that it stored in another form are not cached: the
        next load resolves texts that are blobs, and returns files as references.
        """
        if not any(_iter_text_refs(messages)) and all(part.data is None for part in iter_file_parts(messages)):
            self._cache_node(
                _DecodedNode(node.hash, node.parent, tuple(messages)), _estimate_node_bytes(node, messages)
            )

    async def resolve_blob(self, ref: BlobRef) -> str:
        """Return the text of ``ref``. Raises ``TranscriptCorruptedError`` if it is missing or altered."""
        found = await self._transcripts.read_blobs([ref.hash])
        return _decode_blob_text(ref, found)

    async def load_files(
        self, messages: Iterable[Message], known: Mapping[str, bytes] | None = None
    ) -> dict[str, bytes]:
        """Return the bytes of every file in ``messages`` that is a blob, by its hash; ``known`` are about to be
        written.

        Raises ``StoreError``, and ``TranscriptCorruptedError`` for one that is missing or altered.
        """
        known = known or {}
        for name, body in known.items():
            self._files.put(name, body, len(body))
        refs = {part.blob.hash: part.blob for part in iter_file_parts(messages) if part.blob is not None}
        found = {name: known.get(name, self._files.get(name)) for name in refs}
        missing = [name for name, body in found.items() if body is None]
        read = await self._transcripts.read_blobs(missing) if missing else {}
        for name in missing:
            found[name] = body = await asyncio.to_thread(_verify_blob, refs[name], read)
            self._files.put(name, body, len(body))
        return {name: body for name, body in found.items() if body is not None}

    def _walk_cached(self, head: str | None, fresh: dict[str, _DecodedNode]) -> tuple[list[_DecodedNode], str | None]:
        """Return the cached nodes from the head towards the root, and the first node that is not cached, if any."""
        links: list[_DecodedNode] = []
        peek = self._decoded_nodes.peek
        while head is not None:
            link = peek(head) or fresh.get(head)
            if link is None:
                return links, head
            links.append(link)
            head = link.parent
        return links, None

    async def _fetch_nodes(self, head: str, fresh: dict[str, _DecodedNode]) -> None:
        """Read and verify the chain that ends in ``head``, down to the cached nodes."""
        nodes = await self._transcripts.read_nodes(head, until=list(self._ends)[-_MAX_KNOWN_ENDS:])
        decoded: list[tuple[Node, list[Message]]] = []
        pause = _LoopYielder()
        for node in nodes:
            decoded.append((node, decode_node(node)))
            await pause.yield_after(len(node.body))
        refs = {ref.hash: ref for _, messages in decoded for ref in _iter_text_refs(messages)}
        found = await self._transcripts.read_blobs(list(refs)) if refs else {}
        for node, stored in decoded:
            messages = [_resolve_message_texts(message, found) for message in stored]
            link = self._decoded_nodes.peek(node.hash) or _DecodedNode(node.hash, node.parent, tuple(messages))
            fresh[node.hash] = link
            self._cache_node(link, _estimate_node_bytes(node, messages))
            await pause.yield_after(sum(ref.size for ref in _iter_text_refs(stored)))
        if head not in fresh:
            raise TranscriptCorruptedError(
                f"node {head} of the transcript is missing from the store", hint=_RESTORE_HINT
            )

    def _cache_node(self, link: _DecodedNode, size: int) -> None:
        if link.parent is not None:
            self._ends.pop(link.parent, None)
        self._ends[link.hash] = None
        self._decoded_nodes.put(link.hash, link, size)

    def _drop_end(self, name: str) -> None:
        self._ends.pop(name, None)


class _LoopYielder:
    """Yields to the event loop (heartbeats, other runs) while a long chain is decoded."""

    def __init__(self) -> None:
        self._bytes = 0

    async def yield_after(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= _SLICE_BYTES:
            self._bytes = 0
            await asyncio.sleep(0)


def decode_node(node: Node) -> list[Message]:
    """Decode the messages of a node in the stored form. Raises ``TranscriptCorruptedError`` for altered bytes."""
    if hash_node(node.parent, node.body) != node.hash:
        raise TranscriptCorruptedError(
            f"node {node.hash} of the transcript was altered: its bytes no longer have that hash",
            hint=_RESTORE_HINT,
        )
    try:
        return parse_messages(node.body)
    except ValidationError as error:  # the hash is right, so these are the bytes that were written
        raise TranscriptCorruptedError(
            f"node {node.hash} is intact, but not in a form that this perdure reads",
            hint="A newer perdure may have written it: run workers of that version.",
        ) from error


def _iter_text_refs(messages: Iterable[Message]) -> Iterator[BlobRef]:
    for message in messages:
        for part in message.parts:
            if isinstance(part, TextPart | ToolResultPart) and part.blob is not None:
                yield part.blob


def _move_message_to_blobs(message: Message, blobs: list[Blob]) -> Message:
    """Return the stored form: large texts replaced by references, their bytes added to ``blobs``."""
    parts = tuple(_move_part_to_blobs(part, blobs) for part in message.parts)
    changed = any(new is not old for new, old in zip(parts, message.parts, strict=True))
    return message.model_copy(update={"parts": parts}) if changed else message


def _move_part_to_blobs(part: Part, blobs: list[Blob]) -> Part:
    if isinstance(part, FilePart):
        return _move_chain_file_to_blob(part, blobs)
    if not isinstance(part, TextPart | ToolResultPart):
        return part
    if isinstance(part, ToolResultPart) and any(file.data is not None for file in part.files):
        part = part.model_copy(update={"files": tuple(_move_chain_file_to_blob(file, blobs) for file in part.files)})
    text = part.text if isinstance(part, TextPart) else part.content
    if 4 * len(text) <= INLINE_BYTES or len(text.encode()) <= INLINE_BYTES:
        return part
    blob = Blob.from_content(text)
    blobs.append(blob)
    return part.model_copy(update={"text" if isinstance(part, TextPart) else "content": "", "blob": blob.ref})


def _move_chain_file_to_blob(part: FilePart, blobs: list[Blob]) -> FilePart:
    if part.data is None:
        return part
    blob = Blob.from_content(decode_file_data(part))
    blobs.append(blob)
    return part.model_copy(update={"data": None, "blob": blob.ref})


def _resolve_message_texts(message: Message, found: dict[str, bytes]) -> Message:
    """Return the message with references replaced by their texts."""
    if not any(_iter_text_refs([message])):
        return message
    return message.model_copy(update={"parts": tuple(_resolve_part_text(part, found) for part in message.parts)})


def _resolve_part_text(part: Part, found: dict[str, bytes]) -> Part:
    if not isinstance(part, TextPart | ToolResultPart) or part.blob is None:
        return part
    text = _decode_blob_text(part.blob, found)
    return part.model_copy(update={"text" if isinstance(part, TextPart) else "content": text, "blob": None})


def _decode_blob_text(ref: BlobRef, found: dict[str, bytes]) -> str:
    try:
        return _verify_blob(ref, found).decode()
    except UnicodeDecodeError as error:
        raise TranscriptCorruptedError(f"blob {ref.hash} is not UTF-8 text", hint=_RESTORE_HINT) from error


def _verify_blob(ref: BlobRef, found: dict[str, bytes]) -> bytes:
    body = found.get(ref.hash)
    if body is None:
        raise TranscriptCorruptedError(
            f"blob {ref.hash} ({ref.size} bytes) is missing from the store", hint=_RESTORE_HINT
        )
    if hash_blob(body) != ref.hash:
        raise TranscriptCorruptedError(
            f"blob {ref.hash} was altered: its bytes no longer have that hash", hint=_RESTORE_HINT
        )
    return body


def _estimate_node_bytes(node: Node, messages: Sequence[Message]) -> int:
    """Estimate the bytes of a cached node: its texts, again for the wire encoding that a provider keeps, and objects.

    Of a file the node has a reference, and the wire encoding all of it, in base64.
    """
    encoded = sum(part.blob.size * 4 // 3 for part in iter_file_parts(messages) if part.blob is not None)
    texts = sum(
        len(part.text if isinstance(part, TextPart) else part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, TextPart | ToolResultPart)
    )
    return encoded + 2 * max(texts, len(node.body)) + _MESSAGE_BYTES * (1 + len(messages))


# ---
# A cache of the outcomes that this process recorded, in front of the journal.
#
# A recorded outcome never changes, so a copy is valid: a model call right after its tools reads nothing.
# Outcomes that are read are not cached: their bytes may be altered, which only the parsing caller notices, and an
# entry that is then restored must be read again.


class CachedJournal:
    """A ``Journal`` that caches outcomes in front of another one. Used from one event loop."""

    def __init__(self, journal: Journal, *, cache: CacheBudget | None = None) -> None:
        self._journal = journal
        self._outcomes: ByteLRU[bytes] = ByteLRU(cache or CacheBudget())

    async def find_outcomes(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the recorded outcomes among ``keys``."""
        found = {key: body for key in keys if (body := self._outcomes.get(key)) is not None}
        unknown = [key for key in keys if key not in found]
        if unknown:
            found |= await self._journal.find_outcomes(unknown)
        return found

    async def claim(self, key: str, owner: str, *, again: bool = False, events: EventBatch | None = None) -> Claim:
        """Record the intent of ``owner`` to act."""
        body = self._outcomes.get(key)
        if body is not None:
            return Claim("done", body)
        return await self._journal.claim(key, owner, again=again, events=events)

    async def commit(self, commit: Commit) -> bytes | None:
        """Write everything in one transaction; return the recorded outcome."""
        recorded = await self._journal.commit(commit)
        outcome = commit.outcome
        if outcome is not None and recorded == outcome.body:
            self._outcomes.put(outcome.key, outcome.body, len(outcome.body))
        return recorded
