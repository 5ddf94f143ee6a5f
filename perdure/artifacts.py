"""The toolset ``Artifacts``: named texts that an agent writes beside its conversation, in versions.

They are stored beside the memory of authors, in a namespace of the conversation that no name in ``ctx.memory`` reaches,
and so are part of the outcome of the call that wrote them. A text is stored in pieces, which never change; a version
lists its pieces. So an append stores only the new text, and old versions share their pieces with newer ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .context.memory import AreaReader, open_engine_memory
from .errors import InvalidInputError
from .ports.toolset import Toolset
from .tools import RunContext, Tool, ToolContext, tool
from .types.messages import Data, clean_text

__all__ = ["Artifact", "Artifacts"]

PIECE_CHARS = 40_000
"""Size limit of one piece: a character has at most 6 bytes as JSON, and a value of memory may have 256 KiB."""
MIN_PIECE_CHARS = 4_000
"""A shorter last piece is written again together with an addition: a text of many small additions has few pieces."""
DEFAULT_READ_CHARS = 20_000
"""Default length of a read."""
ARTIFACT_NAME_CHARS = 100
MAX_PIECES = 4000
"""Limit of pieces in one version."""


class Artifact(Data):
    """A version of an artifact."""

    name: str
    version: int
    """From 1; every change makes a new version."""
    chars: int
    """Length of the text."""
    pieces: tuple[str, ...] = ()
    """Keys of its pieces in the store."""

    def __str__(self) -> str:
        return f"{self.name}: version {self.version}, {self.chars:,} characters"


def build_artifact_namespace(run_id: str) -> str:
    """Build the memory namespace of a conversation's artifacts."""
    return f"artifacts:{run_id}"


async def list_artifacts(memory: AreaReader, run_id: str, limit: int = 1000) -> list[Artifact]:
    """List the last version of each artifact of a conversation, by name."""
    versions = await open_engine_memory(memory).list(build_artifact_namespace(run_id), "last:", limit=limit)
    return [Artifact.model_validate(version) for version in versions.values()]


async def find_artifact(memory: AreaReader, run_id: str, name: str, version: int | None = None) -> Artifact:
    """Find an artifact, by default its last version. Raises ``InvalidInputError`` if there is none."""
    key = f"last:{name}" if version is None else f"version:{name}:{version:06}"
    stored = (
        await open_engine_memory(memory).get(build_artifact_namespace(run_id), key)
        if 0 < len(name) <= ARTIFACT_NAME_CHARS
        else None
    )
    if stored is None:
        names = ", ".join(artifact.name for artifact in await list_artifacts(memory, run_id, 50)) or "none"
        prefix = "no" if version is None else f"no version {version} of"
        raise InvalidInputError(f"{prefix} artifact {name!r:.120}", hint=f"The artifacts are: {names}.")
    return Artifact.model_validate(stored)


async def read_artifact_text(
    memory: AreaReader, run_id: str, artifact: Artifact, begin: int = 0, end: int | None = None
) -> str:
    """Read the text of ``artifact``, or its characters from ``begin`` to before ``end``."""
    end = artifact.chars if end is None else min(end, artifact.chars)
    texts: list[str] = []
    position = 0
    for key in artifact.pieces:
        length = _get_piece_length(key)
        if position < end and position + length > begin:
            piece: str = await open_engine_memory(memory).get(build_artifact_namespace(run_id), key, "")
            texts.append(piece[max(0, begin - position) : end - position])
        position += length
    return "".join(texts)


class Artifacts(Toolset):
    """Tools by which an agent writes texts beside its conversation: create, append, read and list.

    The names of the tools begin with ``artifact_``. Clients read the texts by ``await run.artifacts()``. They belong to
    the conversation, and stay when it continues under the same id.
    """

    name = "artifacts"

    def __init__(self, *, prefix: str = "artifact_") -> None:
        self.prefix = prefix
        self._tools: list[Tool] = [
            tool(_create_artifact, name="create", inline=True),
            tool(_append_to_artifact, name="append", inline=True),
            tool(_read_artifact, name="read", inline=True),
            tool(_list_artifacts, name="list", inline=True),
        ]

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
    last = await open_engine_memory(ctx.memory).get(build_artifact_namespace(ctx.run_id), f"last:{name}")
    version = Artifact.model_validate(last).version + 1 if last else 1
    return await _store_version(ctx, Artifact(name=name, version=version, chars=0), content, last)


async def _append_to_artifact(ctx: ToolContext, name: str, content: str) -> str:
    """Add text to the end of an artifact.

    Args:
        name: What it is called.
        content: The text to add.
    """
    last = await find_artifact(ctx.memory, ctx.run_id, name)
    pieces, chars = last.pieces, last.chars
    if pieces and (length := _get_piece_length(pieces[-1])) < MIN_PIECE_CHARS:
        content = await read_artifact_text(ctx.memory, ctx.run_id, last, chars - length) + content
        pieces, chars = pieces[:-1], chars - length
    begun = Artifact(name=name, version=last.version + 1, chars=chars, pieces=pieces)
    return await _store_version(ctx, begun, content, last.model_dump(mode="json"))


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
    text = await read_artifact_text(ctx.memory, ctx.run_id, artifact, begin, begin + length)
    if begin + len(text) < artifact.chars:
        text += f"\n[characters {begin} to {begin + len(text)} of {artifact.chars}]"
    return text


async def _list_artifacts(ctx: ToolContext) -> str:
    """List the artifacts: name, version and length of each."""
    return "\n".join(map(str, await list_artifacts(ctx.memory, ctx.run_id))) or "none yet"


async def _store_version(ctx: ToolContext, begun: Artifact, content: str, last: Any) -> str:
    """Store the version ``begun`` with ``content`` added at its end; ``last`` is the last version as it was read."""
    content = clean_text(content)
    namespace, name = build_artifact_namespace(ctx.run_id), begun.name
    pieces = list(begun.pieces)
    for begin in range(0, len(content), PIECE_CHARS):
        piece = content[begin : begin + PIECE_CHARS]
        # The call's own key: two versions of one number, of calls at the same time, must not mix their texts.
        pieces.append(f"piece:{ctx.idempotency_key[:16]}:{begin // PIECE_CHARS}:{len(piece)}")
        await open_engine_memory(ctx.memory).put(namespace, pieces[-1], piece)
    if len(pieces) > MAX_PIECES:
        raise InvalidInputError(f"artifact {name!r} would be too long", hint="Begin another one.")
    artifact = begun.model_copy(update={"chars": begun.chars + len(content), "pieces": tuple(pieces)})
    plain = artifact.model_dump(mode="json")
    await open_engine_memory(ctx.memory).put(namespace, f"version:{name}:{begun.version:06}", plain)
    # Another call may change it at the same time, in this worker or another: the later of the two runs once more.
    await open_engine_memory(ctx.memory)._put_if_unchanged(namespace, f"last:{name}", last, plain)
    return str(artifact)


def _get_piece_length(piece: str) -> int:
    """Read the length of a piece from its key."""
    return int(piece.rpartition(":")[2])


def _check_artifact_name(name: str) -> None:
    if not 0 < len(name) <= ARTIFACT_NAME_CHARS or not name.isprintable():
        hint = f"A name has 1 to {ARTIFACT_NAME_CHARS} printable characters, for instance report.md."
        raise InvalidInputError(f"{name!r:.120} is not a name of an artifact", hint=hint)
