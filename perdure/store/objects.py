"""Large blobs in an object store: S3, Google Cloud Storage, Azure Blob Storage, or a folder.

:class:`LargeBlobStore` stands in front of any ``Store``. A blob above the threshold is uploaded under its SHA-256, and
its row in the database has a short pointer as its body. The upload is complete before the row is committed, so a crash
leaves an object without a row at most. Docs: docs/how-to/large-objects.md; why it is so: decision 035.

The library obstore is imported when a location is used; this module is cheap to import.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast
from urllib.parse import unquote, urlsplit

from ..errors import StoreError, StoreLocationError, StoreMismatchError, TranscriptCorruptedError
from ..ports.outbox import WriteOptions
from ..ports.store import Blob, Commit, MemoryWrite, Store
from ..types.redaction import Redaction, find_variable_secrets

T = TypeVar("T")
V = TypeVar("V")

BLOB_URL_VARIABLE = "PERDURE_BLOB_URL"
DEFAULT_THRESHOLD = 64 * 1024
"""Larger blobs are objects. A request to an object store takes 10 to 50 ms and is paid for; the database writes a row
of this size in about a millisecond, beside the rows that it writes anyway."""
MAX_PARALLEL_REQUESTS = 8
"""Objects that one call reads or writes at once."""
RENEW_AFTER = timedelta(days=1)
"""An object that is written again is uploaded again if it is older, which makes it young: a collector of garbage may
delete objects without a row that are older than two days."""

_SCHEMES = ("s3", "gs", "az", "file")
_SCHEME_LIST = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///absolute/path"
POINTER_PREFIX = b"perdure object v1\n"
RECORD_NAME = "", "blob location"
"""Namespace and key, in the memory table, of the record that a store has large blobs as objects. Authors cannot use an
empty namespace, so the name is free."""
_MARKER = "perdure-store.json"
"""The object that says whose objects are at a location."""
_PROBE = "perdure-doctor"
_HASH = re.compile(r"[0-9a-f]{64}")
_OBJECT_NAME = re.compile(r"[0-9a-f]{2}/([0-9a-f]{64})")
_DELETED = "deleted/"
"""Prefix of the copy that a deleted object has for a while."""
_THREAD_BYTES = 256 * 1024
"""Bytes from which hashing (0.5 ms each MiB) is done in a thread."""
_TIMEOUT, _CONNECT_TIMEOUT, _RETRY_TIMEOUT = "120s", "5s", timedelta(seconds=10)
"""Of one request, of which a large upload has one for each 5 MiB. The caller retries for as long as it takes."""


# ---
# Pointers: what the row of a blob has in the place of its bytes.


@dataclass(frozen=True, slots=True)
class BlobPointer:
    """Says that the bytes of a blob are an object of ``size`` bytes. ``url``: the location when it was written."""

    size: int
    url: str

    def encode(self) -> bytes:
        """Return the body of the blob's row."""
        return POINTER_PREFIX + json.dumps({"size": self.size, "url": self.url}).encode()


def decode_pointer(name: str, body: bytes) -> BlobPointer | None:
    """Return the pointer that the row of blob ``name`` has as its body; None if the body is the blob itself.

    Content that looks like a pointer is content: its hash is its name, and that of a pointer is not.
    """
    if not body.startswith(POINTER_PREFIX) or hashlib.sha256(body).hexdigest() == name:
        return None
    with suppress(ValueError, KeyError, TypeError, OverflowError):
        fields = json.loads(body.removeprefix(POINTER_PREFIX))
        return BlobPointer(int(fields["size"]), str(fields["url"]))
    return None  # altered: the reader finds that the hash is wrong


