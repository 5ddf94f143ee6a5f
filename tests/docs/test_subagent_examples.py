"""The programs under examples/ in which agents call agents, as processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.docs.asked import Request, results, system, users
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.model_server import Call

pytestmark = [pytest.mark.server, pytest.mark.slow]  # what they show has tests of its own: these show that they run

FINISH = "__finish__"


def tools(request: Request) -> list[str]:
    return [one["function"]["name"] for one in request.get("tools", [])]


async def test_a_text_is_shortened_until_it_loses_too_much(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        match tools(request):
            case []:
                words = users(request)[0].split()
                return " ".join(words[: len(words) * 2 // 3])
            case ["__finish__"]:
                return Call(FINISH, {"lossy": "March" not in users(request)[0].partition(" / ")[2]})
        original, heard = users(request)[0], results(request)
        if not heard:
            return Call("call_shortener", {"task": original})
        if len(heard) % 2:
            return Call("call_judge", {"task": f"{original} / {heard[-1]}"})
        if json.loads(heard[-1])["lossy"]:
            return heard[-4]
        return Call("call_shortener", {"task": heard[-2]})

    loopback.model.rule = rule
    out = succeeded(await loopback.python(EXAMPLES / "32_compressor.py"))
    assert out == "The meeting is on Monday, 3 March, at ten\n"


async def test_three_judges_and_an_editor(loopback: Loopback) -> None:
    names = ("rigour", "clarity", "notation")

    def rule(request: Request) -> Any:
        match tools(request):
            case []:
                return "Version 2" if "objects" in users(request)[0] else "Version 1"
            case ["__finish__"]:
                content = "Version 2" in users(request)[0] or "symbol" not in system(request)
                return Call(FINISH, {"score": 95 if content else 90, "objection": "" if content else "What is k?"})
        heard = results(request)
        if not heard:
            return Call("write", {"task": "Derive it."})
        if heard[-1].startswith("Version"):
            return [Call("call_agent", {"agent_name": name, "message": heard[-1]}) for name in names]
        scores = [json.loads(one) for one in heard[-3:]]
        if min(one["score"] for one in scores) > 90:
            return heard[-4]
        return Call("write", {"task": f"{heard[-4]}. Notation objects: {scores[2]['objection']}"})

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "33_judges.py")) == "Version 2\n"
    judged = [request for request in loopback.model.requests if tools(request) == [FINISH]]
    assert len(judged) == 6


async def test_background(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        if "start_agent" not in tools(request):
            return f"{users(request)[0]}: known"
        match len(results(request)):
            case 0:
                return [Call("start_agent", {"agent_name": name, "message": name}) for name in ("prices", "weather")]
            case 2:
                return Call("calendar", {"month": "May"})
            case 3:
                return [Call("collect_agent", {"handle": handle}) for handle in ("b1", "b2")]
        return "June."

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "38_background.py")).splitlines() == [
        "start_agent: started as b1",
        "start_agent: started as b2",
        "calendar: the fair, 12 to 16 May",
        "collect_agent: prices: known",
        "collect_agent: weather: known",
        "June.",
    ]


async def test_a_tree_is_followed_as_one(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        heard, name = results(request), tools(request)[0]
        if name == "search":
            return f"So: {heard[0]}" if heard else Call("search", {"query": users(request)[0]})
        return " ".join(heard) or [Call("call_researcher", {"task": topic}) for topic in ("whaling", "novels")]

    loopback.model.rule = rule
    *told, answer = succeeded(await loopback.python(EXAMPLES / "39_tree.py")).splitlines()
    assert answer == "So: Three books about whaling. So: Three books about novels."
    assert told[0].split() == ["1", "coordinator:", "run", "started"]
    below: dict[str, list[str]] = {}
    for line in told:
        who, _, said = line.split(maxsplit=1)[1].partition(": ")
        if " > " in who:
            below.setdefault(who.removeprefix("coordinator > researcher "), []).append(said)
    assert len(below) == 2, "two calls"
    for topic in ("whaling", "novels"):
        [mine] = [said for said in below.values() if f"tool.completed Three books about {topic}." in said]
        assert mine[0] == "run started"
        assert mine[-1].startswith(f"turn So: Three books about {topic}.")
    assert told[-1].split()[1:] == ["coordinator:", "run", "completed"]
    numbers = [int(line.split()[0]) for line in told]
    assert numbers == sorted(set(numbers))
