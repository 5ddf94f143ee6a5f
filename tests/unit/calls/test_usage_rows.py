"""The row of what a model call has used."""

from __future__ import annotations

from perdure.calls.call import CompactCall, ModelCall, PaidRequest, Recording
from perdure.calls.run_rows import build_usage_row
from perdure.types.messages import Usage
from perdure.types.subagents import Lineage, PathStep
from perdure.types.wire import CompactInput, ModelInput, ModelOutput, TurnFailure
from tests.unit.calls.build import FACTS


def call(*paid: PaidRequest, **fields: object) -> ModelCall:
    facts = {"agent": "desk", "context_id": "c", "task_id": "t", "scope": "s", "op": 1, "iteration": 1} | fields
    return ModelCall(ModelInput.model_validate(facts), recording=recorded(*paid))


def recorded(*paid: PaidRequest) -> Recording:
    return Recording(paid=list(paid))


def paid(cost_usd: float | None = 0.5, model: str = "gpt-5", **tokens: int) -> PaidRequest:
    return PaidRequest("openai", model, Usage(**tokens), cost_usd, 1.25)


def test_a_call_that_no_model_has_answered_has_none():
    assert build_usage_row(call()) is None


def test_the_requests_of_a_summary_are_one_row():
    row = build_usage_row(
        CompactCall(
            CompactInput(**FACTS), recording=recorded(paid(input_tokens=100), paid(input_tokens=50, model="gpt-5-mini"))
        )
    )
    assert row is not None
    assert (row.requests, row.input_tokens, row.cost_usd, row.milliseconds) == (2, 150, 1.0, 2500)
    assert (row.purpose, row.model, row.status) == ("compact", "gpt-5-mini", "completed")


def test_a_cost_of_which_a_part_is_unknown_is_unknown():
    row = build_usage_row(call(paid(), paid(None)))
    assert row is not None
    assert row.cost_usd is None


def test_what_became_of_the_reply():
    failure = TurnFailure(type="ParseError", message="no")
    outputs = [ModelOutput(), ModelOutput(rejected=True), ModelOutput(rejected=True, failed=failure)]
    rows = [build_usage_row(call(paid()), output) for output in outputs]
    assert [row.status for row in rows if row is not None] == ["completed", "rejected", "failed"]


def test_the_root_is_that_which_temporal_confirms():
    lineage = Lineage(root="top", agent="lead", path=(PathStep(agent="desk", call_id="1"),))
    for is_child, root in [(True, "top"), (False, None)]:
        row = build_usage_row(call(paid(), lineage=lineage, is_child=is_child))
        assert row is not None
        assert row.root == root


def test_figures_and_names_that_no_database_takes():
    row = build_usage_row(call(paid(input_tokens=2**70, output_tokens=-5, model="m\0" * 1000)))
    assert row is not None
    assert (row.input_tokens, row.output_tokens) == (2**63 - 1, 0)
    assert (row.model[:2], len(row.model)) == ("m\ufffd", 200)