def build_unset_error(name: str, pointer: BlobPointer) -> StoreError:
    """Build the error for a blob whose bytes are an object, in a process without a location.

    It is retried, so that another worker, which has the setting, may run the call.
    """
    return StoreError(
        f"blob {name} ({pointer.size:,} bytes) is in an object store, and {BLOB_URL_VARIABLE} is not set",
        hint=f"Set {BLOB_URL_VARIABLE}={pointer.url} (where it was written) for all workers and clients of this store.",
    )


# ---
# A location: objects by name, through obstore.


class ObjectLocation:
    """Objects under one URL. All methods raise ``StoreError``, without credentials in the text."""

    def __init__(self, url: str) -> None:
        """Raises ``StoreLocationError`` for a URL that names no location, or if obstore is not installed."""
        self.url = parse_blob_url(url)
        self._folder = Path(unquote(urlsplit(self.url).path)) if self.url.startswith("file:") else None
        try:
            self._from_url: Any = import_module("obstore.store").from_url
        except ImportError:
            purpose = f"{BLOB_URL_VARIABLE}, the location of large objects,"
            from .._installation import build_missing_extra_error

            raise build_missing_extra_error(purpose, "objects", module="obstore") from None
        self._client: Any = None

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of this machine, whose volume may be unmounted at any time."""
        return self._folder is not None

    def create_folder(self) -> None:
        """Make the folder of a ``file:`` URL, for this user alone. Nothing else has to be made."""
        if self._folder is None or self._folder.is_dir():
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._raise_error(error, "made", "")

    def check_folder_writable(self) -> bool:
        """Whether it is a folder that does not exist yet, and can be made. Raises ``StoreError`` if it cannot."""
        if self._folder is None or self._folder.is_dir():
            return False
        parent = next(place for place in self._folder.parents if place.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise StoreError(f"{self.url} cannot be made: {parent} cannot be written", hint=_BUCKET_HINT)
        return True

    async def read(self, name: str, size: int | None = None) -> bytes | None:
        """Return the bytes of an object, None if it does not exist. One that does not have ``size`` bytes is not
        read: ``TranscriptCorruptedError``."""
        try:
            answer = await self._connect().get_async(name)
            if size is not None and (found := answer.meta["size"]) != size:
                raise self._build_altered_error(name, f"it has {found:,} bytes and should have {size:,}")
            return bytes(await answer.bytes_async())
        except FileNotFoundError:
            return None
        except StoreError:
            raise
        except Exception as error:
            self._raise_error(error, "read", name)

    async def read_verified(self, name: str, blob: str, size: int) -> bytes | None:
        """Return the bytes of an object that are blob ``blob``. Raises ``TranscriptCorruptedError`` for other bytes."""
        body = await self.read(name, size)
        if body is None:
            return None
        digest = hashlib.sha256(body) if size < _THREAD_BYTES else await asyncio.to_thread(hashlib.sha256, body)
        if digest.hexdigest() != blob:
            raise self._build_altered_error(name, "its bytes no longer have that hash")
        return body

    async def write(self, name: str, body: bytes) -> None:
        """Write an object, durably when this returns. One that exists is replaced at once, never in part."""
        try:
            await self._connect().put_async(name, body)
            if self._folder is not None:
                await asyncio.to_thread(_sync_file, self._folder, name)
        except Exception as error:
            self._raise_error(error, "written", name)

    async def is_young(self, name: str, size: int) -> bool:
        """Whether an object of that size was written within ``RENEW_AFTER``."""
        try:
            meta = await self._connect().head_async(name)
        except FileNotFoundError:
            return False
        except Exception as error:
            self._raise_error(error, "read", name)
        return bool(meta["size"] == size and meta["last_modified"] > datetime.now(UTC) - RENEW_AFTER)

    async def delete(self, name: str) -> None:
        """Delete an object."""
        try:
            await self._connect().delete_async(name)
        except FileNotFoundError:
            pass
        except Exception as error:
            self._raise_error(error, "deleted", name)

    async def list_objects(self, prefix: str = "") -> AsyncGenerator[list[tuple[str, int, datetime]]]:
        """Yield pages of names, sizes and times of the last write."""
        try:
            async for page in self._connect().list(prefix or None, chunk_size=500):
                yield [(str(meta["path"]), int(meta["size"]), meta["last_modified"]) for meta in page]
        except Exception as error:
            self._raise_error(error, "listed", prefix)

    async def copy(self, name: str, new_name: str) -> bool:
        """Copy an object, whose copy is new; False if it does not exist."""
        try:
            await self._connect().copy_async(name, new_name)
            if self._folder is not None:
                os.utime(self._folder / new_name)  # obstore makes a link
                await asyncio.to_thread(_sync_file, self._folder, new_name)
        except FileNotFoundError:
            return False
        except Exception as error:
            self._raise_error(error, "copied", name)
        return True

    def _connect(self) -> Any:
        """Return obstore's client. Reads the credentials from the environment when it is made."""
        if self._folder is not None and not self._folder.is_dir():
            raise FileNotFoundError  # obstore would make it, also in the place of a volume that is not mounted
        if self._client is None:
            # Given client options replace those of the environment, so what that says of http:// is said again.
            options = {"timeout": _TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT, "allow_http": _is_http_allowed()}
            retries = {"max_retries": 2, "retry_timeout": _RETRY_TIMEOUT}
            remote = {} if self._folder is not None else {"client_options": options, "retry_config": retries}
            self._client = self._from_url(self.url, **remote)
        return self._client

    def _build_altered_error(self, name: str, flaw: str) -> TranscriptCorruptedError:
        return TranscriptCorruptedError(
            f"object {self.url}/{name} was altered: {flaw}",
            hint="Restore it from a backup and `resume` the run, or fork the run from a head that is intact.",
        )

    def _raise_error(self, error: Exception, done: str, name: str) -> NoReturn:
        """Raise ``error`` as a ``StoreError``. Without a cause: its text may hold credentials."""
        if isinstance(error, StoreError):
            raise error
        reason, hint = describe_object_error(error)
        subject = f"object {self.url}/{name}" if name else self.url
        raise StoreError(f"{subject} cannot be {done}: {reason}", hint=hint) from None


