"""Starts Python processes by forking one that has imported everything already.

A process of its own imports perdure, Temporal's SDK and a provider's SDK for more than a second of CPU time, and the
suite starts about a thousand of them. The forked process has its own environment, folder, descriptors, signals and
exit, like one that was started by ``python -m …``; only the imports are done. ``python -m tests.support.forkserver FD``
is the server; each test process starts one when it needs the first, and it ends with that process.

What shows how perdure starts up (import times, missing modules, ``PYTHON…`` variables) starts real processes.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import perdure

ROOT = Path(__file__).parent.parent.parent
SDKS = (
    "openai",
    "anthropic",
    "mcp.client.streamable_http",
    "mcp.client.stdio",
    "alembic.command",
    "prompt_toolkit",
    "genai_prices.data_snapshot",
)
NOT_IMPORTED = ("perdure.__main__", "perdure.store.migrations.env", "perdure.providers.pydantic_ai_")
"""Programs, and modules that only few programs import, by how their names begin."""


class Process:
    """A forked process, with the interface of ``asyncio.subprocess.Process`` and ``poll`` of ``subprocess.Popen``."""

    stdin: asyncio.StreamWriter | None = None
    stdout: asyncio.StreamReader | None = None
    stderr: asyncio.StreamReader | None = None

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self.transports: list[asyncio.BaseTransport] = []
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self._read_exit_code()
        return self.returncode

    def _read_exit_code(self) -> None:
        answer = self._connection.recv(64)
        self._connection.close()
        self.returncode = int(answer) if answer else -signal.SIGKILL  # the server itself is gone

    def wait_blocking(self, timeout: float | None = None) -> int:
        """Until it has ended. Raises ``TimeoutError`` after ``timeout`` seconds."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
            self._read_exit_code()
        assert self.returncode is not None
        return self.returncode

    async def wait(self) -> int:
        """Until it has ended; its exit code."""
        while self.poll() is None:
            readable = asyncio.Event()
            loop = asyncio.get_running_loop()
            # A copy of the descriptor: two may wait at once.
            with socket.socket(fileno=os.dup(self._connection.fileno())) as connection:
                loop.add_reader(connection, readable.set)
                try:
                    await readable.wait()
                finally:
                    loop.remove_reader(connection)
        assert self.returncode is not None
        return self.returncode

    async def communicate(self, input: bytes | None = None) -> tuple[bytes, bytes]:
        """Write ``input``, close the pipe, read to the end and wait."""

        async def read(stream: asyncio.StreamReader | None) -> bytes:
            return await stream.read() if stream else b""

        async def write() -> None:
            if self.stdin is not None:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.stdin.write(input or b"")
                    await self.stdin.drain()
                self.stdin.close()

        out, err, _ = await asyncio.gather(read(self.stdout), read(self.stderr), write())
        await self.wait()
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def close(self) -> None:
        """Close the pipes."""
        for transport in self.transports:
            transport.close()

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


def fork(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    descriptors: tuple[int, int, int],
    new_session: bool = False,
    controls_terminal: bool = False,
) -> Process:
    """Run ``python *arguments`` (``-m MODULE …`` or ``FILE …``) with these standard streams."""
    connection = _connect()
    request = {
        "arguments": list(arguments),
        "cwd": str(cwd),
        "env": dict(env),
        "new_session": new_session,
        "controls_terminal": controls_terminal,
    }
    socket.send_fds(connection, [len(data := json.dumps(request).encode()).to_bytes(8, "big")], list(descriptors))
    connection.sendall(data)
    return Process(connection, int(connection.recv(64)))


async def create_process(
    *command: str | Path,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int = DEVNULL,
    stdout: int = DEVNULL,
    stderr: int = DEVNULL,
    start_new_session: bool = False,
    controls_terminal: bool = False,
) -> Process:
    """``asyncio.create_subprocess_exec`` for a command that begins with ``sys.executable``."""
    interpreter, *arguments = map(str, command)
    assert interpreter == sys.executable, command
    theirs: list[int] = []
    ours: dict[str, int] = {}
    for number, (name, wanted) in enumerate((("stdin", stdin), ("stdout", stdout), ("stderr", stderr))):
        if wanted == PIPE:
            read, write = os.pipe()
            theirs.append(write if number else read)
            ours[name] = read if number else write
        elif wanted == STDOUT:
            theirs.append(os.dup(theirs[1]))
        else:
            theirs.append(os.open(os.devnull, os.O_RDWR) if wanted == DEVNULL else os.dup(wanted))
    process = await asyncio.to_thread(
        functools.partial(
            fork,
            arguments,
            cwd=cwd,
            env=env,
            descriptors=(theirs[0], theirs[1], theirs[2]),
            new_session=start_new_session,
            controls_terminal=controls_terminal,
        )
    )
    for descriptor in theirs:
        os.close(descriptor)
    loop = asyncio.get_running_loop()
    for name, descriptor in ours.items():
        transport: asyncio.BaseTransport
        protocol: Any
        if name == "stdin":
            transport, protocol = await loop.connect_write_pipe(
                lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(descriptor, "wb", 0)
            )
            process.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        else:
            reader = asyncio.StreamReader(limit=1 << 20)
            transport, _ = await loop.connect_read_pipe(
                functools.partial(asyncio.StreamReaderProtocol, reader), os.fdopen(descriptor, "rb", 0)
            )
            setattr(process, name, reader)
        process.transports.append(transport)
    return process


