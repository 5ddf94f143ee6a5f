"""Transcript → wire format → transcript loses nothing that the format can hold; ``support.formats`` says what."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.ports.model import ModelRequest, ToolSpec
from perdure.types.messages import (
    FilePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    encode_canonical,
    parse_messages,
)
from tests.support.formats import FORMATS, Format
from tests.support.formats.common import Said
from tests.support.transcripts import NOTHING, Own, transcripts

TOOLS = [ToolSpec("add", "Add.", {"type": "object", "properties": {}})]
OWNS = {name: wire.own for name, wire in FORMATS.items()}


def plain(messages: Iterable[Message]) -> Said:
    return [(message.role, message.parts) for message in messages]


def encoded(wire: Format, messages: list[Message]) -> bytes:
    return wire.encode(ModelRequest(wire.model, messages, "Be brief.", TOOLS), wire.own.origin)


def stored(data: st.DataObject, own: Own) -> list[Message]:
    """A transcript as a worker has it: loaded from the store, keys sorted, without encodings of an earlier call."""
    return parse_messages(encode_canonical(data.draw(transcripts(own))))


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_what_goes_out_comes_back_but_for_what_the_format_cannot_hold(name: str, data: st.DataObject) -> None:
    wire = FORMATS[name]
    said = stored(data, wire.own)
    body = encoded(wire, said)
    taken = wire.decode(json.loads(body), wire.own.origin)
    assert plain(taken) == wire.holds(said)
    again = encoded(wire, taken)
    kept = wire.holds(taken)
    assert plain(wire.decode(json.loads(again), wire.own.origin)) == kept
    assert again == body or kept != plain(taken)


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_whatever_was_said_elsewhere_is_taken(name: str, data: st.DataObject) -> None:
    wire = FORMATS[name]
    other = data.draw(st.sampled_from([NOTHING, *(own for key, own in OWNS.items() if key != name)]))
    wire.check(encoded(wire, stored(data, other)))


def user(*parts: Part) -> Message:
    return Message(role="user", parts=parts)


DATA = base64.b64encode(b"hello").decode()
FILES = {
    "openai": (
        FilePart(media_type="audio/wav", data="AAAA"),
        FilePart(media_type="image/gif", url="https://x/y.gif?z=1"),
    ),
    "openai-responses": (
        FilePart(media_type="image/webp", url="https://x.test/a.webp?size=3"),
        FilePart(media_type="text/csv", name="b c.csv", data=DATA),
    ),
    "anthropic": (
        FilePart(media_type="image/webp", url="https://x.test/a.webp?b"),
        FilePart(media_type="application/pdf", url="https://x.test/a.pdf"),
        FilePart(media_type="application/pdf", data=DATA),
        FilePart(media_type="text/plain", name="a.txt", data=DATA),
    ),
    "google": (FilePart(media_type="video/mp4", url="https://x.test/a"),),
}
"""What comes back as it was; the transcripts above have what all formats take."""
OPAQUE = {
    "anthropic": {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"title": "t"}]},
    "google": {"text": "", "thoughtSignature": "QQ=="},
}


@pytest.mark.parametrize("name", FORMATS)
def test_files_and_opaque_parts_of_one_format_come_back(name: str) -> None:
    wire = FORMATS[name]
    origin = wire.own.origin
    said = [user(TextPart(text="Look."), *FILES[name])]
    if name in OPAQUE:
        sealed = OpaquePart(provider=origin, data=OPAQUE[name])
        said += [Message(role="assistant", parts=(TextPart(text="So."), sealed)), user(TextPart(text="And?"))]
    if name == "google":
        # a signature beside which there is more, and thinking that has none
        opaque = {"thoughtSignature": "AA==", "mediaResolution": {"level": "LOW"}}
        parts = (ThinkingPart(text="hm", provider=origin), TextPart(text="So.", provider=origin, opaque=opaque))
        said += [Message(role="assistant", parts=parts), user(TextPart(text="And?"))]
    body = wire.encode(ModelRequest(wire.model, said), origin)
    assert plain(wire.decode(json.loads(body), origin)) == plain(said)
