"""Ready-made hooks: audit log, token warnings, notices, redaction, summaries, usage counters.

``Agent(hooks=[TokenCollector(), redact()])``, or ``Worker(hooks=[audit_log("audit.jsonl")])``. Each is a ``HookSet``,
and opt-in. Counters are in ``ctx.memory``, committed with the outcomes that they count: they survive workers, are the
same on every worker, and count each paid call once.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import inspect
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from ..context.memory import MemoryReader
from ..errors import DefinitionError, HookError
from ..hooks import HookEvent, HookSet, hook
from ..hooks.hook import OnError
from ..tools import RunContext, ToolContext
from ..types.compaction import Compaction
from ..types.limits import check_whole_number
from ..types.messages import Message, Part, TextPart, ThinkingPart, ToolResultPart, Usage

logger = logging.getLogger("perdure.hooks")

_TAIL_BYTES = 64 * 1024
"""Bytes of an audit log's end that are read first to find its last line."""
_NO_PREVIOUS_HASH = "0" * 64


class AuditLog(HookSet):
    """See :func:`audit_log`."""

    def __init__(self, path: str | os.PathLike[str], *, content: bool = True, on_error: OnError = "fail") -> None:
        self.path = Path(path)
        self._writes_content = content
        functions: dict[HookEvent, Any] = {
            "on_user_message": self._record_user_message,
            "before_llm_call": self._record_model_request,
            "after_llm_call": self._record_model_reply,
            "before_tool_call": self._record_tool_call,
            "after_tool_call": self._record_tool_result,
            "on_finish": self._record_finish,
            "on_error": self._record_error,
        }
        super().__init__(
            [hook(event, name="audit_log", on_error=on_error)(function) for event, function in functions.items()]
        )

    def _record_user_message(self, message: Message, ctx: RunContext[Any]) -> None:
        self._append_line("message", ctx, id=message.id, by=message.by, **self._build_text_fields(message.text))

    def _record_model_request(self, model: str, messages: tuple[Message, ...], ctx: RunContext[Any]) -> None:
        self._append_line("model.asked", ctx, model=model, messages=len(messages))

    def _record_model_reply(self, reply: Message, ctx: RunContext[Any]) -> None:
        calls = [{"id": call.id, "name": call.name} for call in reply.tool_calls]
        tokens = reply.usage.total_tokens if reply.usage is not None else 0
        text_fields = self._build_text_fields(reply.text)
        self._append_line("model.said", ctx, model=reply.model, tokens=tokens, calls=calls, **text_fields)

    def _record_tool_call(self, name: str, arguments: dict[str, Any], call_id: str, ctx: RunContext[Any]) -> None:
        argument_fields = self._build_text_fields(arguments, "arguments")
        self._append_line("tool.called", ctx, tool=name, call_id=call_id, **argument_fields)

    def _record_tool_result(self, result: ToolResultPart, ctx: RunContext[Any]) -> None:
        text_fields = self._build_text_fields(result.content)
        call = {"tool": result.name, "call_id": result.call_id, "error": result.is_error}
        self._append_line("tool.done", ctx, **call, **text_fields)

    def _record_finish(self, content: str, ctx: RunContext[Any]) -> None:
        self._append_line("finished", ctx, **self._build_text_fields(content))

    def _record_error(self, error: Exception, name: str, attempt: int, ctx: RunContext[Any]) -> None:
        text_fields = self._build_text_fields(str(error))
        self._append_line("error", ctx, activity=name, attempt=attempt, error_type=type(error).__name__, **text_fields)

    def _build_text_fields(self, text: Any, name: str = "text") -> dict[str, Any]:
        if self._writes_content:
            return {name: text}
        plain = text if isinstance(text, str) else json.dumps(text, sort_keys=True, ensure_ascii=False, default=str)
        return {f"{name}_sha256": hashlib.sha256(plain.encode(errors="replace")).hexdigest()}

    def _append_line(self, event: str, ctx: RunContext[Any], **facts: Any) -> None:
        run = {"run_id": ctx.run_id, "task_id": ctx.task_id, "agent": ctx.agent, "iteration": ctx.iteration}
        line = {"at": datetime.now(UTC).isoformat(timespec="microseconds"), "event": event, **run, **facts}
        with self.path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
            last_line, is_torn = _read_last_line(file)
            line["previous"] = hashlib.sha256(last_line).hexdigest() if last_line else _NO_PREVIOUS_HASH
            encoded = json.dumps(line, default=str).encode()  # ASCII, so that no value contains a line break
            file.write((b"\n" if is_torn else b"") + encoded + b"\n")
            file.flush()
            os.fsync(file.fileno())