# --- the server


_server: tuple[int, str] | None = None
"""Process that started the server, and the server's address."""
_starting = threading.Lock()


def _connect() -> socket.socket:
    global _server
    with _starting:  # processes are started from threads
        if _server is None or _server[0] != os.getpid():
            _server = os.getpid(), _start_server()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server[1])
    return connection


def _start_server() -> str:
    listener = socket.socket(socket.AF_UNIX)
    address = f"\0perdure-tests-{os.getpid()}"
    listener.bind(address)
    listener.listen(64)
    ours, theirs = socket.socketpair()  # closed when this process ends
    with listener, theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forkserver", str(listener.fileno()), str(theirs.fileno())],
            pass_fds=[listener.fileno(), theirs.fileno()],
            cwd=ROOT,
            start_new_session=True,
        )

    def stop() -> None:
        ours.close()
        server.wait()

    atexit.register(stop)
    return address


def serve(listener: socket.socket, lifetime: socket.socket) -> dict[str, Any]:
    """Fork for each request until ``lifetime`` closes. Returns in the forked process, with its request."""
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([listener, lifetime, wake], [], [])
        if lifetime in readable:
            os._exit(0)
        if wake in readable:
            with contextlib.suppress(BlockingIOError):
                wake.recv(4096)
            _report_exits(running)
        if listener in readable:
            connection, _ = listener.accept()
            request, descriptors = _receive(connection)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for opened in (wake, woken, listener, lifetime, connection, *running.values()):
                    opened.close()
                _take_over(request, descriptors)
                return request
            for descriptor in descriptors:
                os.close(descriptor)
            running[pid] = connection
            connection.sendall(str(pid).encode())


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    length, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    data = b""
    while len(data) < int.from_bytes(length, "big"):
        data += connection.recv(65536)
    return json.loads(data), list(array.array("i", descriptors))


def _report_exits(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(OSError), running.pop(pid) as connection:  # its test may be over
                connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _take_over(request: dict[str, Any], descriptors: list[int]) -> None:
    """Become the process that was asked for."""
    if request["new_session"]:
        os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    if request["controls_terminal"]:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        raw = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
        buffer: Any = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
        errors = "backslashreplace" if name == "stderr" else "strict"
        buffered_lines = name == "stderr" or raw.isatty()
        stream = io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, line_buffering=buffered_lines)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run(request: dict[str, Any]) -> NoReturn:
    """Run the program of ``request`` as ``__main__``."""
    arguments: list[str] = request["arguments"]
    sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]
    sys.path[:0] = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    if arguments[0] == "-m":
        sys.path.insert(0, str(Path.cwd()))
        name, spec, code = runpy._get_module_details(arguments[1])  # type: ignore[attr-defined]
        file, package = spec.origin, name.rpartition(".")[0]
        arguments = [file, *arguments[2:]]
    else:
        file, spec, package = arguments[0], None, None
        sys.path.insert(0, str(Path(file).resolve().parent))
        code = compile(Path(file).read_bytes(), file, "exec")
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=file, __package__=package, __spec__=spec)
    sys.modules["__main__"] = module
    sys.argv[:] = arguments
    try:
        exec(code, module.__dict__)  # noqa: S102 - the test's own program
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        _end(module, end.code or 0)
    _end(module, 0)


def _end(program: types.ModuleType, code: int) -> NoReturn:
    """End as the interpreter does, but leave what was imported as it is: to take it down copies all memory that is
    shared with the server, for 0.2 s of CPU."""
    threading._shutdown()  # type: ignore[attr-defined]  # joins threads
    atexit._run_exitfuncs()
    program.__dict__.clear()
    gc.collect()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # the interpreter says what is wrong
    os._exit(code)


def name_this_build() -> None:
    """Give workers a build id. Temporal's SDK makes one out of the code of every module that is loaded, once in each
    process: more than a second of CPU time."""
    import temporalio.worker._worker

    temporalio.worker._worker._default_build_id = "tests"


def main() -> NoReturn:
    name_this_build()
    modules = [module.name for module in pkgutil.walk_packages(perdure.__path__, "perdure.")]
    for name in (*modules, *SDKS):
        if not name.startswith(NOT_IMPORTED):
            importlib.import_module(name)
    from perdure.providers.pricing import calculate_cost_usd
    from perdure.types.messages import Usage

    calculate_cost_usd("openai", "gpt-5", Usage())  # reads the list of prices
    gc.freeze()
    listener, lifetime = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    run(serve(listener, lifetime))


if __name__ == "__main__":
    main()
