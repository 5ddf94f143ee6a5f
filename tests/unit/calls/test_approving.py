"""Approvals on the worker's side: what rules see of tools that read their arguments elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, RunContext, allow, ask, deny
from perdure.calls.approvals import ApprovalGate
from perdure.calls.author_loop import AuthorLoop
from perdure.tools.approvals import Rule
from perdure.tools.tool import ToolsetTool
from perdure.types.tool_calls import ActivityCall, Call, PinnedTool, RefusedCall

TRUE, FALSE, NONE = ({"type": "boolean", "default": True}, {"type": "boolean", "default": False}, {"type": "boolean"})


async def planned(rule: Rule, schema: dict[str, Any], **arguments: Any) -> str:
    """What becomes of a call of the tool ``rm`` of a toolset."""
    pinned = PinnedTool(toolset="fs", tool="rm", name="rm", description="", parameters=schema, timeout=5)
    agent = Agent("a", "openai:gpt-5", tools=[ToolsetTool(pinned)], approvals=[rule])
    call = Call(id="c", name="rm", arguments=arguments, disposition=ActivityCall(timeout=5, toolset="fs"))
    found = await ApprovalGate(AuthorLoop(), lambda _: None).plan_approval(agent, call, RunContext(), None)
    if isinstance(found.disposition, RefusedCall):
        return "denied"
    return "runs" if found.approval is None else "asks"


@pytest.mark.parametrize(
    ("rule", "recursive", "becomes"),
    [
        (deny("rm", recursive=True), TRUE, "denied"),
        (deny("rm", recursive=True), FALSE, "runs"),
        (deny("rm", recursive=True), NONE, "asks"),
        (deny("rm", recursive="t*"), NONE, "asks"),
        (ask("rm", recursive=True), TRUE, "asks"),
        (ask("rm", recursive=True), FALSE, "runs"),
        (ask("rm", recursive=True), NONE, "asks"),
        (allow("rm", recursive=True), NONE, "runs"),
        (deny("rm", path="/etc/*"), NONE, "runs"),
    ],
)
async def test_an_argument_that_a_call_leaves_out_is_the_schemas_default_or_unknown(
    rule: Rule, recursive: dict[str, Any], becomes: str
) -> None:
    schema = {"type": "object", "properties": {"recursive": recursive}}
    assert await planned(rule, schema) == becomes


async def test_a_schema_that_is_composed_may_have_any_argument() -> None:
    schema = {"type": "object", "properties": {}, "anyOf": [{"properties": {"recursive": NONE}}]}
    assert await planned(deny("rm", recursive=True), schema) == "asks"
    assert await planned(deny("rm", recursive=True), schema, recursive=False) == "runs"
