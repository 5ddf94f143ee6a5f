"""Pieces of live text: all that a reply says, once, whatever is retried."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.client.event_reader import LiveText
from perdure.types.events import Event, ModelCompleted, ModelDelta, ModelRetracted, ModelStarted


def deltas(*texts: str) -> list[Event]:
    """A started reply with these pieces."""
    events: list[Event] = [ModelStarted()]
    offset = 0
    for text in texts:
        events.append(ModelDelta(text=text, offset=offset))
        offset += len(text)
    return events


def shown(events: list[Event]) -> str:
    live = LiveText()
    return "".join(live.feed(event) for event in events)


def test_pieces_of_a_reply_and_no_piece_twice() -> None:
    assert shown([*deltas("It ", "is 7."), ModelCompleted(text="It is 7.")]) == "It is 7."


def test_a_reply_that_was_too_quick_for_deltas_is_shown_when_it_is_whole() -> None:
    assert shown([ModelStarted(), ModelCompleted(text="It is 7.")]) == "It is 7."


def test_another_attempt_that_says_the_same_goes_on_where_the_first_was_cut() -> None:
    events = [*deltas("It "), ModelRetracted(), *deltas("It", " is 7."), ModelCompleted(text="It is 7.")]
    assert shown(events) == "It is 7."


def test_another_attempt_that_says_something_else_begins_anew() -> None:
    events = [*deltas("It "), ModelRetracted(), *deltas("No: ", "8."), ModelCompleted(text="No: 8.")]
    assert shown(events) == "It \nNo: 8."


def test_two_replies_are_two() -> None:
    first = [*deltas("a"), ModelCompleted(text="a")]
    assert shown([*first, *deltas("ab"), ModelCompleted(text="ab")]) == "aab"


def test_who_comes_in_the_middle_sees_the_rest_and_not_the_beginning_again() -> None:
    assert shown([ModelDelta(text="is 7.", offset=3), ModelCompleted(text="It is 7.")]) == "is 7."


@given(st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4), st.text(alphabet="ab", max_size=8))
def test_what_is_shown_ends_with_the_whole_reply(attempts: list[str], text: str) -> None:
    events: list[Event] = []
    for attempt in attempts:
        events += [*deltas(attempt), ModelRetracted()]
    events += [*deltas(*text), ModelCompleted(text=text)]
    assert shown(events).endswith(text)
