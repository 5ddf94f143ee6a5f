"""Connections to MCP servers, each in a task of its own: the SDK requires that the task that opened one closes it.

Requests share a connection, and each is judged by its own HTTP exchanges (:mod:`.exchanges`). The SDK sends a request
in the context (``contextvars``) of its caller, so the HTTP client finds the list that belongs to the request.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mcp import Client, MCPError, types
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from ..errors import ToolError
from ..ports.toolset import ListedTool
from ..types.messages import File
from .exchanges import (
    GATEWAY_STATUSES,
    Exchange,
    Verdict,
    ends_session,
    judge,
    judge_request,
    record_exchanges,
    stop_recording,
)

logger = logging.getLogger("perdure.worker")

OPEN_TIMEOUT = 30.0
"""Seconds that a server may take to start and to answer the handshake."""
CLOSE_TIMEOUT = 10.0
"""Seconds that a server may take to stop; the SDK kills its process before."""
HTTP_ERROR = 400

StreamFactory = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens the streams to a server."""


class NotSentError(ToolError):
    """The server did not carry out the request: a retry does no harm."""

    is_final = False
    """A retry cannot help: there is no such program, or no permission."""
    is_session_lost = False
    """The server does not know the session: a new one helps, at once."""
    retry_after: float | None = None
    """Seconds that the server wants to be left alone."""


class LostError(ToolError):
    """The answer to a request was lost, and its outcome is unknown."""

    may_return = False
    """A proxy says that there is no server now: it may come back in some seconds."""


