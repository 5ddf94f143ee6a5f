"""Messages: when they join a turn, when they open one, and which are refused."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from perdure.errors import InvalidInputError, RunClosedError
from perdure.loop import payload_limits
from perdure.loop.apply import apply_model
from perdure.loop.decide import RunToolCalls, Wait, decide
from perdure.loop.finish import build_response
from perdure.loop.lifecycle import (
    build_continuation_input,
    cancel_run,
    close_run,
    create_run_state,
    read_continued_state,
)
from perdure.loop.messages import accept_message, check_message, receive_message
from perdure.loop.payload_limits import (
    CONTEXT_BYTES,
    INBOX_BYTES,
    MESSAGE_BYTES,
    OVERRIDE_BYTES,
    STATE_BYTES,
    STEP_MESSAGES_BYTES,
)
from perdure.loop.status import build_status
from perdure.types.approvals import MAX_SENDERS, hash_name
from perdure.types.interface import Parent
from perdure.types.plain_json import measure_json
from perdure.types.state import MAX_SEEN_IDS
from perdure.types.subagents import Lineage, PathStep
from perdure.types.tool_calls import Call
from tests.unit.loop.build import carried_over

from .build import ACTIVITY, LIMITS, asks, call, close, done, ended, model, opened, refused, running, said, says

ABOVE = tuple(f"{n:016x}" for n in range(MAX_SENDERS - 1))


def test_a_message_joins_at_the_next_iteration_behind_the_results():
    state = opened()
    model(state, asks(call("c1"), call("c2")))
    receive_message(state, "one")
    done(state, "c2", "c1")
    receive_message(state, "two")
    assert said(model(state, says("42"))) == ["=c1", "=c2", "one", "two"]
    assert ended(state) == "completed"


def test_a_message_that_arrives_during_the_model_call_extends_the_turn():
    state = opened()
    step = decide(state)
    receive_message(state, "wait")
    apply_model(state, step, says("42"))
    assert said(model(state, says("43"))) == ["wait"]
    assert (state.turns, build_response(state).content) == (1, "43")
    assert ended(state) == "completed"


def test_a_message_after_the_answer_extends_a_run():
    state = opened()
    model(state, says("42"))
    receive_message(state, "sure?")
    assert said(model(state, asks(call()))) == ["sure?"]
    assert state.turn.answer is None
    done(state, "c1")
    model(state, says("43"))
    assert (state.turns, state.turn.iteration, build_response(state).content) == (1, 3, "43")


def test_a_message_after_the_answer_opens_a_turn_of_a_session():
    state = opened(mode="session")
    model(state, says("42"))
    assert decide(state) == Wait("message")
    receive_message(state, "next")
    assert (state.turns, state.turn.task_id, state.turn.iteration) == (2, "scope-12345-2", 0)
    model(state, says("43"))
    assert (state.turn.iteration, state.iterations, build_response(state).content) == (1, 2, "43")


def test_messages_of_a_session_join_those_that_wait_for_an_answer():
    """The second one arrives while the first, which came during the answer, is with the model."""
    state = opened(mode="session")
    step = decide(state)
    receive_message(state, "one")
    apply_model(state, step, says("42"))
    step = decide(state)
    receive_message(state, "two")
    apply_model(state, step, says("43"))
    assert said(model(state, says("44"))) == ["two"]
    assert (state.turns, build_response(state).content) == (1, "44")


def test_a_closed_session_ends_after_its_turn():
    state = opened(mode="session")
    close_run(state)
    model(state, says("42"))
    assert close(state).closing.status == "completed"
    assert ended(state) == "completed"
    state = opened(None, mode="session")
    state.closed = True
    assert ended(state) == "completed"


def test_the_same_id_counts_once_and_also_after_continuing_as_new():
    state = opened({"content": "hi", "id": "m1"})
    assert not receive_message(state, {"content": "hi", "id": "m1"})
    state = carried_over(state)
    assert not receive_message(state, {"content": "other text", "id": "m1"})
    assert receive_message(state, {"content": "hi", "id": "m2"})
    assert receive_message(state, "hi")
    assert receive_message(state, "hi")
    assert len(state.inbox) == 4


def test_an_empty_id_is_none():
    state = opened(None)
    assert receive_message(state, {"content": "one", "id": ""})
    assert receive_message(state, {"content": "two", "id": ""})
    assert [item.id for item in state.inbox] == [None, None]


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        (None, "message: "),
        (7, "message: "),
        (["hi"], "message: "),
        ({}, "content: "),
        ({"text": "hi"}, "content: "),
        ({"content": "hi", "id": 7}, "id: "),
        ({"content": "hi", "from": "ana"}, "from: "),
        ({"content": {"hash": "f" * 64}}, "content.BlobRef.size: "),
        ({"content": {"hash": "nope", "size": 1}}, "content.BlobRef.hash: "),
        ("ж" * (MESSAGE_BYTES // 6), "message: it has 1,048,587 bytes as JSON and may have 1,048,576; send it with"),
        ({"content": "x" * MESSAGE_BYTES, "id": "m1"}, "message: it has 1,048,"),
        ({"content": "hi", "x" * 10_000: 1}, "xxx"),
        ({"content": "hi", "id": "\U0001f40d" * 200}, "id: it has 2,402 bytes as JSON and may have 400"),
        ({"content": ["\ud800"]}, "content"),
    ],
)
def test_what_cannot_be_understood_is_shown_and_changes_nothing_else(raw, names):
    state = opened(None)
    assert not receive_message(state, raw)
    assert names in build_status(state).model_dump(mode="json")["refused"][0]
    build_continuation_input(state, "run-1")["state"]["refused"][0].encode()
    state.refused = []
    assert state == opened(None)


def test_the_last_ten_refusals_are_kept_and_shortened():
    state = opened(None)
    for n in range(12):
        receive_message(state, {"content": n, "padding": "x" * 10_000})
    assert len(state.refused) == 10
    assert "'content': 11" in state.refused[-1]
    assert max(map(len, state.refused)) <= 300


def test_lone_surrogates_are_replaced_because_no_transcript_can_hold_them():
    state = opened("a\ud83d")
    receive_message(state, {"content": "b\udc00", "id": "m\ud83d"})
    for item in state.inbox:
        f"{item.content}{item.id}".encode()


def test_one_model_call_is_given_no_more_than_fits_and_the_rest_comes_next():
    state = opened("0")
    for n in (1, 2, 3):
        receive_message(state, str(n) * (STEP_MESSAGES_BYTES // 2))
    first = model(state, asks(call()))
    assert [text[0] for text in said(first)] == ["0", "1"]
    done(state, "c1")
    assert [text[0] for text in said(model(state, says("42", LIMITS)))] == ["=", "2"]
    assert [text[0] for text in said(model(state, says("43", LIMITS)))] == ["3"]
    assert ended(state) == "completed"


def test_the_largest_message_goes_alone_and_no_results_keep_it_out():
    state = opened()
    model(state, asks(call()))
    assert receive_message(state, "ä" * (MESSAGE_BYTES // 6 - 10))
    receive_message(state, "more")
    done(state, "c1")
    assert decide(state).taken_from_inbox == 1
    assert [text[0] for text in said(model(state, says("42", LIMITS)))] == ["=", "ä"]
    assert said(model(state, says("43", LIMITS))) == ["more"]


def test_a_message_that_does_not_fit_beside_the_results_comes_next(monkeypatch):
    monkeypatch.setattr(payload_limits, "MESSAGE_BYTES", 32 * 1024)
    monkeypatch.setattr(payload_limits, "STEP_MESSAGES_BYTES", 16 * 1024)
    calls = [refused(f"c{n}") for n in range(250)]
    state = opened()
    model(state, asks(*calls))
    assert receive_message(state, "x" * (32 * 1024 - 100))
    step = decide(state)
    assert (len(step.new), step.taken_from_inbox) == (250, 0)
    model(state, says("42", LIMITS))
    assert decide(state).taken_from_inbox == 1


def test_many_small_messages_count_with_all_that_they_are(monkeypatch):
    monkeypatch.setattr(payload_limits, "STEP_MESSAGES_BYTES", 64 * 1024)
    state = opened(None)
    for n in range(400):
        receive_message(state, {"content": "", "id": f"{n:0200}"})
    step = decide(state)
    assert measure_json([item.model_dump(exclude_none=True) for item in step.new]) < 64 * 1024 * 1.1
    assert 0 < step.taken_from_inbox < 400


def test_a_message_in_another_store_than_the_run_is_refused():
    blob = {"hash": "f" * 64, "size": 3}
    state = opened(None)
    assert receive_message(state, {"content": blob, "store_id": "other"})  # not known yet: the model call reports it
    model(state, says("42"))
    assert state.store_id == "s"
    assert receive_message(state, {"content": blob, "store_id": "s"})
    assert receive_message(state, {"content": blob})
    assert receive_message(state, {"content": "whole", "store_id": "other"})
    assert not receive_message(state, {"content": blob, "store_id": "other", "id": "m1"})
    assert "its content is in store other, and the run is kept in store s" in state.refused[0]
    assert receive_message(state, {"content": blob, "store_id": "s", "id": "m1"})  # a refused one was not seen


def test_an_ending_records_what_fits_and_then_the_rest():
    state = opened("0")
    for n in (1, 2):
        receive_message(state, str(n) * (STEP_MESSAGES_BYTES // 2))
    cancel_run(state)
    assert [text[0] for text in said(close(state))] == ["0", "1"]
    assert [text[0] for text in said(close(state))] == ["2"]
    assert ended(state) == "cancelled"


def test_only_calls_without_a_result_run_again():
    state = opened()
    model(state, asks(call("c1"), call("c2"), call("c3")))
    assert running(state) == [("c1", 1), ("c2", 2), ("c3", 3)]
    done(state, "c2")
    assert running(state) == [("c1", 1), ("c3", 3)]


@pytest.mark.parametrize("context", [None, {"user": "x" * (CONTEXT_BYTES - 20)}])
@pytest.mark.parametrize("at_once", [20, 5])
def test_calls_that_do_not_fit_into_one_task_begin_in_turn(context, at_once, monkeypatch):
    monkeypatch.setattr(payload_limits, "CALL_INPUTS_BYTES", 200_000)
    monkeypatch.setattr(payload_limits, "CALLS_AT_ONCE", at_once)
    given = [
        Call(id=f"c{n}", name="look", arguments={"n": "x" * (n % 3) * 10_000}, disposition=ACTIVITY) for n in range(70)
    ]
    state = opened(context=context)
    model(state, asks(*given))
    begun = []
    while isinstance(step := decide(state), RunToolCalls):
        assert len(step.calls) <= at_once
        assert sum(measure_json([state.context, one.call.arguments]) for one in step.calls) < 200_000
        begun += [one.call.id for one in step.calls]
        done(state, *(one.call.id for one in reversed(step.calls)))
    assert begun == [one.id for one in given]
    assert said(model(state, says("42"))) == [f"={one.id}" for one in given]


def test_a_call_that_fits_nowhere_goes_alone(monkeypatch):
    monkeypatch.setattr("perdure.loop.payload_limits.CALL_INPUTS_BYTES", 10)
    state = opened()
    model(state, asks(call("c1"), call("c2")))
    assert running(state) == [("c1", 1)]
    done(state, "c1")
    assert running(state) == [("c2", 2)]


def test_who_sends_is_told_the_turn_also_when_the_message_is_sent_again():
    state = opened({"content": "hi", "id": "m1"}, mode="session")
    first = state.turn.task_id
    assert accept_message(state, {"content": "hi", "id": "m1"}) == first
    assert accept_message(state, {"content": "and", "id": "m2"}) == first, "it joins the turn"
    model(state, says("42"))
    second = accept_message(state, {"content": "next", "id": "m3"})
    assert second != first
    state = carried_over(state)
    assert [accept_message(state, {"content": "x", "id": name}) for name in ("m1", "m2", "m3")] == [
        first,
        first,
        second,
    ]
    assert said(model(state, says("43"))) == ["next"]


def test_the_sender_may_name_the_turn_but_not_take_the_name_of_another():
    state = opened({"content": "hi", "id": "m1", "task_id": "mine"}, mode="session")
    assert state.turn.task_id == "mine"
    model(state, says("42"))
    assert accept_message(state, {"content": "again", "task_id": "mine"}) != "mine"


def test_the_name_of_a_turn_long_ago_is_not_given_to_another_whose_row_would_take_its_place():
    state = opened({"content": "hi", "task_id": "mine"}, mode="session")
    for n in range(60):
        model(state, says("42"))
        accept_message(state, f"m{n}")
    model(state, says("42"))
    state = carried_over(state)
    assert "mine" not in {past.task_id for past in state.past_turns}
    assert accept_message(state, {"content": "again", "task_id": "mine"}) != "mine"


def test_a_sender_cannot_take_the_id_that_a_later_turn_will_get():
    state = opened("hi", mode="session")
    scope, _, number = state.turn.task_id.rpartition("-")
    model(state, says("42"))
    coming = f"{scope}-{int(number) + 2}"
    assert accept_message(state, {"content": "again", "task_id": coming}) != coming


def test_what_cannot_be_taken_is_refused_to_its_sender():
    state = opened()
    with pytest.raises(InvalidInputError, match="content: "):
        accept_message(state, {"text": "hi"})
    cancel_run(state)
    with pytest.raises(RunClosedError):
        accept_message(state, {"content": "hi", "id": "m1"})
    with pytest.raises(RunClosedError):
        check_message(state, "hi")
    assert state.inbox == opened().inbox


def test_a_turn_without_a_message_calls_the_model_on_what_there_is():
    state = opened(None, mode="session", history="h-1", store_id="s")
    task_id = accept_message(state, {"content": None})
    step = model(state, says("42"))
    assert (step.new, state.turn.task_id) == ((), task_id)
    assert accept_message(state, {"content": None}) != task_id
    assert model(state, says("43")).new == ()


def test_a_turn_may_change_the_agent():
    state = opened({"content": "hi", "override": {"model": "openai:small"}}, mode="session")
    assert state.turn.overrides == {"model": "openai:small"}
    model(state, says("42"))
    receive_message(state, "next")
    assert state.turn.overrides is None


def test_the_oldest_id_is_forgotten_first_also_after_continuing_as_new():
    """Temporal's converter sorts the keys of what is carried over."""
    state = opened(None, mode="session")
    for number in range(MAX_SEEN_IDS + 1, 0, -1):
        receive_message(state, {"content": "x", "id": f"m{number:04}"})
    assert list(state.turn_by_message_id) == [f"m{number:04}" for number in range(MAX_SEEN_IDS, 0, -1)]
    carried = json.loads(json.dumps(build_continuation_input(state, "run-1"), sort_keys=True))
    state = read_continued_state(carried, state.context_id)
    receive_message(state, {"content": "x", "id": "another"})
    assert not receive_message(state, {"content": "x", "id": "m0001"}), "the latest but one"
    assert receive_message(state, {"content": "x", "id": f"m{MAX_SEEN_IDS:04}"}), "the oldest"


