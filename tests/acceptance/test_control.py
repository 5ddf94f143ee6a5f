"""Whatever hooks, steps, messages, limits and lost workers do to a run: its transcript stays one that any API takes.

Random scripts run on the engine in this process. Everything that a model was sent, and what was recorded in the end, is
encoded for all four wire formats and read by the strict rules of the servers in ``tests.servers``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from perdure import Agent, Compaction, Limits, Message, Run, Step, Veto, hook, tool
from perdure.errors import PerdureError, StoreError
from perdure.hooks import Hook
from perdure.ports.model import Completed, ModelRequest
from perdure.ports.test_seams import Point
from perdure.store import Chain
from perdure.testing import MemoryStore, at, scripted
from perdure.types.messages import FinishReason, Part, TextPart, ThinkingPart, ToolCallPart, Usage
from tests.support.checks import assert_closed
from tests.support.formats import FORMATS
from tests.support.transcripts import FOREIGN

HOOKS = ("before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call", "on_user_message", "on_finish")
TOOLS = ("look", "pay", "fail", "extra", "nothing", "__finish__")
POINTS: tuple[Point, ...] = ("model.begun", "model.answered", "model.recorded", "tool.claimed", "tool.acted")


class Answer(BaseModel):
    """An output type."""

    what: str


@tool(inline=True)
def look(n: int = 0) -> str:
    """Look."""
    return f"looked {n}"


@tool
async def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


@tool(idempotent=True)
def fail(n: int = 0) -> str:
    """Fail."""
    raise ValueError(f"no {n}")


@tool
def extra(n: int = 0) -> str:
    """No agent has it: a step adds it."""
    return f"more {n}"


Edit = tuple[str, int]


@dataclass
class Plan:
    """What happens in a run, by the number of the model's reply or of the policy's step."""

    replies: list[list[tuple[str, int]]]
    edits: list[list[Edit]]
    said: dict[int, str]
    """What a user injects, ``stop`` to interrupt, while the model thinks about that reply."""
    hooks: dict[str, int]
    """Events of which the hook does something the n-th time."""
    lost: dict[Point, int]
    """Where the n-th attempt is lost."""
    options: dict[str, Any] = field(default_factory=dict)


parts = st.tuples(st.sampled_from(["look", "pay", "text", "thinking", "malformed", *TOOLS]), st.integers(0, 3))
EDITS = (
    *("trim", "inject", "result", "results", "reword", "answer", "drop", "swap", "cut", "settings", "model", "add"),
    *("remove", "keep", "finish", "abort", "fail"),
)
edits = st.tuples(st.sampled_from(EDITS), st.integers(0, 6))
protocols = st.sampled_from([{}, {"finish": "tag"}, {"output": Answer}])
options = st.fixed_dictionaries(
    {
        "max_iterations": st.integers(1, 4) | st.integers(5, 9),
        "on_limit": st.sampled_from(["finish", "return", "error"]),
    },
    optional={
        "limits": st.sampled_from([Limits(tool_calls=2), Limits(tokens=40)]),
        "compaction": st.sampled_from([Compaction.truncate(after=1, keep=3), Compaction.window(messages=4)]),
        "instructions": st.just("Work."),
    },
)
plans = st.builds(
    Plan,
    replies=st.lists(st.lists(parts, min_size=1, max_size=4), min_size=1, max_size=6),
    edits=st.lists(st.lists(edits, max_size=3), max_size=6),
    said=st.dictionaries(st.integers(1, 5), st.sampled_from(["And this.", "That too.", "stop"]), max_size=2),
    hooks=st.dictionaries(st.sampled_from(HOOKS), st.integers(1, 6), max_size=2),
    lost=st.dictionaries(st.sampled_from(POINTS), st.integers(1, 4), max_size=2),
    options=st.builds(dict[str, Any].__or__, options, protocols),
)


def reply(plan: Plan, number: int) -> Completed:
    """Reply ``number``, from 1; the answer where the plan has no more."""
    if number > len(plan.replies):
        return Completed((TextPart(text="<finish>Done.</finish>"), _call("__finish__", number, 9)))
    made = [_part(kind, number, n) for n, (kind, _) in enumerate(plan.replies[number - 1])]
    called = any(isinstance(part, ToolCallPart) for part in made)
    reason: FinishReason = "tool_calls" if called else "stop"
    return Completed(tuple(made), reason, Usage(input_tokens=5, output_tokens=3), "scripted")


def _part(kind: str, number: int, n: int) -> Part:
    if kind == "text":
        return TextPart(text=f"Said {number}.")
    if kind == "thinking":
        return ThinkingPart(text="Hm.", provider=FOREIGN, opaque={"theirs": n})
    if kind == "malformed":
        return ToolCallPart(id="", name="look", malformed='{"n":')
    return _call(kind, number, n)


def _call(name: str, number: int, n: int) -> ToolCallPart:
    given: dict[str, Any] = {"what": "it"} if name == "__finish__" and n % 2 else {"n": n}
    return ToolCallPart(id="" if n % 2 else f"c{number}", name=name, arguments=given)


def edit(step: Step, what: str, n: int) -> None:
    """Do one thing to ``step``, be it sound or not."""
    messages = step.messages
    place = n % len(messages)
    match what:
        case "trim":
            step.trim(n)
        case "inject":
            step.inject(f"Mind {n}.")
        case "result" if len(step.results):
            step.results[n % len(step.results)] = {"changed": n}
        case "results":
            for result in step.results:
                step.set_result(result.call_id, "x")
        case "reword":
            said = (TextPart(text="Otherwise."), *(p for p in messages[place].parts if not isinstance(p, TextPart)))
            messages[place] = messages[place].model_copy(update={"parts": said})
        case "answer":
            messages += [Message.assistant("I have said this."), Message.user("Go on.")]
        case "drop":
            del messages[place]
        case "swap":
            messages[place], messages[0] = messages[0], messages[place]
        case "cut":
            del messages[:place]
        case "settings":
            step.settings["temperature"] = n / 10
        case "model":
            step.model = f"openai:gpt-{n}"
        case "add":
            step.add_tool("extra")
        case "remove":
            step.remove_tool("look")
        case "keep":
            step.keep("run" if n % 2 else "turn")
        case "finish":
            step.finish(**({"what": "it"} if n % 2 else {"content": "It."}))
        case "abort" if n > 4:
            step.abort("enough")
        case "fail" if n > 4:
            raise ValueError("the policy fails")


def policy(plan: Plan) -> Hook:
    left = iter(plan.edits)

    @hook("on_iteration", on_error="log" if plan.options["max_iterations"] % 2 else "fail")
    def follow_the_plan(step: Step) -> None:
        for what, n in next(left, ()):
            edit(step, what, n)

    return follow_the_plan


def meddler(event: Any, when: int) -> Hook:
    """A hook that does something the ``when``-th time."""
    times = itertools.count(1)
    does: dict[str, Any] = {
        "before_llm_call": Veto("not now") if when > 3 else [Message.user("Only this.")],
        "after_llm_call": "Said otherwise.",
        "before_tool_call": Veto("not this one") if when % 2 else {"n": 1},
        "after_tool_call": "Something else.",
        "on_user_message": "Rewritten." if when % 2 else Veto("secret"),
        "on_finish": "The end.",
    }

    @hook(event)
    def meddle() -> Any:
        return does[event] if next(times) == when else None

    return meddle


async def carried_out(plan: Plan) -> tuple[list[ModelRequest], list[Message], MemoryStore]:
    """What the models were sent, and the transcript in the end."""
    hooks = [policy(plan), *(meddler(event, when) for event, when in plan.hooks.items())]
    agent = Agent("worker", "openai:gpt-5", tools=[look, pay, fail], hooks=hooks, **plan.options)
    store, numbers, runs = MemoryStore(), itertools.count(1), cast(list[Run], [])

    async def answer(request: ModelRequest) -> Completed:
        number = next(numbers)
        if (said := plan.said.get(number)) is not None:
            (run,) = runs
            await (run.interrupt() if said == "stop" else run.inject(said))
        return reply(plan, number)

    with ExitStack() as stack:
        for point, when in plan.lost.items():
            stack.enter_context(at(point, _lost(when)))
        async with scripted(agent, answer, store=store, tools=[extra]) as script:
            runs.append(await script.client.start(agent, "Go."))
            with suppress(PerdureError):  # what a plan comes to is not the question
                await runs[0].result()
            messages = await runs[0].transcript()
            for head in {message.replaces.head for message in messages if message.replaces is not None}:
                assert await Chain(store).load(head), "what was there before stays readable"
            return script.requests, list(messages), store


def _lost(when: int) -> Callable[[], None]:
    times = itertools.count(1)

    def lose() -> None:
        if next(times) == when:
            raise StoreError("this attempt is lost")

    return lose


def taken_by_every_format(request: ModelRequest) -> None:
    for wire in FORMATS.values():
        plain = replace(request, model=wire.model, settings={}, provider_options={})
        wire.check(wire.encode(plain, wire.own.origin))


def asked_next(messages: Sequence[Message]) -> ModelRequest:
    """What a model would be sent if the conversation went on."""
    said = [message for message in messages if message.role != "system"]
    return ModelRequest("m", [*said, Message.user("And now?")], "Work.", Agent("a", "openai:x", tools=[look]).specs)


@given(plan=plans)
def test_transcripts_stay_valid_whatever_happens(plan: Plan) -> None:
    requests, messages, _ = asyncio.run(carried_out(plan))
    assert_closed(messages)
    taken_by_every_format(asked_next(messages))
    for request in requests:
        assert_closed(request.messages)
        taken_by_every_format(request)
