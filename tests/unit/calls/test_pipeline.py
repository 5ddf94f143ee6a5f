"""The stages of a worker, from the outside in: what they do with a call depends on their order."""

from __future__ import annotations

from typing import Any

from perdure import Agent
from perdure.testing import MemoryStore
from perdure.worker import Engine

STAGES = {
    "model": [
        "TracingStage.step",
        "InlineStage.model",
        "RunOwnerStage.step",
        "FailuresStage.step",
        "PrepareStage.step",
        "JournalStage.step",
        "EventsStage.model",
        "TranscriptStage.model",
        "IterationStage.model",
        "ViewStage.request",
        "ModelHookStage.request",
        "ReplyCacheStage.request",
        "BudgetStage.request",
    ],
    "compact": [
        "TracingStage.step",
        "RunOwnerStage.step",
        "FailuresStage.step",
        "PrepareStage.step",
        "JournalStage.step",
        "EventsStage.compact",
        "TranscriptStage.compact",
        "SummaryStage.compact",
        "ModelHookStage.request",
        "ReplyCacheStage.request",
        "BudgetStage.request",
    ],
    "close": [  # without PrepareStage: a run must be able to end without its encryption keys
        "TracingStage.step",
        "RunOwnerStage.close",
        "FailuresStage.step",
        "JournalStage.step",
        "EventsStage.close",
        "TranscriptStage.close",
    ],
    "remind": [
        "TracingStage.step",
        "FailuresStage.step",
        "PrepareStage.step",
        "JournalStage.step",
        "EventsStage.remind",
        "TranscriptStage.remind",
    ],
    "tool": [
        "TracingStage.tool",
        "FailuresStage.tool",
        "PrepareStage.tool",
        "JournalStage.tool",
        "EventsStage.tool",
        "ApprovalStage.tool",
        "ToolHookStage.tool",
        "note_begin",
    ],
}


async def test_the_stages_of_each_pipeline() -> None:
    engine = Engine([Agent("a", "openai:gpt-5-mini")], store=MemoryStore())
    async with engine.serve():
        pipelines = engine._pipelines
    assert {name: [_get_name(stage) for stage in getattr(pipelines, name).stages] for name in STAGES} == STAGES
    assert list(STAGES) == list(type(pipelines).__dataclass_fields__)


def _get_name(stage: Any) -> str:
    owner = getattr(stage, "__self__", None)
    return stage.__name__ if owner is None else f"{type(owner).__name__}.{stage.__name__}"
