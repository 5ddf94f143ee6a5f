"""Replay of histories in files; of live runs: tests/integration/test_replay.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure.cli import app
from perdure.errors import InvalidInputError
from perdure.testing import ReplayError, replay
from perdure.worker.replay import format_history_json, read_histories, save_histories

STORED = Path(__file__).parent.parent.parent / "replay" / "histories" / "0.1"
GOOD = STORED / "one_tool.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One history that replays, and one that does not, in a folder below."""
    (tmp_path / "below").mkdir()
    (tmp_path / "good.json").write_text(GOOD.read_text())
    (tmp_path / "below" / "bad.json").write_text(GOOD.read_text().replace('"tool.add"', '"tool.subtract"'))
    return tmp_path


async def test_a_file_and_a_folder(tmp_path: Path) -> None:
    report = await replay(GOOD)
    assert str(report) == f"ok      {GOOD} (23 events)\nthe one history replays"
    for stored in sorted(STORED.glob("*.json"))[:3]:  # tests/replay has all of them
        shutil.copy(stored, tmp_path)
    assert str(await replay(str(tmp_path))).endswith("all 3 replay")


async def test_what_does_not_replay_is_named(folder: Path) -> None:
    with pytest.raises(ReplayError) as caught:
        await replay(folder)
    (failed,) = caught.value.report.failed
    assert failed.name == str(folder / "below" / "bad.json")
    assert str(failed.error).startswith("NondeterminismError: ")
    assert "1 of 2 do not replay" in str(caught.value)


async def test_nothing_to_replay_does_not_pass(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no history"):
        await replay(tmp_path)
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        await replay(tmp_path / "missing.json")
    with pytest.raises(InvalidInputError, match="needs either a path"):
        await replay()
    with pytest.raises(InvalidInputError, match="needs either a path"):
        await replay(GOOD, id="x")


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"events": []}', '{"events": [{"eventId": "1"}]}', "\x00"])
async def test_a_file_that_is_no_history(tmp_path: Path, body: str) -> None:
    (tmp_path / "x.json").write_text(body)
    with pytest.raises(InvalidInputError, match=r"x\.json is not a workflow history"):
        await replay(tmp_path)


def test_saved_histories_are_read_back(tmp_path: Path) -> None:
    (history,) = read_histories(GOOD).values()
    (one,) = save_histories(tmp_path / "new", "a/b", [history])
    assert one.name == "a%2Fb.json", "an id is no path"
    assert one.read_text() == format_history_json(history)
    assert json.loads(one.read_text()) == json.loads(GOOD.read_text())
    several = save_histories(tmp_path / "new", "run", [history, history])
    assert [file.name for file in several] == ["run.1.json", "run.2.json"]
    (tmp_path / "taken").write_text("")
    with pytest.raises(InvalidInputError, match="cannot be written"):
        save_histories(tmp_path / "taken", "run", [history])


def test_the_command(folder: Path) -> None:
    command = CliRunner()
    good = command.invoke(app, ["replay", str(folder / "good.json")])
    assert (good.exit_code, good.stdout.splitlines()[-1]) == (0, "the one history replays")
    bad = command.invoke(app, ["replay", str(folder), "-o", "json"])
    assert bad.exit_code == 1
    assert [one["replays"] for one in json.loads(bad.stdout)] == [False, True]
    assert command.invoke(app, ["replay"]).exit_code == 2
