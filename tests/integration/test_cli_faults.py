"""No command shows a traceback, whatever is wrong around it: each one of the command tree, also one that is new."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main
from temporalio.client import Client as TemporalClient
from temporalio.service import ConnectConfig, RPCError, RPCStatusCode, ServiceClient

from perdure import Agent
from perdure._encryption import KEYS_VARIABLE
from perdure.cli import app
from perdure.embedded import address, diagnosis
from perdure.store import open_store
from perdure.temporal import outages
from perdure.testing import ScriptedProvider
from tests.support.cli import Done
from tests.support.commands import Commands
from tests.support.engine import Engine

AGENTS = """
from perdure import Agent
from perdure.testing import ScriptedProvider
greeter = Agent("greeter", ScriptedProvider(lambda _: "Hello."))
"""
UNREACHABLE = "127.0.0.1:1"
CONNECT = address.connect
"""Connects by the SDK: ``Commands`` replaces it in a process without a server."""
ARGUMENTS = {
    "url": "https://localhost/",
    "name": "ada",
    "agent": "greeter",
    "message": "Hi",
    "call_or_value": "yes",
    "value": None,
}
"""Values for the arguments of commands by name, beside those that name a run or a file; the others get one letter."""
FURTHER = {
    ("schedule", "create"): ["--every", "1h"],
    ("doctor",): [],
    ("demo",): ["--model", "demo"],
    ("delete",): ["--yes"],
}
"""Options without which a command would end for another reason."""
SERVING = {("console",), ("demo",), ("dev",), ("serve",), ("worker",)}
"""Commands that serve in processes of their own, or until they are stopped."""


def list_commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, (*path, name))
        else:
            yield (*path, name), command


TREE = dict(list_commands(typer.main.get_command(app)))
ALL = pytest.mark.parametrize("path", TREE, ids=" ".join)
NOT_IN_PROCESS = {("replay",), ("chat",)}
"""The in-process service has no history that replays; a chat goes on after an error, and asks again."""
NAMING_RUNS = {
    path
    for path, command in TREE.items()
    if path[0] not in ("schedule", "token", "webhook")
    and any(parameter.name in ("id", "left") for parameter in command.params if parameter.required)
}
"""Commands that are given the id of a run that exists."""
WAITING = {("run",), ("wait",)}
"""Commands that say that the server does not answer, and wait for it."""
CLIENTS = pytest.mark.parametrize("path", sorted(TREE.keys() - SERVING), ids=" ".join)


def build_arguments(path: tuple[str, ...], folder: Path, run_id: str) -> list[str]:
    """The command with a value for each argument and each option that it needs."""
    values = {"file": str(folder / "agents.py"), "target": str(folder / "agents.py")}
    values |= dict.fromkeys(("id", "left", "right", "sources"), run_id) | {"older_than": "90d", "role": "viewer"}
    words = [*path, *FURTHER.get(path, [])]
    for parameter in TREE[path].params:
        name = str(parameter.name)
        if parameter.param_type_name == "argument":
            value = values.get(name, ARGUMENTS.get(name, "x" if parameter.required else None))
            words += [] if value is None else [value]
        elif parameter.required:
            words += [parameter.opts[-1], values.get(name, "x")]
    return words


def has_option(path: tuple[str, ...], option: str) -> bool:
    return any(option in parameter.opts for parameter in TREE[path].params)


def check(done: Done) -> None:
    """A command of this process that raises anything but a ``PerdureError`` has failed the test before."""
    assert "Traceback" not in done.out + done.err
    assert "Usage: " not in done.err, f"the test lacks an argument: {done.err}"
    assert done.code in (0, 1, 2, 3, 4)
    if done.code:
        said = done.err or done.out
        assert "error: " in said or "fail" in said, said
        assert "unexpected" not in said


class FaultyService(ServiceClient):
    """Temporal's frontend that answers the first ``after`` requests as ``inner`` does, and then raises ``error``."""

    def __init__(
        self, error: RPCError, inner: ServiceClient | None = None, after: int = 0, *, most: int | None = None
    ) -> None:
        """``most``: how many requests fail until it answers again."""
        super().__init__(ConnectConfig(target_host=UNREACHABLE))
        self._most = most
        self.error = error
        self.failures = 0
        self._inner = inner
        self._left = after

    @property
    def worker_service_client(self) -> Any:
        raise AssertionError("a worker began to connect")

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None: ...

    def update_api_key(self, api_key: str | None) -> None: ...

    async def _rpc_call(self, rpc: str, req: Any, resp_type: type[Any], **options: Any) -> Any:
        is_back = self._most is not None and self.failures >= self._most
        if self._inner is None or (self._left == 0 and not is_back):
            self.failures += 1
            raise self.error
        self._left = max(self._left - 1, 0)
        return await self._inner._rpc_call(rpc, req, resp_type, **options)


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    (tmp_path / "agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    # Only the main thread catches signals, and commands run in others here.
    monkeypatch.setenv("PERDURE_EVENT_LOOP", "asyncio")  # these commands run in a thread, which sets no handlers
    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", lambda *_: None)
    monkeypatch.setenv("PERDURE_TEMPORAL_CLI", str(tmp_path / "no-such-binary"))
    return Commands(engine, monkeypatch)


@pytest.fixture
def answer(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the service that commands connect to."""

    def use(service: ServiceClient) -> None:
        async def connect(target: Any, **_: Any) -> TemporalClient:
            return TemporalClient(service, namespace=target.namespace)

        for module in (address, diagnosis):
            monkeypatch.setattr(module, "connect", connect)

    return use


@pytest.mark.parametrize("path", sorted(TREE.keys() - {("worker",), ("serve",)}), ids=" ".join)
async def test_a_wrong_address(
    path: tuple[str, ...], cli: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def refuse(**_: Any) -> Any:  # the SDK tries for seconds
        raise RuntimeError("Failed client connect: connection refused")

    monkeypatch.setattr(address, "connect", CONNECT)
    monkeypatch.setattr(TemporalClient, "connect", refuse)
    monkeypatch.setenv("TEMPORAL_ADDRESS", UNREACHABLE)
    done = await cli(*build_arguments(path, tmp_path, "run-1"))
    check(done)
    if has_option(path, "--address") and path not in {("env",), ("doctor",)}:
        assert (done.code, "connection refused" in done.err) == (4, True)


@ALL
async def test_an_unknown_namespace(path: tuple[str, ...], cli: Commands, answer: Any, tmp_path: Path) -> None:
    answer(FaultyService(RPCError("Namespace typo is not found.", RPCStatusCode.NOT_FOUND, b"")))
    arguments = build_arguments(path, tmp_path, "run-1")
    if not has_option(path, "--namespace"):
        return
    done = await cli(*arguments, "--namespace", "typo")
    check(done)
    # Without a store there is nothing to collect; tokens, webhooks and bulk actions are in the store alone.
    if path not in {("env",), ("doctor",), ("store", "gc")} and path[0] not in ("token", "webhook", "mcp", "bulk"):
        assert done.code == 4
        assert "there is no namespace 'typo'" in done.err
        assert "perdure server setup --create" in done.err


@ALL
async def test_a_malformed_encryption_key(
    path: tuple[str, ...], cli: Commands, answer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer(FaultyService(RPCError("Namespace typo is not found.", RPCStatusCode.NOT_FOUND, b"")))
    monkeypatch.setenv(KEYS_VARIABLE, base64.b64encode(b"no id").decode())
    done = await cli(*build_arguments(path, tmp_path, "run-1"))
    check(done)
    if path in {("worker",), ("doctor",)}:
        assert "key 1 is not of the form id:base64" in done.err + done.out


async def write_stores(folder: Path) -> dict[str, str]:
    """URLs of stores that are none of the run's."""
    (folder / "text.db").write_text("this is not a database " * 100)
    (folder / "folder.db").mkdir()
    with sqlite3.connect(folder / "other.db") as other:
        other.execute("CREATE TABLE something (a)")
    stranger = open_store(f"sqlite:///{folder / 'stranger.db'}")
    await stranger.open()
    await stranger.close()
    names = ("missing", "no/folder/missing", "text", "folder", "other", "stranger")
    return {name: f"sqlite:///{folder / name}.db" for name in names} | {"scheme": "mysql://u:secret@h/d"}


@CLIENTS
async def test_a_wrong_store_and_a_wrong_id(
    path: tuple[str, ...], engine: Engine, cli: Commands, tmp_path: Path
) -> None:
    async with engine.served(Agent("greeter", ScriptedProvider(lambda _: "Hello."))) as client:
        await (await client.start("greeter", "Hi", id="run-1")).result()
        for run_id in ("no-such-run", "x" * 2000, "bell\x07'\\"):
            done = await cli(*build_arguments(path, tmp_path, run_id))
            check(done)
            if path in NAMING_RUNS:
                assert done.code == 3, f"{done.out}{done.err}"
        for name, url in (await write_stores(tmp_path)).items() if has_option(path, "--store-url") else ():
            done = await cli(*build_arguments(path, tmp_path, "run-1"), "--store-url", url)
            check(done)
            assert "secret" not in done.out + done.err
            assert done.code != 4, f"{name}: a store's error is no missing server: {done.err}"


@pytest.mark.parametrize("path", sorted(TREE.keys() - SERVING - NOT_IN_PROCESS), ids=" ".join)
async def test_a_server_that_stops_in_the_middle(
    path: tuple[str, ...], engine: Engine, cli: Commands, answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of the requests that the command makes; for good or, where the command waits for it, for a while."""
    stopped = RPCError("tcp connect error", RPCStatusCode.UNAVAILABLE, b"")
    monkeypatch.setattr(outages, "_RETRY_SECONDS", 0.02)
    async with engine.served(Agent("greeter", ScriptedProvider(lambda _: "Hello."))) as client:
        await (await client.start("greeter", "Hi", id="run-1")).result()
        for answered in range(100):
            most = 30 if path in WAITING else None
            service = FaultyService(stopped, client.temporal.service_client, answered, most=most)
            answer(service)
            done = await cli(*build_arguments(path, tmp_path, "run-1"))
            check(done)
            if not service.failures:
                break
        else:
            raise AssertionError("it never ends")
