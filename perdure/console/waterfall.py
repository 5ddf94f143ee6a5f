"""The waterfall of a run: where the time of the model calls, tool calls, waits and subagents on a page went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .texts import parse_time
from .transcript import Block, CallBlock, ReplyBlock, Transcript


@dataclass(frozen=True)
class Span:
    """A bar of the waterfall. ``start`` and ``length`` are of 1000."""

    seq: int
    label: str
    kind: Literal["model", "tool", "wait", "child"]
    start: float
    length: float
    seconds: float
    is_open: bool
    tokens: int = 0
    cost_usd: float | None = None
    is_bad: bool = False


def build_waterfall(transcript: Transcript, now: str, closed: str | None = None) -> tuple[list[Span], float]:
    """Build the bars of the model calls, tool calls and waits on a page, and the seconds that they span together.

    Of a run that has ended, what had no end of its own ended with it: only the bars of an open run last until ``now``.
    ``closed``: when it ended, for a page without the event of it.
    """
    ended = transcript.ended or closed
    now = ended or now
    raw: list[tuple[Block, str, Literal["model", "tool", "wait", "child"], str, str]] = []
    for block in transcript.blocks.values():
        if isinstance(block, ReplyBlock) and block.started:
            raw.append(
                (block, block.model.partition(":")[2] or block.model or "model", "model", block.started, block.ended)
            )
        elif isinstance(block, CallBlock):
            if block.asked:
                end = block.decision.at if block.decision else block.ended
                who = "approval" if block.hash and not block.question and block.form is None else "answer"
                raw.append((block, who, "wait", block.asked, end))
            if block.started:
                raw.append((block, block.name, "child" if block.child else "tool", block.started, block.ended))
    times = [(parse_time(start), parse_time(end or now)) for _, _, _, start, end in raw]
    known = [(start, end) for start, end in times if start is not None and end is not None]
    if not known:
        return [], 0.0
    begin, finish = min(start for start, _ in known), max(end for _, end in known)
    total = max((finish - begin).total_seconds(), 0.001)
    spans = []
    for (block, label, kind, _, end_text), (first, last) in zip(raw, times, strict=True):
        if first is None or last is None:
            continue
        seconds = max((last - first).total_seconds(), 0.0)
        reply = block if isinstance(block, ReplyBlock) else None
        spans.append(
            Span(
                block.seq, label, kind, (first - begin).total_seconds() / total * 1000,
                max(seconds / total * 1000, 3.0), seconds, not end_text and not ended,
                reply.usage.total_tokens if reply else 0, reply.cost_usd if reply else None,
                block.state == "error" if isinstance(block, CallBlock) else bool(reply and reply.state == "retracted"),
            )
        )  # fmt: skip
    return spans, total
