"""Live text and partial outputs: all that a reply says, once, whatever is retried."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel
from typing_extensions import TypedDict

from perdure.agent.output import OutputType
from perdure.client.event_reader import PartialArguments
from perdure.client.streams import LiveOutput, LiveText, OutputForm, StreamReader
from perdure.types.events import CallSaid, Event, ModelCompleted, ModelDelta, ModelRetracted, ModelStarted
from perdure.types.interface import FinishProtocol, Response


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


def test_another_attempt_that_ends_with_what_was_shown_is_shown_whole() -> None:
    events = [*deltas("42"), ModelRetracted(), ModelStarted(), ModelCompleted(text="No: 42")]
    assert shown(events) == "42\nNo: 42"
    middle = [ModelDelta(text="42", offset=4), ModelRetracted(), ModelStarted(), ModelCompleted(text="No: 42")]
    assert shown(middle) == "42\nNo: 42"


class Recorded(StreamReader[Any]):
    """A run of which these events are recorded."""

    output_form = OutputForm()

    def __init__(self, *events: Event) -> None:
        self._events = events

    async def warn_without_worker(self) -> None: ...

    async def events(self, after: int = 0, *, wait: bool = True, children: bool = True) -> AsyncGenerator[Event]:
        for event in self._events:
            yield event

    async def result(self) -> Response[Any]:
        return Response(content="")


@pytest.mark.parametrize(
    ("reason", "task_id", "iteration"), [("Interrupted", "1", 1), ("AuthenticationError", "2", 1), ("", "1", 2)]
)
async def test_the_reply_after_one_that_was_not_completed_begins_a_new_line(
    reason: str, task_id: str, iteration: int
) -> None:
    cut: list[Event] = [ModelDelta(task_id="1", text="I am writ")]
    cut.append(ModelRetracted(task_id="1", reason=reason) if reason else ModelCompleted(task_id="1", text=""))
    key: Any = {"task_id": task_id, "iteration": iteration}
    whole = [
        ModelDelta(text="Stop", **key),
        ModelDelta(text="ped.", offset=4, **key),
        ModelCompleted(text="Stopped.", **key),
    ]
    assert [piece async for piece in Recorded(*cut, *whole).stream()] == ["I am writ", "\nStop", "ped."]
    again = [ModelStarted(task_id="1"), ModelDelta(task_id="1", text="I am writing.")]
    assert [piece async for piece in Recorded(*cut[:1], ModelRetracted(task_id="1"), *again).stream()] == [
        "I am writ",
        "ing.",
    ]


@given(st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4), st.text(alphabet="ab", max_size=8))
def test_what_is_shown_ends_with_the_whole_reply(attempts: list[str], text: str) -> None:
    events: list[Event] = []
    for attempt in attempts:
        events += [*deltas(attempt), ModelRetracted()]
    events += [*deltas(*text), ModelCompleted(text=text)]
    assert shown(events).endswith(text)


# --- partial outputs


class Item(BaseModel):
    name: str


class Outline(BaseModel):
    title: str = ""
    items: list[Item] = []


class Parts(TypedDict, total=False):
    title: str
    items: list[Item]


def form(output: Any, finish: FinishProtocol | None = None) -> OutputForm:
    return OutputForm(OutputType("a test", output), finish)


def arguments(*pieces: str, name: str = "__finish__", **fields: Any) -> list[Event]:
    """The arguments of a call, in these pieces."""
    events: list[Event] = []
    for number, piece in enumerate(pieces):
        offset = sum(map(len, pieces[:number]))
        events.append(ModelDelta(kind="tool_call", text=piece, offset=offset, name=name, **fields))
    return events


async def outputs(known: OutputForm, *events: Event) -> list[Any]:
    """The partial outputs of these events, whose ``partial`` is filled in as the store's reader does."""

    async def nothing(_: ModelDelta) -> list[ModelDelta]:
        return []

    partials, live = PartialArguments(nothing), LiveOutput(known)
    return [value for event in events for value in live.feed(await partials.fill_partial(event))]


WRITTEN = ('{"title": "A', 'lps", "it', 'ems": [{"na', 'me": "Eiger"}]}')


async def test_an_output_grows_as_plain_json_without_a_type() -> None:
    assert await outputs(OutputForm(), ModelStarted(), *arguments(*WRITTEN)) == [
        {"title": "A"},
        {"title": "Alps"},
        {"title": "Alps", "items": [{}]},
        {"title": "Alps", "items": [{"name": "Eiger"}]},
    ]


@pytest.mark.parametrize(
    ("output", "seen"),
    [
        (Outline, [Outline(title="A"), Outline(title="Alps"), Outline(title="Alps", items=[Item(name="Eiger")])]),
        (
            Parts,
            [
                {"title": "A"},
                {"title": "Alps"},
                {"title": "Alps", "items": []},
                {"title": "Alps", "items": [Item(name="Eiger")]},
            ],
        ),
    ],
)
async def test_an_output_has_its_type_as_soon_as_it_fits(output: Any, seen: list[Any]) -> None:
    assert await outputs(form(output), ModelStarted(), *arguments(*WRITTEN)) == seen


async def test_a_wrapped_output_is_unwrapped() -> None:
    written = arguments('{"val', 'ue": [1', ", 2]}", inside="value")
    assert await outputs(form(list[int]), ModelStarted(), *written) == [[1], [1, 2]]


