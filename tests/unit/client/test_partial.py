"""Structured output so far, as the arguments of a call stream in."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from perdure.client.event_reader import PartialArguments, parse_partial_json
from perdure.types.events import ModelDelta, ModelRetracted


def pieces(text: str, cuts: list[int]) -> list[ModelDelta]:
    """``text`` as deltas of a tool call, cut at these places."""
    places = sorted({0, *(cut % (len(text) + 1) for cut in cuts), len(text)})
    return [
        ModelDelta(kind="tool_call", text=text[a:b], offset=a, name="finish", call_id="c", seq=n + 1)
        for n, (a, b) in enumerate(itertools.pairwise(places))
    ]


async def nothing(event: ModelDelta) -> list[ModelDelta]:
    return []


async def test_fields_arrive_one_by_one() -> None:
    partials = PartialArguments(nothing)
    seen = [(await partials.fill_partial(d)).partial for d in pieces('{"name": "Ana", "age": 41}', [3, 11, 14, 22])]
    assert seen == [{}, {"name": "A"}, {"name": "Ana"}, {"name": "Ana"}, {"name": "Ana", "age": 41}]


async def test_who_comes_in_the_middle_reads_what_stands_before() -> None:
    all_of_it = pieces('{"name": "Ana", "age": 41}', [5, 15])

    async def earlier(event: ModelDelta) -> list[ModelDelta]:
        return [one for one in all_of_it if one.seq < event.seq]

    assert (await PartialArguments(earlier).fill_partial(all_of_it[-1])).partial == {"name": "Ana", "age": 41}


async def test_a_beginning_that_is_gone_gives_nothing_rather_than_something_wrong() -> None:
    assert (await PartialArguments(nothing).fill_partial(pieces('{"a": 1}', [4])[1])).partial is None


async def test_a_retracted_attempt_is_not_the_beginning_of_the_next() -> None:
    partials = PartialArguments(nothing)
    await partials.fill_partial(pieces('{"a": 1}', [4])[0])
    await partials.fill_partial(ModelRetracted())
    assert (await partials.fill_partial(pieces('{"b": 2}', [])[0])).partial == {"b": 2}


@given(
    st.dictionaries(st.text(max_size=5), st.one_of(st.text(max_size=9), st.integers(), st.lists(st.booleans()))),
    st.lists(st.integers(min_value=0, max_value=500)),
)
async def test_the_last_piece_gives_all_of_it(value: dict[str, object], cuts: list[int]) -> None:
    partials = PartialArguments(nothing)
    last = None
    for delta in pieces(json.dumps(value), cuts):
        last = (await partials.fill_partial(delta)).partial
    assert last == value


def test_what_is_no_json_has_no_partial() -> None:
    assert parse_partial_json("oops") is None


async def test_long_arguments_are_parsed_when_they_have_grown_by_a_hundredth() -> None:
    """The whole of them is parsed each time: with every piece, the cost would grow with the square of their length."""
    partials, seen = PartialArguments(nothing), list[object]()
    deltas = pieces(json.dumps({"text": "a" * 100_000}), list(range(0, 100_000, 40)))
    for delta in deltas:
        partial = (await partials.fill_partial(delta)).partial
        if delta.offset:
            assert len(partial["text"]) >= 0.98 * delta.offset
        if not seen or partial is not seen[-1]:
            seen.append(partial)
    assert 10_000 // 40 < len(seen) < 0.3 * len(deltas)
    again = ModelDelta(kind="tool_call", text='{"text": "b', name="finish", call_id="c")
    assert (await partials.fill_partial(again)).partial == {"text": "b"}, "of another attempt"
