"""Summing a conversation up when it gets long."""

from __future__ import annotations

from typing import Any

from ...hooks import HookSet
from ...types.compaction import Compaction


def auto_summarise(threshold: int, *, keep_last: int = 20, model: Any = None, prompt: str | None = None) -> HookSet:
    """Have an agent's conversation summed up once a model call has come to ``threshold`` tokens.

    The same as ``Agent(compaction=Compaction.summarise(at=threshold, …))``, in the form of a hook: the summary is a
    model call of its own, recorded once, and what it replaces stays in the store. For agents, not for workers.
    Raises ``DefinitionError``.
    """
    brings = HookSet()
    brings.compaction = Compaction.summarise(at=threshold, keep_last=keep_last, model=model, prompt=prompt)
    return brings
