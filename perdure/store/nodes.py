"""Reads the nodes and blobs of transcripts. They are written by commits, see ``journal.py``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import TranscriptCorruptedError
from ..ports.store import Node
from .schema import MAX_KEYS, Database, as_bytes, run_for_keys
from .statements import load_statements

SQL = load_statements("nodes")

MISSING_NODE_HINT = (
    "Restore it from a backup of the store and `resume` the run, or fork the run from a head that is intact. If the "
    "store is itself a backup older than the run: `perdure resume ID --from-store` continues from what it has."
)


def read_nodes(database: Database, head: str, until: Sequence[str]) -> list[Node]:
    """Return the chain that ends in ``head``, root first; see :meth:`perdure.ports.store.Transcripts.read_nodes`."""
    if head in until:
        return []
    return order_chain(database.run(SQL.read_chain, head=head, until=list(until[:MAX_KEYS])), head, until)


def order_chain(rows: Iterable[Any], head: str, until: Sequence[str]) -> list[Node]:
    """Return the nodes of ``rows`` (hash, parent, body; in any order) that lead to ``head``, root first, without those
    of ``until`` and before. Raises ``TranscriptCorruptedError`` when one is missing."""
    known_nodes = set(until)
    nodes = {name: Node(name, parent, as_bytes(body)) for name, parent, body in rows}
    chain: list[Node] = []
    name: str | None = head
    while name is not None and name not in known_nodes:
        node = nodes.pop(name, None)  # popped, so that a circle ends here too
        if node is None:
            raise TranscriptCorruptedError(
                f"node {name} of the transcript that ends in {head} is missing from the store",
                hint=MISSING_NODE_HINT,
            )
        chain.append(node)
        name = node.parent
    return chain[::-1]


def read_blobs(database: Database, hashes: Sequence[str]) -> dict[str, bytes]:
    """Return the blobs that exist."""
    return {name: as_bytes(body) for name, body in run_for_keys(database, SQL.read_blobs, hashes)}
