"""Keeping secrets out of transcripts, events and models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ...errors import DefinitionError
from ...hooks import HookSet, hook
from ...types.messages import Message, Part, TextPart, ThinkingPart, ToolResultPart

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
