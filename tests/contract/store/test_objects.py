"""Large blobs as objects: in a folder, and (slow) on a server that speaks S3."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import obstore.exceptions
import obstore.store
import pytest

from perdure.errors import (
    MissingExtraError,
    StoreError,
    StoreLocationError,
    StoreMismatchError,
    TranscriptCorruptedError,
)
from perdure.ports.store import Blob, Commit, MemoryWrite, Outcome, Store
from perdure.store import Chain, objects, open_store
from perdure.store.objects import DEFAULT_THRESHOLD, build_object_name, check_blob_location, probe_location
from perdure.types.messages import Message
from tests.servers.s3 import S3Server, ThroughFaults

LARGE = Blob.from_content(b"large" * 40_000)
SMALL = Blob.from_content(b"small")


class Folder:
    """Objects in a folder, changed behind the store's back."""

    def __init__(self, folder: Path) -> None:
        self.url = f"file://{folder}"
        self.folder = folder

    def names(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}

    def overwrite(self, name: str, body: bytes) -> None:
        (self.folder / name).write_bytes(body)

    def delete(self, name: str) -> None:
        (self.folder / name).unlink()


class Bucket:
    """Objects in a bucket of the server, likewise."""

    def __init__(self, server: S3Server, bucket: str) -> None:
        server.create_bucket(bucket)
        self.url = f"s3://{bucket}/some/prefix"
        self._server, self._bucket = server, bucket

    def names(self) -> set[str]:
        listed = self._server.request("GET", self._bucket).decode()
        return {part.partition("</Key>")[0].removeprefix("some/prefix/") for part in listed.split("<Key>")[1:]}

    def overwrite(self, name: str, body: bytes) -> None:
        obstore.put(self._connect(), name, body)

    def delete(self, name: str) -> None:
        obstore.delete(self._connect(), name)

    def _connect(self) -> Any:
        return obstore.store.from_url(self.url, client_options={"allow_http": True})


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder | Bucket:
    if request.param == "folder":
        return Folder(tmp_path / "objects")
    server: S3Server = request.getfixturevalue("s3_server")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return Bucket(server, f"b{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:20]}")


@dataclass
class Stores:
    """Opens stores on one SQLite file, and closes them at the end of the test."""

    url: str
    stack: contextlib.AsyncExitStack

    async def open(self, blob_url: str | None, blob_bytes: int | None = None) -> Store:
        store = open_store(self.url, blob_url=blob_url, blob_bytes=blob_bytes)
        await store.open()
        self.stack.push_async_callback(store.close)
        return store


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[Stores]:
    async with contextlib.AsyncExitStack() as stack:
        yield Stores(f"sqlite:///{tmp_path / 'store.db'}", stack)


async def test_a_large_blob_is_an_object_and_a_small_one_a_row(stores: Stores, place: Folder | Bucket) -> None:
    store = await stores.open(place.url)
    edge = Blob.from_content(b"e" * DEFAULT_THRESHOLD)
    await store.commit(Commit(blobs=[LARGE, SMALL, edge]))
    assert place.names() == {"perdure-store.json", build_object_name(LARGE.hash)}
    everything = {blob.hash: blob.body for blob in (LARGE, SMALL, edge)}
    assert await store.read_blobs([*everything, "0" * 64]) == everything
    rows = await (await stores.open(None)).read_blobs([LARGE.hash])
    assert len(rows[LARGE.hash]) < 500, "the database has a pointer"
    assert await (await stores.open(place.url)).read_blobs(list(everything)) == everything, "another process"


async def test_writing_again_and_from_two_workers_at_once_changes_nothing(
    stores: Stores, place: Folder | Bucket
) -> None:
    first, second = await stores.open(place.url), await stores.open(place.url)
    blobs = [Blob.from_content(bytes([n]) * 100_000) for n in range(20)]
    await asyncio.gather(*(store.commit(Commit(blobs=[*blobs, LARGE])) for store in (first, second, first)))
    assert len(place.names()) == 22
    found = await second.read_blobs([blob.hash for blob in blobs])
    assert found == {blob.hash: blob.body for blob in blobs}, "also more than are read at once"


