"""The transcript as a chain of content-addressed nodes, like commits: hashing, loading, extending, caching.

A node's hash covers its parent's hash and its own bytes, so a head identifies one conversation permanently. A worker
caches the decoded messages of the nodes that it used last; everything loaded from the store is verified first.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ..errors import InvalidInputError, TranscriptCorruptedError
from ..types.messages import (
    BlobRef,
    FilePart,
    Message,
    Part,
    TextPart,
    ToolResultPart,
    encode_canonical,
    iter_file_parts,
    parse_messages,
)
from ..types.transcript import Piece, Transcript, map_pieces, merge_pieces
from ..types.validation_errors import describe_validation_error
from .cache import ByteLRU, CacheBudget

if TYPE_CHECKING:
    from ..ports.store import Blob, Node, Transcripts

_MESSAGE_BYTES = 1500  # a decoded message besides its text, measured with tracemalloc
_SLICE_BYTES = 256 * 1024  # decoded between two turns of the event loop: about 2 ms
_MAX_KNOWN_ENDS = 256  # ends of cached chains that are passed to the store
_MERGED_NODES = 16  # cached as one; as many at least stay single at a chain's end, where conversations fork
_MERGED_BYTES = 8 * 1024 * 1024  # of the cache, at most

_RESTORE_HINT = "Restore it from a backup and `resume` the run, or fork the run from a head that is intact."


def hash_node(parent: str | None, body: bytes) -> str:
    """Return the hash of a node: sha256 (hexadecimal) over version, parent and body.

    The header distinguishes a root from any parent and has the length of the parent: no two pairs give the same bytes.
    """
    link = "root" if parent is None else f"parent {len(parent)}\n{parent}"
    digest = hashlib.sha256(f"perdure node v1 {link}\n".encode())
    digest.update(body)
    return digest.hexdigest()


@dataclass(slots=True)
class _DecodedNode:
    """A decoded node, or several that follow each other, under the hash of the last one."""

    hash: str
    parent: str | None
    """The parent of the first."""
    pieces: Sequence[Piece]
    size: int
    """Bytes in the cache."""
    level: int = 0
    """How often it was merged."""


class Chain:
    """Loads and extends transcripts by their heads. One per worker and store, used from one event loop.

    ``cache`` bounds its decoded nodes and files; ``max_heads`` of how many conversations there are nodes.
    """

    def __init__(
        self, transcripts: Transcripts, *, cache: CacheBudget | None = None, max_heads: int | None = None
    ) -> None:
        self._transcripts = transcripts
        self._max_heads = max_heads
        cache = cache or CacheBudget()
        self._merged_bytes = min(_MERGED_BYTES, cache.bytes // 16)
        self._ends: dict[str, None] = {}
        """Cached nodes without a cached child, the latest last: where a load may stop."""
        self._files: ByteLRU[bytes] = ByteLRU(cache)
        self._decoded_nodes: ByteLRU[_DecodedNode] = ByteLRU(cache, lambda name: self._ends.pop(name, None))

    async def load(self, head: str | None) -> Transcript:
        """Load the conversation up to ``head``, with large texts from blobs. Empty without a head.

        Messages that were loaded or remembered before are the same objects again. Raises ``StoreError``, and
        ``TranscriptCorruptedError`` for a node or blob that is missing or altered.
        """
        read_nodes: dict[str, _DecodedNode] = {}  # kept here, too, because they may exceed the cache
        nodes: list[_DecodedNode] = []
        name = head
        while name is not None:
            node = self._decoded_nodes.get(name) or read_nodes.get(name)
            if node is None:
                await self._read_nodes(name, read_nodes)
            else:
                nodes.append(node)
                name = node.parent
        nodes.reverse()
        if len(nodes) >= 2 * _MERGED_NODES and not nodes[-2 * _MERGED_NODES].level:
            nodes = self._merge_nodes(nodes)
        # The head is used last, so that a chain is evicted from its root.
        self._decoded_nodes.mark_used([node.hash for node in nodes])
        if head in self._ends:
            self._ends[head] = self._ends.pop(head)
        return Transcript([piece for node in nodes for piece in node.pieces])

    def _merge_nodes(self, nodes: Sequence[_DecodedNode]) -> list[_DecodedNode]:
        """Merge all but the last of ``nodes``, a whole chain: a long conversation then has few, and what is computed of
        their messages is kept with them. A load that ends within a merged node reads the store."""
        merged: list[_DecodedNode] = []
        group: list[_DecodedNode] = []
        for node in nodes[:-_MERGED_NODES]:
            is_full = len(group) == _MERGED_NODES or sum(each.size for each in (*group, node)) > self._merged_bytes
            if group and (is_full or node.level):
                self._add_merged(merged, self._merge_group(group))
                group = []
            (merged if node.level else group).append(node)
        if len(group) == _MERGED_NODES:
            self._add_merged(merged, self._merge_group(group))
            group = []
        return [*merged, *group, *nodes[-_MERGED_NODES:]]

    def _add_merged(self, merged: list[_DecodedNode], node: _DecodedNode) -> None:
        """Add ``node`` to ``merged``, as a counter carries its bits: the number of nodes grows with the logarithm of
        the chain's length."""
        while merged and merged[-1].level == node.level and merged[-1].size + node.size <= self._merged_bytes:
            node = self._merge_group([merged.pop(), node])
        merged.append(node)

    def _merge_group(self, group: Sequence[_DecodedNode]) -> _DecodedNode:
        pieces = merge_pieces(piece for node in group for piece in node.pieces)
        size = sum(node.size for node in group)
        first, last = group[0], group[-1]
        merged = _DecodedNode(last.hash, first.parent, pieces, size, last.level + 1)
        for node in group:
            self._decoded_nodes.remove(node.hash)
        self._decoded_nodes.put(merged.hash, merged, size)
        return merged

    def extend(self, head: str | None, messages: Sequence[Message]) -> tuple[Node, list[Blob]]:
        """Build the node that appends ``messages`` to ``head``, and the blobs that it refers to. Writes nothing.

        Raises ``InvalidInputError`` for messages that could not be read back: a node is never changed.

        Text of more than ``INLINE_BYTES`` (UTF-8) is stored as a blob, and so is every file that is given as bytes.
        """
        from ..ports.store import Node

        blobs: list[Blob] = []
        try:
            body = encode_canonical([_move_message_to_blobs(message, blobs) for message in messages])
            parse_messages(body)
        except ValueError as error:  # ValidationError, UnicodeEncodeError
            reason = (
                describe_validation_error(error, "JSON") if isinstance(error, ValidationError) else str(error)[:500]
            )
            raise InvalidInputError(
                f"the messages were not stored, since they could not be read back: {reason}",
                hint="Their values must be plain JSON: finite numbers, no lone surrogates, at most 150 levels.",
            ) from None
        return Node(hash_node(head, body), head, body), blobs

    def remember(self, node: Node, messages: Sequence[Message]) -> None:
        """Cache a node that was just written, so that loading it is free and returns the same objects.

        ``messages`` are those that ``extend`` was given. Messages that it stored in another form are not cached: the
        next load resolves texts that are blobs, and returns files as references.
        """
        if not any(_iter_text_refs(messages)) and all(part.data is None for part in iter_file_parts(messages)):
            self._cache_node(_build_decoded_node(node, tuple(messages)))

    async def resolve_blob(self, ref: BlobRef) -> str:
        """Return the text of ``ref``. Raises ``TranscriptCorruptedError`` if it is missing or altered."""
        return _decode_blob_text(ref, await self._transcripts.read_blobs([ref.hash]))

    async def load_files(
        self, messages: Sequence[Message], known: Mapping[str, bytes] | None = None
    ) -> dict[str, bytes]:
        """Return the bytes of every file in ``messages`` that is a blob, by its hash; ``known`` are about to be
        written.

        Raises ``StoreError``, and ``TranscriptCorruptedError`` for one that is missing or altered.
        """
        known = known or {}
        for name, content in known.items():
            self._files.put(name, content, len(content))
        refs = {ref.hash: ref for found in map_pieces(messages, "files", _list_file_refs) for ref in found}
        files = {name: known[name] for name in refs if name in known}
        files |= {name: body for name in refs if (body := self._files.get(name)) is not None}
        missing = [name for name in refs if name not in files]
        blobs = await self._transcripts.read_blobs(missing) if missing else {}
        for name in missing:
            files[name] = content = await asyncio.to_thread(_verify_blob, refs[name], blobs)
            self._files.put(name, content, len(content))
        return files

    async def _read_nodes(self, head: str, read_nodes: dict[str, _DecodedNode]) -> None:
        """Read and verify the chain that ends in ``head``, down to the cached nodes, and add it to ``read_nodes``."""
        nodes = await self._transcripts.read_nodes(head, until=list(self._ends)[-_MAX_KNOWN_ENDS:])
        stored_messages: list[list[Message]] = []
        yielder = _LoopYielder()
        for node in nodes:
            is_large = len(node.body) > _SLICE_BYTES
            stored_messages.append(await asyncio.to_thread(decode_node, node) if is_large else decode_node(node))
            await yielder.yield_after(len(node.body))
        refs = {ref.hash for messages in stored_messages for ref in _iter_text_refs(messages)}
        blobs = await self._transcripts.read_blobs(list(refs)) if refs else {}
        for node, stored in zip(nodes, stored_messages, strict=True):
            messages = tuple(_resolve_message_texts(message, blobs) for message in stored)
            decoded = self._decoded_nodes.get(node.hash) or _build_decoded_node(node, messages)
            read_nodes[node.hash] = decoded
            self._cache_node(decoded)
            await yielder.yield_after(sum(ref.size for ref in _iter_text_refs(stored)))
        if head not in read_nodes:
            raise TranscriptCorruptedError(
                f"node {head} of the transcript is missing from the store", hint=_RESTORE_HINT
            )

    def _cache_node(self, node: _DecodedNode) -> None:
        if node.parent is not None:
            self._ends.pop(node.parent, None)
        self._ends[node.hash] = None
        self._decoded_nodes.put(node.hash, node, node.size)
        if self._max_heads is not None and len(self._ends) > self._max_heads:
            self._drop_chain(next(iter(self._ends)))

    def _drop_chain(self, end: str) -> None:
        """Drop the cached nodes of the conversation that ends there, also those that a fork of it shares."""
        name: str | None = end
        del self._ends[end]
        while name is not None and (node := self._decoded_nodes.get(name)) is not None:
            self._decoded_nodes.remove(name)
            name = node.parent


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


