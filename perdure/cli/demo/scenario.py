"""What happens in the demo, in order, told as it happens."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...embedded.process import ChildProcess
from ...errors import RuntimeSetupError
from ...terminal import escape_line, print_line, style_text
from ...types.wire import MODEL_ACTIVITY
from ..connection import get_server_address
from ..output import can_colour_stdout, format_arguments

if TYPE_CHECKING:
    from ...client.client import Client
    from ...client.run import Run
    from ...types.interface import Response
    from ...types.messages import Message


# ---
# Who takes part in the demo: the model and the workers, each a process of its own, all gone at the end.


DEMO_MODEL = "demo"
"""``--model demo``: the small one, even with a key."""
_CHILD_STOP_SECONDS = 5.0


class DemoProcesses:
    """Processes of one demo. ``async with cast:`` ends all of them, whatever happens."""

    def __init__(self, client: Client, folder: Path, model: str) -> None:
        self.client = client
        self.model = "openai:demo" if model == DEMO_MODEL else model
        self.worker: ChildProcess | None = None
        self._small = model == DEMO_MODEL
        self._folder = folder
        self._env: dict[str, str] = {}
        self._children: list[ChildProcess] = []

    async def __aenter__(self) -> DemoProcesses:
        if find_spec("openai") is None and self.model.startswith("openai:"):
            from ...providers.endpoint import build_missing_sdk_error

            raise build_missing_sdk_error("openai")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # To the end, whatever happens meanwhile: a second Ctrl-C must leave nothing behind either.
        await asyncio.shield(asyncio.gather(*(child.stop(within=_CHILD_STOP_SECONDS) for child in self._children)))

    @property
    def base_url(self) -> str | None:
        """Where the small model listens; None with a real one."""
        return self._env.get("OPENAI_BASE_URL")

    async def start_model(self) -> None:
        """Start the small model, unless a real one is used."""
        if not self._small:
            return
        said = await self._start_child("perdure.cli.demo.model")
        self._env = {"OPENAI_BASE_URL": str(said["base_url"]), "OPENAI_API_KEY": "none-needed"}

    async def start_worker(self) -> ChildProcess:
        """Start a worker; it serves when this returns."""
        assert self.client.store_url is not None, "set by the command"
        place = (
            self.client.task_queue,
            get_server_address(self.client),
            self.client.temporal.namespace,
            self.client.store_url,
        )
        await self._start_child("perdure.cli.demo.worker", str(self._folder), self.model, *place)
        self.worker = self._children[-1]
        return self.worker

    async def count_model_requests(self) -> int | None:
        """How often the small model was asked, by its own count; None with a real one."""
        if self.base_url is None:
            return None
        return await asyncio.to_thread(_fetch_request_count, self.base_url)

    async def _start_child(self, module: str, *arguments: str) -> dict[str, object]:
        child = await ChildProcess.start(module, *arguments, env=self._env)
        self._children.append(child)
        said = await child.read_report()
        if said is None or said["event"] != "serving":
            why = said["error"] if said else "it ended at once"
            raise RuntimeSetupError(f"{module} does not start: {why}", hint=said["hint"] if said else None)
        return said


def _fetch_request_count(base_url: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=5)
    try:
        connection.request("GET", "/stats")
        return int(json.load(connection.getresponse())["requests"])
    finally:
        connection.close()


# ---
# What Temporal itself says of the demo's run: what is in flight on which worker, how often things were tried.


@dataclass(frozen=True)
class RunningActivity:
    """An activity that a worker has begun and not finished."""

    name: str
    attempt: int
    worker: str
    """Identity of the worker: ``pid@host``."""

    @property
    def description(self) -> str:
        """For people."""
        return "a model call" if self.name == MODEL_ACTIVITY else f"the tool {self.name.removeprefix('tool.')}"

    def is_on(self, worker: ChildProcess) -> bool:
        """Whether that worker has it."""
        return self.worker.startswith(f"{worker.pid}@")


async def list_running_activities(run: Run) -> list[RunningActivity]:
    """What is begun; asked of the server, not of a worker, so it answers when there is none."""
    from temporalio.api.enums.v1 import PendingActivityState

    raw = (await run.handle.describe()).raw_description
    begun = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    return [
        RunningActivity(pending.activity_type.name, pending.attempt, pending.last_worker_identity)
        for pending in raw.pending_activities
        if pending.state == begun
    ]


@dataclass(frozen=True)
class AttemptCounts:
    """From the run's history: how often things were begun."""

    model: int
    """Attempts of model calls, the recording of the end left out."""
    tools: int
    repeated_tools: tuple[str, ...]
    """Tools that were begun more than once."""


