"""The definition of an agent as the store keeps it."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from perdure import Agent, Limits, allow, ask, deny, hook, tool
from perdure.agent.definition import MAX_DEFINITION_BYTES, build_agent_row
from perdure.testing import ScriptedProvider
from perdure.tools.approvals import Approval


class Report(BaseModel):
    title: str
    grade: Literal["good", "bad"]


class Account(BaseModel):
    user: str


@tool
def look(order: str) -> str:
    """Look an order up."""
    return order


@tool(needs_approval=Approval(expires="1h"), idempotent=True, timeout=5)
def refund(order: str, amount: int = 1) -> str:
    """Refund an order."""
    return order


def policy(call: Any, ctx: Any) -> bool:
    return True


@tool(needs_approval=policy)
def close(order: str) -> str:
    """Close an order."""
    return order


@hook("before_tool_call")
def check(name: str) -> None:
    """Nothing."""


def prompt(ctx: Any) -> str:
    return "Today."


def read(agent: Agent[Any, Any], **variables: str) -> dict[str, Any]:
    row = build_agent_row(agent, variables)
    assert row.name == agent.name
    definition: dict[str, Any] = json.loads(row.body)
    return definition


def build(**options: Any) -> Agent[Any, Any]:
    return Agent("desk", "openai:gpt-5", **options)


def test_what_is_recorded_of_an_agent():
    helper = build()
    helper.name = "helper"
    agent = Agent(
        "desk",
        ["anthropic:claude-sonnet-4-5", ScriptedProvider(["Hi."])],
        description="Helps.",
        instructions=["Be kind.", prompt],
        tools=[look, refund, close],
        subagents=[helper],
        hooks=[check],
        approvals=[allow("look*"), deny("refund", amount=100), ask("close", Approval(separate=True))],
        limits=Limits(tokens=1000),
        context=Account,
        output=Report,
        settings={"temperature": 0.5},
    )
    found = read(agent)
    assert found["models"] == list(agent.models)
    assert found["instructions"] == [{"text": "Be kind."}, {"function": "prompt"}]
    tools = {each["name"]: each for each in found["tools"]}
    assert tools["look"]["parameters"]["required"] == ["order"]
    assert "needs_approval" not in tools["look"]
    assert tools["refund"]["needs_approval"] == {"expires": 3600.0}
    assert (tools["refund"]["idempotent"], tools["refund"]["timeout"]) == (True, 5)
    assert tools["close"]["needs_approval"] == {"function": "policy"}
    assert tools["call_helper"]["agents"] == found["subagents"] == ["helper"]
    assert found["hooks"] == [{"event": "before_tool_call", "name": "check"}]
    assert found["approvals"] == [
        {"action": "allow", "tool": "look*"},
        {"action": "deny", "tool": "refund", "arguments": {"amount": 100}},
        {"action": "ask", "tool": "close", "terms": {"separate": True}},
    ]
    assert found["limits"] == {"tokens": 1000}
    assert set(found["output"]["properties"]) == {"title", "grade"}
    assert set(found["context"]["properties"]) == {"user"}
    assert found["settings"] == ["temperature"], "their values may be credentials"


def test_equal_agents_have_one_hash_and_a_change_another():
    first, same = (build_agent_row(build(tools=[look]), {}) for _ in range(2))
    assert first == same
    assert build_agent_row(build(tools=[refund]), {}).hash != first.hash
    assert build_agent_row(build(tools=[look], instructions="Hi."), {}).hash != first.hash


def test_credentials_are_not_recorded():
    secret = "correct-horse-battery"

    def prompt_with_vendor_key() -> str:
        return f"Use sk-{'a' * 20} and {secret}."

    agent = build(
        instructions=[prompt_with_vendor_key(), "Of production."],
        provider_options={"extra_headers": {"X-Key": secret}},
    )
    body = build_agent_row(agent, {"CRM_TOKEN": secret, "STAGE": "production", "EMPTY_KEY": ""}).body.decode()
    assert secret not in body
    assert "aaaa" not in body
    assert json.loads(body)["instructions"][1] == {"text": "Of production."}


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({"tools": [(f"t{n}", "Short.", 2000) for n in range(200)]}, ["schemas"]),
        ({"instructions": "x" * 300_000}, ["schemas", "texts"]),
        ({"instructions": ["x" * 400] * 1000}, ["schemas", "texts", "lists"]),
    ],
    ids=["schemas", "texts", "lists"],
)
def test_a_definition_is_bounded(options: dict[str, Any], left_out: list[str]):
    def build_tool(name: str, description: str, size: int) -> Any:
        def large(order: str) -> str:
            return order

        made = tool(name=name, description=description)(large)
        made.parameters["properties"]["order"]["description"] = "x" * size
        return made

    tools = [build_tool(*each) for each in options.pop("tools", [])]
    row = build_agent_row(build(tools=tools, **options), {})
    assert len(row.body) <= MAX_DEFINITION_BYTES
    assert json.loads(row.body)["left_out"] == left_out
    assert json.loads(row.body)["models"] == ["openai:gpt-5"]


def test_texts_that_not_every_store_takes():
    row = build_agent_row(build(instructions="a\0b\ud800c"), {})
    assert json.loads(row.body)["instructions"] == [{"text": "a\ufffdb\ufffdc"}]
