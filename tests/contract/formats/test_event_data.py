"""Server-sent events: whatever pieces a body comes in, names and data are what the official SDK reads."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from perdure.providers.sdk import EventStreamParser

LINES = st.sampled_from(
    ["data: a", "data:b", "data: {é}", "data:  c", "event: x", "id: 7", ": alive", "retry: 5", "", ""]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def read(pieces: list[bytes]) -> list[tuple[str, str]]:
    events = EventStreamParser()
    return [event for piece in pieces for event in events.feed(piece)]


@given(st.lists(st.tuples(LINES, ENDS), max_size=20), st.lists(st.integers(0, 200), max_size=8))
def test_any_pieces_give_what_the_sdk_reads(lines: list[tuple[str, str]], cuts: list[int]) -> None:
    body = "".join(line + end for line, end in lines).encode()
    places = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    pieces = [body[start:end] for start, end in pairwise(places)]
    wanted = [(event.event or "", event.data) for event in SSEDecoder().iter_bytes(iter([body]))]
    assert read(pieces) == [event for event in wanted if any(event)]  # one with an id alone says nothing


@pytest.mark.parametrize(
    ("pieces", "data"),
    [
        ([b"data: 1\n\n", b"", b"data: 2\n\n"], ["1", "2"]),
        ([b"data: 1\r", b"\ndata: 2\r\n\r\n"], ["1\n2"]),
        ([b"data: 1\r", b"", b"\ndata: 2\r\n\r\n"], ["1\n2"]),
        ([b"data: 1\n"], []),  # cut off: the event has not ended
        ([b"da", b"ta: x", b"y\n", b"\n"], ["xy"]),
    ],
)
def test_pieces(pieces: list[bytes], data: list[str]) -> None:
    assert read(pieces) == [("", one) for one in data]


def test_a_name_is_of_one_event() -> None:
    pieces = [b"event: er", b"ror\nid: 1\ndata: 1\n\ndata: 2\n\nevent:ping\n\nevent: \xff\ndata: 3\n\n"]
    assert read(pieces) == [("error", "1"), ("", "2"), ("ping", ""), ("\ufffd", "3")]


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(UnicodeDecodeError):
        read([b"data: \xff\n\n"])
