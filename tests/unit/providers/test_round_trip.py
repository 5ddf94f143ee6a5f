"""Transcript → wire format → transcript loses nothing that the format can hold; ``support.formats`` says what."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.ports import ModelRequest, ToolSpec
from perdure.types.messages import Message, canonical, parse_messages
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
    return parse_messages(canonical(data.draw(transcripts(own))))


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
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
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_was_said_elsewhere_is_taken(name: str, data: st.DataObject) -> None:
    wire = FORMATS[name]
    other = data.draw(st.sampled_from([NOTHING, *(own for key, own in OWNS.items() if key != name)]))
    wire.check(encoded(wire, stored(data, other)))