async def count_attempts(run: Run) -> AttemptCounts:
    """Count the attempts of all activities of a run that has ended."""
    from temporalio.api.enums.v1 import EventType

    names: dict[int, str] = {}
    attempts: Counter[int] = Counter()
    async for event in run.handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            if b'"purpose":"close"' not in b"".join(payload.data for payload in scheduled.input.payloads):
                names[event.event_id] = scheduled.activity_type.name
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            attempts[started.scheduled_event_id] = started.attempt
    tools = {event: name for event, name in names.items() if name != MODEL_ACTIVITY}
    return AttemptCounts(
        model=sum(attempts[event] for event, name in names.items() if name == MODEL_ACTIVITY),
        tools=sum(attempts[event] for event in tools),
        repeated_tools=tuple(name.removeprefix("tool.") for event, name in tools.items() if attempts[event] > 1),
    )


KILL_AFTER_REPLIES = 2
"""Replies that the model has given when its worker is killed, in the middle of the next."""
INJECTED_MESSAGE = "One more thing: which file here is the largest?"
_DEMO_POLL_SECONDS = 0.05
_REPLY_CHARS = 85


@dataclass
class Observations:
    """What was seen, for the claims at the end."""

    transcript_at_kill: Sequence[Message] = ()
    """The transcript at the kill."""
    activities_at_kill: list[RunningActivity] = field(default_factory=list)
    """What was in flight at the kill."""
    alive_after_kill: bool = False
    resumed_after_seconds: float | None = None
    """Seconds from the kill to the next model call."""


