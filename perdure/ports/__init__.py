"""The boundaries: what the engine asks of a model, of a store, and of whoever stands around a call.

Each protocol is small, names no SDK, and ships a public fake in ``perdure.testing``.
"""

from .events import Batch, EventRow, Events, NewEvent, token
from .model import (
    Completed,
    ModelRef,
    ModelRequest,
    Provider,
    Restarted,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolSpec,
)
from .stage import Fork, ModelCall, ModelReply, NextModel, NextTool, Stage, ToolCall
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
from .toolset import ListedTool, Toolset

__all__ = [
    "Batch",
    "Blob",
    "Chain",
    "Claim",
    "Commit",
    "Completed",
    "EventRow",
    "Events",
    "Fork",
    "Journal",
    "ListedTool",
    "Memory",
    "MemoryWrite",
    "ModelCall",
    "ModelRef",
    "ModelReply",
    "ModelRequest",
    "NewEvent",
    "NextModel",
    "NextTool",
    "Node",
    "Outcome",
    "Provider",
    "Restarted",
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
    "Toolset",
    "Transcripts",
    "TurnRow",
    "Turns",
    "token",
]