class Connection:
    """An open connection to a server. Belongs to the event loop that made it."""

    def __init__(self, name: str, transport: StreamFactory, on_tools_changed: Callable[[], None]) -> None:
        """``on_tools_changed`` is called when the server reports a changed list of tools."""
        self._name = name
        self._transport = transport
        self._on_tools_changed = on_tools_changed
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._close_requested = asyncio.Event()
        self._active_requests = 0
        self._opening: list[Exchange] = []
        """The exchanges of the handshake."""
        self.is_open = True
        """Whether it takes requests. Once false, it stays false."""
        self._task = asyncio.get_running_loop().create_task(self._keep_open())

    async def send_request(self, request: Callable[[Client], Any]) -> Any:
        """Send ``request``, return its result. Raises ``NotSentError``, ``LostError``, or the server's ``MCPError``."""
        client = await self._wait_until_open()
        if not self.is_open:
            raise NotSentError(f"the connection to MCP server {self._name!r} is closed")
        self._active_requests += 1
        exchanges: list[Exchange] = []
        token = record_exchanges(exchanges)
        try:
            return await request(client)
        except MCPError as error:
            if (connection_error := self._classify_error(error, exchanges)) is None:
                raise  # the server's own answer
            self.retire()
            raise connection_error from error
        except ValidationError as error:
            raise LostError(
                f"the result of MCP server {self._name!r} is not as the protocol says: {str(error).splitlines()[0]}"
            ) from error
        finally:
            stop_recording(token)
            self._active_requests -= 1
            if not self.is_open and not self._active_requests:
                self._close_requested.set()

    def _classify_error(self, error: MCPError, exchanges: list[Exchange]) -> ToolError | None:
        """Classify the error of a request with these exchanges; None if it is the server's own answer."""
        verdict, exchange = judge_request(exchanges, error)
        if verdict is Verdict.OWN:
            if ends_session(exchanges, error):
                self.retire()
            return None
        if verdict is Verdict.LOST:
            what = exchange.describe() if exchange is not None else str(error).splitlines()[0]
            return self._build_lost_error(exchange, what)
        assert exchange is not None, "a verdict of an exchange"
        return self._build_refusal(exchange, verdict, f"MCP server {self._name!r} refuses: {exchange.describe()}")

    def _build_lost_error(self, exchange: Exchange | None, what: str) -> LostError:
        if exchange is None or exchange.failure:
            is_closed = exchange is not None or "onnection closed" in what or what.startswith("SSE stream")
            how = (
                "the connection to MCP server {} was lost"
                if is_closed
                else "the answer of MCP server {} cannot be read"
            )
            return LostError(f"{how.format(repr(self._name))}: {what}")
        if exchange.is_unreadable:
            return LostError(f"the answer of MCP server {self._name!r} cannot be read: {what}")
        lost = LostError(f"MCP server {self._name!r} failed: {what}")
        lost.may_return = exchange.status in GATEWAY_STATUSES
        return lost

    def _build_refusal(self, exchange: Exchange, verdict: Verdict, message: str) -> NotSentError:
        hint = (
            "Look at its headers=, or at the credentials that they are made of."
            if exchange.status in (401, 403)
            else None
        )
        refusal = NotSentError(message, hint=hint)
        refusal.is_final = verdict is Verdict.REFUSED
        refusal.is_session_lost = verdict is Verdict.NEW_SESSION
        refusal.retry_after = exchange.retry_after
        return refusal

    async def close(self) -> None:
        """Close the connection, and wait until the server's process has ended."""
        self.is_open = False
        self._close_requested.set()
        if not self._client.done():  # it never opened
            self._task.cancel()
        await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)

    async def _wait_until_open(self) -> Client:
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                return await asyncio.shield(self._client)
        except TimeoutError:
            self.is_open = False
            self._task.cancel()
            raise NotSentError(f"MCP server {self._name!r} did not open within {OPEN_TIMEOUT:g} s") from None
        except (OSError, RuntimeError, ExceptionGroup, MCPError, ValueError) as error:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):  # the SDK wraps errors in groups
                cause = cause.exceptions[0]
            last = self._opening[-1] if self._opening else None
            if isinstance(cause, MCPError) and last is not None and (last.status >= HTTP_ERROR or last.is_unreadable):
                message = f"MCP server {self._name!r} cannot be opened: {last.describe()}"
                raise self._build_refusal(last, judge(last), message) from error
            not_sent = NotSentError(f"MCP server {self._name!r} cannot be opened: {type(cause).__name__}: {cause}")
            not_sent.is_final = isinstance(cause, FileNotFoundError | PermissionError | ValueError)
            raise not_sent from error

    def retire(self) -> None:
        """Take no new requests, and close the connection when the last one has ended."""
        self.is_open = False
        if not self._active_requests:
            self._close_requested.set()

    def _handle_stream_end(self) -> None:
        if self.is_open:
            logger.info("MCP server %s has closed its connection; the next call opens another", self._name)
        self.retire()

    async def _keep_open(self) -> None:
        record_exchanges(self._opening)
        try:
            streams = _watch_streams(self._name, self._transport(), self._handle_stream_end)
            async with Client(streams, cache=None, message_handler=self._handle_message) as client:
                client.session.validate_tool_result = _accept_tool_result  # type: ignore[method-assign]  # see there
                if not self._client.done():
                    self._client.set_result(client)
                listening = asyncio.create_task(self._listen_for_changes(client))
                try:
                    await self._close_requested.wait()
                finally:
                    listening.cancel()
                    await asyncio.wait([listening])
        except BaseException as error:
            if not self._client.done():
                self._client.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
                self._client.exception()  # marks it as retrieved: the requests that waited for it may have ended
            elif isinstance(error, Exception):
                logger.debug("MCP server %s: %s at the end", self._name, type(error).__name__)
            if not isinstance(error, Exception):
                raise
        finally:
            self.is_open = False

    async def _listen_for_changes(self, client: Client) -> None:
        """Ask for reports of changed tools: servers of the newer protocol send them only to clients that ask."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed or client.protocol_version < "2026":
            return
        try:
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._on_tools_changed()
        except Exception as error:  # the lists are read again from time to time anyway
            logger.debug("MCP server %s does not report changed tools: %s", self._name, type(error).__name__)

    async def _handle_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_tools_changed()


async def _accept_tool_result(name: str, result: types.CallToolResult) -> None:
    """Take a result as it is, instead of :meth:`mcp.ClientSession.validate_tool_result`. The call has happened: an
    error would have the model call again because a server breaks its own schema, or has not listed the tool."""


@asynccontextmanager
async def _watch_streams(
    name: str, transport: AbstractAsyncContextManager[Any], on_end: Callable[[], None]
) -> AsyncIterator[tuple[Any, Any]]:
    """Open the transport's streams to server ``name``; ``on_end`` is called when the incoming stream has ended."""
    async with transport as (read, write):
        yield _WatchedStream(name, read, on_end), write


class _WatchedStream:
    """The stream of the server's messages."""

    def __init__(self, name: str, stream: Any, on_end: Callable[[], None]) -> None:
        self._name = name
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            message = await self._stream.__anext__()
        except StopAsyncIteration:
            self._on_end()
            raise
        _mend_result(self._name, message)
        return message

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._stream.__aexit__(*raised)


# ---
# Results that are not as the specification says: the SDK would refuse a whole list for one tool, and all of a call's
# result for one part.


