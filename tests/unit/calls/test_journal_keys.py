"""Journal keys. Their values are pinned: another value for the same call would pay for it again after an upgrade."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from perdure.calls.journal_keys import build_first_run_key, build_model_key, build_tool_key
from perdure.types.messages import BlobRef
from perdure.types.tool_calls import ToolAnswer
from perdure.types.wire import ModelInput, NewMessage, NewResult, RunEnding, ToolInput
from tests.unit.calls.build import FACTS

MODEL: dict[str, Any] = {**FACTS, "new": (NewMessage(content="hi", id="m1"),), "head": "h" * 64}
TOOL: dict[str, Any] = {**FACTS, "op": 3, "call_id": "c1", "name": "pay", "arguments": {"b": 1.5, "a": "é"}}

PINNED = {
    "model": "b7f2b7c1a8168adcb11042d4f67c17ec6943578626bf82ef62918cb38c4da058",
    "close": "6a3f7b691fc6e51902ff7a4a4f167d30890219118cbc89ee0a55ae9f11ab138b",
    "tool": "7eb42c5a0fa77567f02088d2c19b0064bdba4eb72e15576fca554f817ad1cbe8",
    "large": "2204a94ecd6c3c4088599221ab1fb8cd29c2d1a96827b7c5fd1a098958beff46",
}


def keys() -> dict[str, str]:
    closing = {"new": (), "purpose": "close", "closing": RunEnding(status="failed", error_type="E", error="x")}
    return {
        "model": build_model_key(ModelInput(**MODEL)),
        "close": build_model_key(ModelInput(**{**MODEL, **closing})),
        "tool": build_tool_key(ToolInput(**TOOL)),
        "large": build_tool_key(ToolInput(**{**TOOL, "arguments": None, "head": "h" * 64})),
    }


def test_the_values_are_pinned() -> None:
    assert keys() == PINNED


@pytest.mark.parametrize(
    "change",
    [
        {"scope": "other"},
        {"op": 4},
        {"agent": "b"},
        {"head": None},
        {"purpose": "force_finish"},
        {"new": ()},
        {"new": (NewMessage(content="hi", id="m2"),)},
        {"new": (NewMessage(content=BlobRef(hash="0" * 64, size=1), id="m1"),)},
        {"new": (NewResult(call_id="c", name="n", key="k"),)},
        {"overrides": {"temperature": 0}},
        {"pinned": BlobRef(hash="0" * 64, size=1)},
    ],
    ids=str,
)
def test_what_makes_another_model_call(change: dict[str, Any]) -> None:
    assert build_model_key(ModelInput(**{**MODEL, **change})) != build_model_key(ModelInput(**MODEL))


@pytest.mark.parametrize(
    "change",
    [
        {"scope": "other"},
        {"op": 4},
        {"call_id": "c2"},
        {"name": "refund"},
        {"arguments": {"b": 1.5, "a": "e"}},
        {"arguments": {}},
        {"answers": (ToolAnswer(),)},
    ],
    ids=str,
)
def test_what_makes_another_tool_call(change: dict[str, Any]) -> None:
    assert build_tool_key(ToolInput(**{**TOOL, **change})) != build_tool_key(ToolInput(**TOOL))


@pytest.mark.parametrize(
    "change", [{"iteration": 9}, {"task_id": "x"}, {"context": {"a": 1}}, {"store_id": "s"}], ids=str
)
def test_what_makes_no_other_call(change: dict[str, Any]) -> None:
    assert build_model_key(ModelInput(**{**MODEL, **change})) == build_model_key(ModelInput(**MODEL))
    assert build_tool_key(ToolInput(**{**TOOL, **change})) == build_tool_key(ToolInput(**TOOL))


def test_the_order_of_arguments_does_not_count() -> None:
    turned = dict(reversed(TOOL["arguments"].items()))
    assert build_tool_key(ToolInput(**{**TOOL, "arguments": turned})) == build_tool_key(ToolInput(**TOOL))


def test_a_model_and_a_tool_call_of_one_number_are_apart() -> None:
    assert len(set(keys().values())) == 4
    assert all(len(bytes.fromhex(key)) == hashlib.sha256().digest_size for key in keys().values())


def test_a_call_is_one_call_however_often_it_asks() -> None:
    asked = [ToolInput(**{**TOOL, "answers": (ToolAnswer(value=1),) * count}) for count in range(3)]
    assert len({build_tool_key(one) for one in asked}) == 3
    assert {build_first_run_key(one) for one in asked} == {build_tool_key(ToolInput(**TOOL))}
