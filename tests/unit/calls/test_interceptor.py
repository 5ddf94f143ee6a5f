"""The border to Temporal: JSON outside, calls inside, errors as Temporal knows them, and hands off other activities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from perdure import Agent
from perdure.calls.budget import BudgetStage
from perdure.calls.call import ModelCall, NextRequest, NextTool, RequestCall, ToolCall
from perdure.calls.interceptor import StageInterceptor
from perdure.calls.pipeline import Pipeline, Pipelines
from perdure.calls.retries import FAILURE_CHARS, SILENT_ATTEMPTS, TOOLSET_ATTEMPTS, UNEXPECTED_ATTEMPTS
from perdure.errors import (
    AgentNotFoundError,
    AuthenticationError,
    ProviderTimeoutError,
    RateLimitError,
    RetryLaterError,
    StoreError,
    ToolsetError,
    TranscriptCorruptedError,
)
from perdure.types.limits import Limits
from perdure.types.wire import FinalAnswer, ModelOutput, ToolOutput
from tests.unit.calls.build import FACTS, Inner, request_call

MODEL = {**FACTS, "new": [{"kind": "message", "content": "hi"}]}
TOOL = {**FACTS, "call_id": "c1", "name": "pay", "arguments": {"amount": 3}}


def ours() -> None:
    """Stands for one of perdure's activities."""


def theirs() -> None:
    """Stands for an activity of the host's."""


class Bare(ActivityInboundInterceptor):
    """What stands behind the stages."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        return await self.inner(input.args[0])


class Named:
    """A stage that says in ``seen`` when it is passed."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    async def step(self, call: Any, next: Any) -> Any:
        self.seen.append(self.name)
        return await next(call)

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        self.seen.append(self.name)
        return await next(call)


async def make_request(call: ModelCall, next: NextRequest) -> ModelOutput:
    """Stands where the conversation is loaded, and the request made."""
    message = await next(request_call(call, Agent("a", "openai:gpt-5")))
    return ModelOutput(finish=FinalAnswer(content=message.text))


async def execute(
    inner: Any,
    args: list[Any],
    *,
    fn: Any = ours,
    stages: Sequence[Named] = (),
    of_request: Sequence[BudgetStage] = (),
    type: str = "perdure.model",
    kept: list[Any] | None = None,
    **info: Any,
) -> Any:
    """Run an activity through the interceptor, in an activity's context. ``kept``: details of its last heartbeat."""
    env = ActivityEnvironment()
    if kept is not None:
        info["heartbeat_details"] = list(kept)
        env.on_heartbeat = lambda *details: kept.__setitem__(slice(None), details)
    env.info = replace(env.info, activity_type=type, **info)
    model: Any = Pipeline((*[stage.step for stage in stages], make_request, *[stage.request for stage in of_request]))
    tool: Any = Pipeline(tuple(stage.tool for stage in stages))
    none: Any = Pipeline()
    chain = StageInterceptor(
        lambda: Pipelines(model, none, none, none, tool), lambda given: given is ours
    ).intercept_activity(Bare(inner))
    return await env.run(chain.execute_activity, ExecuteActivityInput(fn=fn, args=args, executor=None, headers={}))


async def test_a_model_call_is_parsed_and_its_output_is_plain_json() -> None:
    inner = Inner("Hello.")
    output = await execute(inner, [MODEL], attempt=3, activity_id="7", workflow_run_id="r")
    call = inner.calls[0]
    assert isinstance(call, RequestCall)
    assert (call.owner, call.attempt, call.input.agent) == ("r/7/3", 3, "a")
    assert output["finish"] == {"content": "Hello.", "called": False}
    assert "blob" not in output


async def test_a_tool_call_is_parsed_from_a_dynamic_activitys_arguments() -> None:
    inner = Inner("42")
    output = await execute(inner, [[TOOL]], type="tool.pay")
    call = inner.calls[0]
    assert isinstance(call, ToolCall)
    assert call.arguments == {"amount": 3}
    assert output == {"key": call.key, "content": "42", "is_error": False, "status": "done"}


