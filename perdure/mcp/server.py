"""``MCPServer``: the tools of a server that speaks the Model Context Protocol."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import DefinitionError, PerdureError, ToolError
from ..ports import ListedTool, Toolset
from ..ports.toolset import OnChange
from ..tools import RunContext
from ..types.redaction import Redaction, find_address_secrets, find_argument_secrets, find_variable_secrets

if TYPE_CHECKING:
    from .connection import Connection


logger = logging.getLogger("perdure.worker")

TransportFactory = Callable[[Mapping[str, str]], AbstractAsyncContextManager[Any]]
Headers = Mapping[str, str] | Callable[[RunContext[Any]], Any] | None

MAX_CONNECTIONS = 32
"""Open connections to one server, for runs with different headers; the least recently used one is closed."""
LIST_TIMEOUT = 40.0
"""Seconds that a server may take to open and to list its tools. Then its connection is closed, which ends a program
that hangs; the worker itself gives up after 60 s."""
RETRY_DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Seconds to wait before each retry of a request that was not sent."""
MAX_RETRY_AFTER = 20.0
"""Longest wait that a server may ask for (``Retry-After``); the model is told of a longer one."""
_UNKNOWN_TOOL = re.compile(
    r"(unknown|no such|not find|unrecogni[sz]ed) tool|tool\b.{0,200}?\b(not found|does not exist|unknown)"
    r"|method not found",
    re.IGNORECASE | re.DOTALL,
)
"""What servers say of a tool that they do not have."""
_INVALID_SERVER_NAME_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]+")


