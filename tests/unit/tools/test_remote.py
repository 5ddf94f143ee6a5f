"""The definition of remote tools."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import ToolContext, remote_tool
from perdure.errors import DefinitionError, ToolError
from perdure.loop.apply import _build_immediate_result
from perdure.types.tool_calls import Call, RemoteCall


def with_context(ctx: ToolContext, city: str) -> None:
    """Takes the context."""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"task_queue": ""}, "remote tool 'price': it has no task queue"),
        ({"schema": 7}, "remote tool 'price': 7 is not a schema"),
        ({"schema": {"type": "string"}}, "its parameters are not an object"),
        ({"schema": {"default": float("nan")}}, "its parameters have no JSON Schema"),
        ({"schema": with_context}, "'ctx' would take the context"),
        ({"name": "not a name"}, "does not match"),
        ({"timeout": 0}, "not a positive number of seconds"),
        ({"retries": 3}, "retries needs idempotent=True"),
    ],
)
def test_what_is_wrong_is_said_where_it_is_defined(given: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        remote_tool(**{"name": "price", "schema": {}, "task_queue": "prices", **given})


def test_a_call_is_told_where_it_runs() -> None:
    far = remote_tool("price", {}, "prices", timeout=5, idempotent=True, retries=2)
    how = far.build_disposition({"any": 1})
    assert how == RemoteCall(task_queue="prices", timeout=5, idempotent=True, retries=2)
    assert far.parameters == {"type": "object", "properties": {}}
    assert far.definition != remote_tool("price", {}, "prices", timeout=5).definition
    assert _build_immediate_result(Call(id="1", name="price", disposition=how)) is None, "it is to be run"
    with pytest.raises(ToolError, match="now run by the workers of task queue 'prices'; retry the call"):
        far.bind({})
    with pytest.raises(TypeError):
        far()
