"""Ids of tool calls, and refusals that a model can act on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from perdure.loop.transcript import CallIds, build_malformed_arguments_text, build_unknown_tool_text, sanitize_parts
from perdure.types.messages import (
    Message,
    OpaquePart,
    Replaced,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    clean_text,
    encode_canonical,
    parse_messages,
)


def called(*ids):
    return [ToolCallPart(id=given, name="look", arguments={"n": n}) for n, given in enumerate(ids)]


def ids(parts):
    return [part.id for part in parts if isinstance(part, ToolCallPart)]


def begin(*said, op=4, **more):
    return CallIds([Message.assistant("", *called(*said))], "scope", op, **more)


def reply(given, *ids, origin="gateway"):
    return given.assign_reply_ids(called(*ids), origin)


LONG = "s" * 41


@pytest.mark.parametrize("given", ["", LONG, "call 1", "call:1", "cäll", "\ud800", "a\x1b[2J", "\0"])
def test_an_id_that_is_missing_or_unfit_is_replaced_and_kept(given):
    (part,) = reply(begin(), given)
    assert re.fullmatch("call_[0-9a-f]{24}", part.id)
    assert part.provider_id == (clean_text(given) or None)
    assert part.provider == ("gateway" if given else None)


def test_an_id_that_an_earlier_call_has_is_replaced():
    first, other = reply(begin("call_1"), "call_1", "call_2")
    assert first.id not in ("call_1", "call_2")
    assert (first.provider_id, first.provider) == ("call_1", "gateway")
    assert other == called("", "call_2")[1]


def test_of_two_calls_of_a_reply_under_one_id_only_one_goes_back_under_it():
    parts = reply(begin("a"), "a", "a", "b", "b")
    assert len(set(ids(parts)) | {"a"}) == 5
    assert [part.provider_id for part in parts] == ["a", None, None, None]


def test_behind_a_summary_every_id_is_ours():
    summary = Message.user("So far: …").model_copy(update={"replaces": Replaced(head="h", messages=9, kept=0)})
    for given in (CallIds([summary], "scope", 4), begin(edited=True)):
        (part,) = reply(given, "call_1")
        assert part.id != "call_1"
        assert part.provider_id == "call_1"


def test_ours_are_others_in_another_reply_and_another_execution():
    made = [ids(reply(CallIds([], scope, op), "", "")) for scope in ("a", "b") for op in (1, 2)]
    assert len({one for some in made for one in some}) == 8


@pytest.mark.parametrize("given", [("a", "b"), ("call_1", "b"), ("", ""), ("b", "b"), (LONG, "")])
def test_a_call_keeps_the_id_that_its_first_piece_was_shown_with(given):
    known = begin("call_1")
    shown = [known.get_streamed_id(index, one) for index, one in enumerate(given)]
    assert [known.get_streamed_id(index, "") for index in range(2)] == shown
    assert ids(reply(known, *given)) == shown
    assert len({*shown, "call_1"}) == 3


def test_an_id_that_comes_after_the_first_piece_is_kept_beside_ours():
    known = begin()
    shown = known.get_streamed_id(0, "")
    known.get_streamed_id(0, "late")
    (part,) = reply(known, "late")
    assert (part.id, part.provider_id) == (shown, "late")


def test_a_call_that_was_cut_off_takes_no_other_ones_id():
    known = begin()
    shown = [known.get_streamed_id(index, one) for index, one in enumerate(("a", "b"))]
    assert ids(reply(known, "b")) == [shown[1]]


def test_what_a_failed_model_of_a_chain_has_streamed_names_nothing():
    known = begin()
    known.get_streamed_id(0, "")
    known.discard_streamed()
    assert known.get_streamed_id(0, "a") == "a"


def test_calls_that_a_hook_puts_in_have_ids_of_their_own():
    known = begin("old")
    parts = reply(known, "a", LONG)
    changed = known.assign_hook_ids([*parts, *called("a", "old", "new"), TextPart(text="so")])
    assert changed[:2] == parts
    assert changed[4].id == "new"
    assert len({*ids(changed), "old"}) == 6
    assert known.assign_hook_ids(changed) == changed


def test_refusals_say_what_to_do():
    assert build_unknown_tool_text("lok", ["look", "read"]) == "tool not found: lok (there is: look, read)"
    assert build_unknown_tool_text("lok", []) == "tool not found: lok (there are no tools)"
    text = build_malformed_arguments_text(ToolCallPart(id="a", name="look", malformed='{"path": ' + "x" * 1000))
    assert text.startswith("ArgumentsError: the arguments of look must be one JSON object")
    assert '{"path": ' in text
    assert len(text) < 650


def deep(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels):
        value = {"x": value}
    return dict(value)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (deep(198), "nested deeper than 150 levels"),
        (deep(256), "nested deeper than 150 levels"),
        (deep(400), "nested deeper than 150 levels"),
        (deep(6_000), "nested deeper than 150 levels"),
        ({"a": float("inf")}, "Infinity is not JSON"),
        ({"a": [{"\ud800": 1}]}, "lone surrogate"),
        ({"a": 10**400}, "beyond the range of a double"),
    ],
    ids=["198", "256", "400", "6000", "infinity", "surrogate", "integer"],
)
def test_arguments_that_cannot_be_read_back_are_a_malformed_call_that_the_model_is_told_of(
    arguments: dict[str, Any], why: str
) -> None:
    (part,) = sanitize_parts([ToolCallPart(id="c1", name="pay", arguments=arguments)])
    assert isinstance(part, ToolCallPart)
    assert part.arguments == {}
    assert why in build_malformed_arguments_text(part)
    assert parse_messages(encode_canonical([Message.assistant("", part)]))[0].parts == (part,)


@pytest.mark.parametrize("text", ["1e999", "[" * 400 + "]" * 400])
def test_raw_arguments_are_named_for_what_is_wrong_with_them(text: str) -> None:
    told = build_malformed_arguments_text(ToolCallPart(id="c1", name="pay", malformed=f'{{"amount": {text}}}'))
    assert "not finite" in told or "nested deeper than 150 levels" in told


def test_what_only_a_provider_reads_is_left_out_where_it_cannot_be_read_back() -> None:
    parts = sanitize_parts(
        [
            ThinkingPart(text="hm", provider="p", opaque={"a": deep(200)}),
            OpaquePart(provider="p", data={"a": float("nan")}),
            OpaquePart(provider="p", data={"a": 1}),
        ]
    )
    assert parts == (ThinkingPart(text="hm"), OpaquePart(provider="p", data={"a": 1}))
