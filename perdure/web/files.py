"""Files: uploads, which messages may then name, and the files, long texts and artifacts of a session.

A blob of the store is named by its SHA-256 alone, and sessions of all tenants share the store. So a hash gives no
right to the bytes: a message may name a file only if its sender has uploaded it, or if its session has it already; and
a session shows a blob only if a message, an event or the result of the session refers to it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, cast
from urllib.parse import quote

from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..artifacts import Artifact
from ..errors import InvalidInputError
from ..ports.store import Blob, Commit, Store, record_file
from ..types.events import decode_event
from ..types.interface import Response as RunResponse
from ..types.messages import (
    MAX_FILE_BYTES,
    MAX_FILE_NAME_CHARS,
    BlobRef,
    File,
    FilePart,
    detect_media_type,
    parse_messages,
)
from .limits import BODY_SECONDS, get_caller_key
from .operations import Call, Input, Operation
from .problems import NotFoundError, WebError

logger = logging.getLogger("perdure.web")

UPLOAD_DAYS = 1
"""An upload may be named by messages until the end of the day (UTC) so many days later: before a collector of garbage
deletes a file to which nothing refers."""
_KEEP_SECONDS = (UPLOAD_DAYS + 1) * 86400.0
SEND_SECONDS = 60.0
"""How long a receiver may take for one piece of a file, before its connection is closed."""
_PIECE_BYTES = 64 * 1024
_HASH = re.compile(r"[0-9a-f]{64}")
_UNSAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of what agents and users have written: a browser stores it, and neither shows nor runs it."""

# ---
# Uploads.


class UploadQuery(Input):
    """About a file that is uploaded."""

    name: str | None = Field(default=None, max_length=1000)
    """Its name, for the model and for those who download it; folders and control characters are left out."""
    media_type: str | None = Field(default=None, max_length=255)
    """Counts where the bytes do not show the type, as those of images and PDFs do."""


class UploadedFile(BaseModel):
    """A file of the store: may be a part of a message's content as it is."""

    type: Literal["file"] = "file"
    media_type: str
    name: str | None = None
    blob: BlobRef


async def upload_file(call: Call) -> UploadedFile:
    """Upload a file: the body is its bytes. The answer may be sent as a part of a message's content."""
    query, data = cast(UploadQuery, call.query), cast(bytes, call.body)
    content_type = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type.startswith("multipart/"):
        raise WebError(
            "a file is uploaded as it is, not as a form", status=415, name="UnsupportedMediaTypeError",
            hint="Send its bytes as the body, as application/octet-stream or with the file's own type.",
        )  # fmt: skip
    media_type = query.media_type or (None if content_type in _UNKNOWN_TYPES else content_type)
    return await store_upload(call, data, query.name, media_type)


async def store_upload(call: Call, data: bytes, name: str | None, media_type: str | None) -> UploadedFile:
    """Store a file that the caller has sent: its messages may then name it. ``media_type`` counts where the bytes do
    not show the type. Raises ``InvalidInputError``, ``WebError``."""
    if not data:
        raise WebError("the file is empty", name="InvalidInputError", hint="Models refuse empty files.")
    name = clean_file_name(name)
    media_type = detect_media_type(data) or media_type
    try:
        file = File(data, media_type, name)
    except InvalidInputError:
        if media_type is not None:
            raise
        file = File(data, "application/octet-stream", name)
    blobs: list[Blob] = []
    part = await record_file(file, blobs)
    blob = cast(BlobRef, part.blob)
    store = await call.client.store(create=True)
    await _check_quota(call, store, blob)
    await store.commit(Commit(blobs=blobs))
    await _record_upload(call, store, blob)
    return UploadedFile(media_type=part.media_type, name=part.name, blob=blob)


_UNKNOWN_TYPES = ("", "application/octet-stream", "application/x-www-form-urlencoded", "binary/octet-stream")
"""Content types that say nothing of a file: the last but one is curl's default."""


def clean_file_name(name: str | None) -> str | None:
    """Return the last part of a path, without characters that control a terminal, a header or the direction of text;
    None for nothing."""
    last = re.split(r"[/\\]", name or "")[-1]
    kept = "".join(letter for letter in last if unicodedata.category(letter) not in _CONTROL_CATEGORIES)
    return kept.strip(" .")[:MAX_FILE_NAME_CHARS] or None


