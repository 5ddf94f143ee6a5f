"""``perdure serve``: the HTTP API and the console, and with a file of agents a worker beside it; ``perdure console``:
the console alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._terminal import print_line
from ..errors import InvalidInputError, MissingExtraError, PerdureError, RuntimeSetupError
from .connection import StoreOptions, open_client
from .options import AgentsOption, TaskQueueOption
from .worker import ExitLimit, install_signal_handlers, log_to_stderr, serve_agents

if TYPE_CHECKING:
    from ..client.client import Client
    from ..web.app import WebOptions
    from ..web.auth import Authenticator

logger = logging.getLogger("perdure.web")
DEFAULT_PORT = 8000
_DRAIN_SECONDS = 10


@dataclass(frozen=True)
class ServeOptions(StoreOptions):
    """The options of a server and a store, and who may reach the HTTP API, and how."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = DEFAULT_PORT
    dev: Annotated[
        bool, typer.Option("--dev", help="Let requests of this machine in without a token; only on a loopback address.")
    ] = False
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A host that it is reached by; repeatable. By default its own address."),
    ] = None
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="An origin whose pages may call it; repeatable.")
    ] = None
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="Network of a reverse proxy whose headers count; repeatable."),
    ] = None
    user_header: Annotated[
        str | None, typer.Option(metavar="HEADER", help="Header in which a trusted proxy names the user.")
    ] = None
    role_header: Annotated[
        str | None, typer.Option(metavar="HEADER", help="Header in which it names the user's role; else viewer.")
    ] = None
    tenant_header: Annotated[
        str | None, typer.Option(metavar="HEADER", help="Header in which it names the user's tenant; else all.")
    ] = None
    no_console: Annotated[bool, typer.Option("--no-console", help="Leave the console out.")] = False
    certfile: Annotated[
        Path | None, typer.Option(help="Certificate chain in PEM: serve HTTPS. It is read again when it changes.")
    ] = None
    keyfile: Annotated[Path | None, typer.Option(help="Its private key; by default in the same file.")] = None
    root_path: Annotated[str, typer.Option(metavar="PATH", help="Path that a proxy removes: /perdure.")] = ""


def serve(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="Also serve the agents of this file, as `perdure worker`.")
    ] = None,
    agents: AgentsOption = None,
    task_queue: TaskQueueOption = None,
    *,
    server: ServeOptions,
) -> None:
    """Serve the HTTP API and the console until SIGTERM or Ctrl-C; with FILE also its agents. Requests need a token
    (perdure token)."""
    _run_service(server, file, agents, task_queue, api=True)


def console(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="Also serve the agents of this file, as `perdure worker`.")
    ] = None,
    agents: AgentsOption = None,
    task_queue: TaskQueueOption = None,
    *,
    server: ServeOptions,
) -> None:
    """Serve the console alone, where people decide on calls and look after runs. Users log in with a token (perdure
    token)."""
    _run_service(server, file, agents, task_queue, api=False)


def _run_service(
    server: ServeOptions, file: str | None, agents: Path | None, task_queue: str | None, *, api: bool
) -> None:
    from .._event_loop import run_event_loop

    if (missing := find_missing_server("`perdure serve`" if api else "`perdure console`", file)) is not None:
        raise missing
    from ..web.app import WebOptions
    from ..web.origins import is_loopback_name

    host = server.host
    if server.dev and not is_loopback_name(host):
        raise InvalidInputError(
            f"--dev lets anyone in who reaches it, so it listens on a loopback address, not on {host}",
            hint="Leave --dev out, and create a token: perdure token create NAME --role operator.",
        )
    given = {"user": server.user_header, "roles": server.role_header, "tenants": server.tenant_header}
    headers = {name: header.lower() for name, header in given.items() if header}
    if headers and not (server.trusted_proxy and server.user_header):
        raise InvalidInputError(
            "headers with users count only from trusted proxies",
            hint="Give --trusted-proxy NETWORK and --user-header HEADER.",
        )
    if server.keyfile and not server.certfile:
        raise InvalidInputError("--keyfile is the key of a certificate", hint="Give --certfile, too.")
    if server.certfile:
        _load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), server.certfile, server.keyfile)
    log_to_stderr()
    for name in ("perdure.store", "perdure.worker.drain", "perdure.event_loop"):
        logging.getLogger(name).setLevel(logging.INFO)
    own_host = [] if is_loopback_name(host) or host in ("0.0.0.0", "::") else [host]  # noqa: S104  # compared
    options = WebOptions(
        hosts=[*(server.allow_host or ()), *own_host],
        origins=server.allow_origin or (),
        trusted_proxies=server.trusted_proxy or (),
        dev=is_loopback_name(host),
        api=api,
    )
    run_event_loop(_serve(server, options, headers, file, agents, task_queue))


