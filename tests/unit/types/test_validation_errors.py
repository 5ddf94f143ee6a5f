"""Text of a pydantic error: short for input of any size, and never with the input in it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from perdure.types.interface import Start, UserMessage
from perdure.types.validation_errors import describe_validation_error, get_first_problem


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    amount: int = 0
    lines: list[Order] = []
    by_key: dict[str, int] = {}
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None
    checked: str = ""

    @field_validator("checked")
    @classmethod
    def _refuse(cls, value: str) -> str:
        if value:
            raise ValueError(value)
        return value


def error_of(value: Any, model: type[BaseModel] = Order) -> ValidationError:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(value)
    return refused.value


def test_the_first_problem_is_named_by_its_path() -> None:
    error = error_of({"amount": "x", "lines": [{}, {"amount": "y"}]})
    assert describe_validation_error(error, "the order") == (
        "amount: Input should be a valid integer, unable to parse string as an integer"
    )
    assert describe_validation_error(error, "it", prefix="a.order").startswith("a.order.amount: ")
    assert describe_validation_error(error, "it", max_problems=2).partition("; ")[2].startswith("lines.1.amount: Input")
    assert get_first_problem(error)[0] == ("amount",)
    many = describe_validation_error(error_of({"by_key": dict.fromkeys("abcd", "x")}), "it", max_problems=3)
    assert many.endswith("; and 1 more")


def test_the_value_itself_has_the_name_that_the_caller_gives() -> None:
    assert describe_validation_error(error_of(None), "the order").startswith("the order: Input should be a valid dict")
    assert describe_validation_error(error_of(7), "the order", prefix="order").startswith("order: Input should")


def test_the_input_is_not_repeated() -> None:
    for value in ({"amount": "sk-secret"}, {"lines": ["sk-secret"]}, {"by_key": {"a": "sk-secret"}}):
        assert "sk-secret" not in describe_validation_error(error_of(value), "it", max_problems=10)


LARGE = "x" * 100_000
DEEP: dict[str, Any] = {"amount": "x"}
for _ in range(150):
    DEEP = {"lines": [DEEP]}


@pytest.mark.parametrize(
    "value",
    [
        {LARGE: 1},
        {"by_key": {LARGE: "x"}},
        {"pet": {"kind": LARGE}},
        {"checked": LARGE},
        {"checked": f"\0{LARGE}"},
        {"by_key": dict.fromkeys(map(str, range(10_000)), "x")},
        {"by_key": {"\ud800": "x"}},
        {"by_key": {10**5000: "x"}},
        {"pet": {"kind": "\ud800"}},
        DEEP,
    ],
    ids=["field", "key", "tag", "message", "NUL", "many", "torn key", "integer", "torn tag", "deep"],
)
def test_hostile_values_make_a_short_text(value: Any) -> None:
    text = describe_validation_error(error_of(value), "it", max_problems=10)
    assert len(text) < 10_000
    assert "\0" not in text
    assert text.encode()
    assert len(describe_validation_error(error_of(value), "it")) < 700


@pytest.mark.parametrize(("model", "path"), [(UserMessage, ""), (Start, "message.")])
def test_of_the_forms_of_a_content_that_which_is_nearest_is_told(model: type[BaseModel], path: str) -> None:
    message: dict[str, Any] = {"content": [{"type": "text", "text": "hi"}, {"type": "file", "media_type": 7}]}
    raw = {"agent": "bot", "message": message} if path else message
    text = describe_validation_error(error_of(raw, model), "it", max_problems=10, content=True)
    assert text == f"{path}content.1.media_type: Input should be a valid string"


def test_problems_of_other_fields_are_told_beside_those_of_a_content() -> None:
    text = describe_validation_error(
        error_of({"message": {"content": {"hash": "x"}}}, Start), "it", max_problems=10, content=True
    )
    assert text.startswith("agent: Field required; ")
    assert "BlobRef.hash: String should match" in text
    assert "str: " not in text
