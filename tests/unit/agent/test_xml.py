"""Values as XML and back: whatever they hold, and what models make of a template."""

from __future__ import annotations

import json
import string
from typing import Any, Literal
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from perdure.agent.output import OutputType
from perdure.agent.xml import build_template, from_xml, parse_filled_template, to_xml

TEXTS = st.text(st.characters(exclude_categories=("Cs",))) | st.text("<>&;/\"'= \n\r\tab#x0", max_size=30)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


class Place(BaseModel):
    name: str
    floor: int | None = None
    size: float = 0.0


class Question(BaseModel):
    """Everything that a schema may leave open, and all that it may not."""

    text: str = Field(description="What is asked")
    places: list[Place] = []
    about: Place | None = None
    by_name: dict[str, Place] = {}
    tags: list[str | int | bool | None] = []
    either: Place | list[int] | str | None = None
    kind: Literal["short", "long"] = "short"
    pair: tuple[int, str] = (1, "")
    inner: Question | None = None
    anything: Any = None


PLACES = st.builds(
    Place,
    name=TEXTS,
    floor=st.none() | st.integers(),
    size=st.floats(allow_nan=False, width=32).filter(lambda x: abs(x) < 1e30),
)
FIELDS: dict[str, Any] = {
    "text": TEXTS,
    "places": st.lists(PLACES, max_size=3),
    "about": st.none() | PLACES,
    "by_name": st.dictionaries(TEXTS, PLACES, max_size=2),
    "tags": st.lists(TEXTS | st.integers() | st.booleans() | st.none(), max_size=4),
    "either": PLACES | st.lists(st.integers(), max_size=3) | TEXTS | st.none(),
    "kind": st.sampled_from(["short", "long"]),
    "pair": st.tuples(st.integers(), TEXTS),
    "anything": VALUES,
}
QUESTIONS = st.builds(Question, **FIELDS, inner=st.none() | st.builds(Question, **FIELDS))
ADAPTER = TypeAdapter(Question)
SCHEMA = ADAPTER.json_schema()


@given(QUESTIONS)
def test_a_model_comes_back_as_it_was(question: Question) -> None:
    written = to_xml(question.model_dump(mode="json"), SCHEMA)
    assert Question.model_validate(from_xml(written, SCHEMA)) == question


@given(VALUES)
def test_any_json_comes_back_also_without_a_schema(value: Any) -> None:
    assert from_xml(to_xml(value)) == value
    assert json.dumps(from_xml(to_xml(value)), sort_keys=True) == json.dumps(value, sort_keys=True)


@given(VALUES)
def test_it_is_xml_to_anybody(value: Any) -> None:
    assert ElementTree.fromstring(to_xml(value)).tag == "input"  # noqa: S314  # it is our own


def test_it_is_short_where_the_schema_says_what_is_what() -> None:
    plain = Question(text="<b> & co", places=[Place(name="Hall", floor=2)], tags=["a", 7]).model_dump(mode="json")
    shown = to_xml({key: plain[key] for key in ("text", "places", "tags", "about")}, SCHEMA)
    assert shown == "\n".join(
        [
            "<input>",
            "  <text>&lt;b&gt; &amp; co</text>",
            "  <places>",
            "    <item>",
            "      <name>Hall</name>",
            "      <floor>2</floor>",
            "      <size>0.0</size>",
            "    </item>",
            "  </places>",
            "  <tags>",
            "    <item>a</item>",
            '    <item type="number">7</item>',
            "  </tags>",
            '  <about type="null"/>',
            "</input>",
        ]
    )


def test_what_xml_cannot_hold_is_json_in_it() -> None:
    assert to_xml("a\0b") == '<input encoding="json">&quot;a\\u0000b&quot;</input>'
    assert '<entry json-key="&quot;\\u0001&quot;" type="number">1</entry>' in to_xml({"\1": 1})
    assert '<entry key="a b" type="number">1</entry>' in to_xml({"a b": 1})


class Answer(BaseModel):
    verdict: Literal["yes", "no"] = Field(description='Is it "so"?')
    reasons: list[str] = Field(description="Why,\n  in short")
    score: float
    place: Place | None = None


