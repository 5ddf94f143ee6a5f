"""The four wire formats, and a run of an agent in one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perdure import Agent, Response
from perdure.client.run import Run
from perdure.types.events import Event
from tests.conformance.aimock import Aimock, Fixture
from tests.support.engine import Engine
from tests.support.following import opening
from tests.support.scripts import Gate


@dataclass(frozen=True, slots=True)
class Format:
    """A format, by the name of its provider. The model is one that aimock takes for one that reasons."""

    name: str
    model: str
    url_env: str
    key_env: str
    path: str = ""
    """Of the base URL."""


FORMATS = (
    Format("openai", "gpt-5-mini", "OPENAI_BASE_URL", "OPENAI_API_KEY", "/v1"),
    Format("openai-responses", "gpt-5-mini", "OPENAI_BASE_URL", "OPENAI_API_KEY", "/v1"),
    # A model that thinks by a budget: aimock checks that its turns go back beginning with their thinking.
    Format("anthropic", "claude-sonnet-4-5", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    # Not Gemini 3: aimock gives no thought signatures, so a strict reading of what it says ends there.
    Format("google", "gemini-2.5-flash", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"),
)


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    run: Run
    events: list[Event]
    response: Response[Any] | None = None
    error: Exception | None = None

    def answered(self) -> Response[Any]:
        """The response. Raises what the run ended with instead."""
        if self.error is not None:
            raise self.error
        assert self.response is not None
        return self.response

    def of(self, type: str) -> list[Any]:
        """The events of that type."""
        return [event for event in self.events if event.type == type]


@dataclass(frozen=True, slots=True)
class Api:
    """One format at the server."""

    format: Format
    aimock: Aimock

    @property
    def name(self) -> str:
        return self.format.name

    def agent(self, tools: Sequence[Any] = (), **options: Any) -> Agent:
        """An agent whose model thinks."""
        model = f"{self.format.name}:{self.format.model}"
        return Agent("a", model, **{"tools": list(tools), "settings": {"reasoning_effort": "low"}, **options})

    async def run(
        self,
        engine: Engine,
        *fixtures: Fixture,
        tools: Sequence[Any] = (),
        seen: Callable[[list[Event]], bool] = bool,
        gate: Gate | None = None,
        **options: Any,
    ) -> Outcome:
        """A run to its end, followed meanwhile. ``gate`` is opened when so much was ``seen``."""
        await self.aimock.script(*fixtures)
        async with engine.served(self.agent(tools, **options)) as client:
            run = await client.start("a", "Look it up.")
            outcome = Outcome(run, await opening(run.events(), gate or Gate(), seen))
            try:
                outcome.response = await run.result()
            except Exception as error:  # whatever it is, the test looks at it
                outcome.error = error
        return outcome
