"""PERDURE_HOME."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.embedded.home import Home, current_home
from perdure.embedded.record import ServerInfo, write_record
from perdure.errors import RuntimeSetupError


def test_the_home_is_named_by_the_environment(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_home() == home
    monkeypatch.setenv("PERDURE_HOME", "")
    assert current_home().root == Path.home() / ".perdure"
    monkeypatch.setenv("PERDURE_HOME", "~/elsewhere")
    assert current_home().root == Path.home() / "elsewhere"


def test_it_is_made_for_its_owner_only(home: Home) -> None:
    home.create().create()
    assert home.root.stat().st_mode & 0o777 == 0o700
    home.check_writable()
    assert sorted(path.name for path in home.root.iterdir()) == ["bin", "history", "logs"]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_home_that_is_there_and_open_to_others_is_closed(home: Home) -> None:
    home.root.mkdir(mode=0o755)
    home.logs.mkdir(mode=0o755)
    home.store_db.touch()
    assert (mode(home.root), mode(home.logs)) == (0o755, 0o755)
    home.create()
    assert (mode(home.root), mode(home.logs)) == (0o700, 0o700)


def test_a_directory_with_files_of_other_programs_is_left_open_to_others(home: Home) -> None:
    home.root.mkdir(mode=0o755)
    (home.root / "index.html").touch()
    home.create()
    assert (mode(home.root), mode(home.logs), mode(home.bin), mode(home.history)) == (0o755, 0o700, 0o700, 0o700)


def test_the_default_home_is_closed_whatever_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PERDURE_HOME", raising=False)
    root = current_home().root
    root.mkdir(mode=0o755)
    (root / "notes").touch()
    current_home().create()
    assert mode(root) == 0o700


def test_the_record_of_the_server_is_readable_by_its_owner_alone(home: Home) -> None:
    home.create()
    before = os.umask(0o022)
    try:
        write_record(home, ServerInfo(1, "a", "b", "v", "now", "token", None))
    finally:
        os.umask(before)
    assert mode(home.server_file) == 0o600


def test_a_file_in_its_way_is_named(home: Home) -> None:
    home.root.write_text("")
    with pytest.raises(RuntimeSetupError, match=f"{home.root} is not a directory") as caught:
        home.create()
    assert "PERDURE_HOME" in (caught.value.hint or "")


def test_what_the_file_system_refuses_is_told() -> None:
    with pytest.raises(RuntimeSetupError, match="cannot be used"):
        Home(Path("/proc/perdure")).create()
    with pytest.raises(RuntimeSetupError, match="cannot be used"):
        Home(Path("/proc")).check_writable()
