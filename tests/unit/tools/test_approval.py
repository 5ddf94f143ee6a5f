"""Rules on approvals: which calls they are for, and what cannot be a rule."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Approval, allow, ask, deny, tool
from perdure.errors import DefinitionError
from perdure.tools.approval import first_rule


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
        (ask("pay", to="a", amount=5), "pay", {"to": "a", "amount": 6}, False),
        (deny("rm", paths="/etc/*"), "rm", {"paths": ["/tmp/x", "/etc/x"]}, True),
        (allow("rm", paths="/tmp/*"), "rm", {"paths": ["/tmp/x", "/etc/x"]}, False),
        (allow("rm", paths="/tmp/*"), "rm", {"paths": ["/tmp/x"]}, True),
        (allow("rm", paths="/tmp/*"), "rm", {"paths": []}, False),
    ],
)
def test_a_rule_is_for_these_calls(rule: Any, name: str, arguments: dict[str, Any], matches: bool) -> None:
    assert rule.matches(name, arguments) is matches


def test_the_first_rule_that_matches_counts() -> None:
    rules = (allow("pay", to="ana"), ask("pay"), deny("*"))
    assert [first_rule(rules, "pay", {"to": to}) for to in ("ana", "bea")] == [rules[0], rules[1]]
    assert first_rule(rules, "rm", {}) is rules[2]
    assert first_rule(rules[:2], "rm", {}) is None


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
