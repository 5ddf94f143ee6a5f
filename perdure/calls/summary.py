"""The compaction stage: sends the model a view of the conversation, and rewrites a conversation that got long.

It is inside the iteration stage, which makes the request, and outside the hooks, which see what is sent. What it
decides is in the outcome: whether the loop is to have the conversation compacted, and in which ways a call refused for
its length may be shortened. A rewrite is recorded like any reply, under the journal.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from ..agent.spec import AgentSpec
from ..agent.validation import validate_models
from ..errors import ContextLengthError
from ..loop.compaction import ConversationView, estimate_message_tokens, estimate_tokens, find_turn_task, truncate_text
from ..loop.transcript import SUMMARY_ID, find_tail_start
from ..ports.model import ModelRequest
from ..ports.store import Cache
from ..types.compaction import BYTES_PER_TOKEN, CompactionSettings, Summarise
from ..types.engine_texts import enclose_text
from ..types.interface import FINISH_TOOL
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
from ..types.wire import CompactInput, CompactionResult, CompactOutput, ModelInput
from .agent_setup import AgentSetup
from .call import CompactReply, ConversationCall, Feed, NextRequest, RequestCall, share_attempt
from .iteration import RequestBuilder, check_summary_price

# ---
# Summaries: the request for a summary, and the message that replaces the summarised messages in a transcript.


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


class ViewStage:
    """Sends the model a view of the conversation, if ``Agent(compaction=…)`` says so, and tells in which ways a call
    that is refused for its length may be shortened."""

    def __init__(self, cache: Cache[_CachedView]) -> None:
        """``cache`` keeps the views of conversations; a view that is not there is built anew, with the same outcome."""
        self._views = ConversationViewCache(cache)

    async def request(self, call: RequestCall, next: NextRequest) -> Message:
        """Around the request of a model call."""
        settings = call.agent.compaction
        if settings is None:
            return await next(call)
        assert isinstance(call.input, ModelInput), "a summary applies the view itself"
        view = self.apply_view(call, settings, call.input.window_halvings or 0)
        try:
            reply = await next(call)
        except ContextLengthError as error:
            error.ways = _list_remaining_compactions(call, settings, view)
            raise
        if settings.summarise is not None:
            call.compaction_due = _is_summary_due(call, settings.summarise, reply)
        return reply

    def apply_view(
        self, call: RequestCall, settings: CompactionSettings, window_halvings: int
    ) -> ConversationView | None:
        """Put the view into the request, and return it; None without one."""
        if not settings.has_view:
            return None
        request = call.request
        recorded = len(drop_system_messages(call.prefix))
        view = self._views.get_view(call.input.context_id, settings, window_halvings, request.messages[:recorded])
        view.add_messages(request.messages[recorded:])
        call.request = replace(request, messages=view.build_sent_messages())
        return view


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
        if not _has_unsummarised_message(old, task):
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


@dataclass(slots=True)
class _CachedView:
    """The view of a run's conversation."""

    ways: CompactionSettings
    window_halvings: int
    fold: ConversationView
    bytes: int = 0
    """Estimated size of the messages that the view has read."""

    def can_continue(self, settings: CompactionSettings, window_halvings: int, recorded: Sequence[Message]) -> bool:
        """Whether the view has the same settings, and has read a beginning of ``recorded``."""
        if (self.ways, self.window_halvings) != (settings, window_halvings) or len(self.fold.all_messages) > len(
            recorded
        ):
            return False
        return all(a is b for a, b in zip(self.fold.all_messages, recorded, strict=False))


class ConversationViewCache:
    """The views of recorded conversations, by run: the next call reads on where the last one stopped.

    A view is used only if it has read the very messages of the request, so the result never depends on what is cached.
    """

    def __init__(self, cache: Cache[_CachedView]) -> None:
        self._cache = cache

    def get_view(
        self, run: str, settings: CompactionSettings, window_halvings: int, recorded: Sequence[Message]
    ) -> ConversationView:
        """Return a copy of the view that has read ``recorded``, to add more messages to."""
        cached = self._cache.get(run)
        if cached is None or not cached.can_continue(settings, window_halvings, recorded):
            cached = _CachedView(settings, window_halvings, ConversationView(settings, window_halvings))
        new = recorded[len(cached.fold.all_messages) :]
        cached.fold.add_messages(new)
        cached.bytes += sum(map(estimate_message_bytes, new))
        self._cache.put(run, cached, cached.bytes)
        return cached.fold.copy()


