"""The demo says so when something that it claims was not true."""

from __future__ import annotations

import pytest

from perdure.cli.demo.scenario import INJECTED_MESSAGE, AttemptCounts, Observations, RunningActivity, check_claims
from perdure.types.interface import Response
from perdure.types.messages import Message, ToolCallPart, ToolResultPart

CALL = ToolCallPart(id="1", name="look", arguments={})
MESSAGES = (
    Message.user("Where?"),
    Message.assistant("", CALL),
    Message(role="tool", parts=(ToolResultPart(call_id="1", name="look", content="here"),)),
    Message.user(INJECTED_MESSAGE),
    Message.assistant("There."),
)
TRIES = AttemptCounts(3, 1, ())
CUT = [RunningActivity("perdure.model", 1, "7@host")]


def failing(
    messages: tuple[Message, ...] = MESSAGES,
    *,
    content: str = "There.",
    before: tuple[Message, ...] = MESSAGES[:2],
    alive: bool = True,
    cut: bool = True,
    tries: AttemptCounts = TRIES,
    asked: int | None = 3,
) -> list[str]:
    facts = Observations(before, CUT if cut else [], alive)
    made = check_claims(Response(content=content, messages=messages), facts, tries, asked)
    return [claim.text for claim in made if not claim.holds]


@pytest.mark.parametrize("asked", [2, 3, None])
def test_all_is_well(asked: int | None) -> None:
    assert failing(asked=asked) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"content": " "}, "an answer"),
        ({"before": ()}, "killed in the middle"),
        ({"before": MESSAGES}, "killed in the middle"),
        ({"alive": False}, "killed in the middle"),
        ({"before": (Message.user("Other?"), MESSAGES[1])}, "nothing was repeated"),
        ({"asked": 4}, "4 paid calls for 2 replies"),
        ({"asked": 1}, "1 paid call for 2 replies"),
        ({"asked": None, "tries": AttemptCounts(9, 1, ())}, "Temporal counted 9 paid calls"),
        ({"cut": False}, "3 paid calls"),
        ({"tries": AttemptCounts(3, 2, ())}, "1 tool call"),
        ({"messages": (*MESSAGES[:4], MESSAGES[3], MESSAGES[4])}, "injected message"),
        ({"messages": (*MESSAGES[:3], MESSAGES[4])}, "injected message"),
        ({"messages": (*MESSAGES[:2], *MESSAGES[3:])}, "each with one result"),
    ],
)
def test_what_was_not_true_is_found(wrong: dict[str, object], said: str) -> None:
    assert any(said in text for text in failing(**wrong)), failing(**wrong)  # type: ignore[arg-type]
