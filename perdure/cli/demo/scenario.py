"""The demo's processes, its scenario in the order of its steps, and its claims."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..._terminal import print_line, style_text, truncate_text
from ...embedded.process import ChildProcess
from ...errors import RuntimeSetupError
from ...types.wire import MODEL_ACTIVITY, TOOL_ACTIVITY_PREFIX
from ..connection import list_worker_arguments
from ..output import format_call

if TYPE_CHECKING:
    from ...client.client import Client
    from ...client.run import Run
    from ...types.interface import Response
    from ...types.messages import Message


# ---
# The model and the workers: each is a process of its own, and all have ended at the end of the demo.

DEMO_MODEL = "demo"
"""``--model demo``: the rule-based model, even with an API key."""
_CHILD_STOP_SECONDS = 5.0


class DemoProcesses:
    """The processes of one demo; ``aclose`` ends all of them."""

    def __init__(self, client: Client, folder: Path, model: str) -> None:
        self._client = client
        self.model = "openai:demo" if model == DEMO_MODEL else model
        self.worker: ChildProcess | None = None
        self._is_demo_model = model == DEMO_MODEL
        self._folder = folder
        self._env: dict[str, str] = {}
        self._children: list[ChildProcess] = []

    async def aclose(self) -> None:
        """End all processes. Shielded: a second Ctrl-C, too, must leave no process behind."""
        await asyncio.shield(asyncio.gather(*(child.stop(within=_CHILD_STOP_SECONDS) for child in self._children)))

    @property
    def base_url(self) -> str | None:
        """URL of the rule-based model; None with a real one."""
        return self._env.get("OPENAI_BASE_URL")

    async def start_model(self) -> None:
        """Start the rule-based model, unless a real one is used. Raises ``RuntimeSetupError`` without its SDK."""
        if find_spec("openai") is None and self.model.startswith("openai:"):
            from ...providers.endpoint import build_missing_sdk_error

            raise build_missing_sdk_error("openai")
        if self._is_demo_model:
            report = await self._start_child("perdure.cli.demo.model")
            self._env = {"OPENAI_BASE_URL": str(report["base_url"]), "OPENAI_API_KEY": "none-needed"}

    async def start_worker(self) -> ChildProcess:
        """Start a worker; it serves when this returns."""
        arguments = (str(self._folder), self.model, *list_worker_arguments(self._client))
        await self._start_child("perdure.cli.demo.worker", *arguments)
        self.worker = self._children[-1]
        return self.worker

    async def count_model_requests(self) -> int | None:
        """Requests to the rule-based model, by its own count; None with a real one."""
        if self.base_url is None:
            return None
        return await asyncio.to_thread(_fetch_request_count, self.base_url)

    async def _start_child(self, module: str, *arguments: str) -> dict[str, object]:
        child = await ChildProcess.start(module, *arguments, env=self._env)
        self._children.append(child)
        report = await child.read_report()
        if report is None:
            raise RuntimeSetupError(f"{module} does not start: it exited at once")
        if report["event"] != "serving":
            raise RuntimeSetupError(f"{module} does not start: {report['error']}", hint=report["hint"])
        return report


def _fetch_request_count(base_url: str) -> int:
    # No client that honours proxy variables: the model listens on loopback.
    with contextlib.closing(http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=5)) as connection:
        connection.request("GET", "/stats")
        return int(json.load(connection.getresponse())["requests"])


# ---
# What Temporal records of the demo's run: activities in flight and their workers, and attempts.


@dataclass(frozen=True)
class RunningActivity:
    """An activity that a worker has begun and not finished."""

    name: str
    attempt: int
    worker: str
    """Identity of the worker: ``pid@host``."""

    @property
    def description(self) -> str:
        """The activity in words."""
        if self.name.startswith(TOOL_ACTIVITY_PREFIX):
            return f"the tool {self.name.removeprefix(TOOL_ACTIVITY_PREFIX)}"
        return "a model call" if self.name == MODEL_ACTIVITY else "the record of its end"

    def is_on(self, worker: ChildProcess) -> bool:
        """Whether ``worker`` runs it."""
        return self.worker.startswith(f"{worker.pid}@")


async def list_running_activities(run: Run) -> list[RunningActivity]:
    """Activities that have started. The server is asked, so this works without a worker."""
    from temporalio.api.enums.v1 import PendingActivityState

    description = (await run.handle.describe()).raw_description
    return [
        RunningActivity(pending.activity_type.name, pending.attempt, pending.last_worker_identity)
        for pending in description.pending_activities
        if pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    ]


@dataclass(frozen=True)
class AttemptCounts:
    """Attempts of activities, from the run's history."""

    model: int
    """Attempts of model calls."""
    tools: int
    repeated_tools: tuple[str, ...]
    """Tools that were started more than once."""


