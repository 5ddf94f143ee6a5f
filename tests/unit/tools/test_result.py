"""What the model sees of results and of exceptions."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, computed_field

from perdure import File
from perdure.errors import ToolError
from perdure.tools import ResultError, format_error, read_result, serialise
from perdure.tools.results import MAX_ERROR_BYTES


class Mood(enum.StrEnum):
    GOOD = "good"


class Item(BaseModel):
    name: str
    when: date


class Broken(BaseModel):
    @computed_field
    def total(self) -> int:
        raise RuntimeError("no total")


@dataclasses.dataclass
class Point:
    x: int
    label: str | None = None


CASES: list[tuple[Any, str]] = [
    ("text, as it is: ü\n", "text, as it is: ü\n"),
    ("", ""),
    ("lone \ud800", "lone �"),
    (Mood.GOOD, "good"),
    (None, "null"),
    (True, "true"),
    (7, "7"),
    (1.5, "1.5"),
    (math.nan, '"NaN"'),
    ([math.inf, -math.inf], '["Infinity","-Infinity"]'),
    (b"plain \xc3\xbc", "plain ü"),
    (bytearray(b"x"), "x"),
    (b"\xff\x00", '"_wA="'),
    ({"raw": b"\xff"}, '{"raw":"_w=="}'),
    ({"a": [1, None, "ü"], "b": {"c": (1, 2)}}, '{"a":[1,null,"ü"],"b":{"c":[1,2]}}'),
    ({1: "a", (1, 2): "b"}, '{"1":"a","1,2":"b"}'),
    ({"a": "lone \ud800", "raw": b"\xff", "n": math.nan}, '{"a":"lone �","raw":"_w==","n":"NaN"}'),
    (Item(name="n", when=date(2024, 1, 2)), '{"name":"n","when":"2024-01-02"}'),
    ([Point(1), Point(2, "b")], '[{"x":1,"label":null},{"x":2,"label":"b"}]'),
    ({Decimal("1.50")}, '["1.50"]'),
    (timedelta(hours=1), '"PT1H"'),
    (Path("/a"), '"/a"'),
]


@pytest.mark.parametrize(("value", "text"), CASES, ids=[repr(value)[:30] for value, _ in CASES])
def test_results(value: Any, text: str) -> None:
    assert serialise(value) == text
    assert type(serialise(value)) is str


def _cycle() -> Any:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def _deep() -> Any:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), r"\(object\) is not serialisable: .*object"),
        ({"a": [object()]}, r"\(dict\) is not serialisable: .*object"),
        ({"lone": "\ud800", "a": object()}, r"\(dict\) is not serialisable"),
        (_cycle(), r"\(list\) is not serialisable: .*Circular"),
        (_deep(), r"\(list\) is not serialisable"),
        (Broken(), r"test_result\.Broken\) is not serialisable: .*no total"),
    ],
    ids=["object", "inside", "with a surrogate", "cycle", "deep", "broken model"],
)
def test_what_is_not_serialisable(value: Any, reason: str) -> None:
    with pytest.raises(ResultError, match=reason) as caught:
        serialise(value)
    assert isinstance(caught.value, ToolError)
    assert format_error(caught.value).startswith("ResultError: the tool ran, but its result (")


def test_a_forgotten_await() -> None:
    async def late() -> int:
        return 1

    coroutine = late()
    with pytest.raises(ResultError, match="awaitable"):
        serialise(coroutine)
    coroutine.close()


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.characters(categories=["Cs"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(PLAIN)
def test_every_plain_value_has_utf8_text(value: Any) -> None:
    text = serialise(value)
    text.encode()
    if not isinstance(value, str):
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad amount"), "ValueError: bad amount"),
        (KeyError("x"), "KeyError: 'x'"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("lone \ud800"), "ValueError: lone �"),
        (MuteError(), "MuteError"),
        (ToolError("no order", hint="Ask for it."), "ToolError: no order.\nAsk for it."),
        (
            ExceptionGroup("two", [ValueError("a"), ExceptionGroup("one", [KeyError("b")])]),
            "ExceptionGroup: two (2 sub-exceptions)\n- ValueError: a\n"
            "- ExceptionGroup: one (1 sub-exception)\n- KeyError: 'b'",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_text(error: Exception, text: str) -> None:
    assert format_error(error) == text


def test_error_text_is_bounded_and_has_no_traceback() -> None:
    try:
        raise ValueError("ü" * 100_000)
    except ValueError as error:
        text = format_error(error)
    assert MAX_ERROR_BYTES - 4 <= len(text.encode()) <= MAX_ERROR_BYTES
    assert text.startswith("ValueError: üü")
    assert text.endswith("ü… (cut)")


PNG = File(b"\x89PNG\r\n\x1a\n", name="cat.png")


@pytest.mark.parametrize(
    ("value", "text", "files"),
    [
        ("text", "text", ()),
        (["a", 1], '["a",1]', ()),
        (PNG, "", (PNG,)),
        ([PNG], "", (PNG,)),
        (("A cat:", PNG, {"grey": True}, File.at("https://x.org/a.png")), 'A cat:\n{"grey":true}', 2),
    ],
    ids=["text", "data", "file", "files", "mixed"],
)
def test_texts_and_files(value: Any, text: str, files: Any) -> None:
    result = read_result(value)
    assert result.text == text
    assert (len(result.files) if isinstance(files, int) else result.files) == files


def test_a_file_inside_of_data_is_refused() -> None:
    with pytest.raises(ResultError, match=r"\(dict\) is not serialisable: .*File") as caught:
        read_result({"cat": PNG})
    assert "a File alone, or in a list" in (caught.value.hint or "")


@pytest.mark.parametrize("files", [[PNG] * 101, [File(b"x" * (51 * 1024 * 1024))] * 2], ids=["many", "large"])
def test_too_much_for_one_result(files: list[File]) -> None:
    with pytest.raises(ResultError, match=r"it may have 100 files, and 104,857,600 bytes"):
        read_result(files)
