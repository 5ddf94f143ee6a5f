"""Connections to MCP servers, each in a task of its own: the SDK wants one to be closed where it was opened.

Requests share a connection, and each is judged by its own HTTP statuses. The SDK sends a request in the context
(``contextvars``) of its caller, so a hook of the HTTP client finds the list that belongs to the request.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any

from mcp import Client, MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolListChangedNotification,
)

from ..errors import ToolError
from ..ports import ListedTool
from ..types.messages import File

logger = logging.getLogger("perdure.worker")

OPEN_TIMEOUT = 30.0
"""Seconds that a server may take to start and to say hello."""
CLOSE_TIMEOUT = 10.0
"""Seconds that it is given to end; its process is killed by then."""

HTTP_ACCEPTED, HTTP_REDIRECT, HTTP_CLIENT_ERROR, HTTP_SERVER_ERROR = 202, 300, 400, 500
"""HTTP statuses. 202: a request that gets no answer. From 300 on the server did nothing, and from 400 on it says so (a
session that it does not know, after a restart; too many requests). From 500 on the outcome is unknown."""

StreamFactory = Callable[[], AbstractAsyncContextManager[Any]]
"""Makes the streams to a server."""

_request_statuses: ContextVar[list[int] | None] = ContextVar("perdure_mcp_statuses", default=None)


def record_status(status: int) -> None:
    """Add an HTTP status to those of the request in whose context this is called, if there is one."""
    if (statuses := _request_statuses.get()) is not None:
        statuses.append(status)


class NotSentError(ToolError):
    """The request never reached the server: asking again does no harm."""

    is_final = False
    """Nor any good."""


class LostError(ToolError):
    """The connection was lost while the server was at work: nobody knows whether it did what it was asked."""


class Connection:
    """One server, open. Belongs to the event loop that made it."""

    def __init__(self, name: str, transport: StreamFactory, changed: Callable[[], None]) -> None:
        """``changed`` is told that the server's tools are others now."""
        self._name = name
        self._transport = transport
        self._on_tools_changed = changed
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._close_requested = asyncio.Event()
        self._active_requests = 0
        self.is_open = True
        """Whether it can be asked; once it is not, it never is again."""
        self._task = asyncio.get_running_loop().create_task(self._keep_open())

    async def send_request(self, request: Callable[[Client], Any]) -> Any:
        """What ``request`` gives. Raises ``NotSentError``, ``LostError``, or what the server answers (``MCPError``)."""
        client = await self._wait_until_open()
        if not self.is_open:
            raise NotSentError(f"the connection to MCP server {self._name!r} is closed")
        self._active_requests += 1
        statuses: list[int] = []
        token = _request_statuses.set(statuses)
        try:
            return await request(client)
        except MCPError as error:
            if (problem := self._classify_error(error, statuses)) is None:
                raise  # the server's own answer
            self.retire()
            raise problem from error
        finally:
            _request_statuses.reset(token)
            self._active_requests -= 1
            if not self.is_open and not self._active_requests:
                self._close_requested.set()

    def _classify_error(self, error: MCPError, statuses: list[int]) -> ToolError | None:
        """What ``error`` of a request with these HTTP statuses means; None for an answer of the server's own."""
        if error.code == CONNECTION_CLOSED:
            return LostError(f"the connection to MCP server {self._name!r} was lost: {error}")
        worst = max(statuses, default=0)
        if error.code == PARSE_ERROR or (statuses and statuses[-1] == HTTP_ACCEPTED):
            return LostError(f"the answer of MCP server {self._name!r} cannot be read: {str(error).splitlines()[0]}")
        if error.code not in (INVALID_REQUEST, INTERNAL_ERROR) or worst < HTTP_CLIENT_ERROR:
            return None
        # A request may be several of HTTP: the SDK lists the tools behind a call whose result it checks.
        if all(HTTP_REDIRECT <= status < HTTP_SERVER_ERROR for status in statuses):
            return NotSentError(f"MCP server {self._name!r} refuses: HTTP {worst}, {error}")
        return LostError(f"MCP server {self._name!r} failed: HTTP {worst}, {error}")

    async def close(self) -> None:
        """Close it, and see the server's process end."""
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
            first = _unwrap_exception_group(error)
            failed = NotSentError(f"MCP server {self._name!r} cannot be opened: {type(first).__name__}: {first}")
            failed.is_final = isinstance(first, FileNotFoundError | PermissionError | ValueError)
            raise failed from error

    def retire(self) -> None:
        """Nobody begins anything here any more; it is closed when the last request has ended."""
        self.is_open = False
        if not self._active_requests:
            self._close_requested.set()

    def _handle_stream_end(self) -> None:
        if self.is_open:
            logger.info("MCP server %s has closed its connection; the next call opens another", self._name)
        self.retire()

    async def _keep_open(self) -> None:
        try:
            streams = _watch_streams(self._transport(), self._handle_stream_end)
            async with Client(streams, cache=None, message_handler=self._handle_message) as client:
                if not self._client.done():
                    self._client.set_result(client)
                await self._wait_for_close(client)
        except BaseException as error:
            if not self._client.done():
                self._client.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
                self._client.exception()  # looked at: whoever waits for it may have gone
            elif isinstance(error, Exception):
                logger.debug("MCP server %s: %s at the end", self._name, type(error).__name__)
            if not isinstance(error, Exception):
                raise
        finally:
            self.is_open = False

    async def _wait_for_close(self, client: Client) -> None:
        """Servers of the newer protocol say only to those who ask for it that their tools have changed."""
        tools = client.server_capabilities.tools
        listening: asyncio.Task[None] | None = None
        if tools is not None and tools.list_changed and client.protocol_version >= "2026":
            listening = asyncio.create_task(self._listen_for_changes(client))
        try:
            await self._close_requested.wait()
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.wait([listening])

    async def _listen_for_changes(self, client: Client) -> None:
        try:
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._on_tools_changed()
        except Exception as error:  # lists are looked at every now and then all the same
            logger.debug("MCP server %s does not tell of changed tools: %s", self._name, type(error).__name__)

    async def _handle_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_tools_changed()