def test_an_override_that_says_none_of_a_field_leaves_it_as_it_is():
    state = opened(None, mode="session", override={"model": "test:run", "instructions": None})
    accept_message(state, {"content": "one", "override": {"model": None, "settings": {"top_p": None}}})
    assert state.overrides == {"model": "test:run"}
    assert state.turn.overrides == {"settings": {"top_p": None}}, "a setting of None is taken away"


def test_an_override_that_no_call_could_carry_is_refused():
    override = {"instructions": "x" * OVERRIDE_BYTES}
    with pytest.raises(InvalidInputError, match=r"override: it has 131,\d+ bytes as JSON and may have 131,072"):
        opened(override=override)
    with pytest.raises(InvalidInputError, match="override: it has"):
        accept_message(opened(), {"content": "one", "override": override})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([], "content: a list of parts has at least one"),
        ([{"type": "text"}], "content.0: a text has exactly one of text and blob"),
        ([{"type": "text", "text": "x", "opaque": {}}], "content.0: opaque: "),
        ([{"type": "hologram"}], "content.0: "),
        ([{"type": "text", "text": 3}], "content.0.text: "),
        ([{"type": "text", "text": "x"}, {"type": "file", "data": "eHg="}], "content.1.media_type: Field required"),
        ([{"type": "file", "media_type": "image/png"}], "content.0: a file has exactly one of blob, url and data"),
        ([{"type": "file", "media_type": "image/png", "data": "?"}], "content.0: data is not base64"),
        ([{"type": "file", "media_type": "png", "data": "eHg="}], "content.0: media_type: 'png' is not a media type"),
        ([{"type": "file", "media_type": "a/b", "blob": {"hash": "x", "size": 1}}], "content.0.blob.hash: "),
        ([{"type": "file", "media_type": "a/b", "data": "eHh4" * (MESSAGE_BYTES // 4)}], "message: it has 1,048,"),
    ],
)
def test_parts_that_cannot_be_taken_are_named(content, why):
    state = opened(None)
    assert not receive_message(state, {"content": content})
    assert build_status(state).refused[0].startswith(why)
    with pytest.raises(InvalidInputError) as caught:
        create_run_state({"agent": "a", "message": {"content": content}}, "c", "s")
    assert why in str(caught.value)


def test_parts_are_taken_cleaned_and_survive_continuing_as_new():
    state = opened(None)
    text, file = {"type": "text", "text": "a\ud800"}, {"type": "file", "media_type": "Image/PNG", "data": "eHg="}
    assert receive_message(state, {"content": [text, file], "id": "m1"})
    state = carried_over(state)
    taken = [part.model_dump(exclude_defaults=True) for part in state.inbox[0].content]
    assert taken == [{"text": "a�"}, {"media_type": "image/png", "data": "eHg="}]


def test_parts_in_another_store_are_refused():
    state = opened(None, store_id="s1")
    blob = {"hash": "f" * 64, "size": 1}
    for content in (blob, [{"type": "text", "blob": blob}], [{"type": "file", "media_type": "a/b", "blob": blob}]):
        assert not receive_message(state, {"content": content, "store_id": "s2"})
        assert receive_message(state, {"content": content, "store_id": "s1"})
    assert all("store s2" in why for why in state.refused)


@pytest.mark.parametrize("levels", [160, 250, 700, 6_000])
@pytest.mark.parametrize("field", ["override", "input", "content"])
def test_what_is_nested_deeper_than_can_be_carried_on_is_refused_and_stops_no_run(field: str, levels: int):
    deep: Any = 1
    for _ in range(levels):
        deep = {"x": deep}
    said = {"content": "hi", "override": {"settings": deep}} if field == "override" else {field: deep}
    state = opened()
    assert not receive_message(state, said)
    assert len(state.refused) == 1
    with pytest.raises(InvalidInputError, match=r"nested|content"):
        accept_message(state, said)
    with pytest.raises(InvalidInputError, match="nested"):
        opened(context=deep)


def test_everybody_who_asked_in_a_turn_is_remembered_until_there_are_too_many():
    state = opened(message={"content": "go", "by": "Mallory"})
    for n in range(50):
        assert receive_message(state, {"content": "too", "by": f"p{n}"})
    assert len(state.turn.said_by) == 51
    state.turn.said_by += ABOVE[: MAX_SENDERS - 51]
    assert not receive_message(state, {"content": "too", "by": "one more"})
    assert "4,096 people have written in this turn" in build_status(state).refused[-1]
    for take in (accept_message, check_message):
        with pytest.raises(InvalidInputError, match="4,096 people"):
            take(state, {"content": "too", "by": "one more"})
    for known in ("mallory ", "P7", None):
        assert receive_message(state, {"content": "again", "by": known})
    assert len(state.turn.said_by) == MAX_SENDERS
    assert measure_json(state.model_dump(mode="json")["turn"]) < 100_000


def test_those_who_asked_the_run_above_count_too():
    state = opened()
    way = Lineage(root="p", path=(PathStep(agent="a", call_id="c"),), agent="a")
    state.parent = Parent(context_id="p", call_id="c", scope="s", depth=1, lineage=way, asked_by=ABOVE)
    assert receive_message(state, {"content": "too", "by": "mallory"})
    assert not receive_message(state, {"content": "too", "by": "one more"})


@pytest.mark.parametrize("name", ["Mallory ", "MALLORY", "\uff2dallory", "mal\u006cory\n"])
def test_a_name_is_the_same_in_every_spelling(name):
    assert hash_name(name) == hash_name("mallory")


def test_no_name_is_nobodys():
    assert [hash_name(name) for name in (None, "", "  ", "\u00a0")] == [None] * 4
    assert hash_name("\ud800") is not None


def test_messages_wait_up_to_a_bound_and_those_that_are_too_many_are_refused():
    state = opened(None)
    text = "ж" * 170_000
    taken = 0
    while receive_message(state, text):
        taken += 1
    assert taken == INBOX_BYTES // measure_json(text)
    assert state.refused[-1].startswith(f"message: with the {taken} that wait for the model it has ")
    with pytest.raises(InvalidInputError, match="Send it again when the model was given those"):
        accept_message(state, text)
    assert receive_message(state, "short")


def test_a_run_that_two_messages_of_340_kb_cyrillic_are_sent_to_is_continued_when_the_model_has_taken_one():
    state = opened(None, mode="session")
    for _ in range(2):
        assert receive_message(state, "ж" * 170_000)
    assert measure_json(build_continuation_input(state, "run-1")) > STATE_BYTES
    model(state, says("42"))
    assert measure_json(build_continuation_input(state, "run-1")) < STATE_BYTES


def test_what_a_conversation_remembers_of_ids_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(import_module("perdure.loop.messages"), "MESSAGE_IDS_BYTES", 16 * 1024)
    state = opened(None)
    for n in range(200):
        if n == 100:  # an older engine had it meanwhile, which does not keep the size
            carried = json.loads(json.dumps(build_continuation_input(state, "run-1")))
            assert carried["state"].pop("turn_by_message_id_bytes") >= measure_json(state.turn_by_message_id)
            state = read_continued_state(carried, state.context_id)
        receive_message(state, {"content": None, "id": f"{n:04}" + "ж" * 60})
        assert f"{n:04}" + "ж" * 60 in state.turn_by_message_id
        assert measure_json(state.turn_by_message_id) <= 16 * 1024
    assert measure_json(state.turn_by_message_id) > 15 * 1024


def test_the_ids_that_are_remembered_are_not_measured_for_each_message(monkeypatch):
    """Thousands of messages may come in one workflow task, which has two seconds."""
    measured: list[int] = []

    def measure(value):
        measured.append(measure_json(value))
        return measured[-1]

    state = opened(None, mode="session")
    for number in range(MAX_SEEN_IDS):
        receive_message(state, {"content": "x", "id": f"m{number:04}"})
    monkeypatch.setattr(import_module("perdure.loop.messages"), "measure_json", measure)
    receive_message(state, {"content": "x", "id": "another"})
    assert 0 < sum(measured) < measure_json(state.turn_by_message_id) / 10
