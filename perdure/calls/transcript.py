"""The transcript stage: loads the conversation of a model call by its head, and makes its reply the next node.

Likewise for a compaction, an ending, and reminders, which add nothing to it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, TypeVar

from ..errors import InvalidInputError, StoreMismatchError, TranscriptCorruptedError
from ..loop.refused_content import find_last_withheld
from ..loop.transcript import build_closing_messages
from ..ports.store import Blob, Commit, Journal, Node, RunRow, Runs, TranscriptChain
from ..types.interface import check_run_labels
from ..types.messages import Message, ToolResultPart, Withheld
from ..types.tool_calls import AnsweredCall
from ..types.transcript import Transcript, find_last_system_message, iter_pieces
from ..types.wire import (
    CallFacts,
    CloseInput,
    CloseOutput,
    CompactInput,
    ConversationFacts,
    ConversationOutput,
    ModelInput,
    NewItem,
    NewResult,
    RemindInput,
    RemindOutput,
    ToolOutput,
)
from .blobs import _move_large_output_to_blobs, build_branches_reply, resolve_branch_outcomes
from .call import (
    Attempt,
    CloseCall,
    CompactCall,
    CompactReply,
    ConversationCall,
    ModelCall,
    ModelReply,
    RemindCall,
    Reply,
    share_attempt,
)
from .incoming import IncomingMessages, RenderInput
from .journal_keys import parse_outcome
from .run_rows import (
    build_closed_run_row,
    build_closed_turn_row,
    build_response,
    build_run_row,
    build_turn_row,
    build_usage_row,
)

logger = logging.getLogger("perdure.worker")


class TranscriptStage:
    """Loads the conversation before the call, and builds the node of its new messages and reply."""

    def __init__(
        self, chain: TranscriptChain, journal: Journal, runs: Runs, store_id: str, render: RenderInput | None = None
    ) -> None:
        """``render(agent, input)`` renders a typed input as text, as the agent of that name shows it to its model."""
        self._render = render
        self._chain = chain
        self._journal = journal
        self._runs = runs
        self._store_id = store_id

    async def model(
        self, call: ModelCall, next: Callable[[ConversationCall[ModelInput]], Awaitable[ModelReply]]
    ) -> ModelReply:
        """Give the call its conversation, and the reply its head and its commit.

        Raises ``StoreMismatchError``, ``TranscriptCorruptedError``.
        """
        given, earlier_run = call.input, await self._adopt_earlier_run(call)
        incoming = IncomingMessages(self._chain, self._store_id, call.input.agent, self._render)
        conversation = await self._load_conversation(call, call.input.new, incoming, earlier_run)
        conversation.branches = await resolve_branch_outcomes(self._chain, call.input.branches)
        reply = await next(conversation)
        reply.output = _add_labels(reply.output, given, call.input)
        if reply.output.branches:
            return build_branches_reply(self._chain, self._store_id, conversation, reply, incoming.blobs)
        reply.new_withheld = _find_new_withheld(conversation, reply)
        results = list(takewhile(lambda message: message.role == "tool", conversation.new_messages))
        messages = [  # the prompt behind the results: these stand right behind their calls
            *results,
            *self._build_system_messages(conversation, reply),
            *conversation.new_messages[len(results) :],
            *([reply.message] if reply.message else []),
            *_build_answered_results(reply),
        ]
        nodes, blobs = self._extend(conversation.head, reply.rewritten_messages, messages, incoming, call)
        head = nodes[-1].hash if nodes else conversation.head
        update = {"head": head, "store_id": self._store_id, "compact": reply.compaction_due or None}
        output = reply.output = _move_large_output_to_blobs(reply.output, blobs, update)
        answer = None if output.finish is None else build_response(call.input, output, output.finish)
        run = build_run_row(call, head, answer, conversation.new_messages)
        turn = build_turn_row(call, head, answer)
        reply.commit = Commit(nodes, blobs, run=run, turn=turn, usage=build_usage_row(call, output))
        return reply

    async def compact(
        self, call: CompactCall, next: Callable[[ConversationCall[CompactInput]], Awaitable[CompactReply]]
    ) -> CompactReply:
        """As :meth:`model`: without new messages, and the calls that are open stay open."""
        given, earlier_run = call.input, await self._adopt_earlier_run(call)
        incoming = IncomingMessages(self._chain, self._store_id)
        conversation = await self._load_conversation(call, (), incoming, earlier_run)
        reply = await next(conversation)
        nodes, blobs = self._extend(conversation.head, reply.rewritten_messages, (), incoming, call)
        head = nodes[-1].hash if nodes else conversation.head
        reply.output = _add_labels(reply.output, given, call.input, head=head, store_id=self._store_id)
        run = build_run_row(call, head, None)
        reply.commit = Commit(nodes, blobs, run=run, usage=build_usage_row(call))
        return reply

    async def close(
        self, call: CloseCall, next: Callable[[ConversationCall[CloseInput]], Awaitable[None]]
    ) -> Reply[CloseOutput]:
        """Record an ending: it calls no model, runs no code of the agent's that may be missing, and must be possible on
        a corrupt chain."""
        given, earlier_run = call.input, await self._adopt_earlier_run(call)
        incoming = IncomingMessages(self._chain, self._store_id, call.input.agent)
        new_messages = await self._build_new_messages(call.input.new, incoming, ending=True)
        head = _find_head(call.input, earlier_run)
        before = await self._load_preceding_messages(head, new_messages)
        closed = _close_open_calls(call.input, before, new_messages)
        conversation = ConversationCall(input=call.input, head=head, new_messages=closed, **share_attempt(call))
        await next(conversation)
        nodes, blobs = self._extend(head, (), conversation.new_messages, incoming, call)
        head = nodes[-1].hash if nodes else head
        output = _add_labels(CloseOutput(), given, call.input, head=head, store_id=self._store_id)
        run = build_closed_run_row(call, head, conversation.new_messages)
        turn = build_closed_turn_row(call, head)
        return Reply(output, commit=Commit(nodes, blobs, run=run, turn=turn))

    async def remind(
        self, call: RemindCall, next: Callable[[ConversationCall[RemindInput]], Awaitable[None]]
    ) -> Reply[RemindOutput]:
        """Give a reminder, which adds nothing to the conversation, the messages before it."""
        check_store_id(call.input, self._store_id)
        head = call.input.head
        prefix = await self._chain.load(head)
        await next(ConversationCall(input=call.input, head=head, prefix=prefix, **share_attempt(call)))
        return Reply(RemindOutput())

    async def _adopt_earlier_run(self, call: ModelCall | CompactCall | CloseCall) -> RunRow | None:
        """Return the row of the earlier execution that the run continues, if any: the call then has its tenant and
        its user. Raises ``StoreMismatchError``."""
        check_store_id(call.input, self._store_id)
        earlier_run = await self._runs.get_run(call.input.context_id) if call.input.resume else None
        if earlier_run is not None:
            adopted: Any = adopt_run_labels(call.input, earlier_run)
            call.input = adopted
        return earlier_run

    async def _load_conversation(
        self,
        call: ModelCall | CompactCall,
        new: Sequence[NewItem],
        incoming: IncomingMessages,
        earlier_run: RunRow | None,
    ) -> ConversationCall[Any]:
        """Load the transcript up to the call's head, or that of ``earlier_run``, and build the new messages after
        it."""
        new_messages = await self._build_new_messages(new, incoming)
        head = _find_head(call.input, earlier_run)
        prefix = await self._chain.load(head)
        if isinstance(call, ModelCall):
            new_messages = _close_open_calls(call.input, prefix, new_messages)
        known = {blob.hash: blob.body for blob in incoming.blobs}
        return ConversationCall(
            input=call.input,
            head=head,
            prefix=prefix,
            new_messages=new_messages,
            files=await self._chain.load_files(Transcript(iter_pieces(prefix, new_messages)), known),
            **share_attempt(call),
        )

    def _extend(
        self,
        head: str | None,
        rewritten: Sequence[Message],
        messages: Sequence[Message],
        incoming: IncomingMessages,
        call: Attempt,
    ) -> tuple[list[Node], list[Blob]]:
        """Build the nodes of ``messages`` behind ``head``, or behind the ``rewritten`` conversation, and all blobs."""
        nodes, blobs = list[Node](), [*incoming.blobs, *call.recording.blobs]
        if rewritten:
            head = self._extend_chain(None, rewritten, nodes, blobs)
        if messages:
            self._extend_chain(head, messages, nodes, blobs)
        return nodes, blobs

    def _extend_chain(self, head: str | None, messages: Sequence[Message], nodes: list[Node], blobs: list[Blob]) -> str:
        """Build the node of ``messages`` behind ``head``, and return its hash; add it to ``nodes``, its blobs to
        ``blobs``."""
        node, node_blobs = self._chain.extend(head, messages)
        self._chain.remember(node, messages)
        nodes.append(node)
        blobs += node_blobs
        return node.hash

    async def _load_preceding_messages(self, head: str | None, new_messages: list[Message]) -> Sequence[Message]:
        """Load the messages before ``new_messages``, in which an ending closes open calls; empty if unreadable."""
        try:
            return await self._chain.load(head) if new_messages else []
        except TranscriptCorruptedError:
            return []

    async def _build_new_messages(
        self, new: Sequence[NewItem], incoming: IncomingMessages, *, ending: bool = False
    ) -> list[Message]:
        """Build messages of the new items: neighbouring results become one message, in the order of their calls."""
        keys = [item.key for item in new if isinstance(item, NewResult) and item.key is not None]
        recorded = await self._journal.find_outcomes(keys) if keys else {}
        messages: list[Message] = []
        results: list[ToolResultPart] = []
        for item in new:
            if isinstance(item, NewResult):
                results.append(await self._build_tool_result(item, recorded, ending=ending))
                continue
            if results:
                messages.append(Message(role="tool", parts=tuple(results)))
                results = []
            messages.append(await incoming.build_message(item))
        if results:
            messages.append(Message(role="tool", parts=tuple(results)))
        return messages

    async def _build_tool_result(self, item: NewResult, recorded: dict[str, bytes], *, ending: bool) -> ToolResultPart:
        """Build the part of a result. Raises ``TranscriptCorruptedError`` for a result that cannot be read; in an
        ending, and for a blob that a client has named, the part says so instead."""
        update: dict[str, Any] = {"content": item.text or "", "is_error": item.is_error}
        try:
            if item.blob is not None:
                update["content"] = await self._chain.resolve_blob(item.blob)
            elif item.key is not None:
                update |= await self._read_recorded_result(item, item.key, recorded)
        except TranscriptCorruptedError as error:
            if not ending and not (item.blob is not None and item.answered_by is not None):
                raise  # for a missing blob that a client has named, the model gets an error: nothing is lost
            update |= {"content": format_unreadable_result(error), "is_error": True}
        return ToolResultPart(call_id=item.call_id, name=item.name, given_by=item.answered_by, **update)

    async def _read_recorded_result(self, item: NewResult, key: str, recorded: dict[str, bytes]) -> dict[str, Any]:
        if key not in recorded:
            raise TranscriptCorruptedError(
                f"the result of tool call {item.call_id} ({item.name}) is not in the journal (key {key})",
                hint="Restore the store from a backup, then resume the run. If the store is itself a backup older than "
                "the run: `perdure resume ID --from-store` continues from what it has.",
            )
        output = parse_outcome(ToolOutput, recorded[key], key)
        text = await self._chain.resolve_blob(output.blob) if output.blob else output.content or ""
        return {"content": text, "is_error": output.is_error, "files": output.files}

    def _build_system_messages(self, call: ConversationCall[ModelInput], reply: ModelReply) -> list[Message]:
        """Return the system prompt as a message if it differs from the last one in the transcript."""
        if reply.system is None:
            return []
        last = find_last_system_message(call.prefix)
        return [] if last is not None and last.text == reply.system else [Message.system(reply.system)]


def _build_answered_results(reply: ModelReply) -> Iterator[Message]:
    """Build the message of the results of calls that the engine answered itself; it follows the reply."""
    answered = [
        (call, disposition) for call in reply.output.calls if isinstance(disposition := call.disposition, AnsweredCall)
    ]
    if answered:
        yield Message(
            role="tool",
            parts=tuple(
                ToolResultPart(call_id=call.id, name=call.name, content=disposition.text, is_error=disposition.is_error)
                for call, disposition in answered
            ),
        )


def _close_open_calls(task: ConversationFacts, before: Sequence[Message], new_messages: list[Message]) -> list[Message]:
    """Return ``new_messages`` after results for the calls that are still open in the conversation ``before`` them.

    In the first call of a new execution, messages that are already recorded are left out.
    """
    if task.resume:
        new_messages = _drop_recorded_messages(before, new_messages)
    return [*build_closing_messages(before, new_messages), *new_messages]


def _find_new_withheld(call: ConversationCall[ModelInput], reply: ModelReply) -> list[Withheld]:
    """Return the content that this reply's request is the first to lack."""
    withheld = reply.message.withheld if reply.message is not None else ()
    known = {each.key for each in find_last_withheld([*call.prefix, *call.new_messages])} if withheld else ()
    return [each for each in withheld if each.key not in known]