ANSWER = TypeAdapter(Answer).json_schema()


def test_a_template_has_every_element_and_what_is_said_of_it() -> None:
    shown = build_template(ANSWER, "finish")
    assert '<verdict type="&quot;yes&quot; or &quot;no&quot;" description="Is it &quot;so&quot;?"></verdict>' in shown
    assert '<reasons type="array" description="Why, in short">\n    <item type="string"' in shown
    assert '<place type="object or null" optional="true">\n    <name type="string"></name>' in shown
    ElementTree.fromstring(shown)  # noqa: S314  # it is our own


def test_a_template_of_a_type_that_holds_itself_has_an_end() -> None:
    assert build_template(SCHEMA, "finish").count("<inner") < 10


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (
            "So:\n<finish><verdict>yes</verdict><reasons><item> a < b & c </item><item>d</item></reasons>"
            "<score>0.5</score></finish>\nDone.",
            {"verdict": "yes", "reasons": ["a < b & c", "d"], "score": 0.5},
        ),
        (
            "<finish>draft</finish> no: <finish>\n <verdict>no</verdict>\n <reasons></reasons>\n <score>1</score>\n"
            " <place></place>\n</finish>",
            {"verdict": "no", "reasons": [], "score": 1, "place": None},
        ),
        (
            "<verdict>no</verdict><reasons>one</reasons><reasons>two</reasons><score>1e3</score>",
            {"verdict": "no", "reasons": ["one", "two"], "score": 1000.0},
        ),
        (
            '<finish><verdict>yes</verdict><reasons>["a", "b"]</reasons><score type="number">3</score>'
            "<place><name>the <b>bold</b> &lt;one&gt; <br> here</name></place></finish>",
            {
                "verdict": "yes",
                "reasons": ["a", "b"],
                "score": 3,
                "place": {"name": "the <b>bold</b> <one> <br> here"},
            },
        ),
        ("<finish><verdict>yes</verdict><score>much</score></finish>", {"verdict": "yes", "score": "much"}),
        ("I would answer <verdict>yes</verdict>.", None),
        ("The <finish> tag is for later.", None),
        ("Nothing of it.", None),
        ("", None),
    ],
)
def test_what_a_model_writes_into_it_is_read_as_it_was_meant(said: str, read: Any) -> None:
    assert parse_filled_template(said, ANSWER, "finish") == read


@given(st.text(string.printable) | st.text("<>/finishverdct =\"'item", max_size=60))
def test_whatever_a_model_writes_nothing_breaks(said: str) -> None:
    found = parse_filled_template(said, ANSWER, "finish")
    assert found is None or json.dumps(found)


@given(
    st.builds(
        Answer, verdict=st.sampled_from(["yes", "no"]), reasons=st.lists(TEXTS.map(str.strip)), score=st.just(2.0)
    )
)
def test_an_answer_that_is_written_out_is_read(answer: Answer) -> None:
    plain = answer.model_dump(mode="json")
    assert parse_filled_template(f"Here: {to_xml(plain, ANSWER, 'finish')}", ANSWER, "finish") == plain


def test_a_text_that_is_nested_without_end_is_no_answer_and_no_error() -> None:
    deep = "<a>" * 3_000 + "</a>" * 3_000
    kind = OutputType("agent 'a'", Place)
    assert kind.read_xml(deep) is None
    assert kind.read_xml(f"<finish><name>{deep}</name></finish>") is None
    assert OutputType("agent 'a'", Question).read_xml("<inner>" * 3_000 + "</inner>" * 3_000) is None


@pytest.mark.parametrize("size", [1_000, pytest.param(80_000, marks=pytest.mark.slow)])
def test_tags_that_nothing_opened_do_not_stall_the_worker(size: int) -> None:
    """What was open was looked through for each of them: minutes for a reply of the larger size."""
    schema = TypeAdapter(Place).json_schema()
    assert parse_filled_template("<a>" * size + "</b>" * size, schema, "finish") is None
    assert parse_filled_template("<a><b></b>" * size + "<name>x</name>", schema, "finish") == {"name": "x"}