async def test_blobs_from_before_stay_in_the_database(stores: Stores, place: Folder | Bucket) -> None:
    await (await stores.open(None)).commit(Commit(blobs=[LARGE]))
    store = await stores.open(place.url)
    other = Blob.from_content(b"o" * 100_000)
    await store.commit(Commit(blobs=[other]))
    both = {LARGE.hash: LARGE.body, other.hash: other.body}
    assert await store.read_blobs(list(both)) == both
    place.delete(build_object_name(other.hash))
    assert await store.read_blobs([LARGE.hash]) == {LARGE.hash: LARGE.body}


async def test_without_the_setting_the_error_names_it(stores: Stores, place: Folder | Bucket) -> None:
    await (await stores.open(place.url)).commit(Commit(blobs=[LARGE, SMALL]))
    plain = await stores.open(None)
    assert await plain.read_blobs([SMALL.hash]) == {SMALL.hash: SMALL.body}
    with pytest.raises(StoreError, match=r"PERDURE_BLOB_URL is not set") as caught:
        await Chain(plain).resolve_blob(LARGE.ref)
    assert place.url in str(caught.value.hint)
    assert caught.value.retryable, "another worker may have the setting"
    with pytest.raises(StoreLocationError, match="PERDURE_BLOB_URL is not set") as caught:
        await check_blob_location(plain)
    assert place.url in str(caught.value.hint)


async def test_content_that_looks_like_a_pointer_is_content(stores: Stores, place: Folder | Bucket) -> None:
    store = await stores.open(place.url)
    fake = Blob.from_content(objects.BlobPointer(7, place.url).encode())
    await store.commit(Commit(blobs=[fake]))
    assert await store.read_blobs([fake.hash]) == {fake.hash: fake.body}


@pytest.mark.parametrize("body", [b"other", LARGE.body[:-1] + b"!", b"", None])
async def test_an_object_that_was_changed_or_deleted_is_named(
    stores: Stores, place: Folder | Bucket, body: bytes | None
) -> None:
    store = await stores.open(place.url)
    await store.commit(Commit(blobs=[LARGE]))
    name = build_object_name(LARGE.hash)
    if body is None:
        place.delete(name)
    else:
        place.overwrite(name, body)
    with pytest.raises(TranscriptCorruptedError, match=f"{place.url}/{name}"):
        await Chain(store).resolve_blob(LARGE.ref)
    if body is None or len(body) != len(LARGE.body):
        await store.commit(Commit(blobs=[LARGE]))
        assert await store.read_blobs([LARGE.hash]) == {LARGE.hash: LARGE.body}, "written again, it is whole again"