def _drop_recorded_messages(before: Sequence[Message], new_messages: Sequence[Message]) -> list[Message]:
    """Return ``new_messages`` without the messages whose ids are already in the conversation.

    A worker that was lost may have recorded the first call of a new execution, without the workflow knowing.
    """
    known_ids = {message.id for message in before if message.role == "user" and message.id}
    return [message for message in new_messages if message.role != "user" or message.id not in known_ids]


def format_unreadable_result(error: TranscriptCorruptedError) -> str:
    """Format the text that the model gets in the place of a result that cannot be read."""
    return f"[the result could not be read: {error.message}]"


AddingOutputT = TypeVar("AddingOutputT", bound=ConversationOutput)


def adopt_run_labels(
    task: ModelInput | CompactInput | CloseInput, earlier_run: RunRow
) -> ModelInput | CompactInput | CloseInput:
    """Return ``task`` with the tenant and the user of its conversation, which an earlier execution has begun.

    Raises ``InvalidInputError`` for a run that was started for others; its ending is still recorded, without its
    messages: the conversation continues without them.
    """
    own = {"tenant": earlier_run.tenant, "user": earlier_run.user}
    if own == {"tenant": task.tenant, "user": task.user}:
        return task
    try:
        check_run_labels(task.context_id, own, tenant=task.tenant, user=task.user)
    except InvalidInputError:
        if not isinstance(task, CloseInput):
            raise
        return task.model_copy(update={**own, "new": ()})
    return task.model_copy(update=own)


def _add_labels(
    output: AddingOutputT, given: ConversationFacts, task: ConversationFacts, **update: Any
) -> AddingOutputT:
    """Return ``output``, updated, and with the tenant and user of ``task`` if it was ``given`` without: the run
    continues with them."""
    if task is not given:
        update |= {"tenant": task.tenant, "user": task.user}
    return output.model_copy(update=update) if update else output


def _find_head(task: ConversationFacts, earlier_run: RunRow | None) -> str | None:
    return task.head if earlier_run is None or earlier_run.head is None else earlier_run.head


def check_store_id(task: CallFacts, store_id: str) -> None:
    """Raise ``StoreMismatchError`` for a run that is kept in another store."""
    if task.store_id is not None and task.store_id != store_id:
        raise StoreMismatchError(
            f"run {task.context_id} is kept in store {task.store_id}, this worker has store {store_id}",
            hint="Point PERDURE_STORE_URL of every worker on this task queue at the same store.",
        )
