"""Where the dev server's binary comes from, with programs that only look like it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.embedded.binary import ensure_binary, find_binary
from perdure.embedded.home import Home
from perdure.errors import RuntimeSetupError, ServerNotFoundError

from .conftest import VERSION_LINE, MakeProgram

FAKE_GO = f"""
[ "$1" = install ] || exit 3
echo x >> "$PERDURE_HOME/builds"
echo 'go: downloading something v1' >&2
printf '#!/bin/sh\\necho "{VERSION_LINE}"\\n' > "$GOBIN/temporal"
/bin/chmod +x "$GOBIN/temporal"
"""


@pytest.fixture
def no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's download host cannot be reached."""

    async def start_local(**_: Any) -> None:
        raise RuntimeError("failed to download: no route")

    monkeypatch.setattr(WorkflowEnvironment, "start_local", start_local)


async def test_the_named_binary_comes_first(
    home: Home, path_dir: Path, tmp_path: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(path_dir / "temporal")
    named = program(tmp_path / "mine")
    monkeypatch.setenv("PERDURE_TEMPORAL_CLI", str(named))
    found = await ensure_binary()
    assert (found.path, found.server_version, found.source) == (named, "1.29.1", "PERDURE_TEMPORAL_CLI")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'temporal version 0.10.7 (server 1.22.4) (ui 2.21.3)'", "server 1.22.4; 1.28 is the oldest"),
        ("echo something else", "something else"),
        ("exit 7", "ended with 7"),
        (None, "no such program"),
    ],
)
async def test_a_named_binary_that_does_not_work_is_an_error(
    script: str | None,
    says: str,
    home: Home,
    path_dir: Path,
    tmp_path: Path,
    program: MakeProgram,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program(path_dir / "temporal")  # would do, but was not asked for
    if script is not None:
        program(tmp_path / "mine", script)
    monkeypatch.setenv("PERDURE_TEMPORAL_CLI", str(tmp_path / "mine"))
    with pytest.raises(ServerNotFoundError, match="PERDURE_TEMPORAL_CLI") as caught:
        await find_binary()
    assert says in caught.value.message
    assert caught.value.hint


async def test_path_comes_before_the_cache(home: Home, path_dir: Path, program: MakeProgram) -> None:
    cached = program(home.binary)
    found = await find_binary()
    assert found is not None
    assert found.path == cached
    on_path = program(path_dir / "temporal")
    found = await find_binary()
    assert found is not None
    assert found.path == on_path


async def test_an_unfit_program_on_path_is_passed_over(home: Home, path_dir: Path, program: MakeProgram) -> None:
    program(path_dir / "temporal", "echo 'temporal: a calendar tool'")
    cached = program(home.binary)
    assert (await ensure_binary()).path == cached


async def test_the_sdk_download_lands_in_the_cache(
    home: Home, path_dir: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Environment:
        async def shutdown(self) -> None: ...

    async def start_local(*, download_dest_dir: str, **_: Any) -> Environment:
        program(Path(download_dest_dir) / "temporal-v1.5.1")
        return Environment()

    monkeypatch.setattr(WorkflowEnvironment, "start_local", start_local)
    program(path_dir / "go", "exit 9")
    found = await ensure_binary()
    assert found.path == home.binary
    assert "SDK" in found.source
    assert [path.name for path in home.bin.iterdir() if path.name.startswith(".")] == []


async def test_go_install_is_the_last_way(
    home: Home, path_dir: Path, program: MakeProgram, no_route: None, capsys: pytest.CaptureFixture[str]
) -> None:
    program(path_dir / "go", FAKE_GO)
    found = await ensure_binary()
    assert found.path == home.binary
    assert "go install" in found.source
    assert "go install" in capsys.readouterr().err
    assert (await ensure_binary()).source.startswith("the cache")


async def test_leftovers_of_a_killed_fetch_are_removed(
    home: Home, path_dir: Path, program: MakeProgram, no_route: None
) -> None:
    program(home.bin / ".fetch-old" / "temporal")
    program(path_dir / "go", FAKE_GO)
    await ensure_binary()
    assert not (home.bin / ".fetch-old").exists()


async def test_when_all_ways_fail_the_error_names_them(
    home: Home, path_dir: Path, program: MakeProgram, no_route: None
) -> None:
    program(path_dir / "temporal", "exit 7")
    program(path_dir / "go", "echo 'go: dial tcp: no such host' >&2; exit 1")
    with pytest.raises(ServerNotFoundError) as caught:
        await ensure_binary()
    ways = caught.value.message.splitlines()[1:]
    expected = ["PERDURE_TEMPORAL_CLI: not set", "on PATH: ", str(home.binary), "SDK's own download", "go install"]
    for line, way in zip(ways, expected, strict=True):
        assert way in line
    for reason in ("ended with 7", "it is empty", "no route", "no such host"):
        assert reason in caught.value.message
    assert "TEMPORAL_ADDRESS" in (caught.value.hint or "")


async def test_a_fetched_binary_that_does_not_run_is_not_cached(
    home: Home, path_dir: Path, program: MakeProgram, no_route: None
) -> None:
    program(path_dir / "go", FAKE_GO.replace("Server 1.29.1", "broken"))
    with pytest.raises(ServerNotFoundError, match="go install"):
        await ensure_binary()
    assert not home.binary.exists()


async def test_two_processes_fetch_once(home: Home, path_dir: Path, program: MakeProgram) -> None:
    program(path_dir / "go", FAKE_GO)
    script = (
        "import asyncio, sys, types\n"
        "class WorkflowEnvironment:\n"  # the SDK itself takes each process half a second
        "    async def start_local(**_): raise RuntimeError('no route')\n"
        "sys.modules['temporalio.testing'] = types.SimpleNamespace(WorkflowEnvironment=WorkflowEnvironment)\n"
        "from perdure.embedded.binary import ensure_binary\n"
        "print(asyncio.run(ensure_binary()).path)\n"
    )
    commands = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(2)
    ]
    answers = await asyncio.gather(*(asyncio.to_thread(command.communicate) for command in commands))
    assert {out.strip() for out, _ in answers} == {str(home.binary)}
    assert (home.root / "builds").read_text().splitlines() == ["x"]


async def test_a_home_that_is_a_file_is_named(home: Home, path_dir: Path, no_route: None) -> None:
    home.root.write_text("")
    with pytest.raises(RuntimeSetupError, match="is not a directory"):
        await ensure_binary()
