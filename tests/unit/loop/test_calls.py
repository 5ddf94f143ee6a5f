"""Ids of tool calls, and refusals that a model can act on."""

from __future__ import annotations

import pytest

from perdure.loop.calls import malformed, unknown, with_ids
from perdure.types.messages import TextPart, ToolCallPart


def calls(*ids):
    return [ToolCallPart(id=given, name="look", arguments={"n": n}) for n, given in enumerate(ids)]


def ids(parts):
    return [part.id for part in parts if isinstance(part, ToolCallPart)]


@pytest.mark.parametrize(
    ("given", "fixed"),
    [
        ([], []),
        (["a", "b"], ["a", "b"]),
        (["", ""], ["call_4_0", "call_4_1"]),
        (["a", "a", "a"], ["a", "a_4_1", "a_4_2"]),
        (["a", "a_4_2", "a"], ["a", "a_4_2", "a_4_2x"]),
        (["", "call_4_0"], ["call_4_0x", "call_4_0"]),
        (["a", "a", "a_4_1"], ["a", "a_4_1x", "a_4_1"]),
    ],
)
def test_every_call_gets_an_id_of_its_own(given, fixed):
    assert ids(with_ids(calls(*given), 4)) == fixed


def test_everything_else_stays_as_it_was():
    parts = [TextPart(text="so"), *calls("a", "a")]
    fixed = with_ids(parts, 4)
    assert fixed[:2] == tuple(parts[:2])
    assert fixed[2] == parts[2].model_copy(update={"id": "a_4_2"})


def test_the_same_reply_gets_the_same_ids_again():
    assert with_ids(calls("", "a", "a"), 9) == with_ids(calls("", "a", "a"), 9)


def test_refusals_say_what_to_do():
    assert unknown("lok", ["look", "read"]) == "tool not found: lok (there is: look, read)"
    assert unknown("lok", []) == "tool not found: lok (there are no tools)"
    text = malformed(ToolCallPart(id="a", name="look", malformed='{"path": ' + "x" * 1000))
    assert text.startswith("ArgumentsError: the arguments of look must be one JSON object")
    assert '{"path": ' in text
    assert len(text) < 650
