"""server.json, locks and processes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from perdure.embedded.home import Home, hold_lock, try_lock
from perdure.embedded.process import is_alive, read_start_token, terminate_process
from perdure.embedded.record import ServerInfo, find_running_server, read_record, write_record
from perdure.embedded.server import stop_server
from perdure.errors import RuntimeSetupError

INFO = ServerInfo(
    pid=1234,
    address="127.0.0.1:7233",
    ui_address="127.0.0.1:8233",
    version="1.29.1",
    started_at="2026-01-01T00:00:00+00:00",
    start_token="boot/1",
    instance_id="cluster",
)


def test_a_record_is_read_as_written(home: Home) -> None:
    home.create()
    assert read_record(home) is None
    for record in (INFO, dataclasses.replace(INFO, instance_id=None)):
        write_record(home, record)
        assert read_record(home) == record


COMPLETE = json.dumps(dataclasses.asdict(INFO))


def test_fields_of_a_newer_version_are_ignored(home: Home) -> None:
    home.create().server_file.write_text(COMPLETE.replace("{", '{"new": 1, '))
    assert read_record(home) == INFO


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "{}", '{"pid": 1}', "\x00\xff", "null", "[" * 100_000),
        *(COMPLETE.replace("1234", pid) for pid in ("0", "-1", "true", '"1234"', "1e3", "null")),
        *(COMPLETE.replace('"cluster"', instance_id) for instance_id in ("7", "[]")),
        COMPLETE.replace('"127.0.0.1:7233"', "null"),
    ],
    ids=lambda content: content[:30],
)
async def test_a_damaged_record_is_none(home: Home, content: str) -> None:
    home.create().server_file.write_text(content)
    assert read_record(home) is None
    assert await find_running_server(home) is None
    assert await stop_server(home) is False


async def test_nothing_is_made_by_asking(home: Home) -> None:
    assert await find_running_server() is None
    assert await stop_server() is False
    assert not home.root.exists()


async def test_the_lock_is_told_when_held_too_long(home: Home) -> None:
    home.create()
    fd = try_lock(home.server_lock)
    assert fd is not None
    with pytest.raises(RuntimeSetupError, match="has been testing for over"):
        async with hold_lock(home.server_lock, wait=0, busy="testing"):
            pass
    os.close(fd)
    async with hold_lock(home.server_lock, wait=0, busy="testing"):
        assert try_lock(home.server_lock) is None


async def test_a_process_is_told_from_another_of_its_number(home: Home) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        token = read_start_token(process.pid)
        assert token is not None
        assert is_alive(process.pid, token)
        assert not is_alive(process.pid, "boot/other")
        await terminate_process(process.pid, "boot/other")  # a stranger: left alone
        assert is_alive(process.pid, token)
        await terminate_process(process.pid, token)
        assert read_start_token(process.pid) is None  # a zombie, until it is waited for
