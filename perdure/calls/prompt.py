"""The request of an agent to its model: the system prompt, the tools, the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..agent.spec import AgentSpec
from ..agent.validation import build_instruction_arguments
from ..errors import DefinitionError, InvalidInputError
from ..loop.finish import REMINDER_ID, TAG_PROMPT
from ..ports.model import ModelRequest
from ..tools import RunContext
from ..types.interface import FINISH_TOOL
from ..types.messages import Message, clean_text
from ..types.transcript import Transcript, drop_system_messages
from .author_loop import AuthorLoop, OverdueError
from .call import ConversationCall

INSTRUCTIONS_TIMEOUT = 60.0
"""Seconds that an agent's instructions function may take."""


class RequestBuilder:
    """Builds requests. The author's code gets the run context ``told``."""

    def __init__(self, author: AuthorLoop, forces: Callable[[AgentSpec], bool] = lambda _: True) -> None:
        """``forces`` returns whether all models of an agent can be forced to call a tool."""
        self._author = author
        self._can_force_tool = forces

    async def build_request(
        self, agent: AgentSpec, call: ConversationCall[Any], ctx: RunContext[Any], *, forcing: bool = False
    ) -> ModelRequest:
        """Build the request of a model call; with ``forcing`` it has to answer now. Raises ``InvalidInputError`` for a
        conversation without messages."""
        if forcing and agent.finish == "tool" and not self._can_force_tool(agent):
            call.new_messages = add_answer_template(call.new_messages, agent.output_type.template)
        messages = _select_request_messages(call)
        return ModelRequest(
            model=agent.model_name,
            messages=messages,
            system=await self._build_system_prompt(agent, ctx),
            # With a typed answer the tools stay as they are: other tools would invalidate the provider's cache.
            tools=() if forcing and agent.finish != "tool" else agent.specs,
            tool_choice=FINISH_TOOL if forcing and agent.finish == "tool" else None,
            settings=dict(agent.settings),
            provider_options=dict(agent.provider_options),
            files=call.files,
        )

    async def _build_system_prompt(self, agent: AgentSpec, ctx: RunContext[Any]) -> str | None:
        parts = [
            part if isinstance(part, str) else await self._run_instructions(agent, part, ctx)
            for part in agent.instruction_parts
        ]
        if agent.finish == "tag":
            parts.append(TAG_PROMPT)
        return "\n\n".join(part for part in parts if part) or None

    async def _run_instructions(self, agent: AgentSpec, fn: Callable[..., Any], ctx: RunContext[Any]) -> str | None:
        name = f"instructions of agent {agent.name}"
        if len(agent.instruction_parts) > 1:
            name += f" ({getattr(fn, '__name__', type(fn).__name__)})"
        try:
            prompt = await self._author.run(
                name, fn, *build_instruction_arguments(fn, ctx), timeout=INSTRUCTIONS_TIMEOUT
            )
        except OverdueError as error:
            raise TimeoutError(f"the {error}") from None
        if prompt is not None and not isinstance(prompt, str):
            raise DefinitionError(
                f"the {name} returned {type(prompt).__name__}", hint="Return the system prompt as text, or None."
            )
        return prompt and clean_text(prompt)


def add_answer_template(new_messages: Sequence[Message], template: str) -> list[Message]:
    """Return ``new_messages`` with the answer template in the engine's order to finish, for models that cannot be
    forced to call the tool."""
    order = f"If you cannot call {FINISH_TOOL}, write your answer into this template, and nothing else:\n{template}"
    index = max((index for index, message in enumerate(new_messages) if message.id == REMINDER_ID), default=None)
    if index is None:
        return [*new_messages, Message.user(order, id=REMINDER_ID)]
    ctx = Message.user(f"{new_messages[index].text}\n{order}", id=REMINDER_ID)
    return [*new_messages[:index], ctx, *new_messages[index + 1 :]]


def _select_request_messages(call: ConversationCall[Any]) -> Transcript:
    """Return the conversation without system prompts, which a request has separately. Raises ``InvalidInputError`` if
    it is empty."""
    messages = drop_system_messages(call.prefix, call.new_messages)
    if not messages:
        raise InvalidInputError(
            "there is nothing to answer: the conversation has no messages, and the turn has none",
            hint="Send a message, or continue a conversation that has some (history, or the id of an earlier one).",
        )
    return messages
