"""``perdure doctor`` names the keys of ``auth_context``, and never shows one."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perdure._encryption import KEY_BYTES, KEYS_VARIABLE
from perdure.cli import app

SECRET = base64.b64encode(b"s" * KEY_BYTES).decode()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "PERDURE_STORE_URL", KEYS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))


def found() -> list[Any]:
    said = CliRunner().invoke(app, ["doctor", "--json"]).output
    assert SECRET not in said
    return [finding for finding in json.loads(said) if finding["check"] == "encryption"]


def test_keys_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found() == []
    monkeypatch.setenv(KEYS_VARIABLE, f"k2:{SECRET},k1:{SECRET}")
    (one,) = found()
    assert (one["status"], one["detail"]) == ("ok", f"{KEYS_VARIABLE}: k2 encrypts; decrypts also: k1")


def test_a_wrong_one_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, SECRET)
    (one,) = found()
    assert (one["status"], "key 1 is not of the form id:base64" in one["detail"]) == ("fail", True)
    assert "openssl rand" in one["hint"]