def _unwrap_exception_group(error: BaseException) -> BaseException:
    """What was wrong, of the groups that the SDK wraps it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def _watch_streams(
    transport: AbstractAsyncContextManager[Any], ended: Callable[[], None]
) -> AsyncIterator[tuple[Any, Any]]:
    """The transport's streams; ``ended`` is told when nothing will come any more."""
    async with transport as (read, write):
        yield _WatchedStream(read, ended), write


class _WatchedStream:
    """A stream of what the server says."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            self._on_end()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._stream.__aexit__(*raised)


# ---
# What an MCP server gives, as tools have it.


_LAST_URI_SEGMENT = re.compile(r"[^/]+$")


class MCPToolError(ToolError):
    """The tool of an MCP server failed; the message is the server's."""


def build_listed_tool(tool: Tool, timeout: float | None = None) -> ListedTool:
    """``tool`` as a toolset lists it. What only reads may be called twice, and what is idempotent by its own word."""
    hints = tool.annotations
    harmless = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return ListedTool(tool.name, tool.description or "", dict(tool.input_schema), idempotent=harmless, timeout=timeout)


def convert_tool_result(name: str, given: CallToolResult) -> Any:
    """Text, or a list of texts and files. Raises :class:`MCPToolError` for one that says that it is an error."""
    pieces = [_convert_content_block(block) for block in given.content]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if given.is_error:
        raise MCPToolError("\n".join(texts) or f"{name} failed, and the server does not say why")
    if not pieces:
        return given.structured_content if given.structured_content is not None else ""
    return "\n".join(texts) if len(texts) == len(pieces) else pieces


def _convert_content_block(block: Any) -> str | File:
    match block:
        case TextContent(text=text):
            return text
        case ImageContent(data=data, mime_type=kind) | AudioContent(data=data, mime_type=kind):
            return _decode_content_file(data, kind, None)
        case EmbeddedResource(resource=resource):
            if isinstance(resource, TextResourceContents):
                return f"[{resource.uri}]\n{resource.text}"
            return _decode_content_file(
                resource.blob, resource.mime_type or "application/octet-stream", str(resource.uri)
            )
        case ResourceLink(uri=uri, name=name, description=description):
            return f"[{name}: {uri}]{f' {description}' if description else ''}"
        case _:
            return str(block.model_dump_json())


def _decode_content_file(data: str, kind: str, uri: str | None) -> str | File:
    body = base64.b64decode(data)
    found = _LAST_URI_SEGMENT.search(uri) if uri else None
    if not body:
        return f"[an empty file, {kind}]"
    return File(body, kind.partition(";")[0].strip(), found[0] if found else None)