async def test_an_old_object_is_renewed(
    stores: Stores, place: Folder | Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector may delete an old object that has no row yet; so one that is written again is made young."""
    store = await stores.open(place.url)
    await store.commit(Commit(blobs=[LARGE]))
    place.overwrite(build_object_name(LARGE.hash), b"!" * len(LARGE.body))
    await store.commit(Commit(blobs=[LARGE]))
    with pytest.raises(TranscriptCorruptedError):
        await store.read_blobs([LARGE.hash])  # young, so it was not uploaded again
    monkeypatch.setattr(objects, "RENEW_AFTER", timedelta(0))
    await store.commit(Commit(blobs=[LARGE]))
    assert await store.read_blobs([LARGE.hash]) == {LARGE.hash: LARGE.body}


async def test_twenty_megabytes(stores: Stores, place: Folder | Bucket) -> None:
    store = await stores.open(place.url)
    chain = Chain(store)
    text = "\N{SNOWMAN}" * 7_000_000
    node, blobs = chain.extend(None, [Message.user(text)])
    await store.commit(Commit(nodes=[node], blobs=blobs))
    (message,) = await Chain(await stores.open(place.url)).load(node.hash)
    assert message.text == text


async def test_a_location_belongs_to_one_store(stores: Stores, place: Folder | Bucket, tmp_path: Path) -> None:
    await check_blob_location(await stores.open(place.url))
    other = open_store(f"sqlite:///{tmp_path / 'other.db'}", blob_url=place.url)
    await other.open()
    stores.stack.push_async_callback(other.close)
    with pytest.raises(StoreMismatchError, match="has the objects of store"):
        await check_blob_location(other)
    with pytest.raises(StoreMismatchError, match="has the objects of store"):
        await other.commit(Commit(blobs=[LARGE]))
    assert await other.read_blobs([LARGE.hash]) == {}


async def test_another_place_than_before_is_refused_and_a_copy_is_not(stores: Stores, tmp_path: Path) -> None:
    here, there = Folder(tmp_path / "here"), Folder(tmp_path / "there")
    await (await stores.open(here.url)).commit(Commit(blobs=[LARGE]))
    store = await stores.open(there.url)
    for failing in (
        check_blob_location(store),
        store.commit(Commit(blobs=[SMALL, LARGE])),
        store.read_blobs([LARGE.hash]),
    ):
        with pytest.raises(StoreError, match="does not have the objects of store") as caught:
            await failing
        assert here.url in str(caught.value.hint)
    here.folder.rename(there.folder)
    await check_blob_location(store)
    assert await store.read_blobs([LARGE.hash]) == {LARGE.hash: LARGE.body}
    with pytest.raises(StoreLocationError) as refused:
        await check_blob_location(await stores.open(None))
    assert there.url in str(refused.value.hint), "the record has the new place"


async def test_a_volume_that_is_unmounted_is_not_written_to(stores: Stores, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "volume")
    store = await stores.open(folder.url)
    await store.commit(Commit(blobs=[LARGE]))
    folder.folder.rename(tmp_path / "away")
    for left in (False, True):
        if left:
            folder.folder.mkdir()  # the mount point
        with pytest.raises(StoreError, match="does not have the objects of store") as caught:
            await store.commit(Commit(blobs=[Blob.from_content(b"x" * 100_000)]))
        assert caught.value.retryable
        with pytest.raises(StoreError) as caught:
            await store.read_blobs([LARGE.hash])
        assert not isinstance(caught.value, TranscriptCorruptedError)
    assert folder.names() == set()
    folder.folder.rmdir()
    (tmp_path / "away").rename(folder.folder)
    assert await store.read_blobs([LARGE.hash]) == {LARGE.hash: LARGE.body}


@pytest.mark.parametrize(("folder", "url"), [("a b", "a%20b"), ("zürich", "zürich"), ("x", "x///")])
async def test_the_path_of_a_folder_may_have_any_characters(
    stores: Stores, tmp_path: Path, folder: str, url: str
) -> None:
    store = await stores.open(f"file://{tmp_path}/{url}")
    for _ in range(2):
        await store.commit(Commit(blobs=[LARGE]))
        assert await store.read_blobs([LARGE.hash]) == {LARGE.hash: LARGE.body}
        await check_blob_location(store)
    assert len(Folder(tmp_path / folder).names()) == 2


@pytest.mark.parametrize(
    "fields", [b"", b"[]", b"{}", b"null", b'{"size": 1e999, "url": ""}', b'{"size": "x"}', b"\xff"]
)
async def test_an_altered_pointer_is_an_altered_blob(stores: Stores, tmp_path: Path, fields: bytes) -> None:
    store = await stores.open(f"file://{tmp_path / 'objects'}")
    await (await stores.open(None)).commit(Commit(blobs=[Blob(LARGE.hash, objects.POINTER_PREFIX + fields)]))
    with pytest.raises(TranscriptCorruptedError, match=LARGE.hash):
        await Chain(store).resolve_blob(LARGE.ref)


async def test_files_are_their_owners(stores: Stores, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "deep" / "objects")
    await (await stores.open(folder.url)).commit(Commit(blobs=[LARGE]))
    assert folder.folder.stat().st_mode & 0o777 == 0o700
    assert {(folder.folder / name).stat().st_mode & 0o777 for name in folder.names()} == {0o600}


WRITER = """
import asyncio, os, sys
from perdure.ports.store import Blob, Commit, Outcome
from perdure.store import open_store, objects

async def main(url, blob_url):
    store = open_store(url, blob_url=blob_url)
    await store.open()
    async def die(commit):
        print("uploaded", flush=True)
        os.kill(os.getpid(), 9)
    store._store.commit, commit = die, store._store.commit
    await store.commit(Commit(blobs=[Blob.from_content(b"large" * 40_000)], outcome=Outcome("k", "tool", b"1")))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_writer_killed_between_upload_and_commit_loses_and_doubles_nothing(
    stores: Stores, place: Folder | Bucket
) -> None:
    store = await stores.open(place.url)
    await check_blob_location(store)
    command = [sys.executable, "-c", WRITER, stores.url, place.url]
    killed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert (killed.returncode, killed.stdout) == (-9, "uploaded\n"), killed.stderr
    assert place.names() == {"perdure-store.json", build_object_name(LARGE.hash)}, "an object without a row"
    assert await store.read_blobs([LARGE.hash]) == {}
    assert await store.find_outcomes(["k"]) == {}
    assert await store.commit(Commit(blobs=[LARGE], outcome=Outcome("k", "tool", b"1"))) == b"1"
    assert await store.read_blobs([LARGE.hash]) == {LARGE.hash: LARGE.body}
    assert place.names() == {"perdure-store.json", build_object_name(LARGE.hash)}


async def test_an_upload_that_fails_writes_no_row(stores: Stores, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "objects")
    store = await stores.open(folder.url)
    await check_blob_location(store)
    (folder.folder / LARGE.hash[:2]).write_text("a file where a folder must be")
    memory = [MemoryWrite("n", "k", b"1")]
    with pytest.raises(StoreError, match=build_object_name(LARGE.hash)) as caught:
        await store.commit(Commit(blobs=[LARGE, SMALL], outcome=Outcome("k", "tool", b"1"), memory=memory))
    assert caught.value.retryable
    assert await store.read_blobs([LARGE.hash, SMALL.hash]) == {}
    assert await store.find_outcomes(["k"]) == {}
    assert await store.recall("n", "k") is None


async def test_a_store_that_is_not_made_yet(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "objects")
    store = open_store(f"sqlite:///{tmp_path / 'none.db'}", blob_url=folder.url)
    await store.open(create=False)
    try:
        assert await store.read_blobs([LARGE.hash]) == {}
        with pytest.raises(StoreError, match="there is no store at"):
            await store.commit(Commit(blobs=[LARGE]))
        assert not folder.folder.exists()
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("bucket/prefix", "has no scheme"),
        ("https://bucket.s3.amazonaws.com/x", "has the scheme 'https'"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://AKIA:hunter2@bucket/x", "has a login"),
        ("az://container/x?sig=hunter2", "a query"),
        ("file://relative/path", "names no absolute path"),
        ("file:///", "names no absolute path"),
        ("s3://[", "is not a URL"),
    ],
)
def test_a_wrong_url_is_refused_at_once_without_showing_it(url: str, reason: str) -> None:
    with pytest.raises(StoreLocationError, match=reason) as caught:
        open_store("sqlite:///x.db", blob_url=url)
    assert "PERDURE_BLOB_URL" in str(caught.value.hint)
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingExtraError, match=r"PERDURE_BLOB_URL.* needs the extra 'objects' .*missing: obstore"):
        open_store("sqlite:///x.db", blob_url="s3://bucket")


