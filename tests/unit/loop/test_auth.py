"""On whose behalf a run acts: who started it, then the latest message that a step has taken."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.calls.journal_keys import build_model_key
from perdure.errors import InvalidInputError
from perdure.loop.decide import CallModel, decide
from perdure.loop.lifecycle import create_run_state
from perdure.loop.limits import list_limit_uses
from perdure.loop.messages import accept_message, take_message_sender
from perdure.loop.requests import parse_message
from perdure.loop.turns import get_caller_overrides
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


# ---
# The caller for whom a run works: the sender of the last message that a step has taken.


def take(state: RunState) -> str | None:
    step = decide(state)
    assert isinstance(step, CallModel)
    take_message_sender(state, step.new)
    return state.caller


def test_the_last_sender_that_a_step_takes_is_the_caller() -> None:
    state = opened(message={"content": "Hi.", "by": "ana"})
    assert state.caller is None  # of a message that no step has taken
    assert take(state) == "ana"
    accept_message(state, {"content": "Me, too.", "by": "ben"})
    assert carried_over(state).caller == "ana"  # what was asked before is done for her
    assert take(state) == "ben"
    assert carried_over(state).caller == "ben"


def test_a_message_of_an_unknown_sender_is_nobody_s() -> None:
    """It must not act as the one before it."""
    state = opened(message={"content": "Hi.", "by": "ana"})
    assert take(state) == "ana"
    accept_message(state, {"content": "And me?"})
    assert take(state) is None


@pytest.mark.parametrize(("on_behalf_of", "caller"), [("ana", "ana"), ("", None), (None, "lead")])
def test_a_run_that_writes_to_its_subagent_says_for_whom(on_behalf_of: str | None, caller: str | None) -> None:
    state = opened(message={"content": "Look.", "by": "lead", "on_behalf_of": on_behalf_of})
    assert take(state) == caller
    again = carried_over(state)
    assert take(again) == caller  # the same step in the next execution


def test_a_turn_without_a_message_has_a_caller() -> None:
    state = opened()
    accept_message(state, {"content": None, "by": "ben"})
    assert state.caller == "ben"


def test_what_a_caller_asks_for_is_apart_from_the_overrides_and_only_lowers_limits() -> None:
    state = opened(
        override={"limits": {"tokens": 500}},
        caller_request={"override": {"settings": {"temperature": 1.0}, "limits": {"tokens": 100}}},
        message={"content": "Hi.", "caller_request": {"override": {"limits": {"tokens": 50, "turn": {"tokens": 20}}}}},
    )
    assert state.overrides == {"limits": {"tokens": 500}}
    allowed = {use.key: use.allowed for use in list_limit_uses(state)}
    assert (allowed["tokens"], allowed["turn.tokens"]) == (50, 20)
    accept_message(state, {"content": "More!", "caller_request": {"override": {"limits": {"tokens": 90}}}})
    again = carried_over(state)
    assert {use.key: use.allowed for use in list_limit_uses(again)}["tokens"] == 50
    assert get_caller_overrides(again) == {
        "settings": {"temperature": 1.0},
        "limits": {"tokens": 50, "turn": {"tokens": 20}},
    }
    assert again.turn is not None
    assert again.turn.is_external


@pytest.mark.parametrize("field", ["provider_options", "finish", "on_limit", "add_tools", "unknown"])
def test_a_caller_s_override_has_no_such_field(field: str) -> None:
    value = {"x": 1} if field == "provider_options" else "text" if field == "finish" else "error"
    with pytest.raises(InvalidInputError, match=field):
        opened(message={"content": "Hi.", "caller_request": {"override": {field: value}}})
