"""What a chat shows, and how it reads what it is given."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from perdure.cli.chat import HeldLog, format_chat_command, terminal
from perdure.cli.connection import ActorStoreOptions
from perdure.cli.options import _parse_agent_names
from perdure.cli.show import RunDetails, format_run_details
from perdure.cli.worker import log_to_stderr
from perdure.errors import StoreMismatchError
from perdure.types.events import ApprovalRequested, CallSaid, ModelCompleted
from perdure.types.interface import Response, Status
from perdure.types.messages import Message, ToolCallPart
from perdure.types.subagents import PathStep


def status(**facts: object) -> Status:
    return Status.model_validate({"state": "waiting", "agent": "a", "context_id": "c-1", **facts})


def turns(count: int) -> list[Message]:
    return [
        message
        for number in range(1, count + 1)
        for message in (Message.user(f"question {number}"), Message.assistant(f"answer {number}"))
    ]


def test_of_a_long_conversation_the_last_turns_are_shown_with_their_numbers() -> None:
    lines = list(terminal.format_past_turns(RunDetails(status(), turns(5))))
    assert lines[0] == "… 4 earlier messages: perdure show c-1"
    assert lines[1:3] == ["user    question 3", "[3]     answer 3"]
    assert lines[-1] == "[5]     answer 5"
    assert "earlier" not in "".join(terminal.format_past_turns(RunDetails(status(), turns(3))))


def test_the_error_of_the_last_turn_has_its_hint_in_words_of_the_command_line() -> None:
    error = StoreMismatchError("another store", hint="Point PERDURE_STORE_URL (or store_url=…) at it.")
    details = RunDetails(status(state="failed"), turns(1), error=error)
    hint = "Point PERDURE_STORE_URL (or --store-url) at it."
    assert list(terminal.format_past_turns(details))[-2:] == [
        "its last turn failed: StoreMismatchError: another store.",
        hint,
    ]
    assert format_run_details(details)[-2:] == ["failed: StoreMismatchError: another store.", f"  {hint}"]


def test_what_was_called_stands_before_the_answer() -> None:
    call = ToolCallPart(id="1", name="track", arguments={"order": "7\x1b[2J"})
    before = Message(role="assistant", parts=(ToolCallPart(id="0", name="search", arguments={}),))
    messages = (
        before,
        Message.user("Where is it?"),
        Message(role="assistant", parts=(call,)),
        Message.assistant("Soon."),
    )
    assert list(terminal.format_turn_answer(Response(content="Soon.\x07\nVery.", messages=messages))) == [
        r'→ track(order="7\u001b[2J")',
        "Soon.\\x07",
        "Very.",
    ]


@pytest.mark.parametrize(
    ("response", "lines"),
    [
        ({"content": ""}, ["(an empty reply)"]),
        ({"content": "Half", "finish_reason": "interrupted"}, ["Half", "(interrupted)"]),
        ({"content": "", "finish_reason": "interrupted"}, ["(interrupted)"]),
        ({"content": "x", "finish_reason": "limit"}, ["x", "(it has reached a limit)"]),
    ],
)
def test_how_a_turn_ended(response: dict[str, str], lines: list[str]) -> None:
    assert list(terminal.format_turn_answer(Response.model_validate(response))) == lines


def test_how_to_come_back() -> None:
    server = ActorStoreOptions(namespace="prod", store_url="sqlite:///s", by="ana")
    command = format_chat_command("a", "my id", "x y.py", None, server)
    assert command == "perdure chat a --id 'my id' --file 'x y.py' --namespace prod --store-url sqlite:///s --by ana"


def test_agents_of_a_file_are_read_without_running_it(tmp_path: Path) -> None:
    file = tmp_path / "agents.py"
    file.write_text("1 / 0\na = Agent('one', 'm')\nb = perdure.Agent('two', 'm')\nc = Agent(name)\n")
    assert _parse_agent_names(str(file)) == ["one", "two"]
    file.write_text("def (:")
    assert _parse_agent_names(str(file)) == []
    assert _parse_agent_names(str(tmp_path / "gone.py")) == []


def test_a_typed_answer_is_shown_once_and_as_such() -> None:
    done = ToolCallPart(id="2", name="__finish__", arguments={"city": "Oslo"})
    look = ToolCallPart(id="1", name="look", arguments={})
    messages = (Message.user("Where?"), Message.assistant("", look), Message.assistant("Done.", done))
    response = Response(content='{"city":"Oslo","days":[1]}', typed=True, messages=messages)
    answer = ["{", '  "city": "Oslo",', '  "days": [', "    1", "  ]", "}"]
    assert list(terminal.format_turn_answer(response)) == ["→ look()", *answer]
    assert list(terminal.format_turn_answer(response, calls=False)) == answer
    hostile = Response(content="[" * 100_000, typed=True)
    assert "".join(terminal.format_turn_answer(hostile)) == "[" * 100_000

    live = terminal.LiveTurn()
    first = ModelCompleted(iteration=1, calls=(CallSaid(id="1", name="look", arguments={}),))
    last = ModelCompleted(iteration=2, text="Done.", calls=(CallSaid(id="2", name="__finish__"),))
    assert list(live.feed(first)) == ["→ look()"]
    assert (live.has_replies, live.has_answer_call) == (True, False)
    assert list(live.feed(last)) == ["Done."]
    assert (live.has_output, live.has_answer_call) == (True, True)


def test_runs_below_that_ask_are_noted() -> None:
    live = terminal.LiveTurn()
    path = (PathStep(agent="helper", call_id="1"),)
    assert list(live.feed(ApprovalRequested(context_id="c/1", path=path, call_id="9", name="pay"))) == []
    assert live.asking_runs == {"c/1"}


def test_replies_that_were_shown_as_past_are_not_shown_again() -> None:
    live = terminal.LiveTurn(1)
    looks = (CallSaid(id="1", name="look", arguments={}),)
    assert list(live.feed(ModelCompleted(iteration=1, text="I look.", calls=looks))) == []
    assert (live.has_replies, live.has_output) == (True, False)
    assert list(live.feed(ModelCompleted(iteration=2, text="Once more.", calls=looks))) == ["Once more.", "→ look()"]


def test_what_is_logged_while_a_person_types_is_printed_behind_the_conversation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with HeldLog():
        log_to_stderr()  # as the worker of --file does
        for number in range(101):
            logging.getLogger("perdure.worker.webhook_delivery").warning("webhook %d is not delivered", number)
        assert capsys.readouterr().err == ""
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "logged meanwhile (101 lines, the last 100):"
    assert len(lines) == 101
    assert lines[-1].endswith("WARNING perdure.worker.webhook_delivery: webhook 100 is not delivered")
