"""The ports of the engine: protocols of model providers, stores and toolsets.

Each protocol is small, names no SDK, and has a public fake in ``perdure.testing``.

A name is loaded when it is first used: their rows are dozens of dataclasses, most of which a client never makes. So
modules that each program loads write ``from .. import ports`` and ``ports.Commit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import NameLoader

if TYPE_CHECKING:
    from .audit import AuditRow as AuditRow
    from .idempotency import IdempotencyClaim as IdempotencyClaim
    from .model import Completed as Completed
    from .model import ModelRef as ModelRef
    from .model import ModelRequest as ModelRequest
    from .model import Provider as Provider
    from .model import Restarted as Restarted
    from .model import StreamEvent as StreamEvent
    from .model import TextDelta as TextDelta
    from .model import ThinkingDelta as ThinkingDelta
    from .model import ToolCallDelta as ToolCallDelta
    from .model import ToolSpec as ToolSpec
    from .outbox import OutboxRow as OutboxRow
    from .outbox import WriteOptions as WriteOptions
    from .store import AgentRow as AgentRow
    from .store import Blob as Blob
    from .store import Cache as Cache
    from .store import Claim as Claim
    from .store import Commit as Commit
    from .store import EventBatch as EventBatch
    from .store import EventLog as EventLog
    from .store import EventRow as EventRow
    from .store import Journal as Journal
    from .store import MemoryWrite as MemoryWrite
    from .store import NewEvent as NewEvent
    from .store import Node as Node
    from .store import Outcome as Outcome
    from .store import RunRow as RunRow
    from .store import Runs as Runs
    from .store import SharedMemory as SharedMemory
    from .store import Store as Store
    from .store import TranscriptChain as TranscriptChain
    from .store import Transcripts as Transcripts
    from .store import TurnRow as TurnRow
    from .store import Turns as Turns
    from .store import add_blob as add_blob
    from .store import build_batch_token as build_batch_token
    from .store import move_file_to_blob as move_file_to_blob
    from .store import move_text_to_blob as move_text_to_blob
    from .store import record_file as record_file
    from .times import format_utc_now as format_utc_now
    from .times import timestamp as timestamp
    from .tokens import ROLES as ROLES
    from .tokens import Role as Role
    from .tokens import TokenCursor as TokenCursor
    from .tokens import TokenRow as TokenRow
    from .tokens import Verb as Verb
    from .toolset import ON_CHANGE_VALUES as ON_CHANGE_VALUES
    from .toolset import ListedTool as ListedTool
    from .toolset import Toolset as Toolset
    from .usage import UsageRow as UsageRow
    from .waits import RunWaits as RunWaits
    from .waits import WaitCursor as WaitCursor
    from .waits import WaitRow as WaitRow
else:
    __getattr__ = NameLoader(
        __name__,
        {
            ".model": "Completed ModelRef ModelRequest Provider Restarted StreamEvent "
            "TextDelta ThinkingDelta ToolCallDelta ToolSpec",
            ".store": "AgentRow Blob Cache Claim Commit EventBatch EventLog EventRow Journal MemoryWrite NewEvent "
            "Node Outcome RunRow Runs SharedMemory Store TranscriptChain Transcripts TurnRow Turns "
            "add_blob build_batch_token move_file_to_blob move_text_to_blob record_file",
            ".audit": "AuditRow",
            ".idempotency": "IdempotencyClaim",
            ".outbox": "OutboxRow WriteOptions",
            ".times": "format_utc_now timestamp",
            ".usage": "UsageRow",
            ".waits": "RunWaits WaitCursor WaitRow",
            ".tokens": "ROLES Role TokenCursor TokenRow Verb",
            ".toolset": "ON_CHANGE_VALUES ListedTool Toolset",
        },
    )
    __dir__ = __getattr__.list_names
    __all__ = sorted(__getattr__.homes)
