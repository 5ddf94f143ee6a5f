"""What is used up, and what is said of it; attempts without Temporal are counted too."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Agent, Compaction, Limits, Message
from perdure.calls.budget import bound_wait, describe_exhausted_limit
from perdure.calls.retries import decide_retry
from perdure.errors import ContextLengthError, DefinitionError, OverloadedError, RateLimitError
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
    assert describe_exhausted_limit(limits, failed, elapsed, delay) == said


def test_a_scripted_agent_has_its_limits() -> None:
    agent = Agent("a", "openai:gpt-5", limits=Limits(attempts=2))
    with scripted(agent, [OverloadedError("full"), RateLimitError("slow down", retry_after=60), "Hello."]):
        assert agent.call_sync("Hi.").content == "Hello."
    with (
        scripted(agent, [OverloadedError("full"), OverloadedError("still full")]),
        pytest.raises(OverloadedError, match=r"gave up after 2 attempts \(attempts\): still full"),
    ):
        agent.call_sync("Hi.")


@pytest.mark.parametrize(("asked", "shown"), [(1e9, "31.7 years"), (1e300, "3.17e"), (10**400, "5.7e+300")])
def test_an_absurd_retry_after_is_bounded_said_and_counted(asked: float, shown: str) -> None:
    """Row 15: 1e9 parked a run until 2058, 1e300 raised in the verdict."""
    agent = Agent("a", "openai:gpt-5", limits=Limits(attempts=2))
    with (
        scripted(agent, [RateLimitError("full", retry_after=asked), RateLimitError("still full", retry_after=asked)]),
        pytest.raises(RateLimitError, match=r"retry_wait allows 60 minutes: still full") as caught,
    ):
        agent.call_sync("Hi.")
    assert f"gave up after 2 attempts (attempts): the provider asks to wait {shown}" in str(caught.value)


@pytest.mark.parametrize("asked", [-1, float("nan"), -math.inf, -(10**400), "soon", [1, 2], object(), None])
def test_a_wait_that_is_none_is_not_obeyed(asked: Any) -> None:
    error = RateLimitError("slow down", retry_after=asked)
    assert error.retry_after is None
    error.retry_after = asked
    assert decide_retry(error, 1).delay is None


@given(st.floats() | st.integers() | st.text() | st.decimals() | st.lists(st.floats(), max_size=2))
def test_every_wait_is_one_that_temporal_takes(asked: Any) -> None:
    error = RateLimitError("slow down", retry_after=asked)
    bounded = bound_wait(error, 60.0)
    found = decide_retry(error, 1)
    assert found.delay is None or timedelta(0) <= timedelta(seconds=found.delay) <= timedelta(minutes=1)
    assert ("asks to wait" in found.message) == bounded
    unbounded = decide_retry(RateLimitError("slow down", retry_after=asked), 1).delay
    assert unbounded is None or timedelta(seconds=unbounded) >= timedelta(0)


def test_the_longest_wait_is_the_agents() -> None:
    agent = Agent("a", "openai:gpt-5", limits=Limits(retry_wait="1m", attempts=1))
    with (
        scripted(agent, [RateLimitError("full", retry_after=60), RateLimitError("full", retry_after=61)]),
        pytest.raises(RateLimitError, match="asks to wait 61 s, and retry_wait allows 60 s: full"),
    ):
        agent.call_sync("Hi.")
    for wrong in (None, 0, -1, "soon", 1e300):
        with pytest.raises(DefinitionError, match=r"Limits: retry_wait: "):
            Limits(retry_wait=wrong)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="turn: it has retry_wait"):
        Limits(turn=Limits(retry_wait="1m"))


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
