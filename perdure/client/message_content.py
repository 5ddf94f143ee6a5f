"""Message content as it is sent: long texts and the bytes of files go into the store, and a message refers to them."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from .. import _config as config
from ..errors import InvalidInputError
from ..types.client_tools import (
    INLINE_CLIENT_TOOLS_BYTES,
    ClientTool,
    ClientTools,
    encode_client_tools,
    measure_client_tools,
    parse_client_tools,
)
from ..types.engine_texts import EngineText, escape_engine_tags
from ..types.interface import CallerOverride, CallerRequest, Override, UserMessage
from ..types.messages import (
    BlobRef,
    Content,
    ContentPart,
    Dataclass,
    File,
    FilePart,
    MessageInput,
    TextPart,
    clean_text,
    normalize_content,
)
from ..types.plain_json import to_plain_json
from ..types.validation_errors import describe_validation_error
from .audit import acts_for_caller
from .handles import ClientHandle

if TYPE_CHECKING:
    from ..ports.store import Blob, Store

MAX_INLINE_BYTES = 128 * 1024
"""Bytes of text in one message. Longer texts go into the store: Temporal refuses payloads over 2 MB, and history would
keep them."""

STORE_HINT = "Give the client store_url=… or set PERDURE_STORE_URL to the store of the workers."

AnyOverride = Override | CallerOverride | Mapping[str, Any]
"""Changes of the agent: a program's own, as an ``Override`` or its fields; or what a caller of it asks for."""
UploadedContent = str | BlobRef | tuple[ContentPart, ...]


async def build_user_message(
    client: ClientHandle,
    content: MessageInput | None,
    *,
    id: str | None = None,
    by: str | None = None,
    task_id: str | None = None,
    override: AnyOverride | None = None,
    client_tools: Sequence[ClientTool | Mapping[str, Any]] | None = None,
) -> UserMessage:
    """Build the message to send from ``content``; long texts, files and client tools are put into the store first. A
    typed input is sent as plain JSON, readable to any client, and a long one as text.

    Raises ``InvalidInputError`` for an invalid message, and for a long text or a file without a store.
    """
    fields = {"content": None, "id": id, "by": by or client.actor, "task_id": task_id, **split_override(override)}
    try:
        message = UserMessage.model_validate(fields)
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, "message")) from None
    tools, tools_store_id = await upload_client_tools(client, client_tools)
    message = message.model_copy(update={"client_tools": tools, "store_id": tools_store_id})
    if content is None:
        return message
    if acts_for_caller():
        content = escape_content(content)
        if not isinstance(content, str | Mapping | BaseModel | Dataclass):
            check_file_urls(piece.url for piece in content if isinstance(piece, File | FilePart))
    typed = False
    if isinstance(content, Mapping | BaseModel | Dataclass):
        try:
            plain = to_plain_json(content)
        except ValueError as flaw:
            raise InvalidInputError(f"the input cannot be written as JSON: {flaw}", hint="Give plain values.") from None
        content, typed = json.dumps(plain, ensure_ascii=False), True
        if _fits(content, MAX_INLINE_BYTES):
            return message.model_copy(update={"input": plain})
    uploaded, store_id = await upload_content(client, content)
    return message.model_copy(update={"content": uploaded, "store_id": store_id or tools_store_id, "typed": typed})


def split_override(override: AnyOverride | None) -> dict[str, Any]:
    """Return the fields ``override`` and ``caller_request`` of a start or a message: a ``CallerOverride`` is a caller's
    wish, and what a service sends for a caller says so, whatever it has of an override."""
    asked = override if isinstance(override, CallerOverride) else None
    caller = CallerRequest(override=asked) if asked is not None or acts_for_caller() else None
    if isinstance(override, Override):
        override = override.model_dump(mode="json", exclude_unset=True)
    plain = None if caller is None else caller.model_dump(mode="json", exclude_none=True)
    return {"override": None if override is None or asked is not None else dict(override), "caller_request": plain}


def escape_content(content: MessageInput) -> MessageInput:
    """Return ``content`` with the engine's tags escaped in its texts, but for those of the engine itself."""
    if isinstance(content, str):
        return content if isinstance(content, EngineText) else escape_engine_tags(content)
    if isinstance(content, Mapping | BaseModel | Dataclass):
        return content  # written as JSON, of a known form
    return [escape_engine_tags(p) if isinstance(p, str) and not isinstance(p, EngineText) else p for p in content]


_NUMERIC_LABEL = re.compile(r"\d+|0x[0-9a-f]*", re.IGNORECASE)
_PRIVATE_NAMES = ("localhost", "local", "internal", "home.arpa")


def check_file_urls(urls: Iterable[str | None]) -> None:
    """Refuse URLs of files that a caller of a service may not send: a model's API, or the library that speaks to it,
    fetches them from where the caller cannot, and ``s3://`` or ``gs://`` with the rights of the operator's account.
    Raises ``InvalidInputError``."""
    for url in urls:
        if url is None or config.are_all_file_urls_allowed():
            continue
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            host, port = "", None
        if not host or parts.scheme.lower() != "https" or "@" in parts.netloc or not _is_public_host(host):
            raise InvalidInputError(
                f"url: {url[:100]!r} is not the https URL of a public host, without a user"
                + (f" (port {port})" if port else ""),
                hint="Upload the file: POST /v1/files. PERDURE_FILE_URLS=any allows the callers of a service any URL.",
            )