def audit_log(path: str | os.PathLike[str], *, content: bool = True, on_error: OnError = "fail") -> AuditLog:
    """Append a line to the file ``path`` for every message, model call, tool call, answer and error.

    Each line is on the disk before the call continues, and has the hash of the line before, so that a changed or
    removed line is found: :func:`check_audit_log`. Several processes of a machine may write to one file. A call that a
    lost worker had started is repeated, and its lines are written again. ``content=False`` writes hashes in place of
    texts and arguments. A line that cannot be written fails the call; with ``on_error="log"`` the failure is only
    logged.

    After ``redact()`` in the list of hooks, it logs the redacted texts; before it, the original ones.
    """
    return AuditLog(path, content=content, on_error=on_error)


def check_audit_log(path: str | os.PathLike[str]) -> int:
    """Return the number of lines of the log. Raises ``HookError`` that names the first line which does not follow from
    the line before.

    The file cannot show that lines were cut off at its end: store the hash of a line elsewhere for that.
    """
    previous_line, number = b"", 0
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            line_bytes = line.rstrip(b"\n")
            expected = hashlib.sha256(previous_line).hexdigest() if previous_line else _NO_PREVIOUS_HASH
            try:
                previous_hash = json.loads(line_bytes)["previous"]
            except (ValueError, KeyError, TypeError):
                previous_hash = None
            is_torn = previous_hash is None and not line_bytes.endswith(b"}")  # its machine was lost; the next seals it
            if previous_hash != expected and not is_torn:
                raise HookError(f"audit log {path}: line {number} does not follow from the line before it")
            previous_line = line_bytes
    return number


def _read_last_line(file: BinaryIO) -> tuple[bytes, bool]:
    """Return the last line, and whether its end is missing: the machine was lost while it was written."""
    end, size = file.seek(0, os.SEEK_END), _TAIL_BYTES
    while True:  # a line may have many MB: twice as much each time, so that the sum stays in proportion
        file.seek(max(end - size, 0))
        tail = file.read()
        if size >= end or b"\n" in tail.rstrip(b"\n"):
            break
        size *= 2
    return tail.rstrip(b"\n").rpartition(b"\n")[2], bool(tail) and not tail.endswith(b"\n")


# ---
# Notices: when a run has used many tokens, and every n iterations.


Notifier = Callable[[RunContext[Any], int], Any]
"""``tell(ctx, number)``, sync or async. Its return value is ignored."""


def _log_token_use(ctx: RunContext[Any], tokens: int) -> None:
    logger.warning("run %s of agent %s has used %s tokens", ctx.run_id, ctx.agent, f"{tokens:,}")


def warn_on_tokens(limit: int, tell: Notifier = _log_token_use, *, namespace: str = "token_warnings") -> HookSet:
    """Call ``tell(ctx, tokens)`` once per run, when its replies have used more than ``limit`` tokens.

    By default, a warning is logged. To stop a run instead: ``Limits(tokens=…)``.
    """
    check_whole_number("warn_on_tokens", "limit", limit, hint="For instance warn_on_tokens(100_000).")

    async def count(usage: Usage, ctx: RunContext[Any]) -> None:
        counter = await ctx.memory.get(namespace, ctx.run_id, {"tokens": 0, "warned": False})
        tokens = counter["tokens"] + usage.total_tokens
        should_warn = tokens > limit and not counter["warned"]
        await ctx.memory.put(namespace, ctx.run_id, {"tokens": tokens, "warned": counter["warned"] or should_warn})
        if should_warn:
            await _call_notifier(tell, ctx, tokens)

    return HookSet([hook("after_llm_call", name="warn_on_tokens")(count)])