def _build_decoded_node(node: Node, messages: tuple[Message, ...]) -> _DecodedNode:
    return _DecodedNode(node.hash, node.parent, (messages,), _estimate_node_bytes(node, messages))


def _list_file_refs(messages: Sequence[Message]) -> list[BlobRef]:
    return [part.blob for part in iter_file_parts(messages) if part.blob is not None]


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
    from ..ports.store import move_file_to_blob, move_text_to_blob

    if isinstance(part, FilePart):
        return move_file_to_blob(part, blobs)
    if not isinstance(part, TextPart | ToolResultPart):
        return part
    if isinstance(part, ToolResultPart) and any(file.data is not None for file in part.files):
        part = part.model_copy(update={"files": tuple(move_file_to_blob(file, blobs) for file in part.files)})
    return move_text_to_blob(part, _get_text_field(part), blobs)


def _get_text_field(part: TextPart | ToolResultPart) -> str:
    """Return the name of the field that a blob may replace."""
    return "text" if isinstance(part, TextPart) else "content"


def _resolve_message_texts(message: Message, blobs: Mapping[str, bytes]) -> Message:
    """Return the message with references replaced by their texts."""
    if not any(_iter_text_refs([message])):
        return message
    return message.model_copy(update={"parts": tuple(_resolve_part_text(part, blobs) for part in message.parts)})


