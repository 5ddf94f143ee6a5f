"""What a tool may do with its context, also with one that a test has made by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from perdure import ToolContext


@dataclass
class Step:
    done: int
    share: float


def told(message: str, data: Any = None) -> list[tuple[str, Any]]:
    said: list[tuple[str, Any]] = []
    ToolContext(progress=lambda *given: said.append(given)).progress(message, data)
    return said


def test_progress_is_plain_json() -> None:
    assert told("half", Step(1, float("inf"))) == [("half", {"done": 1, "share": "Infinity"})]
    assert told("half") == [("half", None)]


def test_progress_is_text_that_can_be_stored() -> None:
    assert told("half\udc80", {"at": ["\udc80"]}) == [("half\ufffd", {"at": ["\ufffd"]})]


def test_progress_that_is_no_json_is_the_tools_error() -> None:
    with pytest.raises(ValueError, match="object"):
        told("half", object())


def test_a_context_by_hand_tells_nobody() -> None:
    ToolContext().progress("half", {"done": 1})