def _is_public_host(host: str) -> bool:
    """Whether a name or an address is not one of a private network. A name is not looked up: another machine will."""
    from .._webhook_wire import is_public  # it loads http.client, which no other message needs

    try:
        return is_public(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.lower().split(".")
    if len(labels) < 2 or _NUMERIC_LABEL.fullmatch(labels[-1]):  # other ways to write an IPv4 address
        return False
    return not any(f".{host.lower()}".endswith(f".{name}") for name in _PRIVATE_NAMES)


async def upload_client_tools(
    client: ClientHandle, raw: Sequence[ClientTool | Mapping[str, Any]] | None
) -> tuple[ClientTools | None, str | None]:
    """Return client tools in the form of a message, and the id of the store that they were put into; without a store a
    few small ones as they are. Raises ``InvalidInputError``."""
    from ..ports.store import Blob, Commit

    tools = None if raw is None else parse_client_tools(raw)
    if not tools:
        return tools, None
    if client.store_url is None:
        if (size := measure_client_tools(tools)) > INLINE_CLIENT_TOOLS_BYTES:
            limit = f"more than {INLINE_CLIENT_TOOLS_BYTES:,} are sent through the store, and this client has none"
            raise InvalidInputError(f"client_tools: they have {size:,} bytes as JSON; {limit}", hint=STORE_HINT)
        return tools, None
    store = await client.store(create=True)
    blob = Blob.from_content(encode_client_tools(tools))
    await store.commit(Commit(blobs=[blob]))
    return blob.ref, store.store_id


async def upload_content(client: ClientHandle, content: Content) -> tuple[UploadedContent, str | None]:
    """Return ``content`` in the form of a message, and the id of the store if some of it was uploaded.

    Raises ``InvalidInputError`` for an invalid message, and where a store is needed and the client has none.
    """
    from ..ports.store import Commit

    blobs: list[Blob] = []
    stored: list[BlobRef] = []
    uploaded: UploadedContent
    if isinstance(content, str):
        part = _upload_long_text(clean_text(content), MAX_INLINE_BYTES, blobs)
        uploaded = part.blob or part.text
    else:
        pieces = normalize_content(content)
        stored = [piece.blob for piece in pieces if isinstance(piece, FilePart) and piece.blob is not None]
        uploaded = await _upload_parts(pieces, blobs)
    if not blobs and not stored:
        return uploaded, None
    if client.store_url is None:
        if isinstance(uploaded, tuple) and any(isinstance(part, FilePart) and part.blob for part in uploaded):
            hint = f"{STORE_HINT} Or send File.at(url)."
            raise InvalidInputError("files are sent through the store, and this client has none", hint=hint)
        size = f"the message has {sum(len(blob.body) for blob in blobs):,} bytes"
        limit = f"more than {MAX_INLINE_BYTES:,} are sent through the store, and this client has none"
        raise InvalidInputError(f"{size}; {limit}", hint=STORE_HINT)
    store = await client.store(create=True)
    found = await hold_blobs(store, [ref.hash for ref in stored])
    if missing := next((ref.hash for ref in stored if ref.hash not in found), None):
        raise InvalidInputError(f"the store has no file {missing}", hint="Upload it again.")
    if blobs:
        await store.commit(Commit(blobs=blobs))
    return uploaded, store.store_id


async def hold_blobs(store: Store, hashes: Sequence[str]) -> set[str]:
    """Return which of these blobs the store has. A collector deletes none of them for days: what names them is not
    written yet."""
    from ..ports.times import format_utc_now

    if not hashes:
        return set()
    today = format_utc_now()[:10]
    await store.renew(hashes, today, today)  # first: what is found then was not deleted meanwhile
    return await store.find_blobs(hashes)


async def _upload_parts(content: list[str | File | FilePart], blobs: list[Blob]) -> tuple[ContentPart, ...]:
    from ..ports.store import move_file_to_blob, record_file

    parts: list[ContentPart] = []
    left = MAX_INLINE_BYTES
    for piece in content:
        if isinstance(piece, str):
            part = _upload_long_text(clean_text(piece), left, blobs)
            left -= len(part.text.encode())
            parts.append(part)
        elif isinstance(piece, FilePart):
            parts.append(move_file_to_blob(piece, blobs))
        else:
            parts.append(await record_file(piece, blobs))
    return tuple(parts)


def _upload_long_text(text: str, room: int, blobs: list[Blob]) -> TextPart:
    from ..ports.store import add_blob

    return TextPart(text=text) if _fits(text, room) else TextPart(blob=add_blob(blobs, text))


def _fits(text: str, room: int) -> bool:
    """Whether the text has at most ``room`` bytes; a short one is not encoded for that."""
    return len(text) * 4 <= room or len(text.encode()) <= room
