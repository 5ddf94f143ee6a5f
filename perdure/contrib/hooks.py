"""A log of what agents were told, said and did: a line of JSON for each event, each sealed by the hash of the last."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import inspect
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ..errors import DefinitionError, HookError
from ..hooks import HookEvent, HookSet, hook
from ..hooks.hook import OnError
from ..tools import RunContext, ToolContext
from ..types.compaction import Compaction
from ..types.messages import Message, Part, TextPart, ThinkingPart, ToolResultPart, Usage

_TAIL_CHUNK_BYTES = 64 * 1024
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
        calls = [{"id": one.id, "name": one.name} for one in reply.tool_calls]
        tokens = reply.usage.total_tokens if reply.usage is not None else 0
        self._append_line(
            "model.said", ctx, model=reply.model, tokens=tokens, calls=calls, **self._build_text_fields(reply.text)
        )

    def _record_tool_call(self, name: str, arguments: dict[str, Any], call_id: str, ctx: RunContext[Any]) -> None:
        self._append_line(
            "tool.called", ctx, tool=name, call_id=call_id, **self._build_text_fields(arguments, "arguments")
        )

    def _record_tool_result(self, result: ToolResultPart, ctx: RunContext[Any]) -> None:
        said = self._build_text_fields(result.content)
        self._append_line("tool.done", ctx, tool=result.name, call_id=result.call_id, error=result.is_error, **said)

    def _record_finish(self, content: str, ctx: RunContext[Any]) -> None:
        self._append_line("finished", ctx, **self._build_text_fields(content))

    def _record_error(self, error: Exception, name: str, attempt: int, ctx: RunContext[Any]) -> None:
        said = self._build_text_fields(str(error))
        self._append_line("error", ctx, activity=name, attempt=attempt, error_type=type(error).__name__, **said)

    def _build_text_fields(self, text: Any, name: str = "text") -> dict[str, Any]:
        if self._writes_content:
            return {name: text}
        plain = text if isinstance(text, str) else json.dumps(text, sort_keys=True, ensure_ascii=False, default=str)
        return {f"{name}_sha256": hashlib.sha256(plain.encode(errors="replace")).hexdigest()}

    def _append_line(self, event: str, ctx: RunContext[Any], **facts: Any) -> None:
        run = {"run_id": ctx.run_id, "task_id": ctx.task_id, "agent": ctx.agent, "iteration": ctx.iteration}
        line = {"at": datetime.now(UTC).isoformat(timespec="microseconds"), "event": event, **run, **facts}
        with _open_locked_file(self.path) as file:
            last, torn = _read_last_line(file)
            line["previous"] = hashlib.sha256(last).hexdigest() if last else _NO_PREVIOUS_HASH
            written = json.dumps(line, default=str).encode()  # ASCII: a line is a line, whatever is in it
            file.write((b"\n" if torn else b"") + written + b"\n")
            file.flush()
            os.fsync(file.fileno())


def audit_log(path: str | os.PathLike[str], *, content: bool = True, on_error: OnError = "fail") -> AuditLog:
    """Append a line to the file ``path`` for every message, model call, tool call, answer and error.

    Each line is on the disk before the call goes on, and says the hash of the line before, so that one that is changed
    or taken out is seen: :func:`check_audit_log`. Several processes of a machine may write to one file. A call that a
    lost worker had begun is made again, and its lines are written again. ``content=False`` writes hashes in the place
    of texts and arguments. A line that cannot be written fails the call; with ``on_error="log"`` that is only logged.

    Behind ``redact()`` in the list of hooks it sees what that has left; before it, what was said.
    """
    return AuditLog(path, content=content, on_error=on_error)


def check_audit_log(path: str | os.PathLike[str]) -> int:
    """How many lines the log has. Raises ``HookError`` that names the first line which does not follow from the last.

    What was cut off at the end cannot be seen in the file itself: keep the hash of a line elsewhere for that.
    """
    before, number = b"", 0
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            whole = line.rstrip(b"\n")
            expected = hashlib.sha256(before).hexdigest() if before else _NO_PREVIOUS_HASH
            try:
                previous = json.loads(whole)["previous"]
            except (ValueError, KeyError, TypeError):
                previous = None
            if previous != expected and not (previous is None and _is_torn_line(whole)):
                raise HookError(f"audit log {path}: line {number} does not follow from the line before it")
            before = whole
    return number


def _is_torn_line(line: bytes) -> bool:
    """Whether it is what a lost machine left of a line: its beginning. The next line seals it."""
    return not line.endswith(b"}")


@contextmanager
def _open_locked_file(path: Path) -> Iterator[BinaryIO]:
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed
        yield file


def _read_last_line(file: BinaryIO) -> tuple[bytes, bool]:
    """The last line, and whether its end is missing: the machine was lost while it was written."""
    end = file.seek(0, os.SEEK_END)
    tail = b""
    while end > 0 and b"\n" not in tail.rstrip(b"\n"):
        size = min(_TAIL_CHUNK_BYTES, end)
        end = file.seek(end - size)
        tail = file.read(size) + tail
    return tail.rstrip(b"\n").rpartition(b"\n")[2], bool(tail) and not tail.endswith(b"\n")


# ---
# Telling somebody: when a run has used many tokens, and every so many iterations.


logger = logging.getLogger("perdure.hooks")

Notifier = Callable[[RunContext[Any], int], Any]
"""``tell(ctx, number)``, sync or async. What it returns is dropped."""


def _log_token_use(ctx: RunContext[Any], tokens: int) -> None:
    logger.warning("run %s of agent %s has used %s tokens", ctx.run_id, ctx.agent, f"{tokens:,}")


def warn_on_tokens(limit: int, tell: Notifier = _log_token_use, *, namespace: str = "token_warnings") -> HookSet:
    """Call ``tell(ctx, tokens)`` once for each run, when its replies have come to more than ``limit`` tokens.

    Without ``tell`` a warning is logged. ``Limits(tokens=…)`` stops a run instead.
    """
    _check_positive_integer("warn_on_tokens", "limit", limit)

    async def count(usage: Usage, ctx: RunContext[Any]) -> None:
        kept = await ctx.memory.get(namespace, ctx.run_id, {"tokens": 0, "warned": False})
        tokens = kept["tokens"] + usage.total_tokens
        due = tokens > limit and not kept["warned"]
        await ctx.memory.put(namespace, ctx.run_id, {"tokens": tokens, "warned": kept["warned"] or due})
        if due:
            await _call_notifier(tell, ctx, tokens)

    return HookSet([hook("after_llm_call", name="warn_on_tokens")(count)])


def notify_every(n: int, tell: Notifier, *, namespace: str = "notices") -> HookSet:
    """Call ``tell(ctx, iteration)`` behind every ``n``-th reply of a turn.

    A reply whose worker was lost before it was recorded is asked for again, and told of again.
    """
    _check_positive_integer("notify_every", "n", n)

    async def notify(iteration: int, ctx: RunContext[Any]) -> None:
        this = f"{ctx.task_id} {iteration}"  # a summary of the conversation is a reply too, and no iteration
        if iteration % n == 0 and await ctx.memory.get(namespace, ctx.run_id) != this:
            await ctx.memory.put(namespace, ctx.run_id, this)
            await _call_notifier(tell, ctx, iteration)

    return HookSet([hook("after_llm_call", name="notify_every")(notify)])


async def _call_notifier(tell: Notifier, ctx: RunContext[Any], number: int) -> None:
    said = tell(ctx, number) if inspect.iscoroutinefunction(tell) else await _run_notifier_in_thread(tell, ctx, number)
    if isinstance(said, Awaitable):
        await said


async def _run_notifier_in_thread(tell: Notifier, ctx: RunContext[Any], number: int) -> Any:
    """A plain function may block, and other hooks and tools share the loop."""
    return await asyncio.to_thread(tell, ctx, number)


def _check_positive_integer(name: str, field: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DefinitionError(f"{name}: {field} is a whole number of at least 1, not {value!r:.100}")


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
"""Keys and tokens whose form is known. Passwords have none: give the patterns of yours.

