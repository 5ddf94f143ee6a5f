"""What is used up, and what is said of it; attempts without Temporal are counted too."""

from __future__ import annotations

import pytest

from perdure import Agent, Compaction, Limits, Message
from perdure.errors import ContextLengthError, OverloadedError, RateLimitError
from perdure.stages.budget import exhausted
from perdure.testing import scripted


@pytest.mark.parametrize(
    ("limits", "failed", "elapsed", "delay", "said"),
    [
        (Limits(), 1000, 1e6, None, None),
        (Limits(attempts=3), 2, 1e6, None, None),
        (Limits(attempts=3), 3, 0, None, "3 attempts (attempts)"),
        (Limits(attempts=1), 1, 0, None, "1 attempt (attempts)"),
        (Limits(call_timeout="10m"), 1000, 599, None, None),
        (Limits(call_timeout="10m"), 1, 600, None, "10 minutes (call_timeout)"),
        (Limits(call_timeout="10m"), 0, 500, 99, None),
        (
            Limits(call_timeout="10m"),
            0,
            500,
            100,
            "8.33 minutes, as it is to wait 100 s more of 10 minutes (call_timeout)",
        ),
        (Limits(call_timeout="3h"), 0, 3 * 3600, None, "3 hours (call_timeout)"),
    ],
)
def test_what_is_used_up(limits: Limits, failed: int, elapsed: float, delay: float | None, said: str | None) -> None:
    assert exhausted(limits, failed, elapsed, delay) == said


def test_a_scripted_agent_has_its_limits() -> None:
    agent = Agent("a", "openai:gpt-5", limits=Limits(attempts=2))
    with scripted(agent, [OverloadedError("full"), RateLimitError("slow down", retry_after=60), "Hello."]):
        assert agent.call_sync("Hi.").content == "Hello."
    with (
        scripted(agent, [OverloadedError("full"), OverloadedError("still full")]),
        pytest.raises(OverloadedError, match=r"gave up after 2 attempts \(attempts\): still full"),
    ):
        agent.call_sync("Hi.")


def test_what_no_other_attempt_could_mend_is_no_attempt() -> None:
    """A summary that has to be made in pieces, because the conversation is too long for one, has all its attempts."""
    too_long = ContextLengthError("too long")
    agent = Agent(
        "a", "openai:gpt-5", limits=Limits(attempts=2), compaction=Compaction.summarise(at=10**6, keep_last=0)
    )
    history = [Message.user("Hi."), Message.assistant("Hello.")]
    with scripted(agent, [too_long, too_long, OverloadedError("full"), "A summary.", "Done."]):
        assert agent.call_sync("So?", history=history).content == "Done."


def test_a_scripted_chain_takes_the_next_reply() -> None:
    agent = Agent("a", ["anthropic:claude", "openai:gpt-5"])
    with scripted(agent, [OverloadedError("full"), "Hello."]) as script:
        assert agent.call_sync("Hi.").content == "Hello."
        assert [request.model for request in script.requests] == ["claude", "gpt-5"]
