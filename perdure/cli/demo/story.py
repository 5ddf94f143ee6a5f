"""What happens in the demo, in order, told as it happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...printing import print_line
from ...types.wire import MODEL_ACTIVITY
from ..conversation import arguments, colours, printable, styled
from .sight import InFlight, in_flight

if TYPE_CHECKING:
    from ...run import Run
    from ...types.interface import Response
    from ...types.messages import Message
    from .cast import Cast

KILL_AFTER = 2
"""Replies that the model has given when its worker is killed, in the middle of the next."""
INJECTED = "One more thing: which file here is the largest?"
_LOOK = 0.05
_WIDEST = 85


@dataclass
class Facts:
    """What was seen, for the claims at the end."""

    before: Sequence[Message] = ()
    """The transcript at the kill."""
    cut: list[InFlight] = field(default_factory=list)
    """What was in flight at the kill."""
    alive_after_kill: bool = False
    back_after: float | None = None
    """Seconds from the kill to the next model call."""


class Story:
    """One demo: start, kill, resume, inject, answer."""

    def __init__(self, cast: Cast) -> None:
        self._cast = cast
        self._begun = time.monotonic()
        self._told = 0
        self.facts = Facts()

    async def play(self, run: Run) -> Response:
        """From the started run to its answer. Raises what the run fails with."""
        from ...errors import RuntimeSetupError

        watching = asyncio.ensure_future(self._acts(run))
        answer = asyncio.ensure_future(run.result())
        try:
            await asyncio.wait({watching, answer}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                await watching
                await self._follow(run, answer)
            elif answer.exception() is None:
                raise RuntimeSetupError("the run was over before its worker could be killed: ask it something harder")
            response = await answer
            await self._tell_new(run)
            self.say("done", f"after {response.iterations} model calls", "green")
            return response
        finally:
            watching.cancel()
            answer.cancel()

    def say(self, label: str, text: str, style: str = "dim") -> None:
        """A line of the story, with the time since it began."""
        clock = styled(f"{time.monotonic() - self._begun:6.1f} s", "dim", on=colours())
        print_line(f"{clock}  {styled(label.ljust(9), style, on=colours())} {text}")

    async def _acts(self, run: Run) -> None:
        await self._until_busy(run)
        killed = await self._kill(run)
        await self._resume(run, killed)
        await run.inject(INJECTED, id="demo-injected")
        self.say("injected", f"into the running conversation: “{INJECTED}”", "cyan")

    async def _until_busy(self, run: Run) -> None:
        """Until the model has given two replies and is being asked for the next."""
        while True:
            status = await run.status()
            await self._tell_new(run)
            if status.iteration >= KILL_AFTER and status.doing == "model":
                busy = await in_flight(run)
                asked = await self._cast.asked()
                if busy and (asked is None or asked > status.iteration):
                    return
            await asyncio.sleep(_LOOK)

    async def _kill(self, run: Run) -> float:
        from temporalio.client import WorkflowExecutionStatus

        worker = self._cast.worker
        assert worker is not None, "started before the run"
        await worker.kill()
        killed = time.monotonic()
        self.facts.cut = [activity for activity in await in_flight(run) if activity.on(worker)]
        self.facts.before = await run.transcript()
        what = ", ".join(activity.what for activity in self.facts.cut) or "the run"
        self.say("kill -9", f"worker {worker.pid} is gone, in the middle of {what}", "red")
        seen = await run.handle.describe()
        self.facts.alive_after_kill = seen.status == WorkflowExecutionStatus.RUNNING
        state = seen.status.name.lower() if seen.status else "unknown"
        kept = sum(message.role == "assistant" for message in self.facts.before)
        self.say("waits", f"the run is still {state} in Temporal, with {kept} replies in its transcript", "yellow")
        return killed

    async def _resume(self, run: Run, killed: float) -> None:
        worker = await self._cast.start_worker()
        self.say("worker", f"{worker.pid} started; it takes over when the lost one has missed its heartbeats")
        while True:
            calls = [busy for busy in await in_flight(run) if busy.name == MODEL_ACTIVITY and busy.on(worker)]
            if calls:
                break
            await asyncio.sleep(_LOOK)
        self.facts.back_after = time.monotonic() - killed
        attempt = f" (attempt {calls[0].attempt})" if calls[0].attempt > 1 else ""
        self.say("resumed", f"the model is asked again{attempt}, {self.facts.back_after:.1f} s after the kill", "green")

    async def _follow(self, run: Run, answer: asyncio.Future[Response]) -> None:
        while not answer.done():
            await self._tell_new(run)
            await asyncio.wait({answer}, timeout=_LOOK * 4)

    async def _tell_new(self, run: Run) -> None:
        """What the model has said since the last look."""
        replies = [message for message in await run.transcript() if message.role == "assistant"]
        for number, message in enumerate(replies[self._told :], self._told + 1):
            calls = [f"{call.name}({arguments(call.arguments)})" for call in message.tool_calls]
            said = printable(" ".join(calls)) if calls else "the answer"
            self.say(f"reply {number}", said if len(said) <= _WIDEST else f"{said[:_WIDEST]}…", "blue")
        self._told = len(replies)