async def test_stages_stand_in_order_the_first_outermost() -> None:
    seen: list[str] = []
    stages = [Named("one", seen), Named("two", seen)]
    await execute(Inner("Hello."), [MODEL], stages=stages)
    await execute(Inner("42"), [[TOOL]], stages=stages, type="tool.pay")
    assert seen == ["one", "two", "one", "two"]


async def test_other_activities_pass_untouched() -> None:
    seen: list[str] = []
    argument = object()

    async def inner(given: Any) -> Any:
        assert given is argument
        raise AuthenticationError("theirs")  # their errors are theirs too

    with pytest.raises(AuthenticationError):
        await execute(inner, [argument], fn=theirs, stages=[Named("one", seen)], type="perdure.model")
    assert seen == []


@pytest.mark.parametrize(
    ("error", "retried", "delay"),
    [
        (AuthenticationError("wrong key", hint="Set OPENAI_API_KEY."), False, None),
        (RateLimitError("slow down", retry_after=7.5), True, 7.5),
        (StoreError("locked"), True, None),
        (TranscriptCorruptedError("altered"), False, None),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_errors_keep_their_class_and_say_whether_to_try_again(error: Any, retried: bool, delay: float) -> None:
    with pytest.raises(ApplicationError) as caught:
        await execute(Inner(error), [MODEL])
    assert caught.value.type == type(error).__name__
    assert caught.value.message == str(error)
    assert caught.value.non_retryable is not retried
    assert caught.value.next_retry_delay == (None if delay is None else timedelta(seconds=delay))


@pytest.mark.parametrize(
    ("error", "most"),
    [(ToolsetError("no list"), TOOLSET_ATTEMPTS), (ProviderTimeoutError("silent"), SILENT_ATTEMPTS)],
    ids=lambda value: type(value).__name__,
)
async def test_some_errors_are_retried_a_few_times_only(error: Any, most: int) -> None:
    kept: list[Any] = []
    retried = [await is_retried(error, kept, attempt=attempt) for attempt in range(100, 100 + most)]
    assert retried == [True] * (most - 1) + [False]
    assert await is_retried(StoreError("locked"), kept), "another error"


async def is_retried(error: Exception, kept: list[Any], **info: Any) -> bool:
    with pytest.raises(ApplicationError) as caught:
        await execute(Inner(error), [MODEL], kept=kept, **info)
    return not caught.value.non_retryable


async def test_attempts_without_a_failure_of_the_call_end_nothing() -> None:
    """Neither that of a lost worker, which says nothing, nor one that is to be made later."""
    kept: list[Any] = []
    silent, later = ProviderTimeoutError("silent"), RetryLaterError("the rate is used up", seconds=0.5)
    stages = [BudgetStage(lambda _: Limits(attempts=SILENT_ATTEMPTS))]
    for attempt in range(1, 1000, 333):
        with pytest.raises(ApplicationError) as caught:
            await execute(Inner(later), [MODEL], kept=kept, attempt=attempt, of_request=stages)
        assert (caught.value.non_retryable, caught.value.next_retry_delay) == (False, timedelta(seconds=0.5))
        assert caught.value.category is ApplicationErrorCategory.BENIGN
    assert [await is_retried(silent, kept, attempt=50, of_request=stages) for _ in range(SILENT_ATTEMPTS)] == [
        *[True] * (SILENT_ATTEMPTS - 1),
        False,
    ]


@pytest.mark.parametrize(("failures", "waits"), [(1, 1), (2, 2), (3, 4), (7, 30)])
async def test_the_wait_grows_with_failures_and_not_with_attempts(failures: int, waits: int) -> None:
    kept: list[Any] = []
    policy = RetryPolicy(maximum_interval=timedelta(seconds=30))
    for _ in range(failures):
        with pytest.raises(ApplicationError) as caught:
            await execute(Inner(StoreError("locked")), [MODEL], kept=kept, attempt=40, retry_policy=policy)
    assert caught.value.next_retry_delay == timedelta(seconds=waits)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, float("nan"), float("inf"), 1e300])
