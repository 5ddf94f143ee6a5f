"""What a newer perdure has written is refused where an older one would misread it."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.calls.journal_keys import parse_outcome
from perdure.calls.retries import decide_retry
from perdure.errors import NewerStateError
from perdure.loop.lifecycle import create_run_state
from perdure.types import schema_version
from perdure.types.schema_version import SCHEMA_VERSION, check_schema_version
from perdure.types.state import read_state
from perdure.types.wire import ModelInput, ModelOutput, ToolOutput
from perdure.workflows.activity_options import build_call_facts

NEWER = SCHEMA_VERSION + 1


@pytest.mark.parametrize("made", [lambda: ModelOutput(text="hi"), lambda: ToolOutput(key="k", content="hi")])
def test_an_outcome_of_a_newer_version_is_not_read(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = made().model_dump(mode="json", exclude_none=True)
    assert "schema_version" not in own
    check_schema_version(own, "it")
    with monkeypatch.context() as newer:
        newer.setattr(schema_version, "SCHEMA_VERSION", NEWER)
        written = made().model_dump(mode="json", exclude_none=True)
        body = made().model_dump_json(exclude_none=True).encode()
        check_schema_version(written, "it")
        assert parse_outcome(type(made()), body, "key") == made()
    with pytest.raises(NewerStateError, match=f"it has schema version {NEWER}, this engine reads up to") as refused:
        check_schema_version(written, "it")
    assert "Run workers of the newer perdure" in (refused.value.hint or "")
    with pytest.raises(NewerStateError, match="the outcome in journal entry key"):
        parse_outcome(type(made()), body, "key")
    assert decide_retry(refused.value, failures=1000).retry, "until a newer worker takes it"


def test_a_run_that_is_continued_has_the_version_of_the_perdure_that_continues_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = create_run_state({"agent": "a", "message": "Go."}, "run-1", "s").model_dump(mode="json", exclude_none=True)
    state = read_state(raw)
    assert "schema_version" not in ModelInput(**build_call_facts(state, 1)).model_dump(mode="json")
    monkeypatch.setattr("perdure.types.state.SCHEMA_VERSION", NEWER)
    state = read_state(raw)
    assert ModelInput(**build_call_facts(state, 1)).model_dump(mode="json")["schema_version"] == NEWER


@pytest.mark.parametrize(
    "other", [None, 3, [], {}, {"schema_version": "9"}, {"schema_version": None}, {"schema_version": True}]
)
def test_what_has_no_version_is_of_this_one(other: Any) -> None:
    check_schema_version(other, "it")