async def test_a_missing_account_is_an_error_of_the_store(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(StoreError, match="Account must be specified"):
        await check_blob_location(await stores.open("az://container/prefix"))


# ---
# Faults that only a server has. Of the test's own, so that they need no moto: it stands where S3 would.


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThroughFaults]:
    with ThroughFaults() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


async def test_a_server_that_is_away_and_comes_back(stores: Stores, faults: ThroughFaults) -> None:
    store = await stores.open("s3://bucket/p")
    await store.commit(Commit(blobs=[LARGE]))
    other = Blob.from_content(b"o" * 100_000)
    for status, reason in ((503, "503"), (500, "500"), (0, "cannot be")):
        faults.status = status
        for failing in (store.read_blobs([LARGE.hash]), store.commit(Commit(blobs=[other]))):
            with pytest.raises(StoreError, match=reason) as caught:
                await failing
            assert caught.value.retryable
    faults.status = 200
    await store.commit(Commit(blobs=[other]))
    assert await store.read_blobs([LARGE.hash, other.hash]) == {LARGE.hash: LARGE.body, other.hash: other.body}


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_denies(stores: Stores, faults: ThroughFaults, status: int) -> None:
    store = await stores.open("s3://bucket/p")
    faults.status = status
    faults.body = (
        "<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>AKIATESTTESTTEST</AWSAccessKeyId>"
        "<StringToSign>secret-of-the-test</StringToSign></Error>"
    )
    with pytest.raises(StoreError, match=f"{status} .*InvalidAccessKeyId") as caught:
        await store.commit(Commit(blobs=[LARGE]))
    assert "s3://bucket/p" in str(caught.value)
    assert "credentials" in str(caught.value.hint)
    assert caught.value.__cause__ is None
    for secret in ("AKIATEST", "secret-of-the-test", "Signature"):
        assert secret not in f"{caught.value} {caught.value.hint}"
    with pytest.raises(StoreError, match=str(status)):
        await probe_location("s3://bucket/p")


