"""What a model's API refuses is withheld, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BadRequestError, ContentFilterError, ContextLengthError, ProviderError, RateLimitError
from perdure.loop.refused_content import (
    MAX_WITHHOLD_TRIES,
    ContentWithholder,
    filter_present_withheld,
    find_last_withheld,
)
from perdure.types.messages import BlobRef, FilePart, Message, TextPart, ToolResultPart, Usage, iter_file_parts


def image(name: str) -> FilePart:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return FilePart(media_type="image/png", name=name, blob=BlobRef(hash=digest, size=len(name)))


def says(*parts: FilePart | str, id: str | None = None) -> Message:
    return Message(role="user", parts=tuple(TextPart(text=p) if isinstance(p, str) else p for p in parts), id=id)


def result(*files: FilePart, call_id: str = "c1", content: str = "seen") -> Message:
    return Message(role="tool", parts=(ToolResultPart(call_id=call_id, name="look", content=content, files=files),))


REPLY = Message(role="assistant", parts=(TextPart(text="Yes."),), model="m", finish_reason="stop", usage=Usage())
VETO = Message(role="assistant", parts=(TextPart(text="No."),), finish_reason="veto")


def names(messages: Sequence[Message]) -> list[str | None]:
    return [part.name for part in iter_file_parts(messages)]


def asked(
    messages: Sequence[Message],
    error: ProviderError | Callable[[Sequence[Message]], ProviderError | None],
    before: Any = (),
    **options: Any,
) -> tuple[ContentWithholder, list[Sequence[Message]]]:
    """Every request of a call whose API answers each with ``error``; a function's None accepts."""
    contained, sent = ContentWithholder(messages, before, **options), []
    while True:
        sent.append(contained.messages)
        found = error(contained.messages) if callable(error) else error
        if found is None or not contained.withhold(found):
            return contained, sent


def refuses(*bad: str, named: bool = False) -> Callable[[Sequence[Message]], ProviderError | None]:
    def answer(messages: Sequence[Message]) -> ProviderError | None:
        found = [part for part in iter_file_parts(messages) if part.name in bad]
        error = BadRequestError("Could not process image", status=400)
        if named and found and found[0].blob is not None:
            error.refused = frozenset((found[0].blob.hash,))
        return error if found else None

    return answer


def test_of_two_images_of_a_message_only_the_bad_one_is_withheld() -> None:
    contained, sent = asked([says("Look.", image("good"), image("bad"), id="m1")], refuses("bad"))
    assert [names(request) for request in sent] == [["good", "bad"], ["good"]]
    (one,) = contained.withheld
    assert (one.kind, one.what, one.id) == ("file", "image/png bad", "m1")
    assert one.reason == "BadRequestError: Could not process image"
    (placeholder,) = [part.text for part in sent[-1][0].parts if isinstance(part, TextPart) and "Withheld" in part.text]
    assert "image/png bad" in placeholder


def test_the_newest_file_is_tried_first_and_two_bad_ones_cost_the_good_one_too() -> None:
    messages = [says(image("1"), image("2")), says(image("3"))]
    contained, sent = asked(messages, refuses("1", "3"))
    assert [names(request) for request in sent] == [["1", "2", "3"], ["1", "2"], ["1", "3"], ["2", "3"], []]
    assert len(contained.withheld) == 3


def test_what_the_error_names_is_withheld_one_after_the_other_and_nothing_else() -> None:
    messages = [says(image("1"), image("2"), image("3"), image("4"))]
    contained, sent = asked(messages, refuses("1", "3", named=True))
    assert [names(request) for request in sent] == [["1", "2", "3", "4"], ["2", "3", "4"], ["2", "4"]]
    assert [one.what for one in contained.withheld] == ["image/png 1", "image/png 3"]


def test_of_a_message_that_the_error_names_whole_each_file_is_tried_alone() -> None:
    def answer(messages: Sequence[Message]) -> ProviderError | None:
        error = refuses("1")(messages)
        if error is not None:
            error.refused = frozenset(part.blob.hash for part in iter_file_parts(messages[:1]) if part.blob is not None)
        return error

    contained, sent = asked([says(*map(image, "123")), says(image("4"))], answer)
    assert [names(request) for request in sent] == [
        ["1", "2", "3", "4"],
        ["1", "2", "4"],
        ["1", "3", "4"],
        ["2", "3", "4"],
    ]
    assert [one.what for one in contained.withheld] == ["image/png 1"]


def test_an_error_that_begins_to_name_something_keeps_what_was_left_out_on_trial() -> None:
    def answer(messages: Sequence[Message]) -> ProviderError | None:
        if "4" in names(messages):
            return BadRequestError("Could not process image")
        return refuses("1", named=True)(messages)

    contained, _ = asked([says(*map(image, "1234"))], answer)
    assert [one.what for one in contained.withheld] == ["image/png 4", "image/png 1"]


def test_an_image_of_a_tool_result_is_withheld_and_the_result_stays() -> None:
    _, sent = asked([says("Look."), REPLY, result(image("bad"), image("good"))], refuses("bad"))
    (part,) = sent[-1][-1].tool_results
    assert [file.name for file in part.files] == ["good"]
    assert part.content.startswith("seen\n[Withheld: image/png bad.")