_CONTROL_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")


def _build_upload_key(call: Call, hash: str, day: datetime) -> str:
    return f"http-file/{call.scope}/{day.date().isoformat()}/{hash}"


async def _check_quota(call: Call, store: Store, blob: BlobRef) -> None:
    """Refuse a file beyond what a caller may have uploaded and not forgotten: counted in the store, for all replicas.
    Files that are uploaded at once may exceed it together by what a replica holds of bodies. Raises ``WebError``."""
    limits = call.web.limits
    if blob.size > limits.upload_bytes:
        raise WebError(f"a caller may upload {limits.upload_bytes:,} bytes", status=413, name="UploadQuotaError")
    answers = await store.list_idempotency_answers(f"http-file/{call.scope}/", 2 * limits.upload_files + 1)
    known = {known.hash: known.size for known in map(BlobRef.model_validate_json, answers)}
    if blob.hash in known:
        return
    used = sum(known.values())
    if used + blob.size <= limits.upload_bytes and len(known) < limits.upload_files:
        return
    now = datetime.now(UTC)
    tomorrow = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    raise WebError(
        f"the caller has uploaded {len(known):,} files with {used:,} bytes since yesterday (UTC), and may have "
        f"{limits.upload_files:,} with {limits.upload_bytes:,}",
        status=429,
        name="UploadQuotaError",
        hint="Those of yesterday no longer count from midnight (UTC) on.",
        headers={"Retry-After": str(max(1, int((tomorrow - now).total_seconds())))},
    )


async def _record_upload(call: Call, store: Store, blob: BlobRef) -> None:
    """Record that the caller has uploaded the file, in the table of idempotency keys, whose rows expire."""
    key, answer = _build_upload_key(call, blob.hash, datetime.now(UTC)), blob.model_dump_json().encode()
    while True:
        claim = await store.claim_idempotency(key, blob.hash, call.scope, lease_seconds=1.0, keep_seconds=_KEEP_SECONDS)
        # Not recorded if a look at the row has freed the key meanwhile.
        if claim.state == "done" or await store.complete_idempotency(key, call.scope, answer):
            return


async def _find_upload(call: Call, store: Store, hash: str) -> BlobRef | None:
    """Return the file if the caller has uploaded it lately."""
    today = datetime.now(UTC)
    for days in range(UPLOAD_DAYS + 1):
        key = _build_upload_key(call, hash, today - timedelta(days=days))
        # There is no plain read of a key. The owner is the uploader's, so that neither of two at once waits.
        claim = await store.claim_idempotency(key, hash, call.scope, lease_seconds=1.0, keep_seconds=_KEEP_SECONDS)
        if claim.state == "done":
            return BlobRef.model_validate_json(claim.answer or b"")
        await store.complete_idempotency(key, call.scope, None)
    return None


async def check_uploads(call: Call, blobs: Iterable[BlobRef]) -> None:
    """Check the files that a message names: each must have been uploaded by the caller, or be in the session of the
    path. Raises ``InvalidInputError``."""
    given = {blob.hash: blob for blob in blobs}
    if not given:
        return
    store = await call.client.store()
    for name, blob in given.items():
        found = await _find_upload(call, store, name) if store.store_id else None
        if found is None and _is_about_session(call):
            reference = await _find_reference(call, name)
            found = reference.blob if reference is not None else None
        if found is None:
            raise InvalidInputError(
                f"content: you have not uploaded a file {name}, or too long ago",
                hint="Upload it (again): POST /v1/files.",
            )
        if found.size != blob.size:
            raise InvalidInputError(f"content: file {name} has {found.size:,} bytes, not {blob.size:,}")


def _is_about_session(call: Call) -> bool:
    """Whether the path names a session that the caller may see. The id of a schedule may be that of any session."""
    resource = call.resource
    return resource is not None and resource.kind == "session" and resource.id is not None


# ---
# The files and long texts of a session.


class _Reference(BaseModel):
    """A reference of a session to a blob."""

    blob: BlobRef
    name: str | None = None