async def test_any_delay_is_one_that_temporal_takes(seconds: float) -> None:
    with pytest.raises(ApplicationError) as caught:
        await execute(Inner(RetryLaterError("later", seconds=seconds)), [MODEL])
    assert caught.value.next_retry_delay is not None
    assert timedelta(seconds=0.1) <= caught.value.next_retry_delay <= timedelta(days=36500)


async def test_an_unknown_agent_is_looked_for_until_a_minute_after_it_was_first_missed() -> None:
    """By the server's clock, and however many attempts failed for another reason before."""
    kept: list[Any] = []

    async def attempt(error: Exception, number: int, seconds: float) -> bool:
        """Whether there is another one."""
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        with pytest.raises(ApplicationError) as caught:
            await execute(Inner(error), [MODEL], kept=kept, attempt=number, started_time=at)
        return not caught.value.non_retryable

    gone = AgentNotFoundError("no agent 'a'")
    assert await attempt(StoreError("locked"), 20, 0)
    assert await attempt(gone, 21, 600)
    assert await attempt(gone, 22, 659)
    assert await attempt(StoreError("a worker knew it"), 23, 662)
    assert await attempt(gone, 24, 700)
    assert not await attempt(gone, 25, 760)


@pytest.mark.parametrize("ahead", [timedelta(minutes=-5), timedelta(0), timedelta(minutes=5)])
@pytest.mark.parametrize(("waits", "retried"), [(45.0, True), (55.0, False)])
async def test_the_time_of_a_call_is_the_same_on_a_worker_whose_clock_is_five_minutes_off(
    ahead: timedelta, waits: float, retried: bool
) -> None:
    """Ten of its sixty seconds are over when the second attempt begins."""
    started = datetime.now(UTC) + ahead
    times = {"scheduled_time": started - timedelta(seconds=10), "started_time": started}
    stages = [BudgetStage(lambda _: Limits(call_timeout=60))]
    with pytest.raises(ApplicationError) as caught:
        await execute(
            Inner(RateLimitError("slow down", retry_after=waits)), [MODEL], of_request=stages, attempt=2, **times
        )
    assert caught.value.non_retryable is not retried


@pytest.mark.parametrize(("before", "retried"), [(0, True), (UNEXPECTED_ATTEMPTS - 1, False)])
async def test_a_fault_is_tried_again_but_not_for_ever(
    before: int, retried: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[Any] = []
    for _ in range(before):
        assert await is_retried(RuntimeError("another"), kept)
    with pytest.raises(ApplicationError, match="division") as caught:
        await execute(Inner(ZeroDivisionError("division by zero")), [MODEL], kept=kept)
    assert caught.value.type == "ZeroDivisionError"
    assert caught.value.non_retryable is not retried
    assert "ZeroDivisionError" in caplog.text  # the traceback is in the log


async def test_a_failure_is_small_enough_for_the_server() -> None:
    with pytest.raises(ApplicationError) as caught:
        await execute(Inner(StoreError("x" * 10_000)), [MODEL])
    assert len(caught.value.message) < FAILURE_CHARS + 10
    assert caught.value.__cause__ is None


async def test_an_error_that_is_temporals_already_is_passed_on() -> None:
    error = ApplicationError("theirs", type="Own", non_retryable=True)
    with pytest.raises(ApplicationError) as caught:
        await execute(Inner(error), [MODEL])
    assert caught.value is error


async def test_an_input_of_the_wrong_shape_fails_with_what_is_wrong() -> None:
    with pytest.raises(ApplicationError, match="scope") as caught:
        await execute(Inner("never"), [{"agent": "a"}])
    assert caught.value.type == "ValidationError"
