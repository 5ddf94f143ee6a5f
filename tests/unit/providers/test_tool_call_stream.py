"""The table of streamed tool calls: it is total, each row has an example, and what it decodes is what was encoded."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import ModelSlipError
from perdure.ports.model import ToolCallDelta
from perdure.providers import tool_call_stream as stream
from perdure.providers.openai_chat import ChatReply
from perdure.types.messages import ToolCallPart

Entry = dict[str, Any]


def piece(index: Any, id: Any, name: Any, arguments: Any) -> Entry:
    """An entry of ``tool_calls``; ``...`` leaves a field out."""
    fields = {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}
    entry = {key: value for key, value in fields.items() if value is not ...}
    entry["function"] = {key: value for key, value in fields["function"].items() if value is not ...}
    return entry


def decode(chunks: Sequence[Sequence[Entry]]) -> tuple[list[ToolCallPart], list[ToolCallDelta]]:
    """The calls of a reply with these lists of pieces, and what was shown of them."""
    reply = ChatReply("api.test", "openai@api.test")
    deltas = []
    for entries in chunks:
        deltas += [*reply.feed({"choices": [{"index": 0, "delta": {"tool_calls": list(entries)}}]})]
    list(reply.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}))
    calls = [part for part in reply.complete().parts if isinstance(part, ToolCallPart)]
    return calls, [delta for delta in deltas if isinstance(delta, ToolCallDelta)]


def read(*entries: Entry | list[Entry]) -> list[tuple[str, Any]]:
    calls, _ = decode([entry if isinstance(entry, list) else [entry] for entry in entries])
    return [(call.name, call.malformed if call.malformed is not None else call.arguments) for call in calls]


# ---
# The table.

COLUMNS = [get_args(column) for column in (stream.SoFar, stream.PieceText, stream.Index, stream.Id, stream.Name)]


def test_the_table_is_total_and_each_row_is_reached() -> None:
    rules = [stream.find_rule(*values) for values in itertools.product(*COLUMNS)]
    assert set(rules) == set(stream.RULES)
    for rule, columns in itertools.product(stream.RULES, zip(range(5), COLUMNS, strict=True)):
        number, known = columns
        assert set((rule.so_far, rule.piece, rule.index, rule.id, rule.name)[number].split()) <= set(known)


PAY = ("pay", {"n": 5})
EXAMPLES: dict[str, tuple[list[Entry | list[Entry]], list[tuple[str, Any]]]] = {
    "the reply's first piece": ([piece(0, "a", "pay", '{"n": 5}')], [PAY]),
    "as all servers do": ([piece(0, "a", "pay", '{"n"'), piece(0, ..., ..., ": 5}")], [PAY]),
    "an index for each piece: a rest begins no call": (
        [piece(0, "a", "pay", '{"n"'), piece(1, "a", "pay", ": 5}")],
        [PAY],
    ),
    "the next call": (
        [
            piece(0, "a", "pay", '{"n": 5}'),
            piece(0, "a", "look", "{}"),
            piece(1, "b", "pay", '{"n"'),
            piece(1, "b", ..., ": 5}"),
        ],
        [PAY, ("look", {}), PAY],
    ),
    "the next call, whose name follows": (
        [piece(0, "a", "pay", '{"n": 5}'), piece(1, "b", ..., ""), piece(1, ..., "look", "{}")],
        [PAY, ("look", {})],
    ),
    "the next call, which has no name": (
        [piece(0, "a", "pay", '{"n": 5}'), piece(1, ..., ..., '{"n": 6}'), piece(0, "c", ..., '{"n": 7}')],
        [PAY, ("", {"n": 6}), ("", {"n": 7})],
    ),
    "the call before has no arguments": (
        [piece(0, "a", "look", ""), piece(0, "b", "look", ""), piece(0, ..., "pay", '{"n": 5}')],
        [("look", {}), ("look", {}), PAY],
    ),
    "its arguments, or more of its name": (
        [piece(0, "a", "p", ""), piece(0, ..., "ay", ""), piece(0, ..., ..., '{"n": 5}')],
        [PAY],
    ),
    "the call before was broken off": (
        [piece(0, "a", "look", '{"x": '), piece(0, "b", "pay", '{"n": 5}')],
        [("look", '{"x": '), PAY],
    ),
    "its arguments; names and ids may be repeated or change": (
        [
            piece(0, "a", "pay", '{"n"'),
            piece(0, "b", "pay", ": 5"),
            piece(0, "c", "pay", ""),
            piece(0, "d", "pay", "}"),
        ],
        [PAY],
    ),
    "an empty last piece": ([piece(0, "a", "pay", '{"n": 5}'), piece(0, "b", "", None)], [PAY]),
    "an empty last piece, or the next call": (
        [
            piece(0, "", "pay", '{"n": 5}'),
            piece(0, "", "pay", ""),
            piece(0, "", ..., '{"n": 6}'),
            piece(0, "", "pay", ""),
        ],
        [PAY, ("pay", {"n": 6})],
    ),
    "the next call, whose arguments follow": (
        [piece(0, "a", "pay", '{"n": 5}'), piece(0, "b", "pay", ""), piece(0, ..., ..., '{"n": 5}')],
        [PAY, PAY],
    ),
    "the whole call again": (
        [
            piece(0, "a", "pay", '{"n": 5}'),
            piece(0, "b", "look", "{}"),
            piece(0, "a", "pay", '{"n": 5}'),
            piece(0, ..., "look", "{}"),
        ],
        [PAY, ("look", {})],
    ),
    "the next call of the same tool": (
        [piece(0, "a", "pay", '{"n": 5}'), piece(0, "b", "pay", '{"n": 5}')],
        [PAY, PAY],
    ),
    "whole calls without ids, in one list": (
        [[piece(0, ..., "pay", "{}"), piece(0, ..., "pay", '{"n": 5}')]],
        [("pay", {}), PAY],
    ),
    "its name comes last": ([piece(0, "a", ..., '{"n": 5}'), piece(0, "a", "pay", "")], [PAY]),
    "an empty object in front of the arguments": (
        [piece(0, "a", "pay", "{}"), piece(0, ..., ..., '{"n"'), piece(0, ..., ..., ": 5}")],
        [PAY],
    ),
    "the next call, by index and id the same": (
        [piece(0, "a", "pay", '{"n": 5}'), piece(0, "a", "pay", '{"n": 6}')],
        [PAY, ("pay", {"n": 6})],
    ),
    "unreadable, and the model is told so": (
        [piece(0, "a", "pay", '{"n": 5}'), piece(0, ..., ..., '{"n": 6}')],
        [("pay", '{"n": 5}{"n": 6}')],
    ),
}


def test_each_row_has_an_example() -> None:
    assert EXAMPLES.keys() == {rule.why for rule in stream.RULES}


@pytest.mark.parametrize("row", EXAMPLES)
def test_a_row(row: str) -> None:
    entries, expected = EXAMPLES[row]
    assert read(*entries) == expected


OTHERS: dict[str, tuple[list[Entry | list[Entry]], list[tuple[str, Any]]]] = {
    "a whole call again, under another index": (
        [piece(0, "a", "pay", '{"n": 5}'), piece(1, ..., "pay", '{"n":5}')],
        [PAY],
    ),
    "equal calls in one list are two": (
        [[piece(..., ..., "look", "{}"), piece(..., ..., "look", "{}")]],
        [("look", {})] * 2,
    ),
    "equal calls with ids in one list are two": (
        [[piece(0, "a", "pay", '{"n": 5}'), piece(1, "b", "pay", '{"n": 5}')]],
        [PAY, PAY],
    ),
    "an empty piece under another index": (
        [piece(0, "a", "pay", '{"n": 5}'), piece(1, ..., "pay", ""), piece(2, "a", "pay", "")],
        [PAY],
    ),
    "a call again in pieces, with its id": (
        [piece(0, "a", "pay", '{"n": 5}'), piece(1, "a", "pay", '{"n"'), piece(1, ..., ..., ": 5}")],
        [PAY],
    ),
    "a call again in pieces, without its id": (
        [piece(0, "a", "pay", '{"n": 5}'), piece(1, "", "pay", '{"n"'), piece(1, ..., ..., ": 5}")],
        [PAY],
    ),
    "all calls again at the end": (
        [
            *(piece(0, "", "pay", '{"n": 5}'), piece(0, "", "pay", '{"n": 6}')),
            *(piece(0, "", "pay", '{"n": 5}'), piece(0, "", "pay", '{"n": 6}')),
        ],
        [PAY, ("pay", {"n": 6})],
    ),
    "null and then the arguments": ([piece(0, "a", "pay", "null"), piece(0, ..., ..., '{"n": 5}')], [PAY]),
    "the arguments and then null": ([piece(0, "a", "pay", '{"n": 5}'), piece(0, ..., ..., "null")], [PAY]),
    "an empty object behind the arguments": ([piece(0, "a", "pay", '{"n": 5}'), piece(0, ..., ..., "{}")], [PAY]),
    "braces in a text": (
        [
            piece(0, "a", "say", '{"t": "}'),
            piece(0, "a", "say", "{"),
            piece(0, "a", "say", '\\"}'),
            piece(0, "a", "say", '"}'),
        ],
        [("say", {"t": '}{"}'})],
    ),
    "an escape in two pieces": (
        [
            piece(0, "a", "say", '{"t": "\\'),
            piece(0, "a", "say", '"}'),
            piece(0, "a", "say", ""),
            piece(0, "a", "say", '"}'),
        ],
        [("say", {"t": '"}'})],
    ),
    "true is not 1": (
        [piece(0, "", "pay", '{"n": 1}'), piece(0, "", "pay", '{"n": true}')],
        [("pay", {"n": 1}), ("pay", {"n": True})],
    ),
    "an empty object in front, no ids, the name in each piece": (
        [piece(0, "", "pay", "{}"), piece(0, "", "pay", '{"n": 5}'), piece(0, "", "pay", "")],
        [PAY],
    ),
    "a name with blanks": ([piece(0, "a", " pay ", '{"n": 5}')], [PAY]),
    "the name behind the arguments, in pieces of them": (
        [piece(0, "a", ..., '{"n"'), piece(0, ..., "pay", ": 5}"), piece(0, ..., "pay", "")],
        [PAY],
    ),
    "no name at all, and then a call with one": (
        [piece(0, ..., ..., '{"n": 6}'), piece(0, ..., "pay", '{"n": 5}')],
        [("", {"n": 6}), PAY],
    ),
    "nothing": ([piece(..., ..., ..., ...), piece(0, None, None, None), piece(1, "", "", "")], []),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_form(case: str) -> None:
    entries, expected = OTHERS[case]
    assert read(*entries) == expected


@pytest.mark.parametrize("text", ["", " ", "null", "[]", "{}", '""', '"{}"', '"null"', "{ }"])
@pytest.mark.parametrize("whole", [True, False])
def test_what_means_no_arguments(text: str, whole: bool) -> None:
    pieces = [text] if whole else ["", *text]
    assert read(*[piece(0, "a" if not at else ..., "now", each) for at, each in enumerate(pieces)]) == [("now", {})]


@pytest.mark.parametrize("value", [None, [], {}])
def test_no_arguments_as_json(value: Any) -> None:
    assert read(piece(0, "a", "now", value)) == [("now", {})]


def test_a_reply_has_a_bounded_number_of_calls() -> None:
    pieces = [piece(at, f"c{at}", "pay", f'{{"n": {at}}}') for at in range(stream.MOST_CALLS + 1)]
    assert len(read([*pieces[:-1]])) == stream.MOST_CALLS
    with pytest.raises(ModelSlipError, match="more than 2,000 tool calls"):
        read([*pieces])


def test_one_id_for_thousands_of_calls_takes_linear_time() -> None:
    calls = [ToolCallPart(id="c", name="pay", arguments={"n": at % 15_000}) for at in range(30_000)]
    assert len(stream.drop_repeated_calls(calls)) == 15_000


def test_an_empty_object_in_front_is_not_shown() -> None:
    _, deltas = decode(
        [
            [piece(0, "a", "pay", "{")],
            [piece(0, ..., ..., "}")],
            [piece(0, ..., ..., '{"n"')],
            [piece(0, ..., ..., ": 5}")],
        ]
    )
    assert "".join(delta.arguments for delta in deltas) == '{"n": 5}'


def test_a_signature_with_the_repetition_is_kept() -> None:
    again = piece(1, "a", "pay", '{"n": 5}') | {"extra_content": {"google": {"thought_signature": "sig"}}}
    [call], _ = decode([[piece(0, "a", "pay", '{"n": 5}')], [again]])
    assert call.opaque == {"extra_content": {"google": {"thought_signature": "sig"}}}


# ---
# Each dialect decodes what it encodes.


@dataclass(frozen=True)
class Dialect:
    """How a server streams calls."""

    index: str = "own"
    """``own``, ``zero``, ``none``."""
    ids: str = "first"
    """``first``, ``all``: with the first piece of a call, or with each; ``changing``: another one with each piece;
    ``none``, ``empty``; ``same``: one for all calls."""
    name_in_each: bool = False
    empty_first: bool = False
    """An empty object in front of the arguments."""
    name_alone: bool = False
    """The first piece has no arguments."""
    tail: str = ""
    """``empty``: an empty last piece; ``again``, ``again later``: the whole call once more, at once or behind all."""
    tail_index: str = "same"
    """``same``, ``next``, ``none``."""
    size: int = 0
    """Characters of a piece; 0 for whole calls."""
    form: str = "text"
    """``text``, ``object``, ``double``: a text with a text."""
    nothing: Any = "{}"
    """What the server sends for no arguments."""

    @property
    def names_calls(self) -> bool:
        """Whether calls have ids of their own."""
        return self.ids in ("first", "all")

    @property
    def tells_apart(self) -> bool:
        """Whether index or id says which call a piece belongs to."""
        return self.names_calls or self.index == "own"

    def encode(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[Entry]:
        """The pieces of ``calls``, one call after the other."""
        later = []
        for number, (name, arguments) in enumerate(calls):
            value: Any = arguments or self.nothing
            if arguments and self.form != "object":
                value = json.dumps(arguments)
                value = json.dumps(value) if self.form == "double" else value
            texts: list[Any] = [value]
            if self.size and isinstance(value, str) and arguments:
                texts = [value[at : at + self.size] for at in range(0, len(value), self.size)]
            texts = [*(["{}"] if self.empty_first else []), *([""] if self.name_alone else []), *texts]
            for at, text in enumerate(texts):
                yield self._build(number, at, name if self.name_in_each or not at else ..., text)
            if self.tail == "empty":
                yield self._build(number, len(texts), name if self.name_in_each else ..., "", len(calls))
            elif self.tail:
                again = self._build(number, len(texts), name, value, len(calls))
                if self.tail == "again":
                    yield again
                else:
                    later.append(again)
        yield from later

    def _build(self, number: int, at: int, name: Any, text: Any, count: int | None = None) -> Entry:
        index: Any = {"own": number, "zero": 0, "none": ...}[self.index]
        if count is not None:
            index = {"same": index, "next": count + number if self.index == "own" else index, "none": ...}[
                self.tail_index
            ]
        ids = {"all": f"c{number}", "changing": f"c{number}-{at}", "none": ..., "empty": "", "same": "call_0"}
        return piece(index, ids.get(self.ids, ... if at else f"c{number}"), name, text)


dialects = st.builds(
    Dialect,
    index=st.sampled_from(["own", "zero", "none"]),
    ids=st.sampled_from(["first", "all", "changing", "none", "empty", "same"]),
    name_in_each=st.booleans(),
    empty_first=st.booleans(),
    name_alone=st.booleans(),
    tail=st.sampled_from(["", "", "empty", "again", "again later"]),
    tail_index=st.sampled_from(["same", "next", "none"]),
    size=st.sampled_from([0, 1, 2, 3, 7, 20]),
    form=st.sampled_from(["text", "text", "object", "double"]),
    nothing=st.sampled_from(["{}", "null", "[]", "", None, {}, []]),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text('ab{}[]"\\: é,', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
some_calls = st.lists(
    st.tuples(st.sampled_from(["pay", "look"]), st.dictionaries(st.sampled_from("xyz"), values, max_size=2)),
    min_size=1,
    max_size=4,
)


def is_ambiguous(dialect: Dialect, calls: Sequence[tuple[str, dict[str, Any]]]) -> bool:
    """Whether other calls in the same dialect, or the same calls in another, would have the same pieces."""
    texts = [json.dumps(call, sort_keys=True) for call in calls]
    if not dialect.names_calls and len(set(texts)) < len(texts):
        return True  # a call again, or an equal one
    if dialect.ids == "changing" and (
        dialect.name_in_each or dialect.empty_first or dialect.name_alone or dialect.tail
    ):
        return True
    if dialect.ids in ("none", "empty") and dialect.name_in_each and dialect.empty_first:
        return any(not arguments for _, arguments in calls) or len(set(texts)) < len(texts)
    if dialect.index != "own" and dialect.ids == "first" and dialect.name_in_each and dialect.empty_first:
        return len(set(texts)) < len(texts)  # the first call again, or the arguments of the last one
    is_blank = dialect.nothing in ("", None, []) and any(not arguments for _, arguments in calls)
    if is_blank and not dialect.names_calls and len({name for name, _ in calls}) < len(calls):
        return True  # a call without arguments, or an empty last piece
    if (dialect.index != "own" or dialect.tail_index == "none") and dialect.tail == "again later" and is_blank:
        return True  # the first call again, or the arguments of the last one
    if not dialect.tells_apart:
        # A call without arguments, before one of the same tool: or its empty object, or its name.
        if dialect.empty_first or dialect.name_alone:
            return True
        empty = [number for number, (_, arguments) in enumerate(calls) if not arguments]
        if any(number + 1 < len(calls) for number in empty) or (empty and dialect.nothing in ("", None, [])):
            return True
    return False


@settings(max_examples=300)
@given(dialect=dialects, calls=some_calls)
def test_what_a_dialect_encodes_is_decoded(dialect: Dialect, calls: list[tuple[str, dict[str, Any]]]) -> None:
    if is_ambiguous(dialect, calls):
        return
    entries = list(dialect.encode(calls))
    assert read(*entries) == calls, entries
