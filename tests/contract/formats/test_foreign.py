"""What an encoder does with what its format cannot take."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessagesTypeAdapter

from perdure.errors import BadRequestError
from perdure.ports.model import ModelRequest
from perdure.providers import (
    anthropic_request,
    google_request,
    openai_chat_request,
    openai_responses_request,
    pydantic_ai_conversion,
)
from perdure.providers.encoding import (
    build_data_url,
    build_moved_file_parts,
    encode_call_id,
    encode_file_base64,
    encode_tool_name,
    get_own_opaque,
    read_file_bytes,
    render_file_text,
    restore_moved_files,
)
from perdure.types.messages import (
    BlobRef,
    FilePart,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)

HASH = hashlib.sha256(b"hi").hexdigest()
BLOB = BlobRef(hash=HASH, size=2)


OURS, THEIRS = "call_0123456789abcdef01234567", "call_1 with a signature: " + "s" * 200
LATER = ToolCallPart(id="call_1", name="look")
CALLED = [
    Message.user("Look."),
    Message.assistant("", ToolCallPart(id=OURS, name="look", provider="gateway", provider_id=THEIRS)),
    Message(role="tool", parts=(ToolResultPart(call_id=OURS, name="look", content="seen"),)),
    Message.assistant("", LATER),
    Message(role="tool", parts=(ToolResultPart(call_id="call_1", name="look", content="seen"),)),
]


def _pydantic_ai(request: ModelRequest, *, origin: str) -> bytes:
    return ModelMessagesTypeAdapter.dump_json(pydantic_ai_conversion.encode_messages(request, origin, {}))


@pytest.mark.parametrize(
    "encode",
    [
        lambda request, origin: openai_chat_request.encode_request(request, origin=origin),
        lambda request, origin: anthropic_request.encode_request(request, origin=origin).body,
        lambda request, origin: google_request.encode_request(request, origin=origin),
        lambda request, origin: openai_responses_request.encode_request(request, origin=origin),
        lambda request, origin: _pydantic_ai(request, origin=origin),
    ],
    ids=["chat", "anthropic", "google", "responses", "pydantic-ai"],
)
def test_call_and_result_go_back_under_the_providers_id_and_to_others_under_ours(encode: Any) -> None:
    request = ModelRequest("m", CALLED)
    for origin, sent, other in (("gateway", THEIRS, OURS), ("else", OURS, THEIRS), ("gateway", THEIRS, OURS)):
        body = encode(request, origin).decode()
        assert (body.count(f'"{sent}"'), body.count(f'"{other}"'), body.count('"call_1"')) == (2, 0, 2)


def test_opaque_data_goes_to_its_origin_alone() -> None:
    signed = ThinkingPart(text="x", provider="anthropic", opaque={"signature": "s"})
    assert get_own_opaque(signed, "anthropic") == {"signature": "s"}
    assert get_own_opaque(signed, "anthropic@proxy") is None
    assert get_own_opaque(OpaquePart(provider="google", data={"a": 1}), "google") == {"a": 1}
    assert get_own_opaque(OpaquePart(provider="google", data={"a": 1}), "openai") is None
    assert get_own_opaque(ToolCallPart(id="a", name="f"), "google") is None


@pytest.mark.parametrize("id", ["", "x" * 41, "a b", "é", "call\n"])
def test_ids_that_do_not_fit_are_mapped(id: str) -> None:
    allowed = re.compile(r"[a-zA-Z0-9_-]+")
    mapped = encode_call_id(id, 40, allowed)
    assert allowed.fullmatch(mapped)
    assert len(mapped) <= 40
    assert encode_call_id(mapped, 40, allowed) == mapped
    assert encode_call_id(id, 40, allowed) == mapped


@given(st.text(), st.text())
def test_two_ids_stay_two(one: str, two: str) -> None:
    assert (encode_call_id(one, 20) == encode_call_id(two, 20)) == (one == two)


def test_ids_that_fit_stay() -> None:
    assert encode_call_id("call_1", 40) == "call_1"
    assert encode_call_id("a b", 40) == "a b"


@given(st.text())
def test_names(name: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", encode_tool_name(name))


def test_where_the_bytes_are() -> None:
    assert read_file_bytes(FilePart(media_type="a/b", blob=BLOB), {HASH: b"hi"}) == b"hi"
    assert encode_file_base64(FilePart(media_type="a/b", data="aGk="), {}) == "aGk="
    assert build_data_url(FilePart(media_type="a/b", blob=BLOB), {HASH: b"hi"}) == "data:a/b;base64,aGk="
    assert build_data_url(FilePart(media_type="a/b", url="https://x"), {}) is None
    with pytest.raises(BadRequestError, match="not loaded"):
        read_file_bytes(FilePart(media_type="a/b", blob=BLOB), {})
    for data in ("%%", "é"):
        with pytest.raises(BadRequestError, match="'cat' is not base64"):
            read_file_bytes(FilePart(media_type="a/b", name="cat", data=data), {})


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (
            FilePart(media_type="application/x-foo", name="report.xyz", data="AAAA" * 400),
            "[file report.xyz (application/x-foo, 1,200 bytes): this model cannot read it]",
        ),
        (
            FilePart(media_type="video/mp4", url="https://x/y"),
            "[file (video/mp4) at https://x/y: this model cannot read it]",
        ),
        (FilePart(media_type="text/csv", name="a.csv", data="w6kK"), "[file a.csv (text/csv, 3 bytes)]\né\n"),
        (FilePart(media_type="application/ld+json", data="e30="), "[file (application/ld+json, 2 bytes)]\n{}"),
        (FilePart(media_type="text/plain", data="/w=="), "[file (text/plain, 1 bytes): this model cannot read it]"),
    ],
)
def test_a_file_as_text(file: FilePart, expected: str) -> None:
    assert render_file_text(file, {}) == expected


def test_files_of_results_are_moved_and_come_back() -> None:
    cat = FilePart(media_type="image/png", data="AA==")
    dog = FilePart(media_type="image/jpeg", url="https://x/dog.jpg")
    results = (
        ToolResultPart(call_id="c1", name="look", content="two", files=(cat, dog)),
        ToolResultPart(call_id="c2", name="add", content="3"),
        ToolResultPart(call_id="c3", name="look", content="", files=(dog,)),
    )
    content = build_moved_file_parts(results)
    assert [part.type for part in content] == ["text", "file", "file", "text", "file"]
    assert "look" in getattr(content[0], "text", "")
    bare = [result.model_copy(update={"files": ()}) for result in results]
    said = TextPart(text="And this?")
    assert restore_moved_files(bare, (*content, said, cat)) == (results, (said, cat))
    assert restore_moved_files(bare, (said, cat)) == (tuple(bare), (said, cat))
    assert build_moved_file_parts(bare) == ()