async def count_attempts(run: Run) -> AttemptCounts:
    """Count the attempts of all activities of a run that has ended."""
    from temporalio.api.enums.v1 import EventType

    names: dict[int, str] = {}
    attempts: Counter[int] = Counter()
    async for event in run.handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            names[event.event_id] = scheduled.activity_type.name
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            attempts[started.scheduled_event_id] = started.attempt
    tools = {event: name for event, name in names.items() if name.startswith(TOOL_ACTIVITY_PREFIX)}
    return AttemptCounts(
        model=sum(attempts[event] for event, name in names.items() if name == MODEL_ACTIVITY),
        tools=sum(attempts[event] for event in tools),
        repeated_tools=tuple(
            name.removeprefix(TOOL_ACTIVITY_PREFIX) for event, name in tools.items() if attempts[event] > 1
        ),
    )


KILL_AFTER_REPLIES = 2
"""Replies of the model before its worker is killed, in the middle of the next."""
INJECTED_MESSAGE = "One more thing: which file here is the largest?"
_DEMO_POLL_SECONDS = 0.05
_REPLY_CHARS = 85


@dataclass
class Observations:
    """What was observed, for the claims at the end."""

    transcript_at_kill: Sequence[Message] = ()
    """The transcript at the kill."""
    activities_at_kill: list[RunningActivity] = field(default_factory=list)
    """Activities in flight at the kill."""
    alive_after_kill: bool = False
    resumed_after_seconds: float | None = None
    """Seconds from the kill to the next model call."""


class DemoScenario:
    """One demo: start, kill, resume, inject, answer."""

    def __init__(self, processes: DemoProcesses) -> None:
        self._processes = processes
        self._begun = time.monotonic()
        self._printed_replies = 0
        self.observations = Observations()

    async def play(self, run: Run) -> Response:
        """Follow the run from its start to its answer. Raises the error that the run fails with."""
        steps = asyncio.ensure_future(self._run_steps(run))
        answer = asyncio.ensure_future(run.result())
        try:
            await asyncio.wait({steps, answer}, return_when=asyncio.FIRST_COMPLETED)
            if steps.done():
                await steps
                while not answer.done():
                    await self._print_new_replies(run)
                    await asyncio.wait({answer}, timeout=_DEMO_POLL_SECONDS * 4)
            elif answer.exception() is None:
                raise RuntimeSetupError("the run was over before its worker could be killed: ask it something harder")
            response = await answer
            await self._print_new_replies(run)
            self.print_step("done", f"after {response.iterations} model calls", "green")
            return response
        finally:
            steps.cancel()
            answer.cancel()

    def print_step(self, label: str, text: str, style: str = "dim") -> None:
        """Print a step, with the time since the beginning."""
        clock = style_text(f"{time.monotonic() - self._begun:6.1f} s", "dim")
        print_line(f"{clock}  {style_text(label.ljust(9), style)} {text}")

    async def _run_steps(self, run: Run) -> None:
        await self._wait_for_model_call(run)
        killed = await self._kill_worker(run)
        await self._replace_worker(run, killed)
        await run.inject(INJECTED_MESSAGE, id="demo-injected")
        self.print_step("injected", f"into the running conversation: “{INJECTED_MESSAGE}”", "cyan")

    async def _wait_for_model_call(self, run: Run) -> None:
        """Wait until the model has given two replies and is being asked for the next."""
        while True:
            status = await run.status()
            await self._print_new_replies(run)
            if status.iteration >= KILL_AFTER_REPLIES and status.doing == "model":
                activities = await list_running_activities(run)
                requests = await self._processes.count_model_requests()
                if activities and (requests is None or requests > status.iteration):
                    return
            await asyncio.sleep(_DEMO_POLL_SECONDS)

    async def _kill_worker(self, run: Run) -> float:
        from temporalio.client import WorkflowExecutionStatus

        worker = self._processes.worker
        assert worker is not None, "started before the run"
        await worker.kill()
        killed = time.monotonic()
        cut_short = [activity for activity in await list_running_activities(run) if activity.is_on(worker)]
        transcript = await run.transcript()
        activities = ", ".join(activity.description for activity in cut_short) or "the run"
        self.print_step("kill -9", f"worker {worker.pid} is gone, in the middle of {activities}", "red")
        status = (await run.handle.describe()).status
        alive = status == WorkflowExecutionStatus.RUNNING
        self.observations = Observations(transcript, cut_short, alive)
        state = status.name.lower() if status else "unknown"
        replies = f"{_count_replies(transcript)} replies in its transcript"
        self.print_step("waits", f"the run is still {state} in Temporal, with {replies}", "yellow")
        return killed

    async def _replace_worker(self, run: Run, killed: float) -> None:
        worker = await self._processes.start_worker()
        self.print_step("worker", f"{worker.pid} started; it takes over when the lost one has missed its heartbeats")
        calls: list[RunningActivity] = []
        while not calls:
            await asyncio.sleep(_DEMO_POLL_SECONDS)
            activities = await list_running_activities(run)
            calls = [activity for activity in activities if activity.name == MODEL_ACTIVITY and activity.is_on(worker)]
        seconds = self.observations.resumed_after_seconds = time.monotonic() - killed
        attempt = f" (attempt {calls[0].attempt})" if calls[0].attempt > 1 else ""
        self.print_step("resumed", f"the model is asked again{attempt}, {seconds:.1f} s after the kill", "green")

    async def _print_new_replies(self, run: Run) -> None:
        """Print the model's replies that were not printed yet."""
        replies = [message for message in await run.transcript() if message.role == "assistant"]
        for number, message in enumerate(replies[self._printed_replies :], self._printed_replies + 1):
            calls = " ".join(format_call(call.name, call.arguments) for call in message.tool_calls)
            self.print_step(f"reply {number}", truncate_text(calls or "the answer", _REPLY_CHARS), "blue")
        self._printed_replies = len(replies)


