"""The boundaries: what the engine asks of a model, of a store, and of whoever stands around a call.

Each protocol is small, names no SDK, and ships a public fake in ``perdure.testing``.
"""

from .model import Completed, ModelRequest, Provider, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta, ToolSpec
from .stage import ModelCall, ModelReply, NextModel, NextTool, Stage, ToolCall
from .store import (
    Blob,
    Chain,
    Claim,
    Commit,
    Journal,
    Memory,
    MemoryWrite,
    Node,
    Outcome,
    RunRow,
    Runs,
    Store,
    Transcripts,
    TurnRow,
    Turns,
)

__all__ = [
    "Blob",
    "Chain",
    "Claim",
    "Commit",
    "Completed",
    "Journal",
    "Memory",
    "MemoryWrite",
    "ModelCall",
    "ModelReply",
    "ModelRequest",
    "NextModel",
    "NextTool",
    "Node",
    "Outcome",
    "Provider",
    "RunRow",
    "Runs",
    "Stage",
    "Store",
    "StreamEvent",
    "TextDelta",
    "ThinkingDelta",
    "ToolCall",
    "ToolCallDelta",
    "ToolSpec",
    "Transcripts",
    "TurnRow",
    "Turns",
]
