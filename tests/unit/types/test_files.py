"""``File``: what it is made of, what its media type is, and what is none."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from perdure import File, Message
from perdure.errors import InvalidInputError
from perdure.types import messages as files
from perdure.types.messages import BlobRef, FilePart, TextPart, find_file_flaw, iter_file_parts

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


@pytest.mark.parametrize(
    ("data", "name", "media_type"),
    [
        (PNG, None, "image/png"),
        (PNG, "wrong.jpg", "image/png"),
        (b"\xff\xd8\xff\xe0", None, "image/jpeg"),
        (b"GIF89a", None, "image/gif"),
        (b"RIFF\0\0\0\0WEBP", None, "image/webp"),
        (b"%PDF-1.7", None, "application/pdf"),
        (b"RIFF\0\0\0\0WAVE", None, "audio/wav"),
        (b"PK\3\4\xff", "a.DOCX", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        (b"a,b", "a.csv", "text/csv"),
        (b"# hi", "a/b.md", "text/markdown"),
        ("grüezi".encode(), None, "text/plain"),
        (b"hi", "notes.unknown", "text/plain"),
    ],
)
def test_the_media_type_is_found(data: bytes, name: str | None, media_type: str) -> None:
    assert File(data, name=name).media_type == media_type


def test_what_is_said_of_it_counts() -> None:
    assert File(PNG, "Image/X-Own").media_type == "image/x-own"


def test_a_file_is_read_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(PNG)
    file = File.read(tmp_path / "cat.png")
    assert (file.data, file.name, file.media_type, file.url) == (PNG, "cat.png", "image/png", None)
    assert file == File(PNG, name="cat.png")
    assert len({file, File(PNG, name="cat.png"), File(PNG)}) == 2
    assert repr(file) == "<File cat.png image/png 16 bytes>"


def test_a_file_at_a_url_is_not_fetched() -> None:
    file = File.at("https://example.com/a%20cat.JPG?size=1")
    assert (file.media_type, file.data) == ("image/jpeg", None)
    assert file.part == FilePart(media_type="image/jpeg", url="https://example.com/a%20cat.JPG?size=1")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: File("text"), "bytes, not str"),  # type: ignore[arg-type]  # callers may not check types
        (lambda: File(b""), "is empty"),
        (lambda: File(b"\xff\0\1"), "cannot tell the media type of 3 bytes"),
        (lambda: File(b"\xff\0\1", name="x.unknown"), "media type of 'x.unknown'"),
        (lambda: File(b"x", "png"), "media_type: 'png' is not a media type"),
        (lambda: File(b"x", "text/plain; charset=utf-8"), "without parameters"),
        (lambda: File(b"x", name="n" * 256), "name has 256 characters"),
        (lambda: File(b"x", name=3), "name is text, not int"),  # type: ignore[arg-type]  # the same
        (lambda: File.read("/nowhere/cat.png"), "cannot read '/nowhere/cat.png': No such file"),
        (lambda: File.read("/"), "cannot read '/': Is a directory"),
        (lambda: File.at("https://example.com/cat"), "cannot tell the media type"),
        (lambda: File.at("cat.png"), "url: 'cat.png' is not a URL"),
        (lambda: File.at("FILE:///cat.png"), "is not a URL that a model's API can fetch"),
        (lambda: File.at("Data://image/cat.png"), "is not a URL that a model's API can fetch"),
        (lambda: File.at("file:///cat.png"), "is not a URL that a model's API can fetch"),
        (lambda: File.at("data:image/png;base64,eHg=", "image/png"), "is not a URL that a model's API can fetch"),
        (lambda: File.at(3), "url is text, not int"),  # type: ignore[arg-type]  # the same
    ],
)
def test_what_is_no_file(make: Any, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        make()


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.png").open("wb") as large:
        os.truncate(large.fileno(), files.MAX_FILE_BYTES + 1)
    with pytest.raises(InvalidInputError, match=r"104,857,601 bytes; a file may have 104,857,600"):
        File.read(tmp_path / "large.png")


def test_a_message_of_texts_and_files() -> None:
    message = Message.user(["What is\ud800 this?", "", File(PNG, name="cat.png"), File.at("https://x.org/a.png")])
    data = base64.b64encode(PNG).decode()
    assert message.parts == (
        TextPart(text="What is� this?"),
        FilePart(media_type="image/png", name="cat.png", data=data),
        FilePart(media_type="image/png", url="https://x.org/a.png"),
    )
    assert [part.is_image for part in iter_file_parts([message])] == [True, True]


@pytest.mark.parametrize("content", [[], [""], [3], [b"x"], b"x", 3, {"a": 1}, File(PNG)])
def test_what_is_no_message(content: Any) -> None:
    with pytest.raises(InvalidInputError, match="message") as caught:
        Message.user(content)
    assert "File.read" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "exactly one of blob, url and data, this one has none"),
        ({"data": "eHg=", "url": "https://x.org"}, "this one has url and data"),
        ({"data": "eHg"}, "not base64"),
        ({"data": "ü"}, "not base64"),
        ({"data": "eH\n=="}, "not base64"),
        ({"data": ""}, "empty"),
        ({"url": "ftp"}, "url: 'ftp'"),
        ({"url": "https://x.org/" + "x" * 8192}, "url: "),
        ({"data": "eHg=", "media_type": "png"}, "media_type: 'png'"),
        ({"data": "eHg=", "name": "n" * 256}, "name has "),
    ],
)
def test_parts_that_are_not_fit(fields: dict[str, str], why: str) -> None:
    assert why in str(find_file_flaw(FilePart.model_validate({"media_type": "image/png", **fields})))


@pytest.mark.parametrize("where", [{"data": "eHg="}, {"url": "gs://b/a.png"}, {"blob": BlobRef(hash="0" * 64, size=1)}])
def test_parts_that_are_fit(where: dict[str, Any]) -> None:
    assert find_file_flaw(FilePart(media_type="image/png", **where)) is None
