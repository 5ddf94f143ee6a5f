"""Summaries of tool calls: templates, and what hostile values become in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import tool
from perdure.errors import DefinitionError
from perdure.tools import callback_tool, remote_tool
from perdure.types.summaries import (
    END_ISOLATE,
    ISOLATE,
    SUMMARY_CHARS,
    find_amount,
    find_template_flaw,
    render_summary,
    summarize_call,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "invoice_id": {"type": "string"},
        "count": {"type": "integer"},
        "amount": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "customer": {"anyOf": [{"$ref": "#/$defs/Customer"}, {"type": "null"}]},
    },
    "$defs": {"Customer": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


@pytest.mark.parametrize(
    ("template", "reason", "hint"),
    [
        ("Pay {invoice}", "the tool has no argument 'invoice'", "{invoice_id}, {count}, {amount}, {customer}"),
        ("Pay {customer.mail}", "argument 'customer' has no field 'mail'", "Its arguments are"),
        ("Pay {invoice_id.x}", "argument 'invoice_id' has no field 'x'", "Its arguments are"),
        ("Pay {customer.__class__}", "has no field '__class__'", "Its arguments are"),
        ("Pay {invoice_id[0]}", "is not the name of an argument", "Its arguments are"),
        ("Pay {}", "is not the name of an argument", "Its arguments are"),
        ("Pay {0}", "has no argument '0'", "Its arguments are"),
        ("Pay {amount:.2f}", "{amount} has a format", "Write {amount}, without ':' and '!'."),
        ("Pay {amount!r}", "{amount} has a format", "Write {amount}"),
        ("Pay {amount:{count}}", "{amount} has a format", "Write {amount}"),
        ("Pay {amount", "expected '}'", "Write {{ and }}"),
        ("Pay\n{amount}", "one line of text", "For instance"),
        ("Pay \u202e{amount}", "one line of text", "For instance"),
        ("x" * 201, "more than 200 characters", "Name the arguments"),
        ("  ", "is not a text", "For instance"),
        (5, "is not a text", "For instance"),
    ],
)
def test_a_template_that_does_not_fit_is_refused(template: Any, reason: str, hint: str) -> None:
    flaw = find_template_flaw(template, SCHEMA)
    assert flaw is not None
    assert reason in flaw[0]
    assert hint in flaw[1]


@pytest.mark.parametrize("template", ["Pay {invoice_id}: {amount}", "For {customer.name} {{x}}", "Close the books"])
def test_a_template_that_fits(template: str) -> None:
    assert find_template_flaw(template, SCHEMA) is None


def test_every_kind_of_tool_checks_its_template() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}

    def pay(amount: int) -> None:
        """Pay."""

    for make in (
        lambda: tool(pay, summary="Pay {amout}"),
        lambda: callback_tool("open", "Open.", schema, summary="Open {file}"),
        lambda: remote_tool("read", schema, "files", summary="Read {file}"),
        lambda: remote_tool("pay", pay, "bank", summary="Pay {amout}"),
    ):
        with pytest.raises(DefinitionError, match=r"tool '(pay|open|read)' \(.*summary='(Pay|Open|Read) .*no argument"):
            make()
    assert callback_tool("open", "Open.", schema, summary="Open {path}").summary == "Open {path}"
    assert remote_tool("read", schema, "files", summary="Read {path}").summary == "Read {path}"
    assert tool(pay, summary="Pay {amount}").definition == tool(pay).definition, "the model does not see it"


@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        ({"invoice_id": "INV-1", "amount": 120.5}, "Pay INV-1: 120.50"),
        ({"invoice_id": "INV-1", "amount": 3}, "Pay INV-1: 3"),
        ({"invoice_id": "two words", "amount": 1e300}, "Pay “two words”: 1e+300"),
        ({"invoice_id": None, "amount": True}, "Pay none: true"),
        ({}, "Pay none: none"),
        ({"invoice_id": "", "amount": 0}, "Pay “”: 0"),
        ({"invoice_id": "INV-1: 5 (approved)\nall”", "amount": 9}, "Pay “INV-1: 5 (approved) all'”: 9"),
        ({"invoice_id": "a\u202eb\x1b[2J", "amount": 1}, "Pay “a⟨U+202E⟩b⟨U+001B⟩[2J”: 1"),
        ({"invoice_id": "\u05d0 5", "amount": 1}, f"Pay {ISOLATE}“\u05d0 5”{END_ISOLATE}: 1"),
        ({"invoice_id": f"x{END_ISOLATE}y", "amount": 1}, "Pay “x⟨U+2069⟩y”: 1"),
        ({"invoice_id": {"a": [1]}, "amount": 10**400}, "Pay “{\"a\": [1]}”: a number of more digits than are shown"),
        ({"invoice_id": "x" * 20_000, "amount": 7}, f"Pay “{'x' * 60}…”: 7"),
    ],
)  # fmt: skip
def test_values_in_a_template(arguments: dict[str, Any], summary: str) -> None:
    assert render_summary("Pay {invoice_id}: {amount}", arguments) == summary


def test_fields_of_objects_are_looked_up_in_plain_data() -> None:
    assert render_summary("{customer.name}", {"customer": {"name": "ada"}}) == "ada"
    assert render_summary("{customer.name}", {"customer": None}) == "none"
    assert render_summary("{customer.name}", {"customer": "ada"}) == "none"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=80), JSON, max_size=5))
def test_a_summary_is_one_short_line(arguments: dict[str, Any]) -> None:
    for text in (
        summarize_call("pay_invoice", arguments),
        render_summary("Pay {invoice_id} {customer.name} {amount}", {**arguments, "invoice_id": arguments}),
    ):
        assert len(text) <= SUMMARY_CHARS
        assert "\n" not in text
        assert text.replace(ISOLATE, "").replace(END_ISOLATE, "").isprintable() or not text.isascii()


def test_the_default_names_the_tool_and_numbers_first() -> None:
    arguments = {"order_id": "A-1007", "reason": "x" * 40, "note": "n", "amount": 129.5}
    assert summarize_call("refund", arguments) == "refund: order id A-1007, note n, amount 129.50, and 1 more"
    assert summarize_call("refund", None) == "refund"


@pytest.mark.parametrize(
    ("template", "arguments", "amount"),
    [
        ("{invoice_id}", {"amount": 5, "count": 2}, 5.0),
        ("{count} x {amount}", {"amount": 5, "count": 2}, 2.0),
        (None, {"count": 2, "amount": None}, 2.0),
        (None, {"invoice_id": "7"}, None),
        (None, {"amount": True}, None),
        (None, {"amount": 10**400}, None),
        (None, None, None),
    ],
)
def test_the_number_by_which_calls_are_sorted(
    template: str | None, arguments: dict[str, Any] | None, amount: float | None
) -> None:
    assert find_amount(template, SCHEMA, arguments) == amount
