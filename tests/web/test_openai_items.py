"""perdure's events as frames of a response: whatever a model does, and wherever a client is cut off."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.client.decisions import RunWait
from perdure.events import (
    ApprovalRequested,
    CallSaid,
    Event,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    ModelStarted,
    PathStep,
    QuestionAsked,
    ToolCompleted,
    TurnEvent,
)
from perdure.types.approvals import WaitingCall
from perdure.web.openai_chat import ChatTranslator, RetractedTextError
from perdure.web.openai_items import ResponseTranslator
from tests.web.test_agui_translation import turns


class StrictReader:
    """A client that believes each frame, and continues where it was cut off; an ``AssertionError`` is a wrong frame."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.items: dict[int, dict[str, Any]] = {}
        self.open: set[int] = set()
        self.final: dict[str, Any] = {}
        self.id = ""

    def take(self, frame: dict[str, Any]) -> None:
        kind, number = frame["type"], frame["sequence_number"]
        assert not self.numbers or number > self.numbers[-1], (kind, number, self.numbers[-1])
        assert not self.final, f"{kind} after the end"
        self.numbers.append(number)
        index = frame.get("output_index")
        self.id = self.id or frame.get("response", {}).get("id", "")
        if kind == "response.output_item.added":
            assert index == len(self.items), "items are added in their order"
            self.items[index] = copy.deepcopy(frame["item"])
            self.open.add(index)
        elif kind in ("response.completed", "response.failed", "response.incomplete"):
            assert not self.open, "an item is open"
            self.final = frame["response"]
        elif index is not None:
            assert index in self.open, f"{kind} of an item that is not open"
            item = self.items[index]
            assert frame.get("item_id", item["id"]) == item["id"]
            self._take_part(kind, frame, item, index)

    def _take_part(self, kind: str, frame: dict[str, Any], item: dict[str, Any], index: int) -> None:
        if kind == "response.content_part.added":
            assert item["content"] == []
            item["content"] = [copy.deepcopy(frame["part"])]
        elif kind == "response.output_text.delta":
            assert frame["delta"]
            item["content"][0]["text"] += frame["delta"]
        elif kind == "response.output_text.done":
            assert frame["text"] in ("", item["content"][0]["text"]), "the text is not that of its pieces"
        elif kind == "response.output_item.done":
            assert frame["item"]["id"] == item["id"]
            self.items[index] = copy.deepcopy(frame["item"])
            self.open.discard(index)

    def texts(self) -> list[str]:
        return [
            content["text"] for item in self.items.values() if item["type"] == "message" for content in item["content"]
        ]


def complete_spans(events: list[Event]) -> list[Event]:
    """The events with the numbers of the pieces that a reply replaces, or that do not count, as the store has them."""
    pieces: list[int] = []
    written: list[int] = []
    found: list[Event] = []
    for event in events:
        if event.path:
            found.append(event)
            continue
        if isinstance(event, ModelDelta):
            pieces.append(event.seq)
            written.append(event.seq)
        if isinstance(event, ModelRetracted):
            event = event.model_copy(update={"retracts": tuple((seq, seq) for seq in pieces)})
            pieces = []
        if isinstance(event, ModelCompleted):
            event = event.model_copy(update={"replaces": tuple((seq, seq) for seq in written)})
            pieces, written = [], []
        found.append(event)
    return found


def build_translator() -> ResponseTranslator:
    return ResponseTranslator("resp_1", "s", "helper", 0)


def read(translator: ResponseTranslator, events: list[Event], reader: StrictReader, most: int | None = None) -> None:
    """Feed the events, of whose frames the client gets ``most``."""
    frames = translator.start()
    for event in events:
        frames = frames + copy.deepcopy(translator.feed(event))
    frames += translator.finish()
    for frame in frames[:most]:
        reader.take(frame)


@given(turns())
def test_a_response_ends_with_the_texts_of_the_transcript(turn: tuple[list[Event], list[str]]) -> None:
    events = complete_spans(turn[0])
    reader = StrictReader()
    read(build_translator(), events, reader)
    own = [event.text for event in events if isinstance(event, ModelCompleted) and not event.path and event.text]
    assert reader.texts() == own
    assert reader.final["status"] == "completed"
    texts = [item["content"][0]["text"] for item in reader.final["output"] if item["type"] == "message"]
    assert texts == own
    calls = [event for event in events if isinstance(event, ToolCompleted) and not event.path]
    assert len([item for item in reader.final["output"] if item["type"] == "mcp_call"]) == len(calls)


@given(turns(), st.data())
def test_a_response_is_continued_behind_any_frame_also_where_its_pieces_are_deleted(
    turn: tuple[list[Event], list[str]], data: st.DataObject
) -> None:
    events = complete_spans(turn[0])
    whole, reader = StrictReader(), StrictReader()
    read(build_translator(), events, whole)
    cut = data.draw(st.integers(1, len(whole.numbers)))
    read(build_translator(), events, reader, cut)
    ended = {e.iteration for e in events if isinstance(e, ModelCompleted) and not e.path}
    stored = [
        event for event in events if event.path or not isinstance(event, ModelDelta) or event.iteration not in ended
    ]
    later = build_translator()
    later.skip_until(reader.numbers[-1])
    read(later, stored, reader)
    assert reader.texts() == whole.texts()
    if not whole.final or cut < len(whole.numbers):
        assert reader.final["output"] == whole.final["output"]


