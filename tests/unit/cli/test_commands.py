"""Commands as far as they need no server."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from perdure.cli import app
from perdure.cli.connection import mask_password
from perdure.cli.dev import take_snapshot
from perdure.cli.output import format_duration
from perdure.errors import InvalidInputError, ServerUnreachableError

COMMANDS = (
    *("demo", "run", "chat", "dev", "worker", "list", "show", "send", "wait", "inject", "interrupt", "cancel", "close"),
    *("pause", "resume", "schema", "server", "env", "doctor"),
)


@pytest.fixture(autouse=True)
def no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "PERDURE_STORE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))


def test_help_names_every_command() -> None:
    said = CliRunner().invoke(app, ["--help"]).output
    assert all(f" {command} " in said for command in COMMANDS)
    for command in COMMANDS:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ["list"],
            ["show", "x"],
            ["inject", "x", "hi"],
            ["cancel", "x"],
            ["pause", "x"],
            ["resume", "x"],
            ["close", "x"],
        ),
        *(["send", "x", "hi"], ["send", "x", "hi", "--agent", "a"], ["wait", "x"], ["interrupt", "x"]),
    ],
)
def test_without_a_server_nothing_is_started(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ServerUnreachableError)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "a", "hi", "--context", "{"], "--context is not JSON"),
        (["run", "a", "hi", "--context", "[1]"], "--context must be a JSON object"),
        (["run", "a", "hi", "-d", "--file", "x.py"], "-d exits at once"),
        (["run", "a", "hi", "--file", "gone.py"], "there is no file gone.py"),
        (["chat", "a", "--context", "{"], "--context is not JSON"),
        (["chat", "a", "--file", "gone.py"], "there is no file gone.py"),
        (["send", "x", "hi", "--context", "{}"], "apply only to a new conversation"),
        (["send", "x", "hi", "--idle-timeout", "1h"], "apply only to a new conversation"),
        (["schema", "--agent", "a"], "--agent needs --file"),
        (["schema", "start", "--file", "x.py"], "'start' is the same for all agents"),
        (["worker", "gone.py"], "there is no file gone.py"),
        (["dev", "gone.py"], "there is no file gone.py"),
        (["demo", "--path", "/no/such/folder"], "there is no folder"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(arguments: list[str], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InvalidInputError)
    assert said in str(result.exception)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["chat"],
        ["send", "x"],
        ["schema", "odd"],
        ["list", "--status", "odd"],
        ["list", "--limit", "0"],
        ["show"],
    ],
)
def test_usage_errors_are_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_whatever_prints_an_answer_prints_it_as_json_too() -> None:
    serve, exports = {"console", "demo", "dev", "serve", "worker"}, set()
    for name, command in typer.main.get_command(app).commands.items():
        for one in getattr(command, "commands", {name: command}).values():
            options = {option for parameter in one.params for option in parameter.opts}
            if not {"-o", "--json"} <= options:
                exports.add(name)
    assert exports == serve


def test_a_password_is_not_shown() -> None:
    assert mask_password("postgresql://ana:s3cret@db:5432/x?a=1") == "postgresql://ana:***@db:5432/x?a=1"
    assert mask_password("sqlite:////tmp/perdure.db") == "sqlite:////tmp/perdure.db"


@pytest.mark.parametrize(
    ("seconds", "said"), [(-1, "0 s"), (59, "59 s"), (61, "1 min"), (7200, "2 h"), (100_000, "28 h"), (200_000, "2 d")]
)
def test_lengths_of_time(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


def test_a_snapshot_sees_changes_and_new_neighbours(tmp_path: Path) -> None:
    file = tmp_path / "agents.py"
    file.write_text("one")
    watched = [file, tmp_path]
    before = take_snapshot(watched)
    assert take_snapshot(watched) == before
    (tmp_path / "notes.txt").touch()
    assert take_snapshot(watched) == before
    (tmp_path / "new.py").touch()
    assert take_snapshot(watched) != before
    before = take_snapshot(watched)
    file.write_text("other")
    assert take_snapshot(watched) != before
    before = take_snapshot(watched)
    file.unlink()
    assert take_snapshot(watched) != before
