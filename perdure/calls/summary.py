"""The summary stage: rewrites a conversation that got long, to a summary by a model and its last messages.

The rewrite is recorded like any reply, under the journal.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from ..agent.spec import AgentSpec
from ..agent.validation import validate_models
from ..errors import ContextLengthError
from ..loop.compaction import estimate_tokens, find_turn_task, truncate_text
from ..loop.transcript import SUMMARY_ID, find_tail_start
from ..ports.model import ModelRequest
from ..types.compaction import CompactionSettings, Summarise
from ..types.engine_texts import enclose_text
from ..types.messages import (
    FilePart,
    Message,
    Part,
    Replaced,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
    clean_text,
)
from ..types.transcript import drop_system_messages
from ..types.wire import CompactInput, CompactionResult, CompactOutput
from .agent_setup import AgentSetup
from .call import CompactReply, ConversationCall, Feed, NextRequest, RequestCall, share_attempt
from .prompt import RequestBuilder
from .reply import check_summary_price
from .view import ViewStage, has_unsummarised_message

SUMMARY_PROMPT = (
    "Sum up the conversation so far, for an assistant that goes on with it and will see nothing else of it. Keep what "
    "the user asked for, with every condition, in the user's words where they matter; what was done and found out, "
    "with names, numbers, paths and identifiers exactly as they are; what was decided, and why; what failed; what was "
    "going on last, and what is left to do. Write the summary and nothing else, as plain text. Call no tool."
)
"""The default prompt for a summary; ``Compaction.summarise(prompt=…)`` replaces it."""
_SUMMARY_TEMPLATE = "[The conversation up to here was summed up to save space. The summary:]\n\n{summary}"
_MAX_PART_CHARS = 8_000  # characters of one text in a conversation formatted as text
_MIN_TRUNCATED_CHARS = 1_000  # a text shorter than this is not cut any further


def build_summary_message(summary: str, output: CompactOutput, replaced: Replaced) -> Message:
    """Build the message that replaces the summarised messages."""
    return Message(
        role="user",
        parts=(TextPart(text=_SUMMARY_TEMPLATE.format(summary=clean_text(summary))),),
        id=SUMMARY_ID,
        by="perdure",
        model=output.model or None,
        usage=output.usage,
        cost_usd=output.cost_usd,
        replaces=replaced,
    )


class Summariser:
    """Has one model summarise one conversation, in as many calls as that takes."""

    def __init__(self, call: RequestCall, next: NextRequest, asked: Summarise) -> None:
        """``call`` is a summary's own: its agent and its request are replaced."""
        self.usage = Usage()
        self.cost_usd: float | None = None
        self.model = ""
        self._call = call
        self._next = next
        self._prompt = asked.prompt or SUMMARY_PROMPT
        self._uses_own_model = asked.model is None
        if not self._uses_own_model:
            call.agent = _copy_agent_with_model(call.agent, asked.model)

    async def summarise(self, old: Sequence[Message], sent_messages: Sequence[Message]) -> str:
        """Return the summary of ``old``; empty if the model gave none. ``sent_messages``: those sent to the model.

        The agent's own model gets the prompt behind the conversation, which the provider may have in its cache. Another
        model, or one for which that is too long, gets the conversation as text, in pieces if necessary.
        """
        if self._uses_own_model and sent_messages:
            try:
                reply = await self._call_model(
                    replace(self._call.request, messages=[*sent_messages, Message.user(self._prompt)])
                )
            except ContextLengthError:
                pass
            else:
                if _is_vetoed_reply(reply):
                    return ""
                if not reply.tool_calls and reply.text.strip():
                    return reply.text.strip()
        return await self._summarise_in_pieces([text for message in old if (text := format_message_text(message))])

    async def _summarise_in_pieces(self, texts: list[str]) -> str:
        """Summarise ``texts`` at once; or the first half, and then its summary with the second. Two texts that are too
        long together are cut: each round has fewer texts, or shorter ones, so the recursion ends whatever the window.
        """
        try:
            reply = await self._call_model(self._build_text_request("\n\n".join(texts)))
        except ContextLengthError:
            if len(texts) > 2:
                half = max(2, len(texts) // 2)
                first = await self._summarise_in_pieces(texts[:half])
                return (
                    await self._summarise_in_pieces([f"[summary of what was before]\n{first}", *texts[half:]])
                    if first
                    else ""
                )
            longest = max(map(len, texts), default=0)
            if longest < _MIN_TRUNCATED_CHARS:
                raise
            return await self._summarise_in_pieces([truncate_text(text, longest // 2) for text in texts])
        return "" if _is_vetoed_reply(reply) else reply.text.strip()

    def _build_text_request(self, conversation: str) -> ModelRequest:
        text = f"{self._prompt}\n\n{enclose_text('conversation', conversation)}"
        agent = self._call.agent
        return ModelRequest(
            model=agent.model_name,
            messages=[Message.user(text)],
            settings=dict(agent.settings),
            provider_options=dict(agent.provider_options),
        )

    async def _call_model(self, request: ModelRequest) -> Message:
        self._call.request = request
        reply = await self._next(self._call)
        self.usage += reply.usage or Usage()
        self.model = reply.model or self.model
        if reply.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + reply.cost_usd
        return reply


def _is_vetoed_reply(reply: Message) -> bool:
    """Whether a hook has answered in the model's place: its text is not a summary."""
    return str(reply.finish_reason) == "veto"


_ROLE_LINE = re.compile(r"^\[(?=(?:system|user|assistant|tool|summary of what was before)\])", re.MULTILINE)
"""Would begin another message in the conversation as text."""


def format_message_text(message: Message) -> str:
    """Format ``message`` as text for a request that quotes the conversation."""
    lines = [line for part in message.parts if (line := _format_part_text(part))]
    return "\n".join([f"[{message.role}]", *lines]) if lines else ""


def _format_part_text(part: Part) -> str:
    if isinstance(part, TextPart):
        return _ROLE_LINE.sub("\\\\[", truncate_text(part.text, _MAX_PART_CHARS))
    if isinstance(part, ToolCallPart):
        return (
            f"(calls {part.name} with {truncate_text(json.dumps(part.arguments, ensure_ascii=False), _MAX_PART_CHARS)})"
        )
    if isinstance(part, ToolResultPart):
        texts = [truncate_text(part.content, _MAX_PART_CHARS), *_format_file_labels(part.files)]
        return f"({'error' if part.is_error else 'result'} of {part.name}:) " + " ".join(texts)
    return " ".join(_format_file_labels([part])) if isinstance(part, FilePart) else ""


def _format_file_labels(files: Iterable[FilePart]) -> list[str]:
    return [f"[file {file.name or file.media_type}]" for file in files]


def _copy_agent_with_model(agent: AgentSpec, model: object) -> AgentSpec:
    """Return ``agent`` with another model, without the settings and provider options of its own."""
    other = copy.copy(agent)
    other.chain = validate_models(agent.name, model)
    other.settings, other.provider_options = {}, {}
    return other


logger = logging.getLogger("perdure.worker")


class SummaryStage:
    """Rewrites the conversation of an agent to a shorter one: a summary, and the last messages as they are."""

    def __init__(self, setup: AgentSetup, requests: RequestBuilder, view: ViewStage) -> None:
        self._setup = setup
        self._request_builder = requests
        self._view = view

    async def compact(self, call: ConversationCall[CompactInput], next: NextRequest) -> CompactReply:
        """Around the requests of a summary. Raises ``DefinitionError`` for a summary without a price that a limit
        needs."""
        async with self._setup.prepare(call) as prepared:
            agent, settings = prepared.agent, prepared.agent.compaction
            if (
                settings is None or settings.summarise is None
            ):  # the agent's code has changed since the loop decided on it
                return CompactReply(CompactOutput(pinned=prepared.pinned))
            request = RequestCall(
                **share_attempt(call) | {"feed": Feed()},  # its model calls do not belong to the conversation
                input=call.input,
                prefix=call.prefix,
                agent=agent,
                run_context=prepared.run_context,
                request=await self._request_builder.build_request(agent, call, prepared.run_context),
                is_summary=True,
            )
            reply = await self._rewrite_conversation(call, request, next, settings, settings.summarise)
            check_summary_price(agent, reply.output, inherited=call.input.cost_limited)
        reply.output = reply.output.model_copy(update={"pinned": prepared.pinned})
        return reply

    async def _rewrite_conversation(
        self,
        call: ConversationCall[CompactInput],
        request: RequestCall,
        next: NextRequest,
        settings: CompactionSettings,
        summarise: Summarise,
    ) -> CompactReply:
        messages, rewrites = drop_system_messages(call.prefix), call.input.rewrites or 0
        task = find_turn_task(messages, call.input.iteration)
        kept_start = _find_kept_start(messages, task, summarise.keep_last >> 2 * rewrites)
        old, kept = messages[:kept_start], messages[kept_start:]
        repeated = [message for index, message in enumerate(old) if index in task]
        if not has_unsummarised_message(old, task):
            return CompactReply(CompactOutput())
        self._view.apply_view(request, settings, rewrites)
        sent = list(request.request.messages)
        summariser = Summariser(request, next, summarise)
        text = await summariser.summarise(old, sent[: -len(kept)] if kept else sent)
        output = CompactOutput(usage=summariser.usage, cost_usd=summariser.cost_usd, model=summariser.model)
        if not text:
            logger.warning("run %s is not compacted: the model gave no summary", call.input.context_id)
            return CompactReply(output)
        assert call.head is not None, "messages stand in a node"
        replaced = Replaced(head=call.head, messages=len(call.prefix), kept=len(kept), repeated=len(repeated))
        system = [message for message in call.prefix if message.role == "system"][-1:]
        staying = [build_summary_message(text, output, replaced), *repeated, *kept]
        rewritten = [*system, *staying]
        tokens = _estimate_token_change(messages, staying)
        warning = None
        # Messages alone: a provider's count has instructions and tools, too, which no summary makes shorter.
        if estimate_tokens(staying) >= summarise.at and not call.input.warned:
            warning = _build_size_warning(summarise, estimate_tokens(staying), estimate_tokens([*repeated, *kept]))
            logger.warning("run %s: %s", call.input.context_id, warning)
        compacted = CompactionResult(
            replaces=call.head,
            messages_before=len(call.prefix),
            messages_after=len(rewritten),
            warning=warning,
            **tokens,
        )
        return CompactReply(output.model_copy(update={"compacted": compacted}), rewritten_messages=rewritten)


def _find_kept_start(messages: Sequence[Message], task: Container[int], keep: int) -> int:
    """Return the index where the last ``keep`` messages begin; with fewer of them, where else nothing is left to
    summarise."""
    while not has_unsummarised_message(messages[: (start := find_tail_start(messages, keep))], task) and keep:
        keep >>= 2
    return start


def _build_size_warning(summarise: Summarise, tokens: int, kept: int) -> str:
    return (
        f"after a summary the messages have about {tokens:,} tokens, and summarise(at={summarise.at:,}) is due from "
        f"{summarise.at:,} on; the last {summarise.keep_last} messages and the user's task have about {kept:,}. "
        "The next summary comes when it halves the conversation: raise at, lower keep_last, or add "
        "Compaction.clear_results(after=…)"
    )


def _estimate_token_change(messages: Sequence[Message], rewritten: Sequence[Message]) -> dict[str, int]:
    """Return the tokens of the conversation before and after: before as its last reply was counted, else an estimate;
    after in the same proportion."""
    before, after = estimate_tokens(messages), estimate_tokens(rewritten)
    usage = next((message.usage for message in reversed(messages) if message.usage is not None), None)
    if usage is not None and usage.input_tokens:
        before, after = usage.total_tokens, after * usage.total_tokens // before
    return {"tokens_before": before, "tokens_after": after}
