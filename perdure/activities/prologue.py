"""The prologue of an iteration: what the model is to be asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..agent import Agent
from ..errors import DefinitionError, InvalidInputError
from ..loop.finish import REMINDER_ID, TAG_PROMPT
from ..ports import ModelCall, ModelRequest
from ..tools import RunContext
from ..types.interface import FINISH_TOOL
from ..types.messages import Message, clean
from .author_loop import AuthorLoop, OverdueError

INSTRUCTIONS = 60.0
"""Seconds that an agent's function of instructions may take."""


class Prologue:
    """Makes requests. What an author's code is told comes from ``told``."""

    def __init__(self, author: AuthorLoop, forces: Callable[[Agent], bool] = lambda _: True) -> None:
        """``forces`` says whether all models of an agent can be made to call a tool."""
        self._author = author
        self._forces = forces

    async def request(self, agent: Agent, call: ModelCall, told: RunContext[Any]) -> ModelRequest:
        """What the model is asked. Raises ``InvalidInputError`` where there is nothing to answer."""
        forcing = call.input.purpose == "force_finish"
        if forcing and agent.finish == "tool" and not self._forces(agent):
            call.fresh = in_words(call.fresh, agent.output_type.template)
        said = _said(call)
        return ModelRequest(
            model=agent.model_name,
            messages=said,
            system=await self._system(agent, told),
            # Those of a typed answer stay as they are: other tools would make the provider's cache of no use.
            tools=() if forcing and agent.finish != "tool" else agent.specs,
            tool_choice=FINISH_TOOL if forcing and agent.finish == "tool" else None,
            settings=agent.settings,
            provider_options=agent.provider_options,
            files=call.files,
        )

    async def _system(self, agent: Agent, told: RunContext[Any]) -> str | None:
        instructions = agent.instructions
        if callable(instructions):
            instructions = await self._instructions(agent, instructions, told)
        if agent.finish == "tag":
            return f"{instructions}\n\n{TAG_PROMPT}" if instructions else TAG_PROMPT
        return instructions or None

    async def _instructions(self, agent: Agent, fn: Callable[..., Any], told: RunContext[Any]) -> str | None:
        name = f"instructions of agent {agent.name}"
        try:
            said = await self._author.run(name, fn, told, timeout=INSTRUCTIONS)
        except OverdueError as error:
            raise TimeoutError(f"the {error}") from None
        if said is not None and not isinstance(said, str):
            raise DefinitionError(
                f"the {name} returned {type(said).__name__}", hint="Return the system prompt as text, or None."
            )
        return said and clean(said)


def in_words(fresh: Sequence[Message], template: str) -> list[Message]:
    """``fresh``, where the engine's order to finish says too how that is done without a tool."""
    order = f"If you cannot call {FINISH_TOOL}, write your answer into this template, and nothing else:\n{template}"
    place = max((at for at, message in enumerate(fresh) if message.id == REMINDER_ID), default=None)
    if place is None:
        return [*fresh, Message.user(order, id=REMINDER_ID)]
    told = Message.user(f"{fresh[place].text}\n{order}", id=REMINDER_ID)
    return [*fresh[:place], told, *fresh[place + 1 :]]


def _said(call: ModelCall) -> list[Message]:
    """The conversation without system prompts: these are given apart."""
    said = [message for message in (*call.prefix, *call.fresh) if message.role != "system"]
    if not said:
        raise InvalidInputError(
            "there is nothing to answer: the conversation has no messages, and the turn brought none",
            hint="Send a message, or go on from a conversation that has some (history, or the id of an earlier one).",
        )
    return said
