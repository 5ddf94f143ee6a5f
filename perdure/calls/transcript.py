"""The transcript stage: loads the conversation of a model call by its head, and makes its reply the next node.

Also builds the run and turn rows of the store, and the transcript's form of users' messages and branches.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from ..agent.xml import to_xml
from ..errors import InvalidInputError, StoreMismatchError, TranscriptCorruptedError
from ..loop.finish import REMINDER_ID, build_output
from ..loop.refused_content import find_last_withheld
from ..loop.transcript import build_closing_messages
from ..ports import Blob, Commit, Journal, Node, RunRow, Runs, TranscriptChain, TurnRow, UsageRow
from ..ports.store import add_blob, move_file_to_blob, move_text_to_blob
from ..types.interface import Response, check_run_labels, parse_output
from ..types.messages import (
    INLINE_BYTES,
    NAME_CHARS,
    BlobRef,
    ContentPart,
    FilePart,
    Message,
    TextPart,
    ToolResultPart,
    Usage,
    Withheld,
    clean_text,
    is_large_text,
)
from ..types.plain_json import measure_json
from ..types.subagents import BranchOutcome, TellCall
from ..types.tool_calls import AnsweredCall, Call, CallbackCall, RefusedCall, RemoteCall, SubagentCall
from ..types.transcript import Transcript, find_last_system_message, iter_pieces
from ..types.wire import (
    OUTPUT_BYTES,
    REMOTE_BYTES,
    CallFacts,
    CloseInput,
    CloseOutput,
    CompactInput,
    ConversationFacts,
    ConversationOutput,
    FinalAnswer,
    ModelInput,
    ModelOutput,
    NewItem,
    NewMessage,
    NewResult,
    RemindInput,
    RemindOutput,
    ToolOutput,
)
from .call import (
    Attempt,
    BranchConversation,
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
from .journal_keys import parse_outcome

# ---
# Branches of a step: forked conversations become nodes, and long texts become blobs.


async def resolve_branch_outcomes(chain: TranscriptChain, outcomes: Sequence[BranchOutcome]) -> list[BranchOutcome]:
    """Return ``outcomes`` with the answers loaded from blobs. Raises ``TranscriptCorruptedError``."""
    return [await _resolve_branch_outcome(chain, outcome) for outcome in outcomes]


async def _resolve_branch_outcome(chain: TranscriptChain, outcome: BranchOutcome) -> BranchOutcome:
    if outcome.blob is None:
        return outcome
    return outcome.model_copy(update={"content": await chain.resolve_blob(outcome.blob), "blob": None})


def build_branches_reply(
    chain: TranscriptChain,
    store_id: str,
    call: ConversationCall[ModelInput],
    reply: ModelReply,
    message_blobs: Sequence[Blob],
) -> ModelReply:
    """Complete ``reply``, whose step waits for branches: each branch gets the head of its conversation, and the run
    keeps its own head.

    ``message_blobs``: the files of messages that are new since the head.
    """
    nodes: dict[str, Node] = {}
    blobs = [*message_blobs, *call.recording.blobs]

    def head(fork: BranchConversation | None) -> str | None:
        if fork is None or not fork.messages:
            return fork.head if fork is not None else None
        node, node_blobs = chain.extend(fork.head, fork.messages)
        if node.hash not in nodes:
            chain.remember(node, fork.messages)
            nodes[node.hash] = node
            blobs.extend(node_blobs)
        return node.hash

    branches = tuple(
        move_text_to_blob(branch, "message", blobs, empty=None).model_copy(update={"head": head(fork)})
        for branch, fork in zip(reply.output.branches, reply.branch_conversations, strict=True)
    )
    output = reply.output.model_copy(update={"branches": branches, "head": call.head, "store_id": store_id})
    return replace(reply, output=output, commit=Commit(list(nodes.values()), blobs))


# ---
# Rows of a run and its turn, written with each call: for lists, and for clients once Temporal has deleted the run.


def build_run_row(call: ModelCall | CompactCall, head: str | None, answer: Response | None) -> RunRow:
    """Build the row of the run after a call. If the workflow continues, the next call writes it again."""
    task, status = call.input, "running"
    if answer is not None:
        status = "waiting" if isinstance(task, ModelInput) and task.mode == "session" else "completed"
    return _build_run_row(task, head, status, _encode_answer(answer), call.asked_at)


def build_closed_run_row(call: CloseCall, head: str | None) -> RunRow:
    """Build the row of the run as it ends, or as its turn does."""
    task, status = call.input, "running"
    if (closing := task.closing) is not None:
        status = closing.status
        if closing.stays_paused is not None:
            status = "paused"
        elif closing.pause is not None and status == "waiting" and closing.turn is None and task.task_id:
            status = "running"  # resumed in the middle of a turn
    return _build_run_row(task, head, status, _encode_ending(task, head), call.asked_at)


def _build_run_row(
    task: ConversationFacts, head: str | None, status: str, result: bytes | None, asked_at: str
) -> RunRow:
    return RunRow(
        *(task.context_id, task.agent, task.scope, head, status, task.iteration, result, asked_at),
        tenant=task.tenant,
        user=task.user,
    )


UsageStatus = Literal["completed", "failed", "rejected"]
_MAX_TOKENS = 2**63 - 1
"""The largest number that databases take: a provider may report any."""


def build_usage_row(call: ModelCall | CompactCall, status: UsageStatus = "completed") -> UsageRow | None:
    """Build the row of what the call has used; None if no model has answered."""
    paid = call.recording.paid
    if not paid:
        return None
    task, last = call.input, paid[-1]
    usage = sum((request.usage for request in paid), Usage())
    tokens = {name: min(max(count, 0), _MAX_TOKENS) for name, count in usage}
    costs = [request.cost_usd for request in paid]
    return UsageRow(
        task.context_id,
        task.agent,
        "compact" if isinstance(task, CompactInput) else "force_finish" if task.is_forced else "call",
        last.provider,
        clean_text(last.model)[:NAME_CHARS],
        status,
        requests=len(paid),
        **tokens,
        cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
        milliseconds=round(sum(request.seconds for request in paid) * 1000),
        task_id=task.task_id or None,
        root=task.lineage.root if task.lineage is not None and task.is_child else None,
        tenant=task.tenant,
        user=task.user,
    )


def build_turn_row(call: ModelCall, head: str | None, answer: Response | None) -> TurnRow | None:
    """Build the row of the turn if it took messages (maybe after its answer) or has its answer; else None."""
    task = call.input
    ids = _list_message_ids(task.new)
    if not task.task_id or (ids is None and answer is None):
        return None
    status = "running" if answer is None else "completed"
    return TurnRow(task.context_id, task.task_id, status, head, _encode_answer(answer), ids or (), call.asked_at)


def build_closed_turn_row(call: CloseCall, head: str | None) -> TurnRow | None:
    """Build the row of the turn if it took messages or has ended; else None."""
    task, closing = call.input, call.input.closing
    ids = _list_message_ids(task.new)
    ended = closing is not None and closing.pause is None
    if not task.task_id or (ids is None and not ended):
        return None
    status = "running"
    if ended and closing is not None:
        status = closing.turn or closing.status
        status = "running" if status in ("waiting", "paused") else status  # a message extends it
    return TurnRow(task.context_id, task.task_id, status, head, _encode_ending(task, head), ids or (), call.asked_at)


def _list_message_ids(new: Sequence[NewItem]) -> tuple[str, ...] | None:
    """List the ids of users' messages; None if there are no such messages."""
    messages = [item for item in new if isinstance(item, NewMessage) and item.id != REMINDER_ID]
    return tuple(item.id for item in messages if item.id) if messages else None