def test_a_reader_that_continues_has_the_piece_that_it_had() -> None:
    at: dict[str, Any] = {"context_id": "s", "task_id": "k", "iteration": 1}
    live: list[Event] = [
        ModelStarted(seq=1, **at), ModelDelta(seq=2, text="Hel", **at), ModelDelta(seq=3, text="lo", offset=3, **at)
    ]  # fmt: skip
    path = (PathStep(agent="sub", call_id="c1"),)
    aside = ModelCompleted(seq=4, text="aside", context_id="s/1", path=path)
    end = ModelCompleted(seq=5, text="Hello you.", replaces=((2, 3),), **at)
    first = build_translator()
    frames = first.start() + [frame for event in live for frame in first.feed(event)]
    number = frames[-1]["sequence_number"]
    assert [item["content"][0]["text"] for item in first.describe()["output"]] == ["Hello"]
    later = build_translator()
    later.skip_until(number)
    assert later.start() == []
    rest = [frame for event in (live[0], aside, end) for frame in later.feed(event)]
    assert [frame["delta"] for frame in rest if "delta" in frame] == [" you."]


def test_a_text_that_a_hook_has_changed_is_the_one_of_the_done_frame() -> None:
    at: dict[str, Any] = {"context_id": "s", "task_id": "k", "iteration": 1}
    translator = build_translator()
    translator.feed(ModelDelta(seq=1, text="secret", **at))
    frames = translator.feed(ModelCompleted(seq=2, text="[removed]", replaces=((1, 1),), **at))
    assert [frame["text"] for frame in frames if frame["type"] == "response.output_text.done"] == ["[removed]"]
    translator.feed(TurnEvent(seq=3, state="completed", content="[removed]", context_id="s", task_id="k"))
    final = translator.finish()[-1]["response"]
    assert [item["content"][0]["text"] for item in final["output"]] == ["[removed]"]


def test_what_waits_is_an_item_once_whether_it_was_asked_before_or_in_the_response() -> None:
    at: dict[str, Any] = {"context_id": "s", "task_id": "k"}
    calls = (CallSaid(id="c1", name="pay", arguments={"n": 1}), CallSaid(id="c2", name="open", arguments={}))
    events: list[Event] = [
        ModelCompleted(seq=1, iteration=1, calls=calls, **at),
        ApprovalRequested(seq=2, call_id="c1", name="pay", hash="h1", **at),
        QuestionAsked(seq=3, call_id="c2", name="open", kind="callback", hash="h2", **at),
    ]
    waits = [
        RunWait("s", WaitingCall(call_id="c1", tool="pay", hash="h1")),
        RunWait("s", WaitingCall(call_id="c2", tool="open", hash="h2", kind="callback")),
        RunWait("s/1", WaitingCall(call_id="c3", tool="ask", hash="h3", kind="question")),
    ]
    reader, translator = StrictReader(), build_translator()
    for frame in translator.start() + [frame for event in events for frame in translator.feed(event)]:
        reader.take(frame)
    for frame in translator.finish(waits):
        reader.take(frame)
    kinds = [(item["type"], item["name"], item["arguments"]) for item in reader.final["output"]]
    assert kinds[:2] == [("mcp_approval_request", "pay", '{"n":1}'), ("function_call", "open", "{}")]
    assert kinds[2][:2] == ("function_call", "perdure_ask")
    assert reader.final["status"] == "completed"


def test_ends_of_turns_are_states_of_the_response() -> None:
    base: dict[str, Any] = {"context_id": "s", "task_id": "k"}
    states = [
        (TurnEvent(state="failed", error_type="MaxIterationsError", error="too many", **base), "failed"),
        (TurnEvent(state="completed", finish_reason="interrupted", **base), "cancelled"),
        (TurnEvent(state="cancelled", **base), "cancelled"),
        (TurnEvent(state="completed", finish_reason="length", **base), "incomplete"),
    ]
    for end, state in states:
        translator = build_translator()
        translator.feed(end)
        final = translator.finish()[-1]
        assert final["response"]["status"] == state
        assert final["type"] == ("response.failed" if state == "failed" else "response.incomplete")


@given(turns())
def test_chunks_join_to_the_text_or_say_that_they_do_not(turn: tuple[list[Event], list[str]]) -> None:
    events, _ = turn
    own = [event.text for event in events if isinstance(event, ModelCompleted) and not event.path and event.text]
    whole = ChatTranslator(is_live=False)
    for event in events:
        assert isinstance(whole.feed(event), str)
    assert (whole.content or "") == "\n\n".join(own)
    live, text = ChatTranslator(), ""
    try:
        for event in events:
            text += live.feed(event)
    except RetractedTextError:
        assert any(isinstance(event, ModelRetracted) for event in events)
    else:
        assert text == "\n\n".join(own)


def test_another_attempt_that_writes_the_same_continues_the_text_and_another_is_an_error() -> None:
    at: dict[str, Any] = {"context_id": "s", "task_id": "k", "iteration": 1}
    before: list[Event] = [ModelStarted(**at), ModelDelta(text="Hello", **at), ModelRetracted(**at), ModelStarted(**at)]
    same: list[Event] = [
        ModelDelta(text="Hel", **at),
        ModelDelta(text="lo you", offset=3, **at),
        ModelCompleted(text="Hello you.", **at),
    ]
    translator = ChatTranslator()
    assert "".join(translator.feed(event) for event in [*before, *same]) == "Hello you."
    other = ChatTranslator()
    assert "".join(other.feed(event) for event in before) == "Hello"
    with pytest.raises(RetractedTextError):
        other.feed(ModelDelta(text="Good", **at))