class DemoScenario:
    """One demo: start, kill, resume, inject, answer."""

    def __init__(self, cast: DemoProcesses) -> None:
        self._cast = cast
        self._begun = time.monotonic()
        self._told = 0
        self.observations = Observations()

    async def play(self, run: Run) -> Response:
        """From the started run to its answer. Raises what the run fails with."""
        from ...errors import RuntimeSetupError

        watching = asyncio.ensure_future(self._run_steps(run))
        answer = asyncio.ensure_future(run.result())
        try:
            await asyncio.wait({watching, answer}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                await watching
                await self._print_replies_until_answer(run, answer)
            elif answer.exception() is None:
                raise RuntimeSetupError("the run was over before its worker could be killed: ask it something harder")
            response = await answer
            await self._print_new_replies(run)
            self.print_step("done", f"after {response.iterations} model calls", "green")
            return response
        finally:
            watching.cancel()
            answer.cancel()

    def print_step(self, label: str, text: str, style: str = "dim") -> None:
        """A line of the story, with the time since it began."""
        clock = style_text(f"{time.monotonic() - self._begun:6.1f} s", "dim", on=can_colour_stdout())
        print_line(f"{clock}  {style_text(label.ljust(9), style, on=can_colour_stdout())} {text}")

    async def _run_steps(self, run: Run) -> None:
        await self._wait_for_model_call(run)
        killed = await self._kill_worker(run)
        await self._replace_worker(run, killed)
        await run.inject(INJECTED_MESSAGE, id="demo-injected")
        self.print_step("injected", f"into the running conversation: “{INJECTED_MESSAGE}”", "cyan")

    async def _wait_for_model_call(self, run: Run) -> None:
        """Until the model has given two replies and is being asked for the next."""
        while True:
            status = await run.status()
            await self._print_new_replies(run)
            if status.iteration >= KILL_AFTER_REPLIES and status.doing == "model":
                busy = await list_running_activities(run)
                asked = await self._cast.count_model_requests()
                if busy and (asked is None or asked > status.iteration):
                    return
            await asyncio.sleep(_DEMO_POLL_SECONDS)

    async def _kill_worker(self, run: Run) -> float:
        from temporalio.client import WorkflowExecutionStatus

        worker = self._cast.worker
        assert worker is not None, "started before the run"
        await worker.kill()
        killed = time.monotonic()
        self.observations.activities_at_kill = [
            activity for activity in await list_running_activities(run) if activity.is_on(worker)
        ]
        self.observations.transcript_at_kill = await run.transcript()
        what = ", ".join(activity.description for activity in self.observations.activities_at_kill) or "the run"
        self.print_step("kill -9", f"worker {worker.pid} is gone, in the middle of {what}", "red")
        seen = await run.handle.describe()
        self.observations.alive_after_kill = seen.status == WorkflowExecutionStatus.RUNNING
        state = seen.status.name.lower() if seen.status else "unknown"
        kept = sum(message.role == "assistant" for message in self.observations.transcript_at_kill)
        self.print_step(
            "waits", f"the run is still {state} in Temporal, with {kept} replies in its transcript", "yellow"
        )
        return killed

    async def _replace_worker(self, run: Run, killed: float) -> None:
        worker = await self._cast.start_worker()
        self.print_step("worker", f"{worker.pid} started; it takes over when the lost one has missed its heartbeats")
        while True:
            calls = [
                busy
                for busy in await list_running_activities(run)
                if busy.name == MODEL_ACTIVITY and busy.is_on(worker)
            ]
            if calls:
                break
            await asyncio.sleep(_DEMO_POLL_SECONDS)
        self.observations.resumed_after_seconds = time.monotonic() - killed
        attempt = f" (attempt {calls[0].attempt})" if calls[0].attempt > 1 else ""
        self.print_step(
            "resumed",
            f"the model is asked again{attempt}, {self.observations.resumed_after_seconds:.1f} s after the kill",
            "green",
        )

    async def _print_replies_until_answer(self, run: Run, answer: asyncio.Future[Response]) -> None:
        while not answer.done():
            await self._print_new_replies(run)
            await asyncio.wait({answer}, timeout=_DEMO_POLL_SECONDS * 4)

    async def _print_new_replies(self, run: Run) -> None:
        """What the model has said since the last look."""
        replies = [message for message in await run.transcript() if message.role == "assistant"]
        for number, message in enumerate(replies[self._told :], self._told + 1):
            calls = [f"{call.name}({format_arguments(call.arguments)})" for call in message.tool_calls]
            said = escape_line(" ".join(calls)) if calls else "the answer"
            self.print_step(f"reply {number}", said if len(said) <= _REPLY_CHARS else f"{said[:_REPLY_CHARS]}…", "blue")
        self._told = len(replies)


# ---
# What the demo claims, each with whether it was true.


@dataclass(frozen=True)
class Claim:
    """A sentence, and whether it holds."""

    text: str
    holds: bool


def check_claims(response: Response, facts: Observations, tries: AttemptCounts, asked: int | None) -> list[Claim]:
    """All of them. ``asked``: the small model's own count; with a real one Temporal's count of attempts stands in."""
    messages = list(response.messages)
    replies = [message for message in messages if message.role == "assistant"]
    kept = sum(message.role == "assistant" for message in facts.transcript_at_kill)
    return [
        Claim(
            f"the worker was killed in the middle of the run, after {_format_count(kept, 'reply')} of {len(replies)}, "
            f"and the run stayed open",
            0 < kept < len(replies) and facts.alive_after_kill,
        ),
        Claim(
            f"nothing was repeated: the {_format_count(len(facts.transcript_at_kill), 'message')} from before the kill "
            "stand unchanged "
            f"in the transcript",
            len(facts.transcript_at_kill) > 0
            and messages[: len(facts.transcript_at_kill)] == list(facts.transcript_at_kill),
        ),
        _check_model_calls(len(replies), tries.model if asked is None else asked, facts, by_model=asked is not None),
        _check_tool_results(messages, tries),
        Claim(
            "the injected message is in the conversation once", _count_user_messages(messages, INJECTED_MESSAGE) == 1
        ),
        Claim("there is an answer", bool(response.content.strip())),
    ]


def _check_model_calls(replies: int, paid: int, facts: Observations, *, by_model: bool) -> Claim:
    counted = "the model counted" if by_model else "Temporal counted"
    text = f"{counted} {_format_count(paid, 'paid call')} for {_format_count(replies, 'reply')} in the transcript"
    if paid == replies + 1:
        text += ": the one more is the call that the kill cut short"
    # What was in flight when the worker died may be asked for once more, and nothing else.
    return Claim(text, replies <= paid <= replies + (1 if facts.activities_at_kill else 0))


def _check_tool_results(messages: list[Message], tries: AttemptCounts) -> Claim:
    asked = [call.id for message in messages for call in message.tool_calls]
    results = [result.call_id for message in messages for result in message.tool_results]
    text = f"{_format_count(len(asked), 'tool call')}, each with one result"
    text += (
        f"; run again after the crash: {', '.join(tries.repeated_tools)}"
        if tries.repeated_tools
        else ", and each ran once"
    )
    return Claim(text, sorted(asked) == sorted(results) and tries.tools == len(asked) + len(tries.repeated_tools))


def _count_user_messages(messages: list[Message], text: str) -> int:
    return sum(message.role == "user" and message.text == text for message in messages)


def _format_count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("ply") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