def _encode_answer(answer: Response | None) -> bytes | None:
    return None if answer is None else _encode_readable_json(answer.model_dump(mode="json", exclude_none=True))


def _encode_ending(task: CloseInput, head: str | None) -> bytes | None:
    """Encode the ``Response`` of an ending as JSON, for a failure with ``error_type`` and ``error``."""
    if (closing := task.closing) is None:
        return None
    failure = {"error_type": closing.error_type, "error": closing.error} if closing.error_type else {}
    return _encode_readable_json({**(closing.response or {}), "head": head, **failure})


def build_response(task: ModelInput, output: ModelOutput, finish: FinalAnswer) -> Response:
    """Build the response of a turn that ends with the answer ``finish`` of ``output``."""
    blob = output.answer_blob
    value = build_output(finish.content, typed=finish.typed, called=finish.called, protocol=output.limits.protocol)
    return Response(
        content=finish.content,
        blob=blob,
        output=None if blob else value,
        typed=finish.typed,
        iterations=task.iteration,
        usage=task.used + output.usage,
        calls=task.iteration - output.is_synthetic,
        cost_usd=task.cost_usd if output.cost_usd is None else output.cost_usd + (task.cost_usd or 0.0),
        finish_reason=output.finish_reason,
        finish_called=finish.called,
        context_id=task.context_id,
        task_id=task.task_id,
        head=output.head,
        store_id=output.store_id,
    )


