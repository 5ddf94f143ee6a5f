"""Summaries: how a model is asked for one, and what stands in a transcript in the place of what it tells."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..agent import Agent
from ..definition import checked_models
from ..errors import ContextLengthError
from ..loop.compacting import SUMMARY_ID
from ..loop.cutting import cut
from ..ports import ModelCall, ModelRequest, NextModel
from ..types.compaction import Summarise
from ..types.messages import FilePart, Message, Part, Replaced, TextPart, ToolCallPart, ToolResultPart, Usage, clean
from ..types.wire import ModelOutput

PROMPT = (
    "Sum up the conversation so far, for an assistant that goes on with it and will see nothing else of it. Keep what "
    "the user asked for, with every condition, in the user's words where they matter; what was done and found out, "
    "with names, numbers, paths and identifiers exactly as they are; what was decided, and why; what failed; what was "
    "going on last, and what is left to do. Write the summary and nothing else, as plain text. Call no tool."
)
"""What a model is told; ``Compaction.summarise(prompt=…)`` takes its place."""
_TEXT = "[The conversation up to here was summed up to save space. The summary:]\n\n{summary}"
_LONGEST = 8_000  # characters of one text in a conversation that is given as text
_SHORTEST = 1_000  # of a text that is not cut down any more to be taken


def summary_message(summary: str, output: ModelOutput, replaced: Replaced) -> Message:
    """What stands in the conversation in the place of what was summed up."""
    return Message(
        role="user",
        parts=(TextPart(text=_TEXT.format(summary=clean(summary))),),
        id=SUMMARY_ID,
        by="perdure",
        model=output.model or None,
        usage=output.usage,
        cost_usd=output.cost_usd,
        replaces=replaced,
    )


class Summing:
    """Has one model sum up one conversation, in as many calls as that takes."""

    def __init__(self, call: ModelCall, next: NextModel, asked: Summarise) -> None:
        self.usage = Usage()
        self.cost_usd: float | None = None
        self.model = ""
        self._call = call
        self._next = next
        self._prompt = asked.prompt or PROMPT
        self._own = asked.model is None
        # Nothing of it is part of the conversation that somebody follows.
        call.asking, call.emit = _silent, _silent
        if not self._own:
            call.agent = _asking(call.agent, asked.model)

    async def of(self, old: Sequence[Message], sent: Sequence[Message]) -> str:
        """The summary of ``old``; empty where the model gave none. ``sent``: what the model was sent of it last.

        The agent's own model is asked behind the conversation as it has it in its cache already. Another one, or one
        for which that is too long, is given the conversation as text, in pieces if need be.
        """
        request = self._call.request
        assert request is not None, "the iteration stage makes it"
        if self._own and sent:
            try:
                reply = await self._ask(replace(request, messages=[*sent, Message.user(self._prompt)]))
            except ContextLengthError:
                pass
            else:
                if _vetoed(reply):
                    return ""
                if not reply.tool_calls and reply.text.strip():
                    return reply.text.strip()
        return await self._in_pieces([text for message in old if (text := as_text(message))])

    async def _in_pieces(self, texts: list[str]) -> str:
        """All at once; or the first half, and its summary with the second. Two that are too long together are cut: each
        round has fewer texts, or shorter ones, so it comes to an end whatever the window is.
        """
        try:
            reply = await self._ask(self._plain("\n\n".join(texts)))
        except ContextLengthError:
            if len(texts) > 2:
                half = max(2, len(texts) // 2)
                first = await self._in_pieces(texts[:half])
                return await self._in_pieces([f"[summary of what was before]\n{first}", *texts[half:]]) if first else ""
            longest = max(map(len, texts), default=0)
            if longest < _SHORTEST:
                raise
            return await self._in_pieces([cut(text, longest // 2) for text in texts])
        return "" if _vetoed(reply) else reply.text.strip()

    def _plain(self, conversation: str) -> ModelRequest:
        request = self._call.request
        assert request is not None, "the iteration stage makes it"
        text = f"{self._prompt}\n\n<conversation>\n{conversation}\n</conversation>"
        agent: Agent = self._call.agent
        return ModelRequest(
            model=agent.model_name,
            messages=[Message.user(text)],
            settings=agent.settings,
            provider_options=agent.provider_options,
        )

    async def _ask(self, request: ModelRequest) -> Message:
        self._call.request = request
        reply = (await self._next(self._call)).message
        assert reply is not None, "a model says something"
        self.usage += reply.usage or Usage()
        self.model = reply.model or self.model
        if reply.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + reply.cost_usd
        return reply


def _vetoed(reply: Message) -> bool:
    """Whether a hook has answered in the model's place: what it says is no summary."""
    return str(reply.finish_reason) == "veto"


def as_text(message: Message) -> str:
    """``message`` for a model that is told about it."""
    lines = [line for part in message.parts if (line := _line(part))]
    return "\n".join([f"[{message.role}]", *lines]) if lines else ""


def _line(part: Part) -> str:
    if isinstance(part, TextPart):
        return cut(part.text, _LONGEST)
    if isinstance(part, ToolCallPart):
        return f"(calls {part.name} with {cut(json.dumps(part.arguments, ensure_ascii=False), _LONGEST)})"
    if isinstance(part, ToolResultPart):
        said = [cut(part.content, _LONGEST), *_files(part.files)]
        return f"({'error' if part.is_error else 'result'} of {part.name}:) " + " ".join(said)
    return " ".join(_files([part])) if isinstance(part, FilePart) else ""


def _files(files: Iterable[FilePart]) -> list[str]:
    return [f"[file {file.name or file.media_type}]" for file in files]


def _asking(agent: Agent, model: object) -> Agent:
    """``agent`` with another model, and nothing of what was said to its own."""
    other = copy.copy(agent)
    other.chain = checked_models(agent.name, model)
    other.settings, other.provider_options = {}, {}
    return other


def _silent(_: object) -> None:
    """Nobody follows."""