def test_what_a_model_has_answered_is_never_withheld() -> None:
    messages = [says(image("old")), REPLY, says("And?")]
    assert len(asked(messages, refuses("old"))[1]) == 1
    assert len(asked([*messages, says(image("new"))], refuses("old"))[1]) == 2  # the new one is tried
    assert len(asked([says(image("old")), VETO, says("And?")], refuses("old"))[1]) == 2  # no model has seen it


@pytest.mark.parametrize(
    "error",
    [
        ContextLengthError("too long"),
        RateLimitError("later"),
        ProviderError("?"),
        type("Own", (BadRequestError,), {})("x"),
    ],
)
def test_other_errors_withhold_nothing(error: ProviderError) -> None:
    contained, sent = asked([says(image("1"))], error)
    assert (len(sent), contained.withheld) == (1, ())


def test_an_error_that_names_the_tools_or_what_was_accepted_withholds_nothing() -> None:
    about_tools, about_old = BadRequestError("tools.0: bad"), BadRequestError("messages.0: bad")
    about_tools.refused = frozenset()
    about_old.refused = frozenset((hashlib.sha256(b"old").hexdigest(),))
    for error in (about_tools, about_old):
        assert len(asked([says(image("old")), REPLY, says(image("new"))], error)[1]) == 1


def test_a_text_that_the_error_names_is_withheld_as_a_message() -> None:
    error = BadRequestError("messages.0.content.0.text: text content blocks must contain non-whitespace text")
    error.refused = frozenset((hashlib.sha256(b" ").hexdigest(),))
    contained, sent = asked([says("Hi.", id="a"), says(" ", id="b")], lambda m: error if m[1].text == " " else None)
    assert [one.id for one in contained.withheld] == ["b"]
    assert sent[-1][0].text == "Hi."


def test_a_filter_is_given_files_first_then_messages_and_results_the_newest_first() -> None:
    messages = [says("One.", image("i"), id="a"), says("Two.", id="b")]
    contained, _ = asked(messages, lambda m: None if "One." not in m[0].text else ContentFilterError("prompt"))
    assert [(one.kind, one.id) for one in contained.withheld] == [("message", "a")]
    _, sent = asked(messages, ContentFilterError("prompt"))
    seen = [(names(request), ["Withheld: this" not in message.text for message in request]) for request in sent]
    assert seen == [
        (["i"], [True, True]),
        ([], [True, True]),
        (["i"], [True, False]),
        ([], [False, True]),
        ([], [False, False]),
    ]
    contained, _ = asked([says("Go."), REPLY, result(content="evil")], lambda m: _filtered(m, "evil"))
    assert [one.what for one in contained.withheld] == ["result of look"]
    assert len(asked(messages, ContentFilterError("prompt"), texts=False)[1]) == 2


def _filtered(messages: Sequence[Message], text: str) -> ProviderError | None:
    found = any(text in part.content for message in messages for part in message.tool_results)
    return ContentFilterError("prompt") if found else None


def test_what_was_withheld_stays_so_and_a_resume_sends_it_once() -> None:
    first = [says(image("bad"), id="m1")]
    contained, _ = asked(first, refuses("bad"))
    reply = REPLY.model_copy(update={"withheld": contained.withheld})
    later = [*first, reply, VETO, says("And now?"), says(image("new"))]
    assert find_last_withheld(later) == contained.withheld
    again, sent = asked(later, refuses("bad"), find_last_withheld(later))
    assert ([names(request) for request in sent], again.withheld) == ([["new"]], contained.withheld)
    accepted, sent = asked(later, refuses(), find_last_withheld(later), resend=True)
    assert ([names(request) for request in sent], accepted.withheld) == ([["bad", "new"]], ())
    refused, sent = asked(later, refuses("bad"), find_last_withheld(later), resend=True)
    assert ([names(request) for request in sent], refused.withheld) == ([["bad", "new"], ["new"]], contained.withheld)


def test_the_same_file_in_a_later_message_is_tried_anew() -> None:
    contained, _ = asked([says(image("bad"), id="m1")], refuses("bad"))
    later = [says(image("bad"), id="m1"), REPLY, says(image("bad"), id="m2")]
    assert names(ContentWithholder(later, contained.withheld).messages) == ["bad"]


def test_what_was_summed_up_is_forgotten() -> None:
    contained, _ = asked([says(image("bad"), id="m1")], refuses("bad"))
    assert filter_present_withheld(contained.withheld, [says("A summary.")]) == ()
    assert filter_present_withheld(contained.withheld, [says("x", image("bad"), id="m1")]) == contained.withheld


@given(st.integers(0, 12), st.sets(st.integers(0, 11)), st.booleans())
def test_a_call_ends_within_its_tries_and_withholds_what_is_bad(count: int, bad: set[int], named: bool) -> None:
    contained, sent = asked([says(*(image(str(n)) for n in range(count)))], refuses(*map(str, bad), named=named))
    assert len(sent) <= MAX_WITHHOLD_TRIES + 1
    left, gone = set(names(sent[-1])), {one.what.split()[-1] for one in contained.withheld}
    there = {str(n) for n in bad if n < count}
    if not named or len(there) <= MAX_WITHHOLD_TRIES:
        assert left.isdisjoint(there)
    if named and len(there) <= MAX_WITHHOLD_TRIES:
        assert gone == there
    assert not left & gone
