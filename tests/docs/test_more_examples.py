"""The programs under examples/ beyond the first ten, as processes: workers, clients, finishing, models, prompts."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.asked import Request, results, system, track, users
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.model_server import Call

pytestmark = [pytest.mark.server, pytest.mark.slow]  # what they show has tests of its own: these show that they run


async def test_worker_and_client(loopback: Loopback) -> None:
    loopback.model.rule = track
    worker = await loopback.spawn("python", EXAMPLES / "11_worker.py")
    out = succeeded(await loopback.python(EXAMPLES / "12_client.py", env={"OPENAI_API_KEY": ""})).splitlines()
    assert re.fullmatch(r"support-[0-9a-f]{12}: It is on its way: order 77 is out for delivery\.", out[0]), out
    assert re.fullmatch(r"2 model calls, \d+ tokens", out[1])
    os.kill(worker.pid, signal.SIGTERM)
    await worker.communicate()
    assert worker.returncode == 0, "SIGTERM drains, and then the worker ends by itself"


async def test_plain_temporal_client_imports_no_perdure(loopback: Loopback) -> None:
    loopback.model.rule = track
    await loopback.spawn("python", EXAMPLES / "11_worker.py")
    source = (EXAMPLES / "13_plain_temporal.py").read_text()
    assert not re.search(r"^\s*(from|import) perdure", source, re.MULTILINE)
    ended = await loopback.python(EXAMPLES / "13_plain_temporal.py")
    # Temporal's SDK now and then dies on the interpreter's way out, all work done (perdure's CLI ends by os._exit for
    # that). This program is the SDK's alone, so that is not ours to mend; what it printed is checked all the same.
    assert (ended.code in (0, -signal.SIGSEGV, -signal.SIGABRT), ended.err) == (True, ""), ended
    out = ended.out.splitlines()
    assert re.fullmatch(r"(running|completed), iteration \d", out[0])
    assert re.fullmatch(r"It is on its way: order 77 is out for delivery\. \(\d+ tokens\)", out[1])
    assert "Be brief, please." in users(loopback.model.requests[-1])


async def test_finish_tag(loopback: Loopback) -> None:
    guesses = [50, 25, 42]

    def rule(request: Request) -> Any:
        done = results(request)
        if "used all" in users(request)[-1]:
            return "Not found yet, <finish>between 25 and 50</finish>"
        if done and done[-1] == "that is it":
            reminded = len(users(request)) > 1
            return "<finish>42</finish>" if reminded else "It must be 42."
        return ["I try.", Call("guess", {"number": guesses[len(done)]})]

    loopback.model.rule = rule
    out = succeeded(await loopback.python(EXAMPLES / "14_finish_tag.py")).splitlines()
    assert out[0] == "patient: 42 (stop, 5 model calls)"
    assert out[1] == "hasty: between 25 and 50 (limit, 3 model calls)"
    assert out[2].startswith("strict: ")
    assert "2" in out[2]


async def test_local_model(loopback: Loopback) -> None:
    loopback.model.rule = lambda request: f"{request['model']} at {request['temperature']}: drops."
    out = succeeded(await loopback.python(EXAMPLES / "15_local_model.py", env={"OPENAI_API_KEY": ""}))
    assert out == "llama3.2 at 0.7: drops.\n"
    assert loopback.model.headers[0]["authorization"] == "Bearer none"


async def test_instructions(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        done = results(request)
        return f"({system(request)}) {done[0]}" if done else Call("balance")

    loopback.model.rule = rule
    first, second, *error = succeeded(await loopback.python(EXAMPLES / "16_instructions.py")).splitlines()
    assert [first, second] == [
        "(You help Ana, who speaks Spanish.) Ana has 12.50 euros",
        "(You help Jan, who speaks Dutch.) Jan has 12.50 euros",
    ]
    assert "language" in "".join(error)
    assert len(loopback.model.requests) == 4, "a context that does not fit costs nothing"


async def test_live(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        done = results(request)
        return f"All is well: {done[0]}." if done else Call("audit", {"year": 2025})

    loopback.model.rule = rule
    first = succeeded(await loopback.python(EXAMPLES / "17_live.py")).splitlines()
    told = [line.split(" ", 1) for line in first if re.match(r"\d+ ", line)]
    assert told[0] == ["1", "run started"]
    assert told[-1][1] == "run completed"
    assert [what for _, what in told].count("model.completed ") == 2, "the second reply may be whole before any delta"
    again = succeeded(await loopback.python(EXAMPLES / "17_live.py", told[-2][0])).split()
    assert again == [told[-1][0], "run", "completed"], "behind the last number that it saw, and nothing twice"
    assert len(loopback.model.requests) == 2


async def test_image(loopback: Loopback, tmp_path: Path) -> None:
    def rule(request: Request) -> Any:
        return "On the quay." if results(request) else Call("map_of", {"place": "Delft"})

    photo = tmp_path / "photo.png"
    photo.write_bytes(b"\x89PNG\r\n\x1a\nquay")
    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "18_image.py", str(photo))) == "On the quay.\n"
    sent = json.dumps(loopback.model.requests[-1])
    assert base64.b64encode(photo.read_bytes()).decode() in sent
    assert base64.b64encode(b"\x89PNG\r\n\x1a\n").decode() in sent, "the map, which a tool gave"


async def test_typed(loopback: Loopback) -> None:
    answers = [
        Call("paid", {"order_id": "7"}),
        Call("__finish__", {"verdict": "refund", "amount": 50}),
        Call("__finish__", {"verdict": "refund", "amount": 30, "reasons": ["It came broken."]}),
    ]

    def rule(request: Request) -> Any:
        assert "<text>It came &lt;broken&gt;.</text>" in users(request)[0]
        return answers[len(results(request))]

    loopback.model.rule = rule
    out = succeeded(await loopback.python(EXAMPLES / "21_typed.py"))
    assert out == "refund, 30.00 euros: It came broken.\n"
    refused = results(loopback.model.requests[2])[1]
    assert refused == "The answer was not accepted: no more than was paid can be refunded"


async def test_stream_output(loopback: Loopback) -> None:
    points = ["What fails", "What is kept", "What goes on"]
    loopback.model.rule = lambda _: Call("__finish__", {"title": "Agents that last", "points": points})
    out = succeeded(await loopback.python(EXAMPLES / "51_stream_output.py")).splitlines()
    assert out[-4:] == ["Agents that last: 3 points", *(f"- {point}" for point in points)], "\\r is a line break here"


async def test_decorators(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        assert re.fullmatch(r"You sell furniture\.\n\nIt is \w+day; the shop is open 9 to 5\.", system(request))
        done = results(request)
        return (
            f"{done[0]} lamps at {done[1]}."
            if done
            else [Call(name, {"article": "lamp"}) for name in ("stock", "price")]
        )

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "50_decorators.py")) == "4 lamps at 29.9.\n"


async def test_limits(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        done = results(request)
        return f"Page {len(done)}: {done[-1]}." if "signed" in "".join(done) else Call("look", {"page": len(done) + 1})

    loopback.model.rule = rule
    assert succeeded(await loopback.python(EXAMPLES / "19_limits.py")).splitlines() == [
        "paused: the run has used 2 of 2 tool calls (tool_calls)",
        "Page 4: the charter was signed in 1848.",
    ]
    assert len(loopback.model.requests) == 5


async def test_approvals(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        done = results(request)
        if len(done) == 2:
            return f"Settled: {done[1].splitlines()[-1]}."
        return Call("refund", {"order": "7", "amount": 40}) if done else Call("look", {"order": "7"})

    loopback.model.rule = rule
    out = succeeded(await loopback.python(EXAMPLES / "23_approvals.py")).splitlines()
    assert out == [
        "waits: refund({'amount': 40, 'order': '7'})",
        "approved by ana: half of it",
        "Settled: refunded 20 EUR of order 7.",
    ]


async def test_reminders(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        done = results(request)
        return f"Settled: {done[0]}." if done else Call("refund", {"order": "7", "amount": 40})

    loopback.model.rule = rule
    out = succeeded(await loopback.python(EXAMPLES / "37_reminders.py")).splitlines()
    waits = "refund({'order': '7', 'amount': 40}) of clerk waits"
    assert out[:3] == [f"to ana: {waits}", f"to ana, reminder 1: {waits}", f"to boss, reminder 2: {waits}"]
    assert out[-2:] == ["approved by boss: sorry for the delay", "Settled: refunded 40 EUR of order 7."]


async def test_hooks(loopback: Loopback, tmp_path: Path) -> None:
    def rule(request: Request) -> Any:
        if not results(request):
            return [Call("read_file", {"path": "/etc/passwd"}), Call("read_file", {"path": "notes.txt"})]
        return f"You said: {users(request)[0]}"

    loopback.model.rule = rule
    out = succeeded(await loopback.run(sys.executable, EXAMPLES / "20_hooks.py", cwd=tmp_path)).splitlines()
    assert out[0] == "Vetoed: ana may not read /etc/passwd"
    assert out[1].startswith("notes.txt: 0123456789")
    assert out[1].endswith("… (cut)")
    assert out[2] == "You said: Read /etc/passwd and notes.txt. My key is [redacted]."
    assert out[3] == "2 model calls; 8 lines in the audit log"
    assert "sk-abc" not in json.dumps(loopback.model.requests)


async def test_steps(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        return Call("read", {"page": 3}) if results(request) else Call("search", {"query": "charter"})

    loopback.model.rule = rule
    out = succeeded(await loopback.python(EXAMPLES / "22_steps.py")).splitlines()
    assert out[0] == "the charter was signed in 1848."
    first, second = loopback.model.requests
    assert (first["model"], second["model"]) == ("gpt-5", "gpt-5-mini")
    assert [tool["function"]["name"] for tool in second["tools"]] == ["read"]
    assert results(second)[0].endswith(" …")
    assert out[1].endswith(", None]"), "the policy gave the last reply"


async def test_branch(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        if "Judge" not in system(request):
            sure = results(request)[-1:] == ["Page 2: the charter was signed in 1848."]
            return "In 1848." if sure else Call("read", {"page": len(results(request)) + 1})
        fits = "certain" not in system(request) or "1848" in results(request)[-1]
        return Call("__finish__", {"enough": fits, "missing": "" if fits else "Find the year."})

    loopback.model.rule = rule
    out = succeeded(await loopback.python(EXAMPLES / "40_branch.py")).splitlines()
    assert out == ["In 1848.", "['Not yet. Find the year.']"]
    critics = [request for request in loopback.model.requests if "Judge" in system(request)]
    assert [len(results(request)) for request in critics] == [1, 1, 2, 2]
    assert all(users(request)[-1] == "Is this enough?" for request in critics)
    last = loopback.model.requests[-1]
    assert not last.get("tools"), "the policy took the tool away"
