"""The shared dev server, through real processes, each test with a home of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus

from perdure.embedded.address import connect, resolve_target
from perdure.embedded.binary import ensure_binary
from perdure.embedded.home import Home
from perdure.embedded.process import is_alive, read_start_token
from perdure.embedded.record import ServerInfo, find_running_server, read_record, write_record
from perdure.embedded.server import ensure_server, stop_server
from perdure.errors import RuntimeSetupError, ServerStartError
from perdure.temporal.attributes import find_search_attributes
from perdure.temporal.namespaces import RETENTION
from perdure.types.interface import SEARCH_ATTRIBUTES
from tests.support.cli import Cli, Done
from tests.support.namespaces import indexed_namespace

pytestmark = pytest.mark.server


@pytest.fixture
async def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    """An empty home, the machine's own binary, and no server left behind."""
    binary = await ensure_binary()  # before PERDURE_HOME changes: fetched once for all tests
    for name in [name for name in os.environ if name.startswith(("PERDURE_", "TEMPORAL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PERDURE_TEMPORAL_CLI", str(binary.path))
    # A space and signs that mean something in a URI: the path goes into one inside the server.
    root = tmp_path / "a home?x=1#y%41"
    monkeypatch.setenv("PERDURE_HOME", str(root))
    yield Home(root)
    await stop_server(Home(root))


async def eventually(condition: Callable[[], bool]) -> None:
    """Return when ``condition`` holds; the test's own timeout ends it otherwise."""
    while not condition():  # noqa: ASYNC110 - what is waited for is another process
        await asyncio.sleep(0.01)


async def kill(info: ServerInfo) -> None:
    os.kill(info.pid, signal.SIGKILL)
    await eventually(lambda: not is_alive(info.pid, info.start_token))


async def leave_a_run(info: ServerInfo) -> None:
    """Start a workflow that no worker takes."""
    client = await Client.connect(info.address)
    await client.start_workflow("Parked", id="parked", task_queue="nobody")


async def close_a_run(info: ServerInfo) -> None:
    """Start another, and terminate it."""
    client = await Client.connect(info.address)
    handle = await client.start_workflow("Parked", id="closed", task_queue="nobody")
    await handle.terminate()
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
    assert described.config.workflow_execution_retention_ttl.ToTimedelta() == RETENTION


async def run_is_there(info: ServerInfo) -> bool:
    client = await Client.connect(info.address)
    described = await client.get_workflow_handle("parked").describe()
    return described.status is WorkflowExecutionStatus.RUNNING


async def perdure(*arguments: str) -> Done:
    return await Cli(Path.cwd(), os.environ)(*arguments)


async def test_processes_at_the_same_moment_get_the_same_server(home: Home) -> None:
    starts = await asyncio.gather(*(perdure("server", "start", "-o", "json") for _ in range(4)))
    assert [start.code for start in starts] == [0] * 4, [start.err for start in starts]
    servers = [start.json for start in starts]
    assert all(server == servers[0] for server in servers)
    running = await find_running_server()
    assert running is not None
    assert running.pid == servers[0]["pid"]
    # Detached: a session of its own, and private files.
    assert os.getsid(running.pid) != os.getsid(0)
    files = list(home.root.glob("temporal.db*"))
    assert [oct(file.stat().st_mode & 0o077) for file in files] == ["0o0"] * len(files)
    with contextlib.closing(sqlite3.connect(home.temporal_db)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.slow
async def test_servers_of_several_homes_that_start_at_the_same_moment_are_several(tmp_path: Path) -> None:
    """Each is answered by its own server, on ports of its own, and sets that one up."""
    homes = [Home(tmp_path / name) for name in ("a", "b")]
    try:
        for _ in range(2):
            servers = await asyncio.gather(*map(ensure_server, homes))
            assert len({one.instance_id for one in servers}) == len({one.address for one in servers}) == len(homes)
            for one in servers:
                client = await Client.connect(one.address)
                assert (await find_search_attributes(client.service_client, "default")).names == tuple(
                    SEARCH_ATTRIBUTES
                )
                described = await client.workflow_service.describe_namespace(
                    DescribeNamespaceRequest(namespace="default")
                )
                assert described.config.workflow_execution_retention_ttl.seconds == RETENTION.total_seconds()
            await asyncio.gather(*map(stop_server, homes))
    finally:
        await asyncio.gather(*map(stop_server, homes))


@pytest.mark.slow
async def test_runs_survive_kill_9_and_stop_and_are_kept_for_years(home: Home) -> None:
    before = await ensure_server()
    await leave_a_run(before)
    await close_a_run(before)  # at once: also the first run of a new home is kept
    await kill(before)
    assert await find_running_server() is None
    after = await ensure_server()
    assert after.pid != before.pid
    assert after.instance_id == before.instance_id
    assert after.address == before.address, "clients of the killed server call the same address again"
    assert await run_is_there(after)

    assert await stop_server() is True
    assert not is_alive(after.pid, after.start_token)
    assert await find_running_server() is None
    assert await stop_server() is False
    with contextlib.closing(sqlite3.connect(home.temporal_db)) as database:
        ((latest,),) = database.execute("SELECT max(visibility_timestamp) FROM timer_tasks")
    deletion = datetime.fromisoformat(latest)
    assert deletion > datetime.now(UTC) + RETENTION - timedelta(days=1)
    assert await run_is_there(await ensure_server())


@pytest.mark.parametrize("killed", [False, True])
async def test_a_stopped_server_leaves_all_of_its_runs_in_one_file(home: Home, tmp_path: Path, killed: bool) -> None:
    """Which users copy. In WAL mode the server leaves them in the log beside it, also where it was stopped gently."""
    server = await ensure_server()
    await leave_a_run(server)
    if killed:
        await kill(server)
    assert await stop_server() is not killed
    copy = shutil.copy(home.temporal_db, tmp_path)
    with contextlib.closing(sqlite3.connect(copy)) as database:
        assert ("parked",) in database.execute("SELECT workflow_id FROM current_executions").fetchall()
    assert [path.name for path in home.root.glob("temporal.db*")] == ["temporal.db"]


@pytest.mark.slow
async def test_a_server_whose_starter_died_is_taken_over_and_a_foreign_pid_is_not_trusted(home: Home) -> None:
    before = await ensure_server()
    write_record(home, dataclasses.replace(before, instance_id=None))
    assert await find_running_server() is None
    assert await ensure_server() == before
    assert read_record(home) == before

    await kill(before)
    write_record(home, dataclasses.replace(before, pid=os.getpid()))
    assert await find_running_server() is None
    assert await stop_server() is False  # and leaves that process, this one, alone
    write_record(home, dataclasses.replace(before, pid=os.getpid()))
    after = await ensure_server()
    assert after.pid not in (before.pid, os.getpid())


async def test_a_foreign_server_on_the_port_is_not_trusted(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    foreign = await ensure_server(other)
    try:
        with subprocess.Popen(["sleep", "1000"]) as process:
            token = read_start_token(process.pid)
            assert token is not None
            home.create()
            ours = dataclasses.replace(foreign, pid=process.pid, start_token=token, instance_id="ours")
            write_record(home, ours)
            assert await find_running_server() is None
            process.kill()
        mine = await ensure_server()
        assert mine.address != foreign.address
        assert mine.instance_id != foreign.instance_id
        assert await find_running_server(other) == foreign
    finally:
        await stop_server(other)


@pytest.mark.slow
async def test_a_server_whose_record_was_lost_is_replaced(home: Home) -> None:
    """It begins with a database whose creation was cut short, which is made anew."""
    home.create().temporal_db.touch()
    before = await ensure_server()
    assert await find_running_server() == before
    await leave_a_run(before)
    home.server_file.unlink()
    after = await ensure_server()
    assert not is_alive(before.pid, before.start_token), "two servers on one database would destroy it"
    assert await run_is_there(after)
    home.server_file.write_text("{")
    assert await stop_server() is True
    assert not is_alive(after.pid, after.start_token)


async def run_of(home: Home) -> ServerInfo | None:
    await ensure_server(home)
    return await find_running_server(home)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda home: home.create().temporal_db.mkdir(), "cannot write its database"),
        (lambda home: home.create().temporal_db.write_bytes(b"not a database" * 99), "database is damaged"),
        (lambda home: home.root.write_text(""), "is not a directory"),
    ],
)
async def test_a_home_that_cannot_be_used_is_told(home: Home, spoil: Callable[[Home], object], says: str) -> None:
    spoil(home)
    with pytest.raises(RuntimeSetupError, match=says) as caught:
        await ensure_server()
    assert caught.value.hint
    if home.root.is_file():
        home.root.unlink()


async def test_a_server_that_ends_at_once_is_told_with_its_words(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "temporal"
    script.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "temporal version 1 (Server 1.29.1)"; else echo "no luck"; exit 1; fi\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PERDURE_TEMPORAL_CLI", str(script))
    with pytest.raises(ServerStartError, match="no luck"):
        await ensure_server()


async def test_a_server_that_crashes_at_its_start_is_started_again(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, crashed = os.environ["PERDURE_TEMPORAL_CLI"], tmp_path / "crashed"
    script = tmp_path / "temporal"
    script.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" != --version ] && [ ! -e {crashed} ]; then touch {crashed}\n'
        'echo "panic: no free port"; echo "goroutine 1 [running]:"; exit 2; fi\n'
        f'exec {real} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PERDURE_TEMPORAL_CLI", str(script))
    assert await run_of(home) is not None
    assert crashed.exists()


async def test_a_server_that_crashes_each_time_is_told_with_the_crash(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "temporal"
    script.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "temporal version 1 (Server 1.29.1)"; exit; fi\n'
        'echo "panic: no free port"; for i in 1 2 3 4 5 6 7 8 9; do echo "  frame $i"; done; exit 2\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PERDURE_TEMPORAL_CLI", str(script))
    with pytest.raises(ServerStartError, match="panic: no free port"):
        await ensure_server()


async def test_a_full_disk_is_told(home: Home, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(disk)], check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        with pytest.raises(RuntimeSetupError, match="No space left on device") as caught:
            await ensure_server(Home(disk / "home"))
        assert "PERDURE_HOME" in (caught.value.hint or "")
        # Enough for a start, not for a database.
        subprocess.run(["mount", "-o", "remount,size=400k", str(disk)], check=True)
        with pytest.raises(ServerStartError, match="the disk is full"):
            await ensure_server(Home(disk / "home"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert await run_of(Home(disk / "home")) is not None
    finally:
        await stop_server(Home(disk / "home"))
        subprocess.run(["umount", "--lazy", str(disk)], check=True)  # a process that ends may be on it yet


async def test_the_embedded_server_is_the_last_choice(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    target = await resolve_target(start=True, namespace="team-a")
    assert target.embedded == await find_running_server()
    assert (await connect(target)).namespace == "team-a"
    await indexed_namespace(target.address, "team-a")
    client = await Client.connect(target.address)
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="team-a"))
    assert described.config.workflow_execution_retention_ttl.ToTimedelta() == RETENTION
    assert (await resolve_target()).address == target.address
    monkeypatch.setenv("TEMPORAL_ADDRESS", "elsewhere:1")
    assert (await resolve_target(start=True)).address == "elsewhere:1"


async def test_the_commands(home: Home) -> None:
    missing = await perdure("server", "status")
    assert (missing.code, missing.out) == (4, "")
    assert missing.err.startswith("error: no embedded server runs.\nhint: ")
    assert (await perdure("env")).code == 4
    assert (await perdure("server", "nonsense")).code == 2

    installed = await perdure("server", "install")
    assert installed.out.splitlines()[-1] == os.environ["PERDURE_TEMPORAL_CLI"]

    assert (await perdure("server", "start")).code == 0
    status = (await perdure("server", "status", "-o", "json")).json
    exported = shlex.split((await perdure("env", "-n", "it's")).out)
    assert exported == [
        "export", f"TEMPORAL_ADDRESS={status['address']}", "export", "TEMPORAL_NAMESPACE=it's"
    ]  # fmt: skip
    assert (await perdure("server", "stop")).out == "stopped\n"
    assert (await perdure("server", "stop")).out == "no embedded server runs\n"


async def test_doctor(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    idle = await perdure("doctor", "-o", "json")
    assert idle.code == 0, idle.out
    assert "sk-secret" not in idle.out
    findings = {finding["check"]: finding for finding in idle.json}
    assert {"python", "packages", "extras", "API keys", "home", "store", "disk", "dev server", "server"} <= set(
        findings
    )
    assert not home.root.exists()

    await ensure_server()
    running = await perdure("doctor")
    assert running.code == 0
    assert "the embedded server" in running.out

    wrong = await perdure("doctor", "-n", "nosuch")
    assert wrong.code == 1
    assert "fail  namespace" in wrong.out

    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    unreachable = await perdure("doctor")
    assert unreachable.code == 1
    assert "connection refused" in unreachable.out
