"""Odd tools past servers that refuse what the real APIs refuse: a request is never lost for one of them."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.ports.model import ToolSpec
from perdure.types.messages import Message
from tests.servers.model_server import Call, Reply
from tests.support.adapters import Api, answered
from tests.support.tool_schemas import ODD, TEXT

SPECS = [ToolSpec(f"{number}_odd", name, schema) for number, (name, schema) in enumerate(ODD.items())]


def list_sent(api: Api) -> dict[str, Any]:
    """The schemas that went out last, by the tools' descriptions."""
    sent: dict[str, Any] = {}
    for tool in api.server.requests[-1]["tools"]:
        for definition in tool.get("functionDeclarations", [tool.get("function", tool)]):
            schemas = ("parameters", "input_schema", "parametersJsonSchema")
            schema = next((definition[key] for key in schemas if key in definition), {"properties": {}})
            sent[definition["description"].partition("\n")[0]] = definition["name"], schema
    return sent


async def test_tools_of_all_kinds_are_offered_together(api: Api) -> None:
    bad = ToolSpec("bad", "Its arguments are a text.", {"type": "string"})
    await api.reply("Fine.", api.request(Message.user("hi"), tools=[*SPECS, bad]))
    assert api.server.stats.refused == 0
    assert list_sent(api).keys() == ODD.keys()
    assert api.provider.translate_tools(api.adapter.model, [bad]).left_out.keys() == {"bad"}


async def test_names_of_tools_and_arguments_come_back(api: Api) -> None:
    """A call of a tool whose name begins with a digit, with the names that went out, and the conversation behind it."""
    arguments = {"filter[id]": "1", "$top": 2, "größe": "3", "x" * 80: "4", "9": 5}
    request = api.request(Message.user("hi"), tools=SPECS)
    await api.reply("Fine.", request)
    wire_name, schema = list_sent(api)["keys that are refused"]
    wire_arguments = dict(zip(schema["properties"], arguments.values(), strict=True))
    completed = await api.reply(Reply("", [Call(wire_name, wire_arguments)]), request)
    (call,) = (part for part in completed.parts if part.type == "tool_call")
    (spec,) = (spec for spec in SPECS if spec.description == "keys that are refused")
    assert (call.name, call.arguments) == (spec.name, arguments)
    streamed = await api.ask(Reply("", [Call(wire_name, wire_arguments)]), request)
    assert {event.name for event in streamed if hasattr(event, "index") and event.name} == {spec.name}
    await api.reply("Done.", answered(request, completed, "ok"))
    assert api.server.stats.refused == 0


@pytest.mark.parametrize("adapter", ["openai", "openai-responses"])
async def test_a_claude_behind_the_format_of_openai_gets_names_that_it_takes(api: Api) -> None:
    spec = ToolSpec("find", "Find.", {"properties": {"filter[id]": TEXT, "name": TEXT}, "required": ["filter[id]"]})
    await api.reply("Fine.", api.request(Message.user("hi"), tools=[spec]))
    assert list(list_sent(api)["Find."][1]["properties"]) == ["filter[id]", "name"]
    await api.reply("Fine.", api.request(Message.user("hi"), tools=[spec], model="anthropic/claude-sonnet-4.5"))
    (first, second) = list_sent(api)["Find."][1]["properties"]
    assert first.startswith("filter_id__")
    assert second == "name"


@pytest.mark.parametrize("adapter", ["google"])
async def test_a_forced_tool_has_its_name_on_the_wire(api: Api) -> None:
    await api.reply("Fine.", api.request(Message.user("hi"), tools=SPECS, tool_choice=SPECS[0].name))
    allowed = api.server.requests[-1]["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"]
    assert allowed == [list_sent(api)[SPECS[0].description][0]]