async def test_a_slow_upload_holds_up_no_other_call(stores: Stores, faults: ThroughFaults) -> None:
    store = await stores.open("s3://bucket/p")
    await check_blob_location(store)
    faults.hold()
    upload = asyncio.create_task(store.commit(Commit(blobs=[LARGE], outcome=Outcome("k", "tool", b"1"))))
    await asyncio.to_thread(faults.held.wait, 30)
    await store.commit(Commit(blobs=[SMALL]))
    assert await store.read_blobs([SMALL.hash]) == {SMALL.hash: SMALL.body}
    assert await store.find_outcomes(["k"]) == {}, "nothing is committed before it is uploaded"
    faults.release()
    assert await upload == b"1"
    assert await store.read_blobs([LARGE.hash]) == {LARGE.hash: LARGE.body}


async def test_a_cancelled_upload_writes_no_row(stores: Stores, faults: ThroughFaults) -> None:
    store = await stores.open("s3://bucket/p")
    await check_blob_location(store)
    faults.hold()
    upload = asyncio.create_task(store.commit(Commit(blobs=[LARGE], outcome=Outcome("k", "tool", b"1"))))
    await asyncio.to_thread(faults.held.wait, 30)
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    faults.release()
    assert await store.find_outcomes(["k"]) == {}


@pytest.mark.slow
async def test_a_bucket_that_does_not_exist(
    stores: Stores, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    for failing in (check_blob_location(await stores.open("s3://none/p")), probe_location("s3://none/p")):
        with pytest.raises(StoreError, match="the bucket does not exist") as caught:
            await failing
        assert "PERDURE_BLOB_URL" in str(caught.value.hint)


async def test_a_location_is_probed(place: Folder | Bucket, stores: Stores) -> None:
    if isinstance(place, Folder):
        place.folder.mkdir()
    assert await probe_location(place.url) is None
    store = await stores.open(place.url)
    await check_blob_location(store)
    assert await probe_location(place.url) == store.store_id
    assert place.names() == {"perdure-store.json"}


FOREIGN_ERRORS = [
    *(value for value in vars(obstore.exceptions).values() if isinstance(value, type)),
    *(FileNotFoundError, PermissionError, OSError, ValueError, NotImplementedError, RuntimeError, TypeError),
]


@pytest.mark.parametrize("error", FOREIGN_ERRORS, ids=lambda error: error.__name__)
async def test_every_foreign_error_is_translated(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-38-characters-in-the-text")
    folder = Folder(tmp_path / "objects")
    store: Any = await stores.open(folder.url)
    await check_blob_location(store)

    class Failing:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            async def fail(*_: Any) -> None:
                raise error("a-secret-of-38-characters-in-the-text ?sig=hunter2\n\nDebug source: hunter2")

            return fail

    store._location._client = Failing()
    for failing in (store._location.write("x", b""), store._location.delete("x"), store._location.read("x")):
        if error is FileNotFoundError and "write" not in failing.__name__:
            assert await failing is None, "it is not there"
            continue
        with pytest.raises(StoreError) as caught:
            await failing
        assert "38-characters" not in str(caught.value)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