def _encode_readable_json(result: dict[str, Any]) -> bytes:
    """Encode ``result`` as JSON that clients can read: without an output that could not be read back."""
    body = json.dumps(result).encode()
    try:
        Response.model_validate_json(body)
    except ValidationError:
        body = json.dumps({key: value for key, value in result.items() if key != "output"}).encode()
    return body


# ---
# A user's message on its way into the transcript: blobs of text from its sender are read, and bytes become blobs.


logger = logging.getLogger("perdure.worker")

RenderInput = Callable[[str, Mapping[str, Any]], Awaitable[str]]


def render_as_xml(text: str) -> str:
    """Render the JSON of a typed input as XML, field by field, without the agent's code."""
    plain = parse_output(text)
    return to_xml(plain) if isinstance(plain, dict) else text


class IncomingMessages:
    """Builds the new messages of one model call. ``blobs`` are the files that came in them, and are to be written."""

    def __init__(
        self, chain: TranscriptChain, store_id: str, agent: str = "", render: RenderInput | None = None
    ) -> None:
        """``render`` renders a typed input of ``agent`` as text for the model; by default as XML."""
        self._chain = chain
        self._agent, self._render_input = agent, render
        self._store_id = store_id
        self.blobs: list[Blob] = []

    async def build_message(self, item: NewMessage) -> Message:
        """Build the transcript's message of ``item``.

        Content that cannot be read is replaced by a text that says so, to the model and to readers of the transcript.
        It never was part of the transcript, and waiting for it would block every other message.
        """
        content = item.content
        if isinstance(content, str) and item.typed:
            return Message.user(await self._render(content), id=item.id, by=item.by)
        if isinstance(content, str):
            return Message.user(content, id=item.id, by=item.by)
        given = (TextPart(blob=content),) if isinstance(content, BlobRef) else content
        parts = []
        for part in given:
            try:
                parts.append(await self._resolve_part(part, item.store_id))
            except TranscriptCorruptedError as error:
                parts.append(_build_missing_part(item, part, error))
        if item.typed:
            text = "".join(part.text for part in parts if isinstance(part, TextPart))
            return Message.user(await self._render(text), id=item.id, by=item.by)
        return Message(role="user", parts=tuple(parts), id=item.id, by=item.by)

    async def _render(self, text: str) -> str:
        plain = parse_output(text)
        if self._render_input is None or not isinstance(plain, dict):
            return render_as_xml(text)
        return await self._render_input(self._agent, plain)

    async def _resolve_part(self, part: ContentPart, store_id: str | None) -> ContentPart:
        if isinstance(part, FilePart) and part.data is not None:
            return move_file_to_blob(part, self.blobs)
        if part.blob is None:
            return part
        if store_id not in (None, self._store_id):
            what = "its text" if isinstance(part, TextPart) else "it"
            raise TranscriptCorruptedError(
                f"{what} ({part.blob.size:,} bytes, blob {part.blob.hash}) is in store {store_id}, "
                f"and the run is kept in store {self._store_id}"
            )
        if isinstance(part, TextPart):
            return TextPart(text=await self._chain.resolve_blob(part.blob))
        read = await self._chain.load_files([Message(role="user", parts=(part,))])
        size = len(read[part.blob.hash])  # the size that the sender gave may be wrong
        return part.model_copy(update={"blob": BlobRef(hash=part.blob.hash, size=size)})


