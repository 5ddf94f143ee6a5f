"""On whose behalf a run acts: who started it, then the latest message that a step has taken."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import InvalidInputError
from perdure.loop.decide import CallModel, decide
from perdure.loop.lifecycle import create_run_state
from perdure.loop.messages import accept_message, take_message_sender
from perdure.loop.requests import parse_message
from perdure.stages.journal_keys import build_model_key
from perdure.types.state import RunState
from perdure.types.wire import ModelInput, NewMessage
from tests.unit.loop.build import carried_over

ANA, BEN = "perdure1:k:0:QUE=", "perdure1:k:0:QkU="


def opened(**start: Any) -> RunState:
    return create_run_state({"agent": "a", "mode": "session", **start}, "run", "scope")


def acts(state: RunState) -> tuple[str | None, str | None]:
    return state.auth_context, state.auth_ref


def test_a_start_says_it() -> None:
    assert acts(opened(auth_context=ANA)) == (ANA, None)
    assert acts(opened(auth_ref="ana")) == (None, "ana")
    assert acts(opened()) == (None, None)


def test_a_message_says_it_when_it_is_taken() -> None:
    state = opened(auth_context=ANA, message="Hi.")
    accept_message(state, {"content": "I am Ben.", "auth_ref": "ben"})
    assert acts(state) == (ANA, None)  # what was asked before is done for Ana
    step = decide(state)
    assert isinstance(step, CallModel)
    new = take_message_sender(state, step.new)
    assert acts(state) == (None, "ben")
    assert [item.model_dump(exclude_none=True).keys() & {"auth_context", "auth_ref"} for item in new] == [set()] * 2
    assert take_message_sender(state, step.new) == new  # the same step again
    assert acts(state) == (None, "ben")


def test_a_message_without_it_changes_nothing() -> None:
    state = opened(auth_context=ANA)
    assert take_message_sender(state, [NewMessage(content="Hi.")]) == (NewMessage(content="Hi."),)
    assert acts(state) == (ANA, None)


def test_a_turn_without_a_message_may_say_it() -> None:
    state = opened(auth_context=ANA)
    accept_message(state, {"content": None, "auth_context": BEN})
    assert acts(state) == (BEN, None)


def test_it_is_carried_over() -> None:
    state = opened(auth_context=ANA, message={"content": "Hi.", "auth_ref": "ben"})
    again = carried_over(state)
    assert acts(again) == (ANA, None)
    assert again.inbox == state.inbox


@pytest.mark.parametrize("clear", [{"token": "s3cret"}, "Bearer s3cret", ["s3cret"], 7])
def test_in_the_clear_it_is_refused_and_not_shown(clear: Any) -> None:
    for refuse in (
        lambda: opened(auth_context=clear, message="Hi."),
        lambda: opened(message={"content": "Hi.", "auth_context": clear}),
        lambda: parse_message({"auth_context": clear, "content": "Hi."}),
    ):
        with pytest.raises(
            InvalidInputError, match=r"auth_context: it must not be readable in Temporal's history"
        ) as caught:
            refuse()
        assert "s3cret" not in str(caught.value)


def test_one_of_the_two() -> None:
    for refuse in (
        lambda: opened(auth_context=ANA, auth_ref="ana"),
        lambda: parse_message({"content": "Hi.", "auth_context": ANA, "auth_ref": "ana"}),
    ):
        with pytest.raises(InvalidInputError, match="auth_context or auth_ref, not both"):
            refuse()


def test_keys_of_runs_without_it_are_as_before() -> None:
    task = ModelInput(agent="a", context_id="c", task_id="t", scope="s", op=0, iteration=1)
    assert build_model_key(task) == "af929d8643f25c46710dc8b577ffae25e3f3e69fa6a00dfdfa43f9eb7f649c39"
    assert len({build_model_key(task), build_model_key(task.model_copy(update={"auth_ref": "ana"}))}) == 2