class MCPServer(Toolset):
    """An MCP server, by :meth:`stdio` or :meth:`http`.

    A worker opens it when it is first needed, keeps it open, and opens it again when it has died. The server's hints
    about a tool (``readOnlyHint``, ``idempotentHint``) decide whether a lost call runs again.
    """

    def __init__(self, name: str, transport: TransportFactory) -> None:
        """Use :meth:`stdio` or :meth:`http`."""
        if find_spec("mcp") is None:
            reason = f"MCP server {name!r} needs the package mcp, version 2"
            raise DefinitionError(reason, hint="pip install 'perdure[mcp]'")
        self.name = name
        self._transport_factory = transport
        self._headers: Headers = None
        self._secrets: tuple[str, ...] = ()
        """Credentials in its address, its program's arguments and variables, which no error shows."""
        self._connections: dict[tuple[Any, Hashable], Connection] = {}
        self._idempotent_tools: set[str] = set()
        self._non_idempotent_tools: set[str] = set()
        """Kept too, since the server may give other hints about a tool to runs with other headers."""

    @classmethod
    def stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        name: str | None = None,
        **options: Any,
    ) -> MCPServer:
        """A program on the worker's machine, connected by its standard input and output: one process per worker.

        ``env`` is added to a few harmless variables (``PATH``, ``HOME``, …); the worker's other variables are withheld.
        ``name`` defaults to that of the command. ``options``: ``prefix``, ``on_change``, ``timeout``, ``recheck`` of
        :class:`perdure.Toolset`. Raises ``DefinitionError``.
        """
        _check_command(command, args, env)

        def transport(_: Mapping[str, str]) -> AbstractAsyncContextManager[Any]:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            return stdio_client(StdioServerParameters(command=command, args=list(args), env=dict(env or {}), cwd=cwd))

        server = cls(_INVALID_SERVER_NAME_CHARACTERS.sub("_", name or Path(command).stem), transport)
        server._secrets = (*find_argument_secrets(args), *find_variable_secrets(env or {}))
        return server._set_options(**options)

    @classmethod
    def http(cls, url: str, *, headers: Headers = None, name: str | None = None, **options: Any) -> MCPServer:
        """A server at ``url``, by streamable HTTP. ``headers`` go with every request: a mapping, or a sync or async
        function of the ``RunContext``; runs whose headers differ have connections, and lists of tools, of their own.

        ``name`` defaults to its host. ``options`` as of :meth:`stdio`.
        """
        if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https"):
            shown = Redaction(find_address_secrets(str(url))).redact_text(f"{url!r:.200}")
            raise DefinitionError(f"MCP server: {shown} is not an http(s) URL", hint="For instance https://x.dev/mcp.")
        server = cls(
            _INVALID_SERVER_NAME_CHARACTERS.sub("_", name or urlsplit(url).hostname or "http"),
            partial(_open_http_streams, url),
        )
        server._headers, server._secrets = headers, tuple(find_address_secrets(url))
        return server._set_options(**options)

    def _set_options(
        self,
        *,
        prefix: str = "",
        on_change: OnChange = "refuse",
        timeout: float = Toolset.timeout,
        recheck: float = Toolset.recheck,
    ) -> MCPServer:
        self.prefix, self.on_change, self.timeout, self.recheck = prefix, on_change, timeout, recheck
        return self

    def __repr__(self) -> str:
        return f"<MCPServer {self.name}>"

    async def audience(self, ctx: RunContext[Any]) -> Hashable:
        """Return the headers of the run: runs with equal headers share a list."""
        return tuple(sorted((await self._resolve_headers(ctx)).items()))

    async def list(self, ctx: RunContext[Any]) -> Sequence[ListedTool]:
        """See base class."""

        async def list_pages(client: Any) -> list[Any]:
            page = await client.list_tools()
            listed = [*page.tools]
            while page.next_cursor:
                page = await client.list_tools(cursor=page.next_cursor)
                listed += page.tools
            return listed

        listed = await self._send_request(ctx, list_pages, retryable=True, timeout=LIST_TIMEOUT)
        from .connection import build_listed_tool

        tools = [build_listed_tool(tool) for tool in listed]
        self._idempotent_tools |= {tool.name for tool in tools if tool.idempotent}
        self._non_idempotent_tools |= {tool.name for tool in tools if not tool.idempotent}
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any], ctx: Any) -> Any:
        """See base class."""

        def progress(done: float, total: float | None, message: str | None) -> Any:
            ctx.progress(message or f"{done:g}{f' of {total:g}' if total else ''}")
            return asyncio.sleep(0)

        async def request(client: Any) -> Any:
            from .connection import convert_tool_result

            return convert_tool_result(name, await client.call_tool(name, dict(arguments), progress_callback=progress))

        retryable = name in self._idempotent_tools - self._non_idempotent_tools
        try:
            return await self._send_request(ctx, request, retryable=retryable)
        except Exception as error:
            if _UNKNOWN_TOOL.search(
                str(error)[:1000]
            ):  # renamed, or taken away, and not announced: read the list again
                self.changed()
            raise

    async def close(self) -> None:
        """See base class."""
        loop = asyncio.get_running_loop()
        keys = [key for key in self._connections if key[0] is loop]
        await asyncio.gather(*(self._connections.pop(key).close() for key in keys))

    async def _send_request(
        self, ctx: RunContext[Any], request: Callable[[Any], Any], *, retryable: bool, timeout: float | None = None
    ) -> Any:
        """Send ``request``. Retry it over a new connection if it was not sent, or once if it was lost and is
        ``retryable``.

        Waits for a server that is restarting. A connection that does not answer within ``timeout`` seconds is closed.
        Error texts are redacted: they have neither the server's credentials nor the run's header values.
        """
        headers = await self._resolve_headers(ctx)
        try:
            return await self._send_with_retries(headers, request, retryable, timeout)
        except Exception as error:
            redaction = Redaction((*self._secrets, *headers.values()))
            if isinstance(error, PerdureError):
                raise redaction.redact_error(error) from None
            text = redaction.redact_text(str(error))
            raise (error if text == str(error) else ToolError(f"{type(error).__name__}: {text}")) from None

    async def _send_with_retries(
        self, headers: Mapping[str, str], request: Callable[[Any], Any], retryable: bool, timeout: float | None
    ) -> Any:
        # The SDK takes seconds to import on a busy machine, and the tools of other runs are on this loop.
        await asyncio.to_thread(import_module, f"{__package__}.connection")
        from .connection import LostError, NotSentError

        delays, sessions_lost = iter(RETRY_DELAYS), 0
        while True:
            connection = self._get_connection(headers)
            try:
                async with asyncio.timeout(timeout) as limit:
                    return await connection.send_request(request)
            except TimeoutError:
                if not limit.expired():
                    raise
                connection.retire()
                raise ToolError(f"MCP server {self.name!r} did not answer within {timeout:g} s") from None
            except NotSentError as error:
                sessions_lost += error.is_session_lost
                delay, wanted = next(delays, None), error.retry_after or 0.0
                if delay is None or error.is_final or sessions_lost > 1 or wanted > MAX_RETRY_AFTER:
                    raise
                await asyncio.sleep(0.0 if error.is_session_lost else max(delay, wanted))
            except LostError as error:
                delay = next(delays, None) if error.may_return else 0.0
                if not retryable or delay is None:
                    raise ToolError(f"{error.message}; the call may have happened or not") from error
                retryable = error.may_return
                await asyncio.sleep(delay)

    def _get_connection(self, headers: Mapping[str, str]) -> Connection:
        from .connection import Connection

        key = (asyncio.get_running_loop(), tuple(sorted(headers.items())))
        connection = self._connections.pop(key, None)
        if connection is None or not connection.is_open:
            connection = Connection(self.name, partial(self._transport_factory, headers), self.changed)
        self._connections[key] = connection
        while len(self._connections) > MAX_CONNECTIONS:
            self._connections.pop(next(iter(self._connections))).retire()
        return connection

    async def _resolve_headers(self, ctx: RunContext[Any]) -> dict[str, str]:
        headers = self._headers
        if callable(headers):
            try:
                headers = headers(ctx)
                if inspect.isawaitable(headers):
                    headers = await headers
            except Exception as error:  # its text may contain secrets: it goes to the log only
                logger.exception("the headers function of MCP server %s failed", self.name)
                why = f"the headers function of MCP server {self.name!r} raised {type(error).__name__}"
                raise ToolError(why, hint="The worker's log has its text.") from None
        if headers is not None and not isinstance(headers, Mapping):
            raise ToolError(f"the headers of MCP server {self.name!r} are {type(headers).__name__}, not a mapping")
        return {str(key): str(value) for key, value in (headers or {}).items()}


