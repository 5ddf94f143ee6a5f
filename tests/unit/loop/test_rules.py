"""The version of the loop's rules: an execution keeps that with which it began."""

from __future__ import annotations

import pytest

from perdure.errors import NewerStateError
from perdure.loop import lifecycle
from perdure.loop.lifecycle import build_continuation_input, create_run_state, read_continued_state

START = {"agent": "a", "message": "hi"}


def test_the_next_execution_begins_by_the_rules_of_the_engine_that_ends_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = create_run_state(START, "run-1", "scope", None, 1)
    assert "rules" not in build_continuation_input(state, "x")["state"]
    monkeypatch.setattr(lifecycle, "RULES", 2)
    carried = build_continuation_input(state, "x")
    assert state.rules == 1
    assert read_continued_state(carried, "run-1").rules == 2
    monkeypatch.setattr(lifecycle, "RULES", 1)
    with pytest.raises(NewerStateError, match="rules 2"):
        read_continued_state(carried, "run-1")