async def _serve(
    server: ServeOptions,
    options: WebOptions,
    headers: dict[str, str],
    file: str | None,
    agents: Path | None,
    task_queue: str | None,
) -> None:
    from .. import _config as config
    from ..calls.loop_watch import LoopWatch
    from ..console import console_routes
    from ..local_engine.engine import build_program_queue_name
    from ..web.app import create_app
    from .agent_loader import load_agent_module

    loaded = None if file is None else load_agent_module(file, require_agents=agents is None)
    queue = config.named_task_queue(task_queue) or (
        build_program_queue_name(Path(file)) if file and server.dev else None
    )
    exit_limit = ExitLimit()
    try:
        connection = StoreOptions(server.address, server.namespace, server.profile, server.store_url)
        waits = options.api  # a console that finds no server ends, and says so
        opening = open_client(connection, start_server=file is not None, task_queue=queue, warnings=True, wait=waits)
        async with opening as client:
            client.store_url = client.store_url or (config.get_home_store_url() if file is not None else None)
            if client.store_url is None:
                raise RuntimeSetupError(
                    "the HTTP API reads events from the store, and there is none",
                    hint="Give --store-url or set PERDURE_STORE_URL to the store of the workers.",
                )
            authenticator = _build_authenticator(client, options, headers, dev=server.dev)
            pages = None if server.no_console and options.api else console_routes
            app = create_app(client, authenticator=authenticator, options=options, pages=pages)
            stop = asyncio.Event()
            prefixes = [*(["/v1"] if options.api else []), *(["/console"] if pages is not None else [])]
            async with listen(app, server, stop) as urls:
                for url in urls:
                    for prefix in prefixes:
                        print_line(f"{url}{prefix}")
                if loaded is None:
                    install_signal_handlers(stop, quiet=False)
                    with LoopWatch().watching():  # a worker has its own
                        await stop.wait()
                else:
                    await serve_agents(client, loaded, stop, agents=agents, exit_limit=exit_limit)
    finally:
        exit_limit.cancel()


def find_missing_server(purpose: str, file: str | None = None) -> MissingExtraError | None:
    """Import all that answers requests. Return the error that names every missing package, also of the models of the
    agents in ``file``; None if all that answers requests is there."""
    from .._installation import build_missing_extra_error

    try:
        for module in ("perdure.web.app", "perdure.web.agui", "perdure.console", "uvicorn", "sse_starlette"):
            import_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "perdure":  # a fault of perdure, and not of the installation
            raise
        extras = ["server"]
        if file is not None:
            from .agent_loader import load_agent_module

            try:
                extras += load_agent_module(file).missing_extras
            except MissingExtraError as missing:
                extras += missing.extras
            except PerdureError:  # it is told once the extra is there
                pass
        return build_missing_extra_error(purpose, *extras, module=error.name)
    return None


def _build_authenticator(client: Client, options: WebOptions, headers: dict[str, str], *, dev: bool) -> Authenticator:
    from ..web.auth import AuthenticatorChain, BearerTokens, DevAccess, ProxyHeaders
    from ..web.limits import FailureLimiter

    known: list[Authenticator] = [BearerTokens(client)]
    if headers:
        known.append(ProxyHeaders(options.trusted_proxies, **headers))  # type: ignore[arg-type]  # names of headers
    if dev:
        known.append(DevAccess())
    return AuthenticatorChain(known, failures=FailureLimiter(options.limits))