def _check_command(command: Any, args: Any, env: Any) -> None:
    """Raise ``DefinitionError`` for a command, arguments or variables that cannot start a program."""
    hint = 'For instance MCPServer.stdio("python", ["weather.py"], env={"KEY": "…"}).'
    if not isinstance(command, str) or not command.strip():
        raise DefinitionError(f"MCP server: the command is the name of a program, not {command!r:.200}", hint=hint)
    if (
        isinstance(args, str)
        or not isinstance(args, Sequence)
        or not all(isinstance(argument, str) for argument in args)
    ):
        raise DefinitionError(f"MCP server {command}: its arguments are a list of texts", hint=hint)
    has_texts = isinstance(env, Mapping) and all(isinstance(text, str) for pair in env.items() for text in pair)
    if env is not None and not has_texts:
        raise DefinitionError(f"MCP server {command}: env is a mapping of texts to texts", hint=hint)


@asynccontextmanager
async def _open_http_streams(url: str, headers: Mapping[str, str]) -> Any:
    from mcp.client.streamable_http import streamable_http_client

    from .exchanges import MAX_ANSWER_BYTES, ExchangeClient

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ExchangeClient(headers=dict(headers)))
        transport = streamable_http_client(url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES)
        yield await stack.enter_async_context(transport)
