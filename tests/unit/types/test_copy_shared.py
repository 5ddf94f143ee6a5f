"""Which fields travel from one model to another because both have them: a new one of both is a decision."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from perdure.types.events import BranchCompleted, CallSaid, ModelCompleted, ToolCompleted
from perdure.types.interface import Start, Status, UserMessage
from perdure.types.messages import TextPart, copy_shared
from perdure.types.state import RunState
from perdure.types.subagents import BackgroundRun, BackgroundStatus, BranchOutcome
from perdure.types.tool_calls import Call
from perdure.types.wire import CallFacts, ModelOutput, NewMessage, NewResult, ToolOutput

STATUS = (
    "agent context_id mode turn head store_id usage cost_usd limits calls background decided standing refused pause"
)
START = "agent mode context auth_context auth_ref parent max_history_events idle_timeout store_id resume tenant user"


@pytest.mark.parametrize(
    ("source", "target", "names"),
    [
        (RunState, Status, STATUS),
        (Start, RunState, START),
        (
            RunState,
            CallFacts,
            "agent context_id scope op store_id context auth_context auth_ref caller tenant user is_child "
            "schema_version",
        ),
        (UserMessage, NewMessage, "content id by store_id typed auth_context auth_ref on_behalf_of"),
        (BackgroundRun, BackgroundStatus, "handle agent state collected"),
        (BranchOutcome, BranchCompleted, "agent content blob error_type error"),
        (Call, CallSaid, "id name arguments"),
        (ModelOutput, ModelCompleted, "model text blob calls finish_reason usage cost_usd head"),
        (ToolOutput, ToolCompleted, "content blob files is_error"),
        (NewResult, ToolCompleted, "call_id name blob is_error answered_by"),
    ],
)
def test_the_fields_that_two_models_share(source: type[BaseModel], target: type[BaseModel], names: str) -> None:
    empty = source.model_construct(**dict.fromkeys(source.model_fields))
    assert copy_shared(empty, target).keys() == set(names.split())


def test_a_change_takes_the_place_of_a_shared_field() -> None:
    assert copy_shared(TextPart(text="a"), TextPart, text="b", more=1) == {
        "type": "text",
        "text": "b",
        "blob": None,
        "provider": None,
        "opaque": None,
        "more": 1,
    }