def estimate_message_bytes(message: Message) -> int:
    """Estimate the bytes that ``message`` takes in memory."""
    return 500 + BYTES_PER_TOKEN * estimate_message_tokens(message)


def _has_unsummarised_message(old: Sequence[Message], task: Container[int]) -> bool:
    """Whether ``old`` has a message that is neither a summary already, nor among those that began the turn."""
    return any(message.replaces is None and index not in task for index, message in enumerate(old))


def _find_kept_start(messages: Sequence[Message], task: Container[int], keep: int) -> int:
    """Return the index where the last ``keep`` messages begin; with fewer of them, where else nothing is left to
    summarise."""
    while not _has_unsummarised_message(messages[: (start := find_tail_start(messages, keep))], task) and keep:
        keep >>= 2
    return start


def _build_size_warning(summarise: Summarise, tokens: int, kept: int) -> str:
    return (
        f"after a summary the messages have about {tokens:,} tokens, and summarise(at={summarise.at:,}) is due from "
        f"{summarise.at:,} on; the last {summarise.keep_last} messages and the user's task have about {kept:,}. "
        "The next summary comes when it halves the conversation: raise at, lower keep_last, or add "
        "Compaction.clear_results(after=…)"
    )


def _list_remaining_compactions(
    call: RequestCall, settings: CompactionSettings, view: ConversationView | None
) -> tuple[str, ...]:
    """List the ways in which the call may be shortened."""
    messages, remaining = drop_system_messages(call.prefix), []
    task = find_turn_task(messages, call.input.iteration - 1)  # the reply of this iteration was not given
    if settings.summarise is not None and _has_unsummarised_message(messages[: find_tail_start(messages, 0)], task):
        remaining.append("summarise")
    if view is not None and view.can_tighten:
        remaining.append("window")
    return tuple(remaining)


def _is_summary_due(call: RequestCall, summarise: Summarise, reply: Message) -> bool:
    """Whether the next call may be too long, and a summary would make it much shorter: by a quarter of ``at``; by half,
    where what stays is longer than ``at`` itself, or each call would be preceded by a summary."""
    usage = reply.usage
    if usage is not None and usage.input_tokens:
        tokens = usage.input_tokens + usage.output_tokens
    else:
        tokens = estimate_tokens(call.request.messages) + estimate_message_tokens(reply)
    if tokens < summarise.at:
        return False
    messages = [*drop_system_messages(call.prefix), *drop_system_messages(call.new_messages), reply]
    is_answer = not reply.tool_calls or any(tool_call.name == FINISH_TOOL for tool_call in reply.tool_calls)
    task = range(0) if is_answer else find_turn_task(messages, call.input.iteration)  # the summary is the next turn's
    kept_start = find_tail_start(messages, summarise.keep_last)
    old = [message for index, message in enumerate(messages[:kept_start]) if index not in task]
    if not _has_unsummarised_message(old, ()):
        return False
    replaced = estimate_tokens(old)
    staying = estimate_tokens(messages) - replaced
    return replaced >= (summarise.at // 4 if staying < summarise.at else staying)


def _estimate_token_change(messages: Sequence[Message], rewritten: Sequence[Message]) -> dict[str, int]:
    """Return the tokens of the conversation before and after: before as its last reply was counted, else an estimate;
    after in the same proportion."""
    before, after = estimate_tokens(messages), estimate_tokens(rewritten)
    usage = next((message.usage for message in reversed(messages) if message.usage is not None), None)
    if usage is not None and usage.input_tokens:
        before, after = usage.total_tokens, after * usage.total_tokens // before
    return {"tokens_before": before, "tokens_after": after}