def notify_every(n: int, tell: Notifier, *, namespace: str = "notices") -> HookSet:
    """Call ``tell(ctx, iteration)`` after every ``n``-th reply of a turn.

    A reply whose worker was lost before it was recorded is requested again, and reported again.
    """
    check_whole_number("notify_every", "n", n, hint="For instance notify_every(10, tell).")

    async def notify(iteration: int, ctx: RunContext[Any]) -> None:
        place = f"{ctx.task_id} {iteration}"  # a summary of the conversation is a reply, too, but not an iteration
        if iteration % n == 0 and await ctx.memory.get(namespace, ctx.run_id) != place:
            await ctx.memory.put(namespace, ctx.run_id, place)
            await _call_notifier(tell, ctx, iteration)

    return HookSet([hook("after_llm_call", name="notify_every")(notify)])


async def _call_notifier(tell: Notifier, ctx: RunContext[Any], number: int) -> None:
    if inspect.iscoroutinefunction(tell):
        await tell(ctx, number)
        return
    returned = await asyncio.to_thread(tell, ctx, number)  # it may block, and other hooks and tools share the loop
    if isinstance(returned, Awaitable):
        await returned


# ---
# Keeping secrets out of transcripts, events and models.


SECRETS: tuple[str, ...] = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----BEGIN )[\s\S])*?-----END [A-Z ]*PRIVATE KEY-----",
    r"\bsk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic
    r"\b(?:ghp|gho|ghu|ghs|ghr|github_pat)_[A-Za-z0-9_]{20,}",
    r"\bglpat-[A-Za-z0-9_-]{20,}",
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # AWS
    r"\bAIza[A-Za-z0-9_-]{35}",  # Google
    r"\beyJ[A-Za-z0-9_-]{10,4096}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]+",  # JSON web tokens
)
"""Patterns of keys and tokens with a known form. Passwords have none: give patterns of your own.

Each takes time in proportion to the length of the text, for any text: it may come from anywhere, and blocks the worker
meanwhile.
"""


def redact(patterns: Iterable[str | re.Pattern[str]] = SECRETS, *, mask: str = "[redacted]") -> HookSet:
    """Replace matches of ``patterns`` (regular expressions) by ``mask``: in users' messages, in results of tools and
    subagents, and in the model's text and thinking. The matches are neither stored, nor sent to a model afterwards.

    The arguments of tool calls (it would be another call) and files are not changed. A subagent's texts are in its own
    run, where its own hooks change them. Followers see a streamed reply before it is complete: use
    ``Worker(stream=False)`` if that matters. Temporal's history has the messages of clients and the results of remote
    tools: encrypt it with a codec. Raises ``DefinitionError`` for an invalid regular expression.
    """
    try:
        compiled = [re.compile(pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns)]
    except (re.error, TypeError) as error:
        raise DefinitionError(f"redact: a pattern is not a regular expression: {error}") from None

    def mask_text(text: str) -> str:
        for pattern in compiled:
            text = pattern.sub(lambda _: mask, text)
        return text

    def mask_part(part: Part) -> Part | None:
        """Mask a part, without data of its provider that says the same; thinking with such data is removed, since it
        cannot go back."""
        if not isinstance(part, TextPart | ThinkingPart) or (text := mask_text(part.text)) == part.text:
            return part
        if isinstance(part, ThinkingPart) and part.opaque is not None:
            return None
        return part.model_copy(update={"text": text, "opaque": None})

    # A hook's arguments are bound by name.
    def mask_message(message: Message) -> Message | None:
        parts = tuple(masked for part in message.parts if (masked := mask_part(part)) is not None)
        return None if parts == message.parts else message.model_copy(update={"parts": parts})

    def mask_reply(reply: Message) -> Message | None:
        return mask_message(reply)

    def mask_result(result: ToolResultPart) -> ToolResultPart | None:
        text = mask_text(result.content)
        return None if text == result.content else result.model_copy(update={"content": text})

    return HookSet(
        [
            hook("on_user_message", name="redact")(mask_message),
            hook("after_llm_call", name="redact")(mask_reply),
            hook("after_tool_call", name="redact")(mask_result),
            hook("after_subagent", name="redact")(mask_result),
        ]
    )


