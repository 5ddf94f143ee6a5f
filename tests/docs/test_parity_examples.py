"""The programs under examples/ that each show one row of what others do: presets, settings, history, injection, …"""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.asked import Request, results, system, users
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.model_server import Call

pytestmark = [pytest.mark.server, pytest.mark.slow]  # what they show has tests of its own: these show that they run

FINISH = "__finish__"


def tools(request: Request) -> list[str]:
    return [one["function"]["name"] for one in request.get("tools", [])]


async def test_pipeline(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        asked = users(request)[0]
        return f"{asked} is far" if "\n" not in asked else f"Not {asked.splitlines()[0].split(': ')[1]}."

    loopback.model.rule = rule
    await loopback.own_namespace()
    out = succeeded(await loopback.python(EXAMPLES / "29_pipeline.py"))
    assert out.startswith("Not Oslo is far. (4 runs, ")
    asked = [users(request)[0] for request in loopback.model.requests]
    assert sorted(asked[:3]) == ["Lisbon", "Oslo", "Rome"]
    assert asked[3] == "Oslo: Oslo is far\nRome: Rome is far\nLisbon: Lisbon is far"


async def test_presets(loopback: Loopback) -> None:
    loopback.model.rule = lambda request: f"{system(request)} ({request.get('temperature')})"
    assert succeeded(await loopback.python(EXAMPLES / "41_presets.py")).splitlines() == [
        "pirate: You talk like a pirate. (1)",
        "clerk: You answer in one dry sentence. (None)",
        "retired: You talk like a retired pirate. (0.2)",
    ]


async def test_multi_agent(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        said = system(request).removeprefix("You say what speaks ").partition(" ")[0]
        return said if said in ("for", "against") else " / ".join(users(request)[0].splitlines())

    loopback.model.rule = rule
    out = succeeded(await loopback.python(EXAMPLES / "42_multi_agent.py"))
    assert out == "Should we move the database this week? / for / against\n"
    assert len(loopback.model.requests) == 3


async def test_settings(loopback: Loopback) -> None:
    loopback.model.rule = lambda request: f"{request['temperature']} {request.get('stop')}"
    first, second, refused = succeeded(await loopback.python(EXAMPLES / "43_settings.py")).splitlines()
    assert (first, second) == ("0.2 ['END']", "1 None")
    assert refused.startswith("refused: ")
    assert "top_k" in refused
    assert "openai" in refused
    sent = loopback.model.requests[0]
    assert (sent["max_tokens"], sent["service_tier"]) == (300, "flex")
    assert len(loopback.model.requests) == 2


async def test_forced_finish(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        read = len(results(request))
        if request.get("tool_choice") not in (None, "auto"):
            return Call(FINISH, {"days": 2 * read, "sure": False})
        return Call("page", {"number": read + 1})

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "44_forced_finish.py")).splitlines() == [
        "6 days, not sure",
        "4 model calls, finish_reason limit",
    ]
    assert FINISH in str(loopback.model.requests[-1]["tool_choice"])


async def test_delegation(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        if not tools(request):
            return f"({system(request)}) {users(request)[0]}"
        match results(request):
            case []:
                return Call("call_translator", {"task": users(request)[0]})
            case [english]:
                return Call("call_agent", {"agent_name": "lawyer", "message": english})
            case [_, answer]:
                return answer

    loopback.model.rule = rule
    out = succeeded(await loopback.python(EXAMPLES / "45_delegation.py"))
    assert out == ("(You answer questions about contracts.) (You translate.) Wer zahlt, wenn das Rohr bricht?\n")
    assert tools(loopback.model.requests[0]) == ["call_agent", "call_translator"]


async def test_history(loopback: Loopback) -> None:
    loopback.model.rule = lambda request: f"heard {len(users(request))}, from {users(request)[0]}"
    assert succeeded(await loopback.python(EXAMPLES / "46_history.py")).splitlines() == [
        "5 messages: heard 2, from My name is Ana.",
        "7 messages: heard 3, from My name is Ana.",
        "9 messages: heard 4, from My name is Ana.",
    ]


async def test_import(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        measured = results(request)
        return f"{measured[-1]} now" if len(measured) > 1 else Call("measure", {"city": "Oslo"})

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "48_import.py")).splitlines() == [
        "measured: 24 °C",
        "measured: 9 °C",
        "9 °C now",
    ]
    assert system(loopback.model.requests[0]) == "You are a weather service."
    assert users(loopback.model.requests[0]) == ["How warm is it in Lisbon?", "And in Oslo?"]


async def test_injection(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        return f"{results(request)[0]} at eight" if results(request) else Call("measure", {"room": "hall"})

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "47_injection.py")).splitlines() == [
        "bea: Is the hall warm enough?",
        "ana: The guests come at eight.",
        "thermostat: 19 degrees at eight",
    ]
    assert "The guests come at eight." in users(loopback.model.requests[-1])
