"""The transcript stage: a model call is given one hash and gets a conversation; its reply becomes the next node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import StoreMismatchError, TranscriptCorruptedError
from ..loop.calls import closed_calls
from ..ports import Blob, Chain, Commit, Journal, ModelCall, ModelReply, NextModel, NextTool, Node, Runs, ToolCall
from ..types.background import AsTell
from ..types.interface import plain_output
from ..types.messages import Message, ToolResultPart
from ..types.plain import size
from ..types.question import AsCallback
from ..types.wire import (
    INLINE_BYTES,
    OUTPUT_BYTES,
    REMOTE_BYTES,
    Answered,
    AsRemote,
    AsSubagent,
    Call,
    CallFacts,
    Finish,
    ModelInput,
    ModelOutput,
    NewResult,
    Refused,
    ToolOutput,
)
from .branches import forked, resolved
from .outcome import read_outcome
from .rows import run_row, turn_row
from .sent import Sent

RenderInput = Callable[[str, Mapping[str, Any]], Awaitable[str]]


class TranscriptStage:
    """Loads what was said before the call, and makes the node of what is said now."""

    def __init__(
        self, chain: Chain, journal: Journal, runs: Runs, store_id: str, render: RenderInput | None = None
    ) -> None:
        """``render`` gives what the agent of a name shows its model of a typed input."""
        self._render = render
        self._chain = chain
        self._journal = journal
        self._runs = runs
        self._store_id = store_id

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Give the call its conversation, and the reply its head and what is to be written."""
        task = call.input
        check_store(task, self._store_id)
        if task.purpose == "remind":
            return await self._unchanged(call, next)
        sent = self._sent(task)
        call.fresh = await self._fresh(task, sent)
        call.head = head = await self._last_head(task) if task.resume else task.head
        if task.purpose != "close":  # an ending says nothing to a model, and must be possible on a corrupt chain
            call.prefix = await self._chain.load(head)
        behind = call.prefix or await self._behind(head, call.fresh)
        fresh = _unheard(behind, call.fresh) if task.resume else call.fresh
        if task.purpose != "compact":  # what is open there is open behind it
            call.fresh = [*closed_calls(behind, fresh), *fresh]
        if task.purpose != "close":
            known = {blob.hash: blob.body for blob in sent.blobs}
            call.files = await self._chain.files([*call.prefix, *call.fresh], known)
            call.branches = await resolved(self._chain, task.branches)
        reply = await next(call)
        if reply.output.branches:
            return forked(self._chain, self._store_id, call, reply, sent.blobs)
        said = [*self._system(call, reply), *call.fresh, *([reply.message] if reply.message else []), *_answered(reply)]
        blobs = [*sent.blobs, *call.blobs]
        nodes: list[Node] = []
        if reply.rewritten:
            head = self._node(None, reply.rewritten, nodes, blobs)
        if said:
            head = self._node(head, said, nodes, blobs)
        kept = {"head": head, "store_id": self._store_id, "compact": reply.due or None}
        reply.output = _fit(reply.output, blobs, kept)
        run, turn = run_row(call, reply.output), turn_row(call, reply.output)
        reply.commit = Commit(nodes, blobs, run=run, turn=turn)
        return reply

    async def _unchanged(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Of a call that says nothing in the conversation."""
        call.prefix = await self._chain.load(call.input.head)
        reply = await next(call)
        reply.output = reply.output.model_copy(update={"head": call.input.head, "store_id": self._store_id})
        return reply

    def _node(self, head: str | None, said: Sequence[Message], nodes: list[Node], blobs: list[Blob]) -> str:
        """Put ``said`` behind ``head``: its node into ``nodes``, and what that takes into ``blobs``; the new head."""
        node, more = self._chain.extend(head, said)
        self._chain.remember(node, said)
        nodes.append(node)
        blobs += more
        return node.hash

    def _sent(self, task: ModelInput) -> Sent:
        """Of what an ending records, also what no agent knows what to make of."""
        render = self._render
        if render is None or task.purpose == "close":
            return Sent(self._chain, self._store_id)

        async def shown(text: str) -> str:
            plain = plain_output(text)
            return await render(task.agent, plain) if isinstance(plain, dict) else text

        return Sent(self._chain, self._store_id, shown)

    async def _last_head(self, task: ModelInput) -> str | None:
        """Where the conversation of this id ended; where it is to begin, if there never was one."""
        row = await self._runs.run(task.context_id)
        return row.head if row is not None and row.head is not None else task.head

    async def _behind(self, head: str | None, fresh: list[Message]) -> list[Message]:
        """What an ending records ``fresh`` behind, if it can be read: open calls can only be closed at their place."""
        try:
            return await self._chain.load(head) if fresh else []
        except TranscriptCorruptedError:
            return []

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Nothing to do: the next model call is given the result by its key."""
        return await next(call)

    async def _fresh(self, task: ModelInput, sent: Sent) -> list[Message]:
        """The new items as messages: neighbouring results are one message, in the order of their calls."""
        ending = task.purpose == "close"
        keys = [item.key for item in task.new if isinstance(item, NewResult) and item.key is not None]
        recorded = await self._journal.find(keys) if keys else {}
        messages: list[Message] = []
        results: list[ToolResultPart] = []
        for item in task.new:
            if isinstance(item, NewResult):
                results.append(await self._result(item, recorded, ending=ending))
                continue
            if results:
                messages.append(Message(role="tool", parts=tuple(results)))
                results = []
            messages.append(await sent.message(item))
        if results:
            messages.append(Message(role="tool", parts=tuple(results)))
        return messages

    async def _result(self, item: NewResult, recorded: dict[str, bytes], *, ending: bool) -> ToolResultPart:
        """Without a result that should be there no model is called; but a run ends without it."""
        said: dict[str, Any] = {"content": item.text or "", "is_error": item.is_error}
        try:
            if item.blob is not None:
                said["content"] = await self._chain.resolve_blob(item.blob)
            elif item.key is not None:
                said |= await self._outcome(item, item.key, recorded)
        except TranscriptCorruptedError as error:
            if not ending and not (item.blob is not None and item.answered_by is not None):
                raise  # what a client has named, and nobody has, is for the model to hear of: nothing is lost
            said |= {"content": unreadable(error), "is_error": True}
        return ToolResultPart(call_id=item.call_id, name=item.name, answered_by=item.answered_by or None, **said)

    async def _outcome(self, item: NewResult, key: str, recorded: dict[str, bytes]) -> dict[str, Any]:
        if key not in recorded:
            raise TranscriptCorruptedError(
                f"the result of tool call {item.call_id} ({item.name}) is not in the journal (key {key})",
                hint="Restore the store from a backup, then resume the run.",
            )
        output = read_outcome(ToolOutput, recorded[key], key)
        text = await self._chain.resolve_blob(output.blob) if output.blob else output.content or ""
        return {"content": text, "is_error": output.is_error, "files": output.files}

    def _system(self, call: ModelCall, reply: ModelReply) -> list[Message]:
        """The system prompt is recorded when it is not the one that the model saw last."""
        if reply.system is None:
            return []
        last = next((message for message in reversed(call.prefix) if message.role == "system"), None)
        return [] if last is not None and last.text == reply.system else [Message.system(reply.system)]


def _answered(reply: ModelReply) -> Iterator[Message]:
    """The results of calls that the engine answered itself, right behind the reply."""
    answered = [(call, how) for call in reply.output.calls if isinstance(how := call.disposition, Answered)]
    if answered:
        yield Message(
            role="tool",
            parts=tuple(
                ToolResultPart(call_id=call.id, name=call.name, content=how.text, is_error=how.is_error)
                for call, how in answered
            ),
        )


def _unheard(behind: Sequence[Message], fresh: Sequence[Message]) -> list[Message]:
    """``fresh`` without what the conversation has under the same id.

    The first call of a new execution may have been recorded by a worker that was lost, and stopped before anybody knew.
    """
    heard = {message.id for message in behind if message.role == "user" and message.id}
    return [message for message in fresh if message.role != "user" or message.id not in heard]


def unreadable(error: TranscriptCorruptedError) -> str:
    """What the model is told in the place of a result."""
    return f"[the result could not be read: {error.message}]"


def check_store(task: CallFacts, store_id: str) -> None:
    """Raise ``StoreMismatchError`` for a run that is kept in another store."""
    if task.store_id is not None and task.store_id != store_id:
        raise StoreMismatchError(
            f"run {task.context_id} is kept in store {task.store_id}, this worker has store {store_id}",
            hint="Point PERDURE_STORE_URL of every worker on this task queue at the same store.",
        )


def _fit(output: ModelOutput, blobs: list[Blob], kept: dict[str, Any]) -> ModelOutput:
    """``output`` with where it is ``kept``. Large text and arguments stay out of history; adds the blobs that this
    needs to ``blobs``."""
    output = output.model_copy(update=kept | {"calls": tuple(_fit_calls(output.calls, blobs))})
    large = _is_large(output.text)
    if output.finish is not None and (output.limits.protocol == "tool" or not large):
        return _fit_apart(output, output.finish, blobs)
    if not large:
        return output
    content = output.finish.content if output.finish else output.text
    blob = Blob.of(content)
    blobs.append(blob)
    finish = output.finish.model_copy(update={"content": ""}) if output.finish else None
    return output.model_copy(update={"text": "", "blob": blob.ref, "finish": finish})


def _fit_apart(output: ModelOutput, finish: Finish, blobs: list[Blob]) -> ModelOutput:
    """The same where the answer is not the reply's text, or is no more: a hook or a validator may have changed it."""
    update: dict[str, Any] = {}
    if _is_large(finish.content):
        blobs.append(Blob.of(finish.content))
        update["finish"] = finish.model_copy(update={"content": "", "blob": blobs[-1].ref})
    if _is_large(output.text):
        blobs.append(Blob.of(output.text))
        update |= {"text": "", "blob": blobs[-1].ref}
    return output.model_copy(update=update) if update else output


def _is_large(text: str) -> bool:
    return len(text) * 4 > INLINE_BYTES and len(text.encode()) > INLINE_BYTES


def _fit_calls(calls: Iterable[Call], blobs: list[Blob]) -> Iterator[Call]:
    """Arguments that do not fit, each for itself or all together, are read from the transcript node instead; what a
    subagent is asked, from a blob. Whoever runs a remote or callback tool can read neither: its arguments travel whole,
    or it is not run."""
    left = far = OUTPUT_BYTES
    for call in calls:
        found = size(call.arguments)
        if isinstance(how := call.disposition, AsRemote | AsCallback):
            found += size(how.model_dump(mode="json")) if isinstance(how, AsCallback) else 0
            if found > min(REMOTE_BYTES, far):
                whose = "remote" if isinstance(how, AsRemote) else "callback"
                text = f"not run: its arguments have {found:,} bytes; a {whose} tool takes up to {REMOTE_BYTES:,}"
                call = call.model_copy(update={"arguments": None, "disposition": Refused(text=text)})
            else:
                far -= found
        elif found > INLINE_BYTES or found > left:
            call = call.model_copy(update={"arguments": None})
            if isinstance(how, AsSubagent | AsTell):
                blobs.append(Blob.of(how.message))
                how = how.model_copy(update={"message": "", "blob": blobs[-1].ref})
                call = call.model_copy(update={"disposition": how})
        else:
            left -= found
        yield call