# ---
# Summaries of long conversations.


def auto_summarise(threshold: int, *, keep_last: int = 20, model: Any = None, prompt: str | None = None) -> HookSet:
    """Summarise an agent's conversation when a model call has used ``threshold`` tokens.

    The same as ``Agent(compaction=Compaction.summarise(at=threshold, …))``, as a hook: the summary is a model call of
    its own, recorded once, and the messages that it replaces stay in the store. For agents, not for workers. Raises
    ``DefinitionError``.
    """
    hook_set = HookSet()
    hook_set.compaction = Compaction.summarise(at=threshold, keep_last=keep_last, model=model, prompt=prompt)
    return hook_set


# ---
# Usage of runs: tokens and cost, and tool calls.


class TokenCollector(HookSet):
    """Adds up the tokens and the cost of every run: ``await collector.of(client.memory, run.id)``.

    The sums are kept in the memory namespace ``namespace``, by run id, until they are deleted.
    """

    def __init__(self, namespace: str = "tokens") -> None:
        self.namespace = namespace
        super().__init__([hook("after_llm_call", name="TokenCollector")(self._add_usage)])

    async def _add_usage(self, usage: Usage, cost_usd: float | None, ctx: RunContext) -> None:
        sums = await self.of(ctx.memory, ctx.run_id)
        usage_of_call = {"calls": 1, **usage.model_dump(), "cost_usd": cost_usd or 0.0}
        sums = {name: sums.get(name, 0) + value for name, value in usage_of_call.items()}
        await ctx.memory.put(self.namespace, ctx.run_id, sums)

    async def of(self, memory: MemoryReader, run_id: str) -> dict[str, Any]:
        """Return ``calls``, ``input_tokens``, ``output_tokens``, …, ``cost_usd`` of the run; empty before its first
        reply."""
        sums: dict[str, Any] = await memory.get(self.namespace, run_id, {})
        return sums


class ToolUsage(HookSet):
    """Counts the calls and the errors of each tool of a run: ``await usage.of(client.memory, run.id)``.

    One entry per call in the memory namespace ``namespace``, because calls run at the same time.
    """

    def __init__(self, namespace: str = "tool_usage") -> None:
        self.namespace = namespace
        super().__init__([hook("after_tool_call", name="ToolUsage")(self._record_call)])

    async def _record_call(self, name: str, result: ToolResultPart, ctx: ToolContext) -> None:
        call = {"tool": name, "error": result.is_error}
        await ctx.memory.put(self.namespace, f"{ctx.run_id}#{ctx.idempotency_key}", call)

    async def of(self, memory: MemoryReader, run_id: str, *, limit: int = 100_000) -> dict[str, dict[str, int]]:
        """Return ``{"refund": {"calls": 3, "errors": 1}}``, for the first ``limit`` calls."""
        counts_by_tool: dict[str, dict[str, int]] = {}
        for key, call in (await memory.list(self.namespace, f"{run_id}#", limit=limit)).items():
            if key.rpartition("#")[0] != run_id:  # a run whose id starts with this id
                continue
            counts = counts_by_tool.setdefault(call["tool"], {"calls": 0, "errors": 0})
            counts["calls"] += 1
            counts["errors"] += call["error"]
        return counts_by_tool