_OWN_SCHEMA = "x-perdure-schema"
"""Where a schema stands that the SDK would refuse."""
_LIST_METHOD, _CALL_METHOD, _VERSION = "tools/list", "tools/call", "2025-11-25"


def _mend_result(server: str, message: Any) -> None:
    """Change the list of tools or the result of a call in ``message``, if it has one, so that the SDK takes it."""
    result = getattr(getattr(message, "message", None), "result", None)
    if not isinstance(result, dict):
        return
    if isinstance(result.get("tools"), list):
        result["tools"] = [tool for entry in result["tools"] if (tool := _mend_tool(server, entry)) is not None]
    elif "content" in result or "structuredContent" in result:
        _mend_tool_result(result)


def _mend_tool_result(result: dict[str, Any]) -> None:
    content = result.get("content")
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    result["content"] = [block if _is_valid_block(block) else _build_text_block(block) for block in blocks]
    if not isinstance(result.get("isError"), bool):
        result.pop("isError", None)
    if result.get("structuredContent", {}) is None:
        del result["structuredContent"]


def _is_valid_block(block: Any) -> bool:
    try:
        validate_server_result(_CALL_METHOD, _VERSION, {"content": [block]})
    except ValueError:
        return False
    return True


def _build_text_block(block: Any) -> dict[str, Any]:
    text = block.get("text") if isinstance(block, dict) else block
    return {"type": "text", "text": text if isinstance(text, str) else json.dumps(block, ensure_ascii=False)}


def _mend_tool(server: str, entry: Any) -> Any:
    """The entry of a list as the SDK takes it; None for one that is no tool."""
    if _is_valid_tool(entry):
        return entry
    schema = entry.get("inputSchema") if isinstance(entry, dict) else ""
    if isinstance(schema, dict | None):
        mended = {key: value for key, value in entry.items() if key in ("name", "description", "annotations")}
        mended["inputSchema"] = {"type": "object", _OWN_SCHEMA: schema or {}}
        for key in ("annotations", "description"):
            if not _is_valid_tool(mended):
                mended.pop(key, None)
        if _is_valid_tool(mended):
            return mended
    logger.warning("MCP server %s: a tool is left out, because it is not one: %.200r", server, entry)
    return None


def _is_valid_tool(entry: Any) -> bool:
    try:
        validate_server_result(_LIST_METHOD, _VERSION, {"tools": [entry]})
        types.Tool.model_validate(entry, by_name=False)
    except ValueError:
        return False
    return True


# ---
# Conversion of an MCP server's tools and results.


class MCPToolError(ToolError):
    """The tool of an MCP server failed; the message is the server's."""


def build_listed_tool(tool: types.Tool) -> ListedTool:
    """Convert ``tool``. It is idempotent if the server marks it as idempotent or read-only."""
    hints = tool.annotations
    idempotent = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    schema = tool.input_schema.get(_OWN_SCHEMA, tool.input_schema)
    return ListedTool(tool.name, tool.description or "", dict(schema), idempotent=idempotent)


def convert_tool_result(name: str, result: types.CallToolResult) -> Any:
    """Convert a result to text, or a list of texts and files. Raises :class:`MCPToolError` for an error."""
    pieces = [_convert_content_block(block) for block in result.content]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if result.is_error:
        raise MCPToolError("\n".join(texts) or f"{name} failed, and the server does not say why")
    if not pieces:
        return result.structured_content if result.structured_content is not None else ""
    return "\n".join(texts) if len(texts) == len(pieces) else pieces


def _convert_content_block(block: Any) -> str | File:
    match block:
        case types.TextContent(text=text):
            return text
        case types.ImageContent(data=data, mime_type=media_type) | types.AudioContent(data=data, mime_type=media_type):
            return _decode_content_file(data, media_type)
        case types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, text=text)):
            return f"[{uri}]\n{text}"
        case types.EmbeddedResource(resource=types.BlobResourceContents(uri=uri, blob=data, mime_type=media_type)):
            return _decode_content_file(data, media_type or "application/octet-stream", str(uri))
        case types.ResourceLink(uri=uri, name=name, description=description):
            return f"[{name}: {uri}]{f' {description}' if description else ''}"
        case _:
            return str(block.model_dump_json())


def _decode_content_file(data: str, media_type: str, uri: str = "") -> str | File:
    try:
        body = base64.b64decode(data)
    except ValueError:
        return f"[{media_type} that cannot be read: it is not base64]"
    if not body:
        return f"[an empty file, {media_type}]"
    return File(body, media_type.partition(";")[0].strip(), uri.rpartition("/")[2] or None)
