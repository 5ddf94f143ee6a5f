"""What there is to say of what a model call is given: messages that join the conversation, results that no tool said.

A message or result is known by the head that it comes behind and its place there: a call that failed, or was stopped,
leaves both as they were for the next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from ..loop.finish import REMINDER_ID
from ..ports import ModelCall, NewEvent
from ..structured import to_xml
from ..types.events import MessageInjected, ToolCompleted, ToolStarted
from ..types.interface import plain_output
from ..types.messages import FilePart, TextPart
from ..types.wire import NewMessage, NewResult
from .asked import decided
from .occasion import result_key
from .sent import by_reference


def given(call: ModelCall, said: dict[str, Any]) -> Iterator[NewEvent]:
    """The messages that join the conversation, and results that no tool recorded: of refused or stopped calls."""
    task, count = call.input, 0
    head = task.head if task.behind is None else task.behind or None  # as the first of these calls said it
    for item in task.new:
        if isinstance(item, NewResult):
            if item.decided is not None:
                key = result_key(task.scope, head, item.call_id)
                yield decided(item.decided, item.call_id, item.name, key, said)
                if item.decided.state == "approved":  # a client was to run it since then
                    yield NewEvent(ToolStarted(**said, call_id=item.call_id, name=item.name), key=f"began/{key}")
            if item.key is None:
                result = ToolCompleted(
                    **said,
                    call_id=item.call_id,
                    name=item.name,
                    content=item.text or "",
                    blob=item.blob,
                    is_error=item.is_error,
                    answered_by=item.answered_by or None,
                )
                yield NewEvent(result, key=result_key(task.scope, head, item.call_id))
        elif item.id != REMINDER_ID:
            plain = json.dumps(item.model_dump(mode="json", exclude_none=True), sort_keys=True)
            digest = hashlib.sha256(plain.encode()).hexdigest()[:16]  # a reset run may be told something else
            yield NewEvent(_injected(item, said), key=f"said/{task.scope}/{head}/{count}/{digest}")
            count += 1


def _injected(item: NewMessage, said: dict[str, Any]) -> MessageInjected:
    content = item.content
    said = {**said, "id": item.id, "by": item.by}
    if isinstance(content, str):
        plain = plain_output(content) if item.typed else None
        return MessageInjected(**said, content=to_xml(plain) if isinstance(plain, dict) else content)
    if not isinstance(content, tuple):
        return MessageInjected(**said, blob=content)
    texts = [part for part in content if isinstance(part, TextPart)]
    files = tuple(by_reference(part)[0] for part in content if isinstance(part, FilePart))
    blob = next((part.blob for part in texts if part.blob is not None), None)
    return MessageInjected(**said, content="".join(part.text for part in texts), blob=blob, files=files)
