"""Artifacts: named texts that an agent writes beside its conversation, in versions.

They are kept in the store's memory, in a namespace of the conversation, and so are part of the outcome of the call
that wrote them. A text is kept in pieces, which never change; a version says of which pieces it is. So an append
stores what is new, and an old version costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .errors import InvalidInputError
from .ports import Toolset
from .tools import RunContext, Tool, ToolContext, tool
from .types.messages import Data, clean_text

PIECE_CHARS = 40_000
"""Of one piece: as JSON it has at most 6 bytes for each, and a value of memory may have 256 KiB."""
MIN_PIECE_CHARS = 4_000
"""A last piece that is shorter is written anew with what is added: a text of many small additions has few pieces."""
DEFAULT_READ_CHARS = 20_000
"""That a read gives unless it is told otherwise."""
ARTIFACT_NAME_CHARS = 100
MAX_PIECES = 4000
"""Of one version."""


class MemoryReader(Protocol):
    """What memory is read with: ``ctx.memory``, or ``client.memory``."""

    async def get(self, namespace: str, key: str, default: Any = None) -> Any:
        """One value."""
        ...

    async def list(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, Any]:
        """Values by their keys."""
        ...


class Artifact(Data):
    """A version of an artifact."""

    name: str
    version: int
    """From 1; every change makes another."""
    chars: int
    """Length of the text."""
    pieces: tuple[str, ...] = ()
    """Keys of its pieces in the store."""

    def __str__(self) -> str:
        return f"{self.name}: version {self.version}, {self.chars:,} characters"


def build_artifact_namespace(run_id: str) -> str:
    """Of the artifacts of a conversation."""
    return f"artifacts:{run_id}"


async def list_artifacts(memory: MemoryReader, run_id: str, limit: int = 1000) -> list[Artifact]:
    """The last version of each artifact of a conversation, by name."""
    found = await memory.list(build_artifact_namespace(run_id), "last:", limit=limit)
    return [Artifact.model_validate(one) for one in found.values()]


async def find_artifact(memory: MemoryReader, run_id: str, name: str, version: int | None = None) -> Artifact:
    """An artifact, its last version unless told otherwise. Raises ``InvalidInputError`` where there is none."""
    key = f"last:{name}" if version is None else f"version:{name}:{version:06}"
    kept = await memory.get(build_artifact_namespace(run_id), key) if 0 < len(name) <= ARTIFACT_NAME_CHARS else None
    if kept is None:
        there = ", ".join(one.name for one in await list_artifacts(memory, run_id, 50)) or "none"
        what = f"no artifact {name!r:.120}" if version is None else f"no version {version} of artifact {name!r:.120}"
        raise InvalidInputError(what, hint=f"There is: {there}.")
    return Artifact.model_validate(kept)


async def read_artifact_text(
    memory: MemoryReader, run_id: str, artifact: Artifact, begin: int = 0, end: int | None = None
) -> str:
    """The text of ``artifact``, or the characters from ``begin`` to before ``end``."""
    end = artifact.chars if end is None else min(end, artifact.chars)
    said: list[str] = []
    at = 0
    for key in artifact.pieces:
        length = _get_piece_length(key)
        if at < end and at + length > begin:
            piece: str = await memory.get(build_artifact_namespace(run_id), key, "")
            said.append(piece[max(0, begin - at) : end - at])
        at += length
    return "".join(said)


class Artifacts(Toolset):
    """Tools by which an agent writes texts beside its conversation: create, append, read and list.

    Their names begin with ``artifact_``. Whoever has the run reads them too: ``await run.artifacts()``. They belong to
    the conversation, and stay when it goes on under the same id.
    """

    name = "artifacts"

    def __init__(self, *, prefix: str = "artifact_") -> None:
        self.prefix = prefix
        functions: dict[str, Callable[..., Any]] = {
            "create": _create_artifact,
            "append": _append_to_artifact,
            "read": _read_artifact,
            "list": _list_artifacts,
        }
        self._tools = [tool(fn, name=name, inline=True) for name, fn in functions.items()]

    async def list(self, ctx: RunContext[Any]) -> Sequence[Tool]:
        """See base class."""
        return self._tools


async def _create_artifact(ctx: ToolContext, name: str, content: str) -> str:
    """Write a text under a name. One that is there already gets a new version.

    Args:
        name: What it is called, for instance report.md.
        content: The whole text.
    """
    _check_artifact_name(name)
    before = await ctx.memory.get(build_artifact_namespace(ctx.run_id), f"last:{name}")
    version = Artifact.model_validate(before).version + 1 if before else 1
    return await _store_version(ctx, Artifact(name=name, version=version, chars=0), content, before)


async def _append_to_artifact(ctx: ToolContext, name: str, content: str) -> str:
    """Add text to the end of an artifact.

    Args:
        name: What it is called.
        content: The text to add.
    """
    last = await find_artifact(ctx.memory, ctx.run_id, name)
    read = last.model_dump(mode="json")
    pieces, kept = last.pieces, last.chars
    if pieces and (length := _get_piece_length(pieces[-1])) < MIN_PIECE_CHARS:
        content = await read_artifact_text(ctx.memory, ctx.run_id, last, kept - length) + content
        pieces, kept = pieces[:-1], kept - length
    return await _store_version(
        ctx, Artifact(name=name, version=last.version + 1, chars=kept, pieces=pieces), content, read
    )


async def _read_artifact(
    ctx: ToolContext, name: str, begin: int = 0, length: int = DEFAULT_READ_CHARS, version: int | None = None
) -> str:
    """Read an artifact, or a part of it.

    Args:
        name: What it is called.
        begin: The first character, counted from 0.
        length: How many characters.
        version: An earlier version; the last one without.
    """
    begin, length = max(0, begin), max(0, length)
    artifact = await find_artifact(ctx.memory, ctx.run_id, name, version)
    said = await read_artifact_text(ctx.memory, ctx.run_id, artifact, begin, begin + length)
    if begin + len(said) < artifact.chars:
        said += f"\n[characters {begin} to {begin + len(said)} of {artifact.chars}]"
    return said


async def _list_artifacts(ctx: ToolContext) -> str:
    """List the artifacts: name, version and length of each."""
    there = await list_artifacts(ctx.memory, ctx.run_id)
    return "\n".join(map(str, there)) or "none yet"


async def _store_version(ctx: ToolContext, before: Artifact, content: str, last: Any) -> str:
    """Keep ``before`` with ``content`` behind it as that version; ``last`` is what was read as the last one."""
    content = clean_text(content)
    place, name, version = build_artifact_namespace(ctx.run_id), before.name, before.version
    pieces = list(before.pieces)
    for begin in range(0, len(content), PIECE_CHARS):
        piece = content[begin : begin + PIECE_CHARS]
        # The call's own key: two versions of one number, of calls at the same time, must not mix their texts.
        pieces.append(f"piece:{ctx.idempotency_key[:16]}:{begin // PIECE_CHARS}:{len(piece)}")
        await ctx.memory.put(place, pieces[-1], piece)
    if len(pieces) > MAX_PIECES:
        raise InvalidInputError(f"artifact {name!r} would be too long", hint="Begin another one.")
    kept = before.model_copy(update={"chars": before.chars + len(content), "pieces": tuple(pieces)})
    plain = kept.model_dump(mode="json")
    await ctx.memory.put(place, f"version:{name}:{version:06}", plain)
    # Another call may change it at the same time, in this worker or another: the later of the two runs once more.
    await ctx.memory._put_if_unchanged(place, f"last:{name}", last, plain)
    return str(kept)


def _get_piece_length(piece: str) -> int:
    """Of a piece, as its key says."""
    return int(piece.rpartition(":")[2])


def _check_artifact_name(name: str) -> None:
    if not 0 < len(name) <= ARTIFACT_NAME_CHARS or not name.isprintable():
        raise InvalidInputError(
            f"{name!r:.120} is no name of an artifact",
            hint=f"It has 1 to {ARTIFACT_NAME_CHARS} printable characters, for instance report.md.",
        )


# ---
# Toolsets that come with perdure.


__all__ = ["Artifact", "Artifacts"]
