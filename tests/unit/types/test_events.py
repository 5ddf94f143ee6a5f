"""Events as a program that follows a run gets them: classes, and JSON of any origin."""

from __future__ import annotations

import contextlib
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import perdure
from perdure import events
from perdure.errors import InvalidInputError
from perdure.events import EVENT_TYPES, Event, ToolStarted, parse_event

KINDS: tuple[type[Any], ...] = get_args(get_args(Event)[0])
REQUIRED = {"call_id": "c1", "name": "look", "decision": "approved", "state": "completed", "number": 1}


def example_of(kind: type[BaseModel]) -> Any:
    """An event of this class, with a place and all fields that it must have."""
    required = {name: REQUIRED[name] for name, field in kind.model_fields.items() if field.is_required()}
    path = [{"agent": "researcher", "call_id": "c0", "task_id": "t0"}]
    return kind.model_validate({"context_id": "order-7", "task_id": "t1", "seq": 12, "path": path, **required})


def test_the_module_has_every_class_of_the_union() -> None:
    assert all(getattr(events, kind.__name__) is kind for kind in KINDS)
    assert perdure.events is events
    assert len({kind.model_fields["type"].default for kind in KINDS}) == len(KINDS) == len(EVENT_TYPES)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_event_is_the_same_after_json(kind: type[BaseModel]) -> None:
    event = example_of(kind)
    assert parse_event(event.model_dump_json()) == event
    assert parse_event(event.model_dump_json().encode()) == event
    assert parse_event(event.model_dump(mode="json", exclude_none=True)) == event, "as `perdure events -o jsonl` has it"


def test_a_type_and_a_field_of_a_newer_perdure_are_skipped() -> None:
    assert parse_event({"type": "weather.changed", "wind": 7}) is None
    event = parse_event({"type": "tool.started", "call_id": "c1", "name": "look", "colour": "blue"})
    assert event == ToolStarted(call_id="c1", name="look")


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        ("", "an event is JSON"),
        ("{", "an event is JSON"),
        ('{"type": "run", "seq": NaN}', "an event is JSON"),
        ("[" * 10_000, "an event is JSON"),
        (b"\xff", "an event is JSON"),
        ("null", "an object with a type"),
        ("[]", "an object with a type"),
        ("{}", "an object with a type"),
        ('{"type": null}', "an object with a type"),
        ({"type": ["run"]}, "an object with a type"),
        ({"type": "tool.started", "name": "look"}, r"tool\.started\.call_id: Field required"),
        ({"type": "run", "state": "x" * 100_000}, r"run\.state: Input should be"),
        (7, "an event is JSON"),
        (None, "an event is JSON"),
    ],
)
def test_what_is_no_event_is_refused(plain: Any, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why) as refused:
        parse_event(plain)
    assert len(str(refused.value)) < 1_000


@given(st.text() | st.binary() | st.dictionaries(st.text(), st.none() | st.text() | st.integers()))
def test_input_of_any_shape_gives_an_event_or_one_error(plain: Any) -> None:
    with contextlib.suppress(InvalidInputError):
        parse_event(plain)


def test_the_public_module_offers_all_events_and_nothing_else() -> None:
    others = {"CallSaid", "EVENT_TYPES", "Event", "EventBase", "PathStep", "Span", "parse_event"}
    assert set(events.__all__) == {kind.__name__ for kind in KINDS} | others
    assert all(hasattr(events, name) for name in events.__all__)