Each takes as long as the text is, whatever is in that: it may come from anywhere, and the worker does nothing else
meanwhile.
"""


def redact(patterns: Iterable[str | re.Pattern[str]] = SECRETS, *, mask: str = "[redacted]") -> HookSet:
    """Replace what matches any of ``patterns`` (regular expressions) by ``mask``: in users' messages, in the results of
    tools and subagents, and in what the model says and thinks. So it is neither stored, nor sent to a model afterwards.

    Not changed are the arguments of tool calls (it would be another call), and files. What a subagent has said stands
    in its own run, where its own hooks change it. A reply that is streamed is seen by followers before it is whole:
    ``Worker(stream=False)`` where that matters. And Temporal's history holds what clients have sent, and what remote
    tools have returned: encrypt it with a codec. Raises ``DefinitionError`` for what is no regular expression.
    """
    try:
        compiled = [re.compile(pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns)]
    except (re.error, TypeError) as error:
        raise DefinitionError(f"redact: a pattern is no regular expression: {error}") from None

    def masked(text: str) -> str:
        for pattern in compiled:
            text = pattern.sub(lambda _: mask, text)
        return text

    def message_masked(message: Message) -> Message | None:
        parts = tuple(changed for part in message.parts if (changed := part_masked(part)) is not None)
        return None if parts == message.parts else message.model_copy(update={"parts": parts})

    def part_masked(part: Part) -> Part | None:
        """Without what only its provider can read, where that says the same; such a thought cannot go back at all."""
        if not isinstance(part, TextPart | ThinkingPart) or (text := masked(part.text)) == part.text:
            return part
        if isinstance(part, ThinkingPart) and part.opaque is not None:
            return None
        return part.model_copy(update={"text": text, "opaque": None})

    def message(message: Message) -> Any:
        return message_masked(message)

    def reply(reply: Message) -> Any:
        return message_masked(reply)

    def result(result: ToolResultPart) -> Any:
        text = masked(result.content)
        return None if text == result.content else result.model_copy(update={"content": text})

    return HookSet(
        [
            hook("on_user_message", name="redact")(message),
            hook("after_llm_call", name="redact")(reply),
            hook("after_tool_call", name="redact")(result),
            hook("after_subagent", name="redact")(result),
        ]
    )


# ---
# Summing a conversation up when it gets long.


def auto_summarise(threshold: int, *, keep_last: int = 20, model: Any = None, prompt: str | None = None) -> HookSet:
    """Have an agent's conversation summed up once a model call has come to ``threshold`` tokens.

    The same as ``Agent(compaction=Compaction.summarise(at=threshold, …))``, in the form of a hook: the summary is a
    model call of its own, recorded once, and what it replaces stays in the store. For agents, not for workers.
    Raises ``DefinitionError``.
    """
    brings = HookSet()
    brings.compaction = Compaction.summarise(at=threshold, keep_last=keep_last, model=model, prompt=prompt)
    return brings


# ---
# What runs take: tokens and cost, and which tools were called how often.


class MemoryReader(Protocol):
    """What reads memory: ``client.memory``, or ``ctx.memory`` in a tool or hook."""

    async def get(self, namespace: str, key: str, default: Any = None) -> Any:
        """One value."""
        ...

    async def list(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, Any]:
        """Values by their keys."""
        ...


class TokenCollector(HookSet):
    """Adds up the tokens and the cost of every run: ``await collector.of(client.memory, run.id)``.

    They are kept in the memory namespace ``namespace``, by run id, until somebody deletes them.
    """

    def __init__(self, namespace: str = "tokens") -> None:
        self.namespace = namespace
        super().__init__([hook("after_llm_call", name="TokenCollector")(self._add_usage)])

    async def _add_usage(self, usage: Usage, cost_usd: float | None, ctx: RunContext) -> None:
        sums = await self.of(ctx.memory, ctx.run_id)
        found = {"calls": 1, **usage.model_dump(), "cost_usd": cost_usd or 0.0}
        await ctx.memory.put(self.namespace, ctx.run_id, {name: sums.get(name, 0) + n for name, n in found.items()})

    async def of(self, memory: MemoryReader, run_id: str) -> dict[str, Any]:
        """``calls``, ``input_tokens``, ``output_tokens``, …, ``cost_usd`` of the run; empty before its first reply."""
        sums: dict[str, Any] = await memory.get(self.namespace, run_id, {})
        return sums


class ToolUsage(HookSet):
    """Which tools a run has called, how often, and how often with an error: ``await usage.of(client.memory, run.id)``.

    One entry for each call in the memory namespace ``namespace``, because calls run at the same time.
    """

    def __init__(self, namespace: str = "tool_usage") -> None:
        self.namespace = namespace
        super().__init__([hook("after_tool_call", name="ToolUsage")(self._record_call)])

    async def _record_call(self, name: str, result: ToolResultPart, ctx: ToolContext) -> None:
        call = {"tool": name, "error": result.is_error}
        await ctx.memory.put(self.namespace, f"{ctx.run_id}#{ctx.idempotency_key}", call)

    async def of(self, memory: MemoryReader, run_id: str, *, limit: int = 100_000) -> dict[str, dict[str, int]]:
        """``{"refund": {"calls": 3, "errors": 1}}``, of the first ``limit`` calls."""
        found: dict[str, dict[str, int]] = {}
        for key, call in (await memory.list(self.namespace, f"{run_id}#", limit=limit)).items():
            if key.rpartition("#")[0] != run_id:  # of a run whose id begins with this one's
                continue
            counts = found.setdefault(call["tool"], {"calls": 0, "errors": 0})
            counts["calls"] += 1
            counts["errors"] += call["error"]
        return found


# ---
# Hooks that many want: ``Agent(hooks=[TokenCollector(), redact()])``, or
# ``Worker(hooks=[audit_log("audit.jsonl")])``.
#
# Each is a ``HookSet``, and opt-in. What they count is kept in ``ctx.memory``, committed with the outcomes that it is
# about: it survives workers, is the same on every worker, and counts what was paid once.


__all__ = [
    "SECRETS",
    "AuditLog",
    "TokenCollector",
    "ToolUsage",
    "audit_log",
    "auto_summarise",
    "check_audit_log",
    "notify_every",
    "redact",
    "warn_on_tokens",
]
