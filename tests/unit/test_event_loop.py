"""Which event loop perdure's own programs run on."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from perdure._event_loop import find_loop_factory, run_event_loop
from perdure._installation import build_install_command
from perdure.errors import RuntimeSetupError

pytest.importorskip("uvloop", reason="not on this platform")


async def name_loop() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_uvloop_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_EVENT_LOOP", raising=False)
    assert run_event_loop(name_loop()) == "uvloop"


def test_asyncio_is_used_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_EVENT_LOOP", "asyncio")
    assert run_event_loop(name_loop()) == "asyncio"


def test_asyncio_is_used_where_uvloop_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_EVENT_LOOP", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert run_event_loop(name_loop()) == "asyncio"


def test_uvloop_that_is_asked_for_and_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_EVENT_LOOP", "uvloop")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RuntimeSetupError, match="needs the extra 'uvloop'") as error:
        find_loop_factory()
    assert error.value.hint == f"Install it: {build_install_command(['uvloop'])}"


def test_another_value_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_EVENT_LOOP", "trio")
    with pytest.raises(RuntimeSetupError, match="'trio'"):
        find_loop_factory()
