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
"""Open ones to one server, where runs have headers of their own; the one that was used least lately is closed."""
LIST_TIMEOUT = 40.0
"""Seconds that a server may take to open and to list its tools. One that does not answer by then is opened anew: the
worker's own patience is 60 s, and nobody else would ever end a program that hangs."""
RETRY_DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Seconds before it is asked again."""
_INVALID_SERVER_NAME_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]+")


class MCPServer(Toolset):
    """An MCP server, by :meth:`stdio` or :meth:`http`.

    A worker opens it when it is first needed, keeps it open, and opens it again when it has died. What the server says
    of a tool (``readOnlyHint``, ``idempotentHint``) decides whether a call that was lost is run again.
    """

    def __init__(self, name: str, transport: TransportFactory) -> None:
        """Use :meth:`stdio` or :meth:`http`."""
        if find_spec("mcp") is None:
            raise DefinitionError(
                f"MCP server {name!r} needs the package mcp, version 2", hint="pip install 'perdure[mcp]'"
            )
        self.name = name
        self._transport_factory = transport
        self._headers: Headers = None
        self._secrets: tuple[str, ...] = ()
        """Credentials of its address, its program's arguments and variables: no error shows them."""
        self._connections: dict[tuple[Any, Hashable], Connection] = {}
        self._idempotent_tools: set[str] = set()
        self._non_idempotent_tools: set[str] = set()
        """Runs with other headers may be told otherwise of a tool of the same name."""

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
        """A program on the worker's machine, spoken to by its standard input and output: one process for a worker.

        ``env`` is added to a few harmless variables (``PATH``, ``HOME``, …): the worker's own are not handed on. It is
        ``name``d after its command by default. ``options``: ``prefix``, ``on_change``, ``timeout``, ``recheck`` of
        :class:`perdure.Toolset`. Raises ``DefinitionError``.
        """
        _check_command(command, args, env)

        def transport(_: Mapping[str, str]) -> AbstractAsyncContextManager[Any]:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            given = StdioServerParameters(command=command, args=list(args), env=dict(env or {}), cwd=cwd)
            return stdio_client(given)

        server = cls(_INVALID_SERVER_NAME_CHARACTERS.sub("_", name or Path(command).stem), transport)
        server._secrets = (*find_argument_secrets(args), *find_variable_secrets(env or {}))
        return server._set_options(**options)

    @classmethod
    def http(cls, url: str, *, headers: Headers = None, name: str | None = None, **options: Any) -> MCPServer:
        """A server at ``url``, by streamable HTTP. ``headers`` go with every request: a mapping, or a sync or async
        function of the ``RunContext``; runs whose headers differ have connections, and lists of tools, of their own.

        It is ``name``d after its host by default. ``options`` as of :meth:`stdio`.
        """
        if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https"):
            shown = Redaction(find_address_secrets(str(url))).redact_text(f"{url!r:.200}")
            raise DefinitionError(f"MCP server: {shown} is no http(s) URL", hint="For instance https://x.dev/mcp.")
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
        """The headers that the run has."""
        return tuple(sorted((await self._resolve_headers(ctx)).items()))

    async def list(self, ctx: RunContext[Any]) -> Sequence[ListedTool]:
        """See base class."""

        async def pages(client: Any) -> list[Any]:
            found, cursor = [], None
            while True:
                page = await client.list_tools(cursor=cursor)
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return found

        found = await self._send_request(ctx, pages, again=True, within=LIST_TIMEOUT)
        from .connection import build_listed_tool

        tools = [build_listed_tool(tool) for tool in found]
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

        return await self._send_request(ctx, request, again=name in self._idempotent_tools - self._non_idempotent_tools)

    async def close(self) -> None:
        """See base class."""
        loop = asyncio.get_running_loop()
        mine = [key for key in self._connections if key[0] is loop]
        await asyncio.gather(*(self._connections.pop(key).close() for key in mine))

    async def _send_request(
        self, ctx: RunContext[Any], request: Callable[[Any], Any], *, again: bool, within: float | None = None
    ) -> Any:
        """Send ``request``; again over a new connection where it was not sent, or once where it may be sent ``again``.

        A server that is being started anew is waited for. A connection without an answer ``within`` so many seconds is
        given up. The texts of errors are without the server's credentials and the run's header values.
        """
        sent = await self._resolve_headers(ctx)
        try:
            return await self._send_with_retries(sent, request, again=again, within=within)
        except Exception as error:
            raise self._redact_error(error, sent) from None

    def _redact_error(self, error: Exception, sent: Mapping[str, str]) -> Exception:
        redaction = Redaction((*self._secrets, *sent.values()))
        if isinstance(error, PerdureError):
            return redaction.redact_error(error)
        text = redaction.redact_text(str(error))
        return error if text == str(error) else ToolError(f"{type(error).__name__}: {text}")

    async def _send_with_retries(
        self, sent: Mapping[str, str], request: Callable[[Any], Any], *, again: bool, within: float | None
    ) -> Any:
        # The SDK takes seconds to import on a busy machine, and other runs' tools are on this loop.
        await asyncio.to_thread(import_module, f"{__package__}.connection")
        from .connection import LostError, NotSentError

        delays = iter(RETRY_DELAYS)
        while True:
            connection = self._get_connection(sent)
            try:
                async with asyncio.timeout(within) as limit:
                    return await connection.send_request(request)
            except TimeoutError:
                if not limit.expired():
                    raise
                connection.retire()
                raise ToolError(f"MCP server {self.name!r} did not answer within {within:g} s") from None
            except NotSentError as error:
                delay = next(delays, None)
                if delay is None or error.is_final:
                    raise
                await asyncio.sleep(delay)
            except LostError as error:
                if not again:
                    raise ToolError(f"{error.message}; the call may have happened or not") from error
                again = False

    def _get_connection(self, sent: Mapping[str, str]) -> Connection:
        from .connection import Connection

        key = (asyncio.get_running_loop(), tuple(sorted(sent.items())))
        found = self._connections.pop(key, None)
        if found is None or not found.is_open:
            found = Connection(self.name, partial(self._transport_factory, sent), self.changed)
        self._connections[key] = found
        while len(self._connections) > MAX_CONNECTIONS:
            oldest = self._connections.pop(next(iter(self._connections)))
            oldest.retire()
        return found

    async def _resolve_headers(self, ctx: RunContext[Any]) -> dict[str, str]:
        given = self._headers
        if callable(given):
            try:
                given = given(ctx)
                if inspect.isawaitable(given):
                    given = await given
            except Exception as error:  # its text may have what the function was to keep: it is for the log alone
                logger.exception("the headers function of MCP server %s failed", self.name)
                why = f"the headers function of MCP server {self.name!r} raised {type(error).__name__}"
                raise ToolError(why, hint="The worker's log has its text.") from None
        if given is not None and not isinstance(given, Mapping):
            raise ToolError(f"the headers of MCP server {self.name!r} are {type(given).__name__}, and no mapping")
        return {str(key): str(value) for key, value in (given or {}).items()}


def _check_command(command: Any, args: Any, env: Any) -> None:
    """Raise ``DefinitionError`` for what no program can be started with."""
    hint = 'For instance MCPServer.stdio("python", ["weather.py"], env={"KEY": "…"}).'
    if not isinstance(command, str) or not command.strip():
        raise DefinitionError(f"MCP server: the command is the name of a program, not {command!r:.200}", hint=hint)
    if isinstance(args, str) or not isinstance(args, Sequence) or not all(isinstance(one, str) for one in args):
        raise DefinitionError(f"MCP server {command}: its arguments are a list of texts", hint=hint)
    if env is not None and not (
        isinstance(env, Mapping) and all(isinstance(one, str) for pair in env.items() for one in pair)
    ):
        raise DefinitionError(f"MCP server {command}: env is a mapping of texts to texts", hint=hint)


@asynccontextmanager
async def _open_http_streams(url: str, headers: Mapping[str, str]) -> Any:
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    from .connection import record_status

    async def look(response: Any) -> None:
        if response.request.method == "POST":
            record_status(response.status_code)

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(create_mcp_http_client(headers=dict(headers)))
        client.event_hooks["response"].append(look)
        yield await stack.enter_async_context(streamable_http_client(url, http_client=client))
