"""A log of what agents were told, said and did: a line of JSON for each event, each sealed by the hash of the last."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import HookError
from ...hooks import Event, HookSet, hook
from ...hooks.hook import OnError
from ...tools import RunContext
from ...types.messages import Message, ToolResultPart

_CHUNK = 64 * 1024
_NONE = "0" * 64


class AuditLog(HookSet):
    """See :func:`audit_log`."""

    def __init__(self, path: str | os.PathLike[str], *, content: bool = True, on_error: OnError = "fail") -> None:
        self.path = Path(path)
        self._content = content
        functions: dict[Event, Any] = {
            "on_user_message": self._message,
            "before_llm_call": self._asked,
            "after_llm_call": self._said,
            "before_tool_call": self._called,
            "after_tool_call": self._done,
            "on_finish": self._finished,
            "on_error": self._failed,
        }
        super().__init__(
            [hook(event, name="audit_log", on_error=on_error)(function) for event, function in functions.items()]
        )

    def _message(self, message: Message, ctx: RunContext[Any]) -> None:
        self._write("message", ctx, id=message.id, by=message.by, **self._text(message.text))

    def _asked(self, model: str, messages: tuple[Message, ...], ctx: RunContext[Any]) -> None:
        self._write("model.asked", ctx, model=model, messages=len(messages))

    def _said(self, reply: Message, ctx: RunContext[Any]) -> None:
        calls = [{"id": one.id, "name": one.name} for one in reply.tool_calls]
        tokens = reply.usage.total_tokens if reply.usage is not None else 0
        self._write("model.said", ctx, model=reply.model, tokens=tokens, calls=calls, **self._text(reply.text))

    def _called(self, name: str, arguments: dict[str, Any], call_id: str, ctx: RunContext[Any]) -> None:
        self._write("tool.called", ctx, tool=name, call_id=call_id, **self._text(arguments, "arguments"))

    def _done(self, result: ToolResultPart, ctx: RunContext[Any]) -> None:
        said = self._text(result.content)
        self._write("tool.done", ctx, tool=result.name, call_id=result.call_id, error=result.is_error, **said)

    def _finished(self, content: str, ctx: RunContext[Any]) -> None:
        self._write("finished", ctx, **self._text(content))

    def _failed(self, error: Exception, name: str, attempt: int, ctx: RunContext[Any]) -> None:
        said = self._text(str(error))
        self._write("error", ctx, activity=name, attempt=attempt, error_type=type(error).__name__, **said)

    def _text(self, text: Any, name: str = "text") -> dict[str, Any]:
        if self._content:
            return {name: text}
        plain = text if isinstance(text, str) else json.dumps(text, sort_keys=True, ensure_ascii=False, default=str)
        return {f"{name}_sha256": hashlib.sha256(plain.encode(errors="replace")).hexdigest()}

    def _write(self, event: str, ctx: RunContext[Any], **facts: Any) -> None:
        run = {"run_id": ctx.run_id, "task_id": ctx.task_id, "agent": ctx.agent, "iteration": ctx.iteration}
        line = {"at": datetime.now(UTC).isoformat(timespec="microseconds"), "event": event, **run, **facts}
        with _locked(self.path) as file:
            last, torn = _last_line(file)
            line["previous"] = hashlib.sha256(last).hexdigest() if last else _NONE
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
            expected = hashlib.sha256(before).hexdigest() if before else _NONE
            try:
                previous = json.loads(whole)["previous"]
            except (ValueError, KeyError, TypeError):
                previous = None
            if previous != expected and not (previous is None and _torn(whole)):
                raise HookError(f"audit log {path}: line {number} does not follow from the line before it")
            before = whole
    return number


def _torn(line: bytes) -> bool:
    """Whether it is what a lost machine left of a line: its beginning. The next line seals it."""
    return not line.endswith(b"}")


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed
        yield file


def _last_line(file: BinaryIO) -> tuple[bytes, bool]:
    """The last line, and whether its end is missing: the machine was lost while it was written."""
    end = file.seek(0, os.SEEK_END)
    tail = b""
    while end > 0 and b"\n" not in tail.rstrip(b"\n"):
        size = min(_CHUNK, end)
        end = file.seek(end - size)
        tail = file.read(size) + tail
    return tail.rstrip(b"\n").rpartition(b"\n")[2], bool(tail) and not tail.endswith(b"\n")