def _iterate_references(value: Any) -> Iterator[_Reference]:
    """Yield the references in a message or an event. What is plain JSON there is not looked at: a model or a client
    may have written the hash of any blob into it."""
    if isinstance(value, FilePart):
        if value.blob is not None:
            yield _Reference(blob=value.blob, name=value.name)
    elif isinstance(value, BlobRef):
        yield _Reference(blob=value)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _iterate_references(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _iterate_references(item)


def _pick_reference(values: Iterable[Any], hash: str) -> _Reference | None:
    return next((found for value in values for found in _iterate_references(value) if found.blob.hash == hash), None)


async def _find_reference(call: Call, hash: str) -> _Reference | None:
    """Return how the session of the path refers to the blob: by a message of its transcript, also one that a summary
    has replaced, by an event of its own or of a subagent, or by its result; None if it does not."""
    if not _HASH.fullmatch(hash):
        return None
    store = await call.client.store()
    holders = (await store.read_holders([hash])).get(hash, set())
    # Only candidates: they are found by the form of their JSON, and the id of a run may look like a hash.
    nodes = [holder for holder in holders if _HASH.fullmatch(holder)]
    if nodes and (found := await _find_in_transcript(call, store, hash, nodes)) is not None:
        return found
    return await _find_in_events(call, store, hash) if holders else None


async def _find_in_transcript(call: Call, store: Store, hash: str, nodes: list[str]) -> _Reference | None:
    heads, needle = [await call.run.read_head(store)], hash.encode()
    while heads:
        head = heads.pop()
        while head is not None:
            chain = await store.read_nodes(head, until=[node for node in nodes if node != head])
            for node in chain:
                if needle not in node.body and b'"replaces"' not in node.body:
                    continue
                messages = parse_messages(node.body)
                if (found := _pick_reference(messages, hash)) is not None:
                    return found
                heads += [message.replaces.head for message in messages if message.replaces is not None]
            head = chain[0].parent if chain else None  # the chain ends before a candidate, or at its root
    return None


async def _find_in_events(call: Call, store: Store, hash: str) -> _Reference | None:
    session_id, after, needle = call.params["id"], 0, hash.encode()
    row = await store.get_run(session_id)
    if row is not None and row.result is not None and needle in row.result:
        result = RunResponse[Any].model_validate_json(row.result)
        if result.blob is not None and result.blob.hash == hash:
            return _Reference(blob=result.blob)
    while rows := await store.read_events(session_id, after=after):
        for event in rows:
            if needle in event.body:
                decoded = decode_event(event.child or session_id, event.seq, event.task_id, event.type, event.body)
                if (found := _pick_reference([decoded], hash)) is not None:
                    return found
        after = rows[-1].seq
    return None


async def get_file(call: Call) -> Response:
    """Download a file or a long text of a session: what a message, an event or its result refers to by ``blob``."""
    name = call.params["hash"]
    reference = await _find_reference(call, name)
    if reference is None:
        raise NotFoundError(f"the session has no file {name!r:.100}")
    headers = {"ETag": f'"{name}"', "Cache-Control": "private, max-age=31536000, immutable", "Vary": "Authorization"}
    if has_etag(call, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    size, key = reference.blob.size, get_caller_key(call.caller)
    call.web.held.take(size, key)
    try:
        data = await call.client.file(FilePart(media_type="application/octet-stream", blob=reference.blob))
        media_type = await asyncio.to_thread(_detect_safe_type, data)
    except BaseException:
        call.web.held.release(size, key)
        raise
    headers |= _UNSAFE_HEADERS | {"Content-Disposition": build_disposition(reference.name, name, media_type)}
    return Download(data, headers, media_type, partial(call.web.held.release, size, key))


def has_etag(call: Call, etag: str) -> bool:
    """Whether the caller has that version already."""
    given = ",".join(call.request.headers.getlist("if-none-match"))
    return etag in (tag.strip().removeprefix("W/") for tag in given.split(","))


def _detect_safe_type(data: bytes) -> str:
    """Return the type that ``data`` is served as: what its bytes show, never what its uploader or a tool has said."""
    if (detected := detect_media_type(data)) is not None:
        return detected
    try:
        data.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain; charset=utf-8"


_SUFFIXES: Mapping[str, str] = {"text/plain; charset=utf-8": ".txt", "application/octet-stream": ".bin"}


def build_disposition(name: str | None, hash: str, media_type: str) -> str:
    """Build the header that has a browser store a file under a safe name (RFC 6266)."""
    suffix = _SUFFIXES.get(media_type) or f".{media_type.partition('/')[2]}"
    name = clean_file_name(name) or f"{hash[:16]}{suffix}"
    name = name.encode("utf-8", "replace").decode()
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


class Download(Response):
    """Sends bytes as fast as their receiver takes them; a receiver that does not is disconnected. ``on_close`` is
    called at the end."""

    def __init__(self, data: bytes, headers: Mapping[str, str], media_type: str, on_close: Callable[[], None]) -> None:
        super().__init__(b"", 200, {**headers, "Content-Length": str(len(data))}, media_type)
        self._data = data
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; for HEAD the headers alone."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            data = memoryview(b"" if scope["method"] == "HEAD" else self._data)
            loop = asyncio.get_running_loop()
            deadline = loop.time() + BODY_SECONDS
            for begin in range(0, len(data), _PIECE_BYTES):
                piece = bytes(data[begin : begin + _PIECE_BYTES])
                async with asyncio.timeout_at(min(deadline, loop.time() + SEND_SECONDS)):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:  # the receiver has stopped reading: nothing can be said to it
            logger.info("a receiver of a file was too slow, and its connection was closed")
        finally:
            self._on_close()


# ---
# Artifacts.


class ArtifactInfo(BaseModel):
    """The last version of an artifact."""

    name: str
    version: int
    chars: int
    """Length of its text."""


class ArtifactList(BaseModel):
    """The artifacts of a session, by name."""

    data: list[ArtifactInfo]


class ArtifactQuery(Input):
    """Which version."""

    version: int | None = Field(default=None, ge=1, le=10**9)
    """By default the last one."""


async def list_artifacts(call: Call) -> ArtifactList:
    """List the artifacts that the agent has written beside the conversation: the last version of each."""
    return ArtifactList(data=[_describe(artifact) for artifact in await call.run.artifacts()])


def _describe(artifact: Artifact) -> ArtifactInfo:
    return ArtifactInfo(name=artifact.name, version=artifact.version, chars=artifact.chars)


async def get_artifact(call: Call) -> Response:
    """Get the text of an artifact."""
    name, version = call.params["name"], cast(ArtifactQuery, call.query).version
    try:
        text = await call.run.artifact(name, version)
    except InvalidInputError as error:
        raise NotFoundError(error.message, hint=error.hint) from None
    data = text.encode()
    digest = hashlib.sha256(data).hexdigest()
    headers = {"ETag": f'"{digest}"', "Cache-Control": "private, no-cache", "Vary": "Authorization"}
    if has_etag(call, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    media_type = "text/plain; charset=utf-8"
    headers |= _UNSAFE_HEADERS | {"Content-Disposition": build_disposition(name, digest, media_type)}
    key = get_caller_key(call.caller)
    call.web.held.take(len(data), key)
    return Download(data, headers, media_type, partial(call.web.held.release, len(data), key))


_TAG = "files"
OPERATIONS = [
    Operation(
        "POST",
        "/files",
        upload_file,
        "send",
        body=bytes,
        max_bytes=MAX_FILE_BYTES,
        query=UploadQuery,
        answer=UploadedFile,
        status=201,
        kind="file",
        body_type="application/octet-stream",
        tag=_TAG,
    ),
    Operation(
        "GET",
        "/sessions/{id:segment}/files/{hash:segment}",
        get_file,
        "read",
        answer_type="*/*",
        tag=_TAG,
    ),
    Operation("GET", "/sessions/{id:segment}/artifacts", list_artifacts, "read", answer=ArtifactList, tag=_TAG),
    Operation(
        "GET",
        "/sessions/{id:segment}/artifacts/{name:segment}",
        get_artifact,
        "read",
        query=ArtifactQuery,
        answer_type="text/plain",
        tag=_TAG,
    ),
]
