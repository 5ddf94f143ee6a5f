"""PERDURE_HOME."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.embedded.home import Home, current_home
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
    assert sorted(path.name for path in home.root.iterdir()) == ["bin", "logs"]


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