def _build_missing_part(item: NewMessage, part: ContentPart, error: TranscriptCorruptedError) -> TextPart:
    what = f"message {item.id}" if item.id else "a message"
    if isinstance(part, FilePart):
        what = f"file {part.name} of {what}" if part.name else f"a file of {what}"
    text = f"[{what} could not be read: {error.message}. Its sender has to send it again, under another id.]"
    logger.warning("a run goes on without a message: %s", text)
    return TextPart(text=text)


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
        status: UsageStatus = "failed" if output.failed else "rejected" if output.rejected else "completed"
        run, turn = build_run_row(call, head, answer), build_turn_row(call, head, answer)
        reply.commit = Commit(nodes, blobs, run=run, turn=turn, usage=build_usage_row(call, status))
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
        run, turn = build_closed_run_row(call, head), build_closed_turn_row(call, head)
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
                "the run: `perdure resume ID --from-store` goes on from what it has.",
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

    Raises ``InvalidInputError`` for a run that was started for others; its ending is recorded all the same, without its
    messages: the conversation goes on without them.
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


def _move_large_output_to_blobs(output: ModelOutput, blobs: list[Blob], update: dict[str, Any]) -> ModelOutput:
    """Return ``output`` updated with ``update``, and with large text and arguments replaced by references, to keep them
    out of history. Adds their blobs to ``blobs``."""
    output = output.model_copy(update=update | {"calls": tuple(_omit_large_call_arguments(output.calls, blobs))})
    large = is_large_text(output.text)
    if output.finish is not None and (output.limits.protocol == "tool" or not large):
        return _move_answer_and_text_to_blobs(output, output.finish, blobs)
    if not large:
        return output
    ref = add_blob(blobs, output.finish.content if output.finish else output.text)
    finish = output.finish.model_copy(update={"content": ""}) if output.finish else None
    return output.model_copy(update={"text": "", "blob": ref, "finish": finish})


def _move_answer_and_text_to_blobs(output: ModelOutput, finish: FinalAnswer, blobs: list[Blob]) -> ModelOutput:
    """The same where the answer differs from the reply's text, as a hook or a validator may have changed it."""
    output = output.model_copy(update={"finish": move_text_to_blob(finish, "content", blobs)})
    return move_text_to_blob(output, "text", blobs)


def _omit_large_call_arguments(calls: Iterable[Call], blobs: list[Blob]) -> Iterator[Call]:
    """Remove arguments that are too large, each or all together: they are read from the transcript node instead, and a
    subagent's message from a blob. The process that runs a remote or callback tool can read neither: its arguments are
    sent whole, or the call is refused."""
    left = remote_left = OUTPUT_BYTES
    for call in calls:
        size = measure_json(call.arguments)
        if isinstance(disposition := call.disposition, RemoteCall | CallbackCall):
            size += measure_json(disposition.model_dump(mode="json")) if isinstance(disposition, CallbackCall) else 0
            if size > min(REMOTE_BYTES, remote_left):
                kind = "remote" if isinstance(disposition, RemoteCall) else "callback"
                text = f"not run: its arguments have {size:,} bytes; a {kind} tool takes up to {REMOTE_BYTES:,}"
                call = call.model_copy(update={"arguments": None, "disposition": RefusedCall(text=text)})
            else:
                remote_left -= size
        elif size > INLINE_BYTES or size > left:
            call = call.model_copy(update={"arguments": None})
            if isinstance(disposition, SubagentCall | TellCall):
                update = {"message": "", "blob": add_blob(blobs, disposition.message)}
                disposition = disposition.model_copy(update=update)
                call = call.model_copy(update={"disposition": disposition})
        else:
            left -= size
        yield call
