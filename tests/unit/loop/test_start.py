"""From JSON to the first state, and from one execution to the next."""

from __future__ import annotations

import json

import pytest

from perdure.errors import InvalidInputError
from perdure.loop.decide import Wait, decide
from perdure.loop.lifecycle import (
    build_continuation_input,
    create_run_state,
    is_continuation_input,
    read_continued_state,
)
from perdure.loop.messages import receive_message
from perdure.loop.status import build_status
from perdure.types.messages import BlobRef
from perdure.types.schema_version import SCHEMA_VERSION
from tests.unit.loop.build import carried_over

from .build import ended, model, opened, said, says

BLOB = {"hash": "f" * 64, "size": 3}

STATE = {"schema_version": 1, "context_id": "context-1", "scope": "s", "agent": "a"}


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        (None, "one JSON object, not NoneType"),
        ("support", "one JSON object, not str"),
        (["support"], "one JSON object, not list"),
        (7, "one JSON object, not int"),
        ({}, "agent: "),
        ({"message": "hi"}, "agent: "),
        ({"agent": ""}, "agent: "),
        ({"agent": None}, "agent: "),
        ({"agent": 7}, "agent: "),
        ({"agent": "a", "mesage": "hi"}, "mesage: "),
        ({"agent": "a", "message": 7}, "message."),
        ({"agent": "a", "message": ["hi"]}, "message."),
        ({"agent": "a", "message": {"text": "hi"}}, "message.UserMessage.content: "),
        ({"agent": "a", "message": {"content": "hi", "ids": "1"}}, "message.UserMessage.ids: "),
        ({"agent": "a", "mode": "chat"}, "mode: "),
        ({"agent": "a", "context": "user-7"}, "context: "),
        ({"agent": "a", "history": 7}, "history: "),
        ({"agent": "a", "overrides": {"temperature": 0}}, "overrides: "),
        ({"agent": "x" * 201}, "agent: "),
        ({"agent": "a", "message": "ж" * 500_000}, "3,000,015 bytes as JSON and may have 1,048,576"),
        ({"agent": "a", "message": {"content": "x" * 1_048_576}}, "send it with perdure's client"),
        ({"agent": "a", "message": {"content": {"hash": "nope", "size": 1}}}, "hash: "),
        ({"agent": "a", "message": {"content": BLOB, "store_id": "s1"}, "store_id": "s2"}, "is in store s1"),
        ({"agent": "a", "context": {"x": "y" * 16_384}}, "the context has 16,393 bytes as JSON; it may have 16,384"),
        ({"agent": "a", "x" * 10_000: 1}, "xxx"),
        ({"agent": "a", "max_history_events": 5}, "max_history_events: "),
        ({"agent": "a", "max_history_events": "many"}, "max_history_events: "),
        ({"agent": "a", "state": {}}, "state: "),
        ({"state": None}, "state: "),
        ({"state": "x"}, "state: "),
        ({"state": []}, "state: "),
        ({"state": {}}, "state: "),
        ({"state": {"schema_version": 1, "context_id": "c", "scope": "s", "agent": "a"}}, "state: "),
        (
            {"state": {"schema_version": 1, "context_id": "c", "scope": "s", "agent": "a"}, "continues": "run-1"},
            "state: ",
        ),
    ],
)
def test_a_badly_shaped_start_is_refused_by_the_name_of_the_field(raw, names):
    with pytest.raises(InvalidInputError) as refused:
        create_run_state(raw, "context-1", "scope-1")
    assert names in refused.value.message
    assert len(refused.value.message) < 1500