def parse_blob_url(url: str) -> str:
    """Return ``url`` without a slash at its end. Raises ``StoreLocationError`` for one that names no location."""
    try:
        parts = urlsplit(url)
        path_given = bool(parts.path.strip("/"))
    except ValueError:
        raise _build_url_error("is not a URL") from None
    if parts.scheme not in _SCHEMES:
        raise _build_url_error(f"has the scheme {parts.scheme!r}" if parts.scheme else "has no scheme")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise _build_url_error(
            "has a login, a query or a fragment", "Credentials are read from the environment (AWS_ACCESS_KEY_ID …)."
        )
    if parts.scheme == "file" and (parts.netloc or not path_given):
        raise _build_url_error("names no absolute path")
    if parts.scheme != "file" and not parts.netloc:
        raise _build_url_error("names no bucket")
    return url.rstrip("/")


def _build_url_error(flaw: str, more: str = "") -> StoreLocationError:
    # The URL itself is left out: it may hold a password.
    hint = f"Set {BLOB_URL_VARIABLE} to {_SCHEME_LIST}. {more}".rstrip()
    return StoreLocationError(f"the URL of large objects {flaw}", hint=hint)


def _is_http_allowed() -> bool:
    """Whether the environment names an endpoint at http://, as servers on the own network have."""
    names = (name for name in os.environ if name.startswith(("AWS_", "AZURE_")) and "ENDPOINT" in name)
    return any(os.environ[name].startswith("http://") for name in names)