# ---
# The claims of the demo.


@dataclass(frozen=True)
class Claim:
    """A sentence, and whether it holds."""

    text: str
    holds: bool


def check_claims(
    response: Response, observed: Observations, attempts: AttemptCounts, requests: int | None
) -> list[Claim]:
    """All claims. ``requests`` is the rule-based model's count; with a real model Temporal's count is used."""
    messages, before = list(response.messages), list(observed.transcript_at_kill)
    replies, kept = _count_replies(messages), _count_replies(before)
    injected = sum(message.role == "user" and message.text == INJECTED_MESSAGE for message in messages)
    killed = f"the worker was killed in the middle of the run, after {_format_count(kept, 'reply')} of {replies}"
    kept_messages = f"the {_format_count(len(before), 'message')} from before the kill"
    unchanged = bool(before) and messages[: len(before)] == before
    return [
        Claim(f"{killed}, and the run stayed open", 0 < kept < replies and observed.alive_after_kill),
        Claim(f"nothing was repeated: {kept_messages} stand unchanged in the transcript", unchanged),
        _check_model_calls(replies, observed, attempts, requests),
        _check_tool_results(messages, attempts),
        Claim("the injected message is in the conversation once", injected == 1),
        Claim("there is an answer", bool(response.content.strip())),
    ]


def _check_model_calls(replies: int, observed: Observations, attempts: AttemptCounts, requests: int | None) -> Claim:
    counter, paid = ("Temporal", attempts.model) if requests is None else ("the model", requests)
    calls, in_transcript = _format_count(paid, "paid call"), _format_count(replies, "reply")
    text = f"{counter} counted {calls} for {in_transcript} in the transcript"
    if paid == replies + 1:
        text += ": the one more is the call that the kill cut short"
    # Only a call in flight when the worker died may be made once more.
    return Claim(text, replies <= paid <= replies + (1 if observed.activities_at_kill else 0))


def _check_tool_results(messages: list[Message], attempts: AttemptCounts) -> Claim:
    calls = [call.id for message in messages for call in message.tool_calls]
    results = [result.call_id for message in messages for result in message.tool_results]
    repeated = ", ".join(attempts.repeated_tools)
    again = f"; run again after the crash: {repeated}" if repeated else ", and each ran once"
    text = f"{_format_count(len(calls), 'tool call')}, each with one result{again}"
    return Claim(text, sorted(calls) == sorted(results) and attempts.tools == len(calls) + len(attempts.repeated_tools))


def _count_replies(messages: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in messages)


def _format_count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("ply") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
