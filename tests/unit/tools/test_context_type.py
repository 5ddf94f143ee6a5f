"""A run's typed context: what can be one, what fits it, and what a worker reads back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from typing_extensions import TypedDict

from perdure import Agent
from perdure.errors import DefinitionError, InvalidInputError

MODEL = "openai:gpt-5"


class Plan(Enum):
    FREE = "free"
    PAID = "paid"


class User(BaseModel):
    model_config = ConfigDict(strict=True)

    user_id: str
    plan: Plan = Plan.FREE
    since: datetime | None = None
    age: int = Field(default=0, alias="years", ge=0)


@dataclass
class Account:
    number: int
    owner: User | None = None


class Place(TypedDict):
    city: str


class Defaults(BaseModel):
    lang: str = "en"


class Secret(BaseModel):
    token: SecretStr


class Careless(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def look(cls, n: int) -> int:
        return {1: 1}[n]


class Unfinished(BaseModel):
    other: Missing  # type: ignore[name-defined]  # noqa: F821


def agent(context: Any) -> Agent:
    return Agent("support", MODEL, context=context)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Unfinished, "Missing"),
        (type("Plain", (), {}), "pydantic"),
        (int, "cannot be a JSON object"),
        (list[int], "cannot be a JSON object"),
        (lambda: User, "cannot be a JSON object"),
        (5, "not a type that pydantic can take"),
        ({"user_id": str}, "is a value"),
        (Defaults(), "Give its type: context=Defaults"),
    ],
)
def test_what_cannot_be_a_context_is_refused_when_the_agent_is_defined(kind: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match="agent 'support': context=") as caught:
        agent(kind)
    assert said in str(caught.value)
    assert caught.value.hint


SINCE = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "given", "plain"),
    [
        (User, {"user_id": "7"}, {"user_id": "7"}),
        (User, {"user_id": "7", "since": SINCE}, {"user_id": "7", "since": "2026-01-02T03:04:00Z"}),
        (
            User,
            User(user_id="7", years=3, plan=Plan.PAID),
            {"user_id": "7", "plan": "paid", "since": None, "years": 3},
        ),
        (Account, Account(3), {"number": 3, "owner": None}),
        (Place, Place(city="Ulm"), {"city": "Ulm"}),
        (dict[str, UUID], {"a": UUID(int=1)}, {"a": "00000000-0000-0000-0000-000000000001"}),
        (Defaults, None, {}),
        (None, None, {}),
        (None, {"a": [1]}, {"a": [1]}),
    ],
)
def test_what_fits_becomes_plain_json_and_is_read_back(kind: Any, given: Any, plain: dict[str, Any]) -> None:
    one = agent(kind)
    assert one.check_context(given) == plain
    assert one.check_context(plain) == plain
    read = one.read_context(plain)
    if isinstance(given, BaseModel | Account):
        assert read == given
    elif kind not in (None, Place) and isinstance(kind, type):
        assert isinstance(read, kind) or kind == dict[str, UUID]


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (User, None, ["user_id: Field required"]),
        (User, {"user_id": 7}, ["user_id: Input should be a valid string"]),
        (User, {"user_id": "7", "years": -1, "plan": "gold"}, ["years: ", "plan: ", "user_id, plan, since, years"]),
        (User, Account(3), ["context: Input should be", "User"]),
        (User, "7", ["context: Input should be"]),
        (User, {"user_id": object()}, ["cannot be written as JSON"]),
        (Account, {"number": 1, "owner": {"user_id": 3}}, ["owner.user_id: "]),
        (dict[str, list[int]], {"a": [1, "x"]}, ["a.1: "]),
        (Secret, Secret(token=SecretStr("s3cret")), ["comes back changed", "SecretStr"]),
        (Careless, {"n": 2}, ["KeyError: 2"]),
        (None, User(user_id="7"), ["dictionary of plain JSON", "context=User"]),
        (None, {"a": {1}}, ["dictionary of plain JSON", "set"]),
        (None, "text", ["dictionary of plain JSON"]),
    ],
)
def test_what_does_not_fit_names_the_field(kind: Any, given: Any, said: list[str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        agent(kind).check_context(given)
    for part in said:
        assert part in str(caught.value)
    assert caught.value.hint
    assert "s3cret" not in str(caught.value)