def _sync_file(folder: Path, name: str) -> None:
    """Bring a file and its name to the disk, and make both readable by their owner alone."""
    file = folder / name
    file.chmod(0o600)
    for place in dict.fromkeys((file, file.parent, folder)):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_STATUS = re.compile(r"status code: (\d{3}[\w ]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_SYSTEM_MESSAGE = re.compile(r'message: "([^"\n]{1,100})"')
_URL_QUERY = re.compile(r"\?\S+")
_AWAY_HINT = "Work that needs it waits, and goes on when it answers."
_ACCESS_HINT = "Give the credentials of this process the right to read, write and list there."
_BUCKET_HINT = f"Create the bucket, or correct {BLOB_URL_VARIABLE}."
_CREDENTIALS_HINT = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what the vendor's SDK reads."


def describe_object_error(error: Exception) -> tuple[str, str]:
    """Return the reason of an error of obstore, and the way out. Total: any exception gets a reason."""
    text = str(error)
    status, code, system = _STATUS.search(text), _CODE.search(text), _SYSTEM_MESSAGE.search(text)
    kind = type(error).__name__
    if "169.254.169.254" in text or "metadata.google.internal" in text:
        return "no credentials are set, and this machine has none of its own", _CREDENTIALS_HINT
    if "NoSuchBucket" in text or "ContainerNotFound" in text or "The specified bucket does not exist" in text:
        return "the bucket does not exist", _BUCKET_HINT
    if status is not None:
        reason = status[1].strip() + (f" ({code[1]})" if code is not None else "")
        return reason, _ACCESS_HINT if status[1][:3] in ("401", "403") else _AWAY_HINT
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return "access was denied", _ACCESS_HINT
    if isinstance(error, FileNotFoundError):
        return "the bucket or folder is not there", _BUCKET_HINT
    if isinstance(error, OSError) and error.strerror:
        return error.strerror, _AWAY_HINT
    if system is not None:
        return system[1], _AWAY_HINT
    if "kind: Timeout" in text or "TimedOut" in text:
        return "no answer in time", _AWAY_HINT
    if "dns error" in text:
        return "the host's name is not known", _AWAY_HINT
    line = _URL_QUERY.sub("?…", text.partition("\n")[0])[:300]
    return Redaction(find_variable_secrets(os.environ)).redact_text(line or kind), _AWAY_HINT


# ---
# The store in front of a store.


def build_object_name(blob: str) -> str:
    """Return the name of a blob's object below the location. In folders of 1/256, because ``file:`` is one too."""
    return f"{blob[:2]}/{blob}"


class LargeBlobStore:
    """A ``Store`` whose blobs above ``threshold`` bytes are objects at ``location``; all else is in ``store``.

    The objects belong to one store: a marker at the location has its ``store_id``, and the store has a record of the
    location. Both are made before the first upload, and checked before the first use.
    """

    def __init__(self, store: Store, location: ObjectLocation, threshold: int = DEFAULT_THRESHOLD) -> None:
        self._store = store
        self._location = location
        self._threshold = threshold
        self._is_checked = False

    def __getattr__(self, name: str) -> Any:
        """Everything but blobs is the store's own."""
        return getattr(self._store, name)

    @property
    def write_options(self) -> WriteOptions:
        """See :class:`perdure.ports.store.Store`."""
        return self._store.write_options

    @write_options.setter
    def write_options(self, options: WriteOptions) -> None:
        self._store.write_options = options

    async def commit(self, commit: Commit) -> bytes | None:
        """See :class:`perdure.ports.store.Journal`. Large blobs are uploaded first."""
        is_large = [len(blob.body) > self._threshold and bool(_HASH.fullmatch(blob.hash)) for blob in commit.blobs]
        large = {blob.hash: blob for blob, large in zip(commit.blobs, is_large, strict=True) if large}
        if not large or not await self._is_store_made():  # without a store, its own commit raises the error
            return await self._store.commit(commit)
        await self.check_location(write=True)
        await _run_bounded(self._upload, large.values())
        pointers = {name: BlobPointer(len(blob.body), self._location.url).encode() for name, blob in large.items()}
        blobs = [Blob(blob.hash, pointers.get(blob.hash, blob.body)) for blob in commit.blobs]
        return await self._store.commit(replace(commit, blobs=blobs))

    async def read_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """See :class:`perdure.ports.store.Transcripts`. Raises ``TranscriptCorruptedError`` for an object that is
        missing or altered."""
        blobs = await self._store.read_blobs(hashes)
        pointers = {name: pointer for name, body in blobs.items() if (pointer := decode_pointer(name, body))}
        if pointers:
            await self.check_location(write=False)
            blobs = {**blobs, **dict(await _run_bounded(self._download, pointers.items()))}
        return blobs

    async def delete_unused_objects(self, before: datetime, would_be_gone: Set[str] | None = None) -> tuple[int, int]:
        """Delete the objects without a row that were written before a time. Return their number and bytes. They keep a
        copy, which a call after that time deletes.

        With ``would_be_gone``, nothing is deleted, and the rows of these blobs do not count.
        """
        if await self._store.recall(*RECORD_NAME) is None:
            return 0, 0
        await self.check_location(write=False)
        if would_be_gone is None:
            await self._finish_deletions(before)
        count = size = 0
        async for page in self._location.list_objects():
            found = ((_OBJECT_NAME.fullmatch(name), length, at) for name, length, at in page)
            old = {match[1]: length for match, length, at in found if match is not None and at < before}
            unused = old.keys() - (await self._store.find_blobs(list(old)) - (would_be_gone or set()))
            if would_be_gone is None:
                await _run_bounded(self._delete_unused, sorted(unused))
            count, size = count + len(unused), size + sum(old[blob] for blob in unused)
        return count, size

    async def _delete_unused(self, blob: str) -> None:
        """Delete an object that has no row. Its copy stays for the time after which a writer that has seen the object
        has made a row, or never will; readers find the copy."""
        if await self._location.copy(build_object_name(blob), _DELETED + blob):
            await self._location.delete(build_object_name(blob))

    async def _finish_deletions(self, before: datetime) -> None:
        """Delete the copies that were made before a time; those whose blob has a row by now are put back."""
        async for page in self._location.list_objects(_DELETED.rstrip("/")):
            old = [name.removeprefix(_DELETED) for name, _, at in page if at < before]
            needed = await self._store.find_blobs(old)
            for blob in filter(_HASH.fullmatch, old):
                if blob in needed:
                    await self._location.copy(_DELETED + blob, build_object_name(blob))
                await self._location.delete(_DELETED + blob)

    async def check_location(self, *, write: bool) -> None:
        """Check that the objects of this store are at the location; with ``write``, the first use claims it.

        Raises ``StoreError`` if they are not there, or the location cannot be used, ``StoreMismatchError`` if it has
        those of another store.
        """
        if self._is_checked and not self._location.is_folder:
            return
        record = await self._store.recall(*RECORD_NAME)
        recorded_url = None if record is None else str(json.loads(record)["url"])
        if recorded_url is None and write:
            self._location.create_folder()
        owner = await self._read_owner()
        if owner is None and recorded_url is None and write:
            await self._location.write(_MARKER, json.dumps({"store_id": self._store.store_id}).encode())
            owner = await self._read_owner()
        if owner is None:
            raise StoreError(
                f"{self._location.url} does not have the objects of store {self._store.store_id}: it has no {_MARKER}",
                hint=f"They were at {recorded_url}: mount or restore it, or correct {BLOB_URL_VARIABLE}. "
                f"Objects that are moved to another place are moved with {_MARKER}.",
            )
        if owner != self._store.store_id:
            raise StoreMismatchError(
                f"{self._location.url} has the objects of store {owner}, and this is store {self._store.store_id}",
                hint=f"Give each store a prefix of its own in {BLOB_URL_VARIABLE}.",
            )
        if write and recorded_url != self._location.url:
            value = json.dumps({"url": self._location.url}).encode()
            await self._store.commit(Commit(memory=[MemoryWrite(*RECORD_NAME, value)]))
        self._is_checked = True

    async def _is_store_made(self) -> bool:
        if not self._store.store_id:
            await self._store.open(create=False)
        return bool(self._store.store_id)

    async def _read_owner(self) -> str | None:
        """Return the ``store_id`` of the marker, None without one."""
        marker = await self._location.read(_MARKER)
        return None if marker is None else decode_marker(marker)

    async def _upload(self, blob: Blob) -> None:
        name = build_object_name(blob.hash)
        if not await self._location.is_young(name, len(blob.body)):
            await self._location.write(name, blob.body)

    async def _download(self, row: tuple[str, BlobPointer]) -> tuple[str, bytes]:
        blob, pointer = row
        name = build_object_name(blob)
        body = await self._location.read_verified(name, blob, pointer.size)
        if body is None:
            body = await self._location.read_verified(_DELETED + blob, blob, pointer.size)
        if body is None:
            self._is_checked = False
            await self.check_location(write=False)  # the whole bucket may be away, which is another error
            raise TranscriptCorruptedError(
                f"object {self._location.url}/{name} ({pointer.size:,} bytes) is missing, and the store refers to it",
                hint="Restore it from a backup and `resume` the run, or fork the run from a head that is intact.",
            )
        return blob, body


def decode_marker(marker: bytes) -> str:
    """Return the ``store_id`` in the marker of a location; a text that is no id for altered bytes."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(marker)["store_id"])
    return "(unreadable)"


async def _run_bounded(function: Callable[[V], Awaitable[T]], values: Iterable[V]) -> list[T]:
    """Return the results of ``function`` for all ``values``, of which a few run at once; the first error ends all."""
    slots = asyncio.Semaphore(MAX_PARALLEL_REQUESTS)

    async def run(value: V) -> T:
        async with slots:
            return await function(value)

    tasks = [asyncio.ensure_future(run(value)) for value in values]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


# ---
# Opening and checking.


def add_object_store(store: Store, url: str, threshold: int | None = None) -> Store:
    """Return ``store`` with its large blobs at ``url``. Raises ``StoreLocationError``."""
    large = LargeBlobStore(store, ObjectLocation(url), DEFAULT_THRESHOLD if threshold is None else threshold)
    return cast("Store", large)  # it forwards what it does not have, which a type checker cannot see


async def check_blob_location(store: Store) -> None:
    """Check, before a worker takes work, that this process can read the large blobs of ``store``, and write them.

    Raises ``StoreError``; ``StoreLocationError`` if they are objects, and no location is set.
    """
    if isinstance(store, LargeBlobStore):
        await store.check_location(write=True)
        return
    record = await store.recall(*RECORD_NAME)
    if record is not None:
        raise StoreLocationError(
            f"the store at {store.place} has large blobs in an object store, and {BLOB_URL_VARIABLE} is not set",
            hint=f"Set {BLOB_URL_VARIABLE}={json.loads(record)['url']} for all workers and clients of this store.",
        )


async def probe_location(url: str) -> str | None:
    """Write, read and delete an object at ``url``. Return the ``store_id`` whose objects are there, if any.

    The first worker makes the folder of a ``file:`` URL. Raises ``StoreError``.
    """
    location = ObjectLocation(url)
    if location.check_folder_writable():
        return None
    content = os.urandom(16)
    await location.write(_PROBE, content)
    if await location.read(_PROBE) is None:
        raise StoreError(f"{location.url} does not have an object that was just written", hint=_ACCESS_HINT)
    await location.delete(_PROBE)
    return await read_owner(url)


async def read_owner(url: str) -> str | None:
    """Return the ``store_id`` whose objects are at ``url``; None without a marker. Raises ``StoreError``."""
    marker = await ObjectLocation(url).read(_MARKER)
    return None if marker is None else decode_marker(marker)