def _resolve_part_text(part: Part, blobs: Mapping[str, bytes]) -> Part:
    if not isinstance(part, TextPart | ToolResultPart) or part.blob is None:
        return part
    return part.model_copy(update={_get_text_field(part): _decode_blob_text(part.blob, blobs), "blob": None})


def _decode_blob_text(ref: BlobRef, blobs: Mapping[str, bytes]) -> str:
    try:
        return _verify_blob(ref, blobs).decode()
    except UnicodeDecodeError as error:
        raise TranscriptCorruptedError(f"blob {ref.hash} is not UTF-8 text", hint=_RESTORE_HINT) from error


def _verify_blob(ref: BlobRef, blobs: Mapping[str, bytes]) -> bytes:
    from ..ports.store import Blob

    body = blobs.get(ref.hash)
    if body is None:
        flaw = f"blob {ref.hash} ({ref.size} bytes) is missing from the store"
    elif Blob.from_content(body).hash == ref.hash:
        return body
    else:
        from .objects import build_unset_error, decode_pointer

        if (pointer := decode_pointer(ref.hash, body)) is not None:
            raise build_unset_error(ref.hash, pointer)
        flaw = f"blob {ref.hash} was altered: its bytes no longer have that hash"
    raise TranscriptCorruptedError(flaw, hint=_RESTORE_HINT)


def _estimate_node_bytes(node: Node, messages: Sequence[Message]) -> int:
    """Estimate the bytes of a cached node: its texts, again for the wire encoding that a provider keeps, and objects.

    Of a file the node has a reference, and the wire encoding all of it, in base64.
    """
    encoded = sum(part.blob.size * 4 // 3 for part in iter_file_parts(messages) if part.blob is not None)
    texts = sum(
        len(getattr(part, _get_text_field(part)))
        for message in messages
        for part in message.parts
        if isinstance(part, TextPart | ToolResultPart)
    )
    return encoded + 2 * max(texts, len(node.body)) + _MESSAGE_BYTES * (1 + len(messages))