@asynccontextmanager
async def listen(app: Any, place: ServeOptions, stop: asyncio.Event) -> AsyncIterator[Sequence[str]]:
    """Serve ``app`` within the block, which gets its addresses; ``stop`` is set when it ends by itself. Open streams
    end with the block, so that followers go on with another replica."""
    import uvicorn
    from sse_starlette.sse import AppStatus

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:  # the command handles them
            yield

    config = uvicorn.Config(
        app,
        host=place.host,
        port=place.port,
        root_path=place.root_path,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        h11_max_incomplete_event_size=64 * 1024,
        http=_build_protocol(),
        ws="none",
        ssl_certfile=place.certfile,
        ssl_keyfile=place.keyfile,
    )
    config.load()
    server = Server(config)
    tasks = [asyncio.create_task(_run(server, stop))]
    serving = tasks[0]
    if place.certfile is not None and config.ssl is not None:
        tasks.append(asyncio.create_task(_follow_certificate(config.ssl, place.certfile, place.keyfile)))
    try:
        while not server.started and not serving.done():
            await asyncio.wait([serving], timeout=0.01)
        if serving.done():
            await serving
        sockets = [socket for listener in server.servers for socket in listener.sockets]
        yield [_build_url(place, *socket.getsockname()[:2]) for socket in sockets]
    finally:
        AppStatus.should_exit = True
        server.should_exit = True
        await asyncio.wait([serving])
        for task in tasks:
            task.cancel()


_REQUEST_SECONDS = 30.0
"""Time in which the head of a request must be here, once a connection is open or its last request is answered."""


def _build_protocol() -> type[asyncio.Protocol]:
    """Build uvicorn's protocol with a time limit for the head of a request: without one, connections that send a byte
    now and then stay open for good, as many as one likes."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol  # of one of two modules, with the same fields

    class Protocol(base):  # type: ignore[misc]  # the same
        _limit: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Limit the time while no request is being answered, also for the rest of a body that was not read."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            elif self._limit is None:
                self._limit = self.loop.call_later(_REQUEST_SECONDS, self._close)

        def _stop(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

        def _close(self) -> None:
            self._limit = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()

    return Protocol


# ---
# TLS.


_CERTIFICATE_SECONDS = 60.0
"""Seconds between two looks at whether the files of the certificate have changed."""


def _load_certificate(context: ssl.SSLContext, certfile: Path, keyfile: Path | None) -> None:
    """Load it for the connections from now on. Raises ``InvalidInputError``."""
    try:
        context.load_cert_chain(certfile, keyfile, password=_refuse_password)
    except (OSError, ValueError) as error:  # of OpenSSL's errors, too
        files = f"{certfile}" if keyfile is None else f"{certfile} and {keyfile}"
        reason = getattr(error, "reason", None) or error
        raise InvalidInputError(
            f"{files} cannot be read as a certificate and its key: {reason}",
            hint="Both are PEM files; the key has no password.",
        ) from None


def _refuse_password() -> str:
    raise ValueError("the key has a password")


async def _follow_certificate(context: ssl.SSLContext, certfile: Path, keyfile: Path | None) -> None:
    """Load the certificate again whenever its files have changed: it is renewed every few weeks."""
    loaded = _read_versions(certfile, keyfile)
    while True:
        await asyncio.sleep(_CERTIFICATE_SECONDS)
        found = _read_versions(certfile, keyfile)
        if found == loaded:
            continue
        try:
            for loading in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):  # half of a new pair replaces nothing
                _load_certificate(loading, certfile, keyfile)
        except InvalidInputError as error:
            logger.warning("the certificate is not renewed yet: %s", error.message)
        else:
            loaded = found
            logger.info("the certificate was read again: %s", certfile)


def _read_versions(*files: Path | None) -> list[tuple[int, int]]:
    versions = []
    for file in files:
        if file is not None:
            with contextlib.suppress(OSError):  # it is replaced at this moment
                status = file.stat()
                versions.append((status.st_mtime_ns, status.st_ino))
    return versions


def _build_url(place: ServeOptions, address: str, port: int) -> str:
    scheme = "http" if place.certfile is None else "https"
    return f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}{place.root_path}"


async def _run(server: Any, stop: asyncio.Event) -> None:
    try:
        await server.serve()
    except SystemExit:  # what uvicorn makes of a port that is in use; its log names it
        raise RuntimeSetupError(
            f"cannot listen on {server.config.host}:{server.config.port}", hint="Give another --port."
        ) from None
    finally:
        stop.set()
