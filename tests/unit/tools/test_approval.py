"""Rules on approvals: which calls they are for, and what cannot be a rule."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, Field, RootModel, SecretStr
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as pydantic_dataclass

from perdure import Agent, Approval, Tool, allow, ask, deny, tool
from perdure.errors import DefinitionError, ToolError
from perdure.tools.approvals import UNKNOWN_ARGUMENT, CallArguments, find_rule, to_plain_data


@pytest.mark.parametrize(
    ("rule", "name", "arguments", "matches"),
    [
        (allow("read_*"), "read_file", {}, True),
        (allow("read_*"), "write_file", {}, False),
        (allow("READ_*"), "read_file", {}, False),
        (deny("rm", path="/etc/*"), "rm", {"path": "/etc/passwd"}, True),
        (deny("rm", path="/etc/*"), "rm", {"path": "/tmp/x"}, False),
        (deny("rm", path="/etc/*"), "rm", {}, False),
        (ask("pay", amount=5), "pay", {"amount": 5}, True),
        (ask("pay", amount=5), "pay", {"amount": 6}, False),
        (ask("pay", amount=1), "pay", {"amount": True}, False),
        (ask("pay", amount="5*"), "pay", {"amount": 50}, True),
        (ask("pay", amount=5), "pay", {"amount": 5.0}, True),
        (allow("pay", amount="5"), "pay", {"amount": 5.0}, True),
        (deny("pay", amount=5), "pay", {"amount": "5"}, False),
        (deny("pay", item={"id": 5}), "pay", {"item": {"id": 5.0, "note": None}}, True),
        (allow("pay", item={"id": 5}), "pay", {"item": {"id": 5, "note": None}}, False),
        (deny("pay", ids=[1, 2]), "pay", {"ids": [1.0, 2]}, True),
        (deny("pay", amount=5), "pay", {"amount": UNKNOWN_ARGUMENT}, None),
        (deny("pay", to="bea", amount=5), "pay", {"to": "ana", "amount": UNKNOWN_ARGUMENT}, False),
        (ask("pay", to="a", amount=5), "pay", {"to": "a", "amount": 6}, False),
        (deny("rm", paths="/etc/*"), "rm", {"paths": ["/tmp/x", "/etc/x"]}, True),
        (allow("rm", paths="/tmp/*"), "rm", {"paths": ["/tmp/x", "/etc/x"]}, False),
        (allow("rm", paths="/tmp/*"), "rm", {"paths": ["/tmp/x"]}, True),
        (allow("rm", paths="/tmp/*"), "rm", {"paths": []}, False),
    ],
)
def test_a_rule_is_for_these_calls(rule: Any, name: str, arguments: dict[str, Any], matches: bool) -> None:
    assert rule.matches(name, CallArguments(arguments)) is matches


@pytest.mark.parametrize("action", [allow, ask, deny])
@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        *[(500, "500"), (500, "5e2"), (True, "true"), (True, 1), (1, True), (False, "off"), ([500], ["500"])],
        *[("true", 1), ("true", "on"), ("500", "5e2")],
    ],
)
def test_what_may_become_the_pattern_elsewhere_is_asked_for(action: Any, pattern: Any, value: Any) -> None:
    rule = action("pay", x=pattern)
    assert rule.matches("pay", CallArguments({"x": value}, is_unvalidated=True)) is None
    decides = find_rule([rule, allow("*")], "pay", CallArguments({"x": value}, is_unvalidated=True))
    assert decides is not None
    assert decides.action == ("allow" if action is allow else "ask")
    assert decides.arguments == ({} if action is allow else {"x": pattern})


def test_where_it_cannot_be_told_a_later_denial_holds_and_a_later_permission_does_not() -> None:
    seen, doubt = CallArguments({"x": "500"}, is_unvalidated=True), deny("pay", x=500)
    for rules, action in (
        ([doubt, deny("*")], "deny"),
        ([doubt, ask("pay", x=1), deny("*")], "deny"),
        ([doubt, allow("*"), deny("*")], "ask"),
        ([doubt], "ask"),
        ([allow("pay", x=500), deny("*")], "deny"),
    ):
        decides = find_rule(rules, "pay", seen)
        assert decides is not None
        assert decides.action == action


class Colour(Enum):
    RED = "red"


@dataclass
class Item:
    price: Decimal


class Order(BaseModel):
    item: Item
    to: str = Field(alias="for")


class Chosen(BaseModel):
    role: str = Field("", validation_alias=AliasChoices("r", "Role"))


class Rooted(BaseModel):
    root: int


class Camel(BaseModel, alias_generator=to_camel):
    is_admin: bool = False


@dataclass
class Aliased:
    role: Annotated[str, Field(alias="Role")]


@pydantic_dataclass
class OfPydantic:
    role: str = Field(alias="Role")


VALUES: list[tuple[Any, Any, tuple[Any, ...]]] = [
    (bool, True, (True, 1, 1.0, "true", "TRUE", "yes", "on", "1", "t")),
    (int, 500, (500, 500.0, "500", " 500 ", "5_00", "500.0")),
    (float, 500, (500, 500.0, "500", "5e2", "500.000")),
    (Decimal, 500, (500, 500.0, "500", "500.00", "5E+2")),
    (int | None, None, (None,)),
    (Colour, Colour.RED, ("red",)),
    (date, date(2026, 1, 2), ("2026-01-02", "2026-01-02T00:00:00", 1767312000)),
    (SecretStr, "x*", ("xyz",)),
    (list[int], 500, ([1, "500"], ["5_00"])),
    (RootModel[int], 500, (500, "5_00")),
    (Rooted, {"root": 5}, ({"root": "5"},)),
    (Item, {"price": 5}, ({"price": "5.0"}, {"price": 5})),
    *[(Order, {name: "ana"}, ({"item": {"price": 1}, "for": "ana"},)) for name in ("for", "to")],
    *[(Chosen, {name: "admin"}, ({"r": "admin"}, {"Role": "admin"})) for name in ("role", "r", "Role")],
    *[(list[Camel], {name: True}, ([{"isAdmin": "yes"}],)) for name in ("is_admin", "isAdmin")],
    *[(kind, {name: "a"}, ({"Role": "a"},)) for kind in (Aliased, OfPydantic) for name in ("role", "Role")],
    (deque[Decimal], 500, (["500.0"],)),
]


def paying(kind: Any) -> Tool:
    """A tool whose parameter ``x`` has this hint."""

    def pay(x: Any) -> str:
        """Pay."""
        return ""

    pay.__annotations__ = {"x": kind, "return": str}
    return tool(pay)


@pytest.mark.parametrize(("kind", "pattern", "values"), VALUES)
def test_a_rule_sees_what_the_function_is_called_with(kind: Any, pattern: Any, values: tuple[Any, ...]) -> None:
    pay = paying(kind)
    for value in values:
        seen = CallArguments({"x": to_plain_data(pay.validate({"x": value})["x"])})
        assert deny("pay", x=pattern).matches("pay", seen) is True, value


DENIED = [
    (paying(kind), pattern) for kind, pattern in ((int, 0), (float, 0.0), (bool, True), (bool, False), (Decimal, 1))
]


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(max_size=5)))
def test_whatever_becomes_the_denied_value_is_denied(value: Any) -> None:
    for pay, pattern in DENIED:
        try:
            got = pay.validate({"x": value})["x"]
        except ToolError:
            continue
        assert deny("pay", x=pattern).matches("pay", CallArguments({"x": to_plain_data(got)})) is (got == pattern)


@pytest.mark.parametrize("value", [Decimal("1e99999999"), Decimal("-1e-99999999"), Decimal("NaN"), Decimal("Infinity")])
def test_no_decimal_takes_long_to_compare(value: Decimal) -> None:
    assert isinstance(to_plain_data(value), int | float)


def test_the_first_rule_that_matches_counts() -> None:
    rules = (allow("pay", to="ana"), ask("pay"), deny("*"))
    assert [find_rule(rules, "pay", CallArguments({"to": to})) for to in ("ana", "bea")] == [rules[0], rules[1]]
    assert find_rule(rules, "rm", CallArguments({})) is rules[2]
    assert find_rule(rules[:2], "rm", CallArguments({})) is None


def test_terms_are_checked() -> None:
    assert Approval(expires="7d").expires == 604800
    assert Approval(expires="7d", remind="1d").remind == 86400
    assert Approval(remind=1).remind == 1
    for wrong in (
        {"expires": "soon"},
        {"expires": 0},
        {"on_expiry": "maybe"},
        {"on_expiry": "approve"},
        {"separate": 1},
        {"remind": "often"},
        {"remind": 0.5},
        {"remind": "1d", "expires": "1d"},
        {"remind": "2d", "expires": "1d"},
    ):
        with pytest.raises(DefinitionError, match="Approval"):
            Approval(**wrong)  # type: ignore[arg-type]  # that is what is tested


@pytest.mark.parametrize("wrong", ["ask", [print], {"a": 1}, ask("*"), 7])
def test_what_is_no_list_of_rules_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="agent 'a'"):
        Agent("a", "openai:gpt-5", approvals=wrong)


@pytest.mark.parametrize("make", [lambda: allow(""), lambda: deny(7), lambda: ask("*", "yes")])  # type: ignore[arg-type]  # that is what is tested
def test_what_is_no_rule_is_refused(make: Any) -> None:
    with pytest.raises(DefinitionError):
        make()


def test_an_inline_tool_cannot_wait() -> None:
    def look() -> str:
        return ""

    with pytest.raises(DefinitionError, match="cannot wait for an approval"):
        tool(look, inline=True, needs_approval=True)
    with pytest.raises(DefinitionError, match="neither True nor an Approval nor a function"):
        tool(look, needs_approval="yes")  # type: ignore[call-overload]  # that is what is tested


def test_where_it_cannot_be_told_the_terms_of_all_that_may_match_hold() -> None:
    seen = CallArguments({"x": "500"}, is_unvalidated=True)
    strict, long = Approval(separate=True, expires="1d"), Approval(expires="7d", on_expiry="approve")
    for rules, terms in (
        ([deny("pay", x=500), ask("pay", strict)], strict),
        ([deny("pay", x=500), ask("pay", strict, x=500)], strict),
        ([ask("pay", long, x=500), ask("pay", strict)], Approval(expires="7d", separate=True)),
        ([deny("pay", x=500), ask("pay")], None),
        ([deny("pay", x=500), allow("*"), ask("pay", strict)], None),
    ):
        decides = find_rule(rules, "pay", seen)
        assert decides is not None
        assert (decides.action, decides.approval) == ("ask", terms)


def test_what_is_allowed_of_a_model_names_each_field_once() -> None:
    seen = CallArguments({"x": to_plain_data(Chosen.model_validate({"Role": "a"}))})
    for name in ("role", "r", "Role"):
        assert allow("pay", x={name: "a"}).matches("pay", seen) is True
    assert allow("pay", x=Chosen.model_validate({"r": "a"})).matches("pay", seen) is True
    assert allow("pay", x={"to": "a"}).matches("pay", seen) is False
