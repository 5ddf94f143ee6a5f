"""``perdure doctor`` says whether the location of large objects can be read and written."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perdure.cli import app
from perdure.store import open_store
from perdure.store.objects import check_blob_location


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "PERDURE_STORE_URL", "PERDURE_BLOB_URL", "PERDURE_BLOB_BYTES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))


def find_objects() -> list[Any]:
    output = CliRunner().invoke(app, ["doctor", "--json"]).output
    return [finding for finding in json.loads(output) if finding["check"] == "large objects"]


def test_nothing_is_said_where_none_is_set() -> None:
    assert find_objects() == []


def test_a_folder_is_not_made_and_nothing_is_left_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "objects"
    monkeypatch.setenv("PERDURE_BLOB_URL", f"file://{folder}/")
    for _ in range(2):
        (finding,) = find_objects()
        assert (finding["status"], finding["detail"]) == (
            "ok",
            f"file://{folder}: can be read and written; no objects yet",
        )
        assert not folder.exists() or os.listdir(folder) == []  # noqa: PTH208  # names
        folder.mkdir(exist_ok=True)


async def test_the_store_whose_objects_they_are_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path / 'objects'}"
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}", blob_url=url)
    await store.open()
    await check_blob_location(store)
    await store.close()
    monkeypatch.setenv("PERDURE_BLOB_URL", url)

    (finding,) = await asyncio.to_thread(find_objects)
    assert finding["detail"].endswith(f"the objects of store {store.store_id}")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("PERDURE_BLOB_URL", "s3://", "names no bucket"),
        ("PERDURE_BLOB_URL", "file:///etc/passwd/objects", "cannot be"),
        ("PERDURE_BLOB_BYTES", "64k", "not a number of bytes"),
    ],
)
def test_a_wrong_one_is_a_failure(monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str) -> None:
    monkeypatch.setenv(name, value)
    (finding,) = find_objects()
    assert finding["status"] == "fail"
    assert reason in finding["detail"]
    assert finding["hint"]
