"""Models that are rules in this process: ``demo:echo`` and ``demo:tools``. They need no key, no network and no SDK.

They are for a first agent, a page, a test of a deployment: whatever does not depend on what a model makes of words.
Each text begins with the model's name, so no reader takes it for a language model's. Equal requests get equal replies.

- ``demo:echo`` repeats what the user has written.
- ``demo:tools`` calls the tool whose name and description have most words of the message, then each other tool that the
  message names, with arguments from the message, and answers with the results.

A typed answer (``Agent(output=…)``) is filled from the results and the message by both.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ToolCallDelta, ToolSpec
from ..types.interface import FINISH_TOOL
from ..types.messages import Part, TextPart, ToolCallPart, ToolResultPart, Usage
from .demo_arguments import ArgumentReader

PIECE_SECONDS = 0.02
"""Before each piece of a text, so that a stream is seen as one."""
_MOST_PIECES = 50
_TEXT_CHARS = 10_000
"""Most characters of a text that are repeated."""
_RESULT_CHARS = 2_000
_CHARS_PER_TOKEN = 4
_WORD = re.compile(r"[^\W_]+")
_COMMON_WORDS = frozenset("a an and are at by can do does for from has have i in is it me my of on or please that the this to what with you".split())  # fmt: skip  # noqa: SIM905,E501  # shorter


@dataclass
class _Turn:
    """What the open turn of a conversation has so far."""

    questions: list[str] = field(default_factory=list)
    """What users have written since the last answer."""
    calls: list[ToolCallPart] = field(default_factory=list)
    results: list[ToolResultPart] = field(default_factory=list)
    all_calls: int = 0
    """Of the whole conversation."""

    @property
    def text(self) -> str:
        return "\n".join(self.questions)


class Demo:
    """The provider of both."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Stream the next reply: a text in pieces, then at most one call."""
        text, call = _build_reply(request)
        for piece in _split_text(text):
            await asyncio.sleep(PIECE_SECONDS)
            yield TextDelta(piece)
        parts: list[Part] = [TextPart(text=text)] if text else []
        if call is not None:
            yield ToolCallDelta(0, call.id, call.name, json.dumps(call.arguments, ensure_ascii=False))
            parts.append(call)
        usage = Usage(input_tokens=_count_input_tokens(request), output_tokens=_count_tokens(f"{text}{call or ''}"))
        yield Completed(tuple(parts), "stop" if call is None else "tool_calls", usage, f"demo:{request.model}")


def _build_reply(request: ModelRequest) -> tuple[str, ToolCallPart | None]:
    """The text, and the call that follows it."""
    turn = _read_turn(request)
    label = f"[demo:{request.model}]"
    spec = _choose_tool(request, turn)
    if spec is None:
        return _build_answer(request, turn, label), None
    reader = ArgumentReader(turn.text, [result.content for result in turn.results if not result.is_error])
    if spec.name == FINISH_TOOL:
        arguments = reader.fill(spec.parameters, answer=_build_answer(request, turn, label))
        return "", ToolCallPart(id=f"call_{turn.all_calls + 1}", name=spec.name, arguments=arguments)
    arguments = reader.fill(spec.parameters)
    invented = f" Your message does not say {_join(reader.invented)}, so I made that up." if reader.invented else ""
    call = ToolCallPart(id=f"call_{turn.all_calls + 1}", name=spec.name, arguments=arguments)
    return f"{label} I call {spec.name}.{invented}", call


def _read_turn(request: ModelRequest) -> _Turn:
    turn, count = _Turn(), 0
    for message in request.messages:
        if message.role == "user":
            files = [part.name or part.media_type for part in message.parts if part.type == "file"]
            turn.questions.append(" ".join([message.text, *(f"({name})" for name in files)]).strip())
        elif message.role == "assistant":
            count += len(message.tool_calls)
            turn.calls += message.tool_calls
            if not message.tool_calls:
                turn = _Turn()
        elif message.role == "tool":
            turn.results += message.tool_results
            if any(result.name == FINISH_TOOL and not result.is_error for result in message.tool_results):
                turn = _Turn()
    turn.all_calls = count
    return turn


def _choose_tool(request: ModelRequest, turn: _Turn) -> ToolSpec | None:
    """The tool to call now; None for an answer in words."""
    specs = {spec.name: spec for spec in request.tools}
    if request.tool_choice is not None:
        return specs.get(request.tool_choice)
    called = {call.name for call in turn.calls}
    words = _list_words(turn.text)
    scores = {
        name: _score_tool(spec, words)
        for name, spec in specs.items()
        if request.model == "tools" and name not in called and name != FINISH_TOOL
    }
    if called - {FINISH_TOOL}:  # one is enough, unless others are named
        scores = {name: score for name, score in scores.items() if set(_WORD.findall(name.lower())) <= words}
    best = max(scores, key=scores.__getitem__, default=None)
    if best is not None and scores[best] > 0:
        return specs[best]
    return specs.get(FINISH_TOOL)


def _score_tool(spec: ToolSpec, words: frozenset[str]) -> int:
    """How many words of the message the tool has; those of its name count three times."""
    name = _list_words(spec.name)
    properties = spec.parameters.get("properties")
    others = _list_words(" ".join([spec.description, *(properties if isinstance(properties, Mapping) else ())]))
    return 3 * len(name & words) + len((others - name) & words)


def _list_words(text: str) -> frozenset[str]:
    """The words that matter, in lower case and without the s of a plural."""
    found = _WORD.findall(text[:_TEXT_CHARS].lower().replace("_", " "))
    return frozenset(word.removesuffix("s") if len(word) > 3 else word for word in found if word not in _COMMON_WORDS)


def _build_answer(request: ModelRequest, turn: _Turn, label: str) -> str:
    results = [result for result in turn.results if result.name != FINISH_TOOL]
    lines = [f"{result.name} {'failed' if result.is_error else 'answered'}: {_shorten(result)}" for result in results]
    if request.model == "echo":
        text = _cut(turn.text, _TEXT_CHARS) or "(nothing)"
    elif lines:
        text = "\n".join(lines)
    elif names := [spec.name for spec in request.tools if spec.name != FINISH_TOOL]:
        text = f"I follow rules and am not a language model. Your message has no word of my tools: {_join(names)}."
    else:
        text = f"I follow rules and am not a language model, and I have no tools. You wrote: {_cut(turn.text, 200)}"
    answer = f"{label} {text}"
    return f"<finish>{answer}</finish>" if "<finish>" in (request.system or "") else answer


def _shorten(result: ToolResultPart) -> str:
    return _cut(result.content or f"{len(result.files)} files", _RESULT_CHARS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters in all)"


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _split_text(text: str) -> Iterator[str]:
    """Words with the blanks behind them, several at once in a long text."""
    words = re.findall(r"\S+\s*|\s+", text)
    size = -(-len(words) // _MOST_PIECES) or 1
    for start in range(0, len(words), size):
        yield "".join(words[start : start + size])


def _count_tokens(text: str) -> int:
    return len(text) // _CHARS_PER_TOKEN + 1


def _count_input_tokens(request: ModelRequest) -> int:
    """About as many as a model's: a token for four characters of system prompt and messages."""
    chars = len(request.system or "")
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, TextPart):
                chars += len(part.text)
            elif isinstance(part, ToolResultPart):
                chars += len(part.content)
    return chars // _CHARS_PER_TOKEN + 1