async def test_an_attempt_that_writes_the_same_goes_on_and_another_begins_anew() -> None:
    cut = [ModelStarted(), *arguments('{"title": "Al'), ModelRetracted(reason="WorkerLost"), ModelStarted()]
    same = await outputs(form(Outline), *cut, *arguments('{"title"', ': "Alp'))
    assert same == [Outline(title="Al"), Outline(title="Alp")]
    other = await outputs(form(Outline), *cut, *arguments('{"title": "Eu'))
    assert other == [Outline(title="Al"), Outline(title="Eu")]


async def test_the_next_answer_after_one_that_was_rejected_begins_anew() -> None:
    first = [ModelStarted(), *arguments('{"title": "Al'), ModelCompleted()]
    second = [ModelDelta(iteration=2, kind="tool_call", name="__finish__", text='{"title": "A')]
    assert await outputs(form(Outline), *first, *second) == [Outline(title="Al"), Outline(title="A")]


async def test_other_calls_and_a_second_answer_of_the_same_reply_are_not_the_output() -> None:
    events = [ModelStarted(), *arguments('{"title": 1}', name="search"), *arguments('{"title": "A', index=1)]
    events += [*arguments('{"title": "B', index=2), ModelDelta(text="I think it is C.")]
    assert await outputs(form(Outline), *events) == [Outline(title="A")]


async def test_text_is_the_reply_so_far_and_a_reply_that_calls_tools_is_none() -> None:
    first = [ModelStarted(), ModelCompleted(text="I look.", calls=(CallSaid(id="c", name="look"),))]
    second = [ModelDelta(iteration=2, text="It "), ModelDelta(iteration=2, text="is 7.", offset=3)]
    events = [*first, *second, ModelCompleted(iteration=2, text="It is 7.")]
    assert await outputs(form(str, "text"), *events) == ["It ", "It is 7."]
    assert await outputs(OutputForm(), *events) == ["It ", "It is 7."], "of an agent that may have any type"
    answer = [ModelStarted(iteration=3), *arguments('{"title": "A', iteration=3), ModelDelta(iteration=3, text="So.")]
    assert await outputs(OutputForm(), *events, *answer) == ["It ", "It is 7.", {"title": "A"}], "it has one"


async def test_the_same_answer_in_two_turns_is_two_outputs() -> None:
    turns = [ModelCompleted(task_id=turn, text="Done.") for turn in ("1", "2")]
    assert await outputs(form(str, "text"), *turns) == ["Done.", "Done."]
    written = [arguments('{"value": 1}', inside="value", task_id=turn) for turn in ("1", "2")]
    assert await outputs(form(int), *written[0], ModelCompleted(task_id="1"), *written[1]) == [1, 1]


async def test_a_tagged_answer_is_what_stands_between_the_tags() -> None:
    written = deltas("I write <finish>. So: ", "<finish>It", " is 7.<", "/finish> Good", "bye.")
    assert await outputs(form(str, "tag"), *written) == [". So:", "It", "It is 7."]


def test_an_output_is_returned_last_unless_it_was_the_last_partial_one() -> None:
    live = LiveOutput(form(int))
    delta = ModelDelta(kind="tool_call", name="__finish__", text='{"value": 1', partial=1)
    assert [live.feed(delta), live.take_value(1), live.take_value(12), live.take_value(True)] == [[1], [], [12], [True]]


async def test_a_long_output_is_not_validated_with_every_piece() -> None:
    validated = 0

    def count(value: list[str]) -> list[str]:
        nonlocal validated
        validated += 1
        return value

    pieces = [*[f'{{"value": ["{"a" * 99_999}"'], *[f', "{n:03}"' for n in range(900)], "]}"]
    seen = await outputs(form(Annotated[list[str], AfterValidator(count)]), *arguments(*pieces, inside="value"))
    assert 2 < validated == len(seen) < 10
    again = [ModelRetracted(), ModelStarted(), *arguments('{"value": ["b"', inside="value")]
    assert (await outputs(form(list[str]), *arguments(*pieces, inside="value"), *again))[-1] == ["b"]


class Strange:
    """Whose comparison raises, as that of an array does."""

    def __eq__(self, other: object) -> bool:
        raise ValueError

    __hash__ = None  # type: ignore[assignment]  # as Python has it for a class that compares


def test_outputs_that_cannot_be_compared_are_all_returned() -> None:
    live, value = LiveOutput(OutputForm()), Strange()
    assert [len(live.take_value(value)), len(live.take_value(value))] == [1, 1]


@given(st.lists(st.integers(1, 400), max_size=12), st.lists(st.text('ab{}[]:,"<>/', max_size=9), max_size=3))
async def test_a_last_attempt_gives_the_whole_output_whatever_was_written_before(
    cuts: list[int], attempts: list[str]
) -> None:
    whole = json.dumps({"title": "Alps", "items": [{"name": f"n{n}"} for n in range(20)]})
    events: list[Event] = []
    for attempt in attempts:
        events += [ModelStarted(), *arguments(attempt), ModelRetracted()]
    places = sorted({0, *(cut % len(whole) for cut in cuts), len(whole)})
    events += [ModelStarted(), *arguments(*(whole[a:b] for a, b in itertools.pairwise(places)))]
    seen = await outputs(form(Outline), *events)
    assert seen[-1] == Outline.model_validate_json(whole)
    assert all(before != after for before, after in itertools.pairwise(seen))