@pytest.mark.parametrize(
    ("state", "names"),
    [
        (None, "state: "),
        ({"schema_version": "1"}, "state: "),
        ({"schema_version": True}, "state: "),
        ({"schema_version": 0}, "state: "),
        ({"schema_version": 1, "context_id": "c", "scope": "s"}, "state.agent: "),
        ({"schema_version": 1, "context_id": "c", "scope": "s", "agent": "a", "calls": [1]}, "state.calls.0"),
        ({"schema_version": 1, "context_id": "victim", "scope": "s", "agent": "a"}, "belongs to run 'victim'"),
    ],
)
def test_a_state_that_cannot_be_continued_is_refused_by_the_name_of_the_field(state, names):
    with pytest.raises(InvalidInputError) as refused:
        read_continued_state({"state": state, "continues": "run-1"}, "c")
    assert names in refused.value.message


@pytest.mark.parametrize("continued_run_id", [None, "run-2", ""])
def test_a_state_counts_only_from_the_execution_that_is_continued(continued_run_id):
    carried = build_continuation_input(opened(), "run-1")
    assert is_continuation_input(carried, "run-1")
    assert not is_continuation_input(carried, continued_run_id)
    assert not is_continuation_input({"state": carried["state"]}, continued_run_id)
    assert not is_continuation_input({**carried, "continues": None}, continued_run_id)


def test_a_state_of_a_newer_engine_is_refused_with_the_way_out():
    newer = build_continuation_input(opened(), "run-1")
    newer["state"]["schema_version"] = SCHEMA_VERSION + 1
    with pytest.raises(InvalidInputError, match=f"schema version {SCHEMA_VERSION + 1}.*reads up to") as refused:
        read_continued_state(newer, "context-1")
    assert "newer perdure" in refused.value.hint


def test_a_field_of_a_later_engine_with_the_same_version_is_left_out():
    carried = build_continuation_input(opened(), "run-1")
    carried["state"]["weather"] = "fine"
    assert read_continued_state(carried, "context-1") == opened()


@pytest.mark.parametrize(
    ("message", "content", "id"),
    [
        ("hi", "hi", None),
        ("", "", None),
        ({"content": "hi", "id": "m1"}, "hi", "m1"),
        ({"content": BLOB}, BlobRef(**BLOB), None),
    ],
)
def test_the_first_message_waits_in_the_inbox(message, content, id):
    state = opened(message)
    assert [(item.content, item.id) for item in state.inbox] == [(content, id)]
    assert state.turn.task_id == "scope-12345-1"


def test_a_start_without_a_message_waits_for_one():
    state = opened(None)
    assert decide(state) == Wait("message")
    assert build_status(state).state == "idle"
    receive_message(state, "hi")
    assert said(model(state, says("42"))) == ["hi"]


def test_a_start_with_history_goes_on_from_it():
    state = opened("and now?", history="h0", store_id="s0", context={"user": None})
    assert (state.head, state.store_id, state.context) == ("h0", "s0", {"user": None})


def test_what_is_carried_over_is_plain_json_and_nothing_is_lost():
    state = opened(context={"user": None, "deep": {"list": [None, 1.5]}})
    receive_message(state, {"content": BLOB, "id": "m2"})
    carried = json.loads(json.dumps(build_continuation_input(state, "run-1")))
    assert read_continued_state(carried, "context-1") == state


def test_the_scope_and_id_of_the_first_execution_stay():
    state = carried_over(opened())
    assert (state.context_id, state.scope) == ("context-1", "scope-12345")


def test_states_share_nothing():
    one, other = opened(), opened()
    receive_message(one, "more")
    model(one, says("42", limits=one.limits))
    assert other == opened()
    receive_message(one, "again")
    model(one, says("43", limits=one.limits))
    assert ended(one) == "completed"


@pytest.mark.parametrize(
    ("start", "resend"),
    [
        ({"resume": True, "message": {"content": None}}, True),
        ({"resume": True, "message": {"input": {"a": 1}}}, False),
        ({"resume": True, "message": "And now?"}, False),
        ({"resume": True}, False),
        ({"message": {"content": None}}, False),
    ],
)
def test_only_a_conversation_that_is_opened_again_without_a_message_sends_what_was_withheld(start, resend):
    assert create_run_state({"agent": "a", **start}, "c", "s").resend is resend
