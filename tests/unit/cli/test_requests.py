"""What waits in a chat, and what a line that is typed meanwhile says."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from perdure.cli import app
from perdure.cli.chat.requests import AnswerEntry, ApprovalEntry, PendingRequests
from perdure.client.decisions import RunWait
from perdure.errors import InvalidInputError
from perdure.types.approvals import DecidedApproval, WaitingCall


def approval(call_id: str = "c1", **facts: Any) -> RunWait:
    fields = {"call_id": call_id, "tool": "refund", "hash": f"h-{call_id}", "arguments": {"order": "7"}, "since": "t"}
    return RunWait(facts.pop("run_id", "r"), WaitingCall.model_validate(fields | facts))


def question(form: dict[str, Any] | None = None, **facts: Any) -> RunWait:
    fields = {"call_id": "q1", "kind": "question", "tool": "pay", "question": "How\x1b[2J?\nSay.", "form": form}
    return approval(**fields | facts)


class Chat:
    """A prompt that shows what waits before each line."""

    def __init__(self, *waiting: RunWait) -> None:
        self.requests = PendingRequests("r")
        self.lines = self.wait(*waiting)

    def wait(self, *waiting: RunWait, decided: tuple[DecidedApproval, ...] = ()) -> list[str]:
        return list(self.requests.update(waiting, {("r", past.call_id): past for past in decided}))

    def begin(self, text: str) -> None:
        self.requests.format_prompt()
        self.requests.follow_text(text)

    def enter(self, text: str) -> str | ApprovalEntry | AnswerEntry:
        self.begin(text[0])
        entry = self.requests.read_line(text)
        self.requests.follow_text("")
        return entry


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("y", {"approved": True}),
        ("YES", {"approved": True}),
        ("n", {"approved": False}),
        ("no: too much", {"approved": False, "comment": "too much"}),
        ("n:", {"approved": False}),
        ("a", {"approved": True, "always": True}),
    ],
)
def test_a_line_decides_on_the_call_that_is_shown(text: str, decision: dict[str, Any]) -> None:
    first = approval()
    assert Chat(first, approval("c2")).enter(text) == ApprovalEntry(first, **decision)


@pytest.mark.parametrize("text", ["no, I meant order 8", "yes please, and order 8?", "hello", "/say y"])
def test_any_other_line_is_a_message(text: str) -> None:
    assert Chat(approval()).enter(text) == text.removeprefix("/say ")


def test_without_a_request_every_line_is_a_message() -> None:
    chat = Chat()
    assert [chat.enter(text) for text in ("y", "/say y", "/no why")] == ["y", "/say y", "/no why"]
    chat.begin("y")
    chat.wait(approval())
    assert chat.requests.read_line("y") == "y", "it was typed before the call was shown"


def test_a_line_never_decides_on_a_call_that_is_shown_later() -> None:
    chat = Chat(approval(), approval("c2"))
    chat.begin("y")
    past = DecidedApproval(call_id="c1", tool="refund", state="denied", by="bea", at="noon")
    assert chat.wait(approval("c2"), decided=(past,)) == ["(refund (c1): denied by bea at noon)"]
    chat.requests.format_prompt()
    with pytest.raises(InvalidInputError, match=r"refund \(c1\) waits no longer: 'y' was not sent"):
        chat.requests.read_line("y")
    chat.requests.follow_text("")
    assert chat.enter("y") == ApprovalEntry(approval("c2"), approved=True)


def test_a_line_is_for_the_run_that_was_drawn() -> None:
    """Two runs of one subagent, whose model names its calls alike."""
    drawn, earlier, own = (approval(run_id=run_id, hash=f"h-{run_id}") for run_id in ("r/2", "r/1", "r"))
    chat = Chat(drawn)
    assert chat.lines == ['? [r/2] refund(order="7")  c1']
    prompt = chat.requests.format_prompt()
    assert prompt is not None
    assert prompt.startswith("approve [r/2] refund (c1)?  y")
    assert chat.wait(own, earlier, drawn) == ['? refund(order="7")  c1', '? [r/1] refund(order="7")  c1']
    prompt = chat.requests.format_prompt()
    assert prompt is not None
    assert prompt.startswith("approve [r/2] refund (c1)? (1 of 3)  y"), "what waited before stays in front"
    assert chat.enter("y") == ApprovalEntry(drawn, approved=True)
    chat.requests.set_decided(drawn, True)
    assert chat.enter("n") == ApprovalEntry(own, approved=False), "in the order of their arrival"
    past = DecidedApproval(call_id="c1", tool="refund", state="denied", by="bea", at="noon")
    assert list(chat.requests.update([own], {("r/1", "c1"): past})) == ["([r/1] refund (c1): denied by bea at noon)"]


def test_a_prompt_stays_while_a_line_is_typed_for_it() -> None:
    """A decision that failed is asked for again, but not under a line that is being typed."""
    first, second = approval(), approval("c2")
    chat = Chat(first, second)
    chat.requests.set_decided(first, True)
    chat.begin("y")
    chat.requests.set_decided(first, False)
    prompt = chat.requests.format_prompt()
    assert prompt is not None
    assert prompt.startswith("approve refund (c2)? (1 of 2)")
    assert chat.requests.read_line("y") == ApprovalEntry(second, approved=True)


def test_the_same_call_that_asks_again_is_another_request() -> None:
    chat = Chat(question())
    entry = chat.enter("5")
    assert isinstance(entry, AnswerEntry)
    chat.requests.set_decided(entry.request, True)
    assert chat.wait(question()) == [], "a status that was read before the answer"
    assert chat.requests.format_prompt() is None
    again = question(hash="h-2")
    assert chat.wait(again)[0] == "? pay (q1): How\\x1b[2J?"
    assert chat.enter("6") == AnswerEntry(again, "6")
    later = approval(since="t2")
    assert len(chat.wait(later)) == 2, "the question is gone, the call is new"
    chat.requests.set_decided(later, True)
    chat.requests.set_decided(later, False)
    assert chat.enter("y") == ApprovalEntry(later, approved=True), "the decision failed"


def test_what_is_shown_of_a_call() -> None:
    long = approval("c2", arguments={"note": "x" * 5000}, expires="noon", run_id="r/1")
    huge = approval("c3", arguments=None, tool="re\x1b[2Jfund")
    lines = Chat(approval(), long, huge).lines
    assert lines[0] == '? refund(order="7")  c1'
    assert lines[1].startswith('? [r/1] refund(note="xxx')
    assert len(lines[1]) < 4100
    assert lines[2:4] == ["  its arguments are long: perdure show r/1 --full", "  until noon, then it counts as denied"]
    assert lines[1].endswith("…  c2"), "calls of one tool are told apart"
    assert lines[4:] == ["? re\\x1b[2Jfund(…)  c3", "  its arguments are long: perdure show r --full"]
    assert Chat(question(question="x" * 5000)).lines[1:] == ["  the question is long: perdure approvals"]
    chat = Chat(approval(), long)
    assert chat.requests.format_prompt() == "approve refund (c1)? (1 of 2)  y · n · n: why · a always · else a message"
    assert list(chat.requests.format_left()) == [
        "refund (c1) still waits: perdure approve r c1",
        "[r/1] refund (c2) still waits: perdure approve r/1 c2",
    ]
    chat.requests = PendingRequests("r", ["--namespace", "prod", "--profile", "my own"])
    chat.wait(approval(), question())
    assert list(chat.requests.format_left()) == [
        "refund (c1) still waits: perdure approve r c1 --namespace prod --profile 'my own'",
        "pay (q1) still waits: perdure answer r q1 VALUE --namespace prod --profile 'my own'",
    ]
    chat = Chat(approval(), long)
    chat.requests.set_decided(approval(), True)
    assert len(list(chat.requests.format_left())) == 2, "the decision may not have arrived"
    chat.requests.confirm_decided(approval())
    chat.wait(approval("c; rm -rf ~"))
    assert list(chat.requests.format_left()) == ["refund (c; rm -rf ~) still waits: perdure approve r 'c; rm -rf ~'"]
    chat.requests.clear()
    assert chat.requests.format_prompt() is None


@pytest.mark.parametrize("options", [[], ["--namespace", "prod"]])
def test_a_call_whose_id_looks_like_an_option_is_not_one_in_the_command(options: list[str]) -> None:
    """A model's server gives the ids: ``--always`` would approve all later calls of the tool."""
    chat = Chat()
    chat.requests = PendingRequests("r", options)
    chat.wait(approval("--always"), question(call_id="-m"))
    commands = [shlex.split(line.partition(" still waits: ")[2])[1:] for line in chat.requests.format_left()]
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    given = [group.commands[name].make_context(name, words).params for name, *words in commands]
    assert [given[0][name] for name in ("id", "call", "always")] == ["r", "--always", False]
    assert [given[1][name] for name in ("id", "call_or_value", "value")] == ["r", "-m", "VALUE"]


def test_a_call_that_another_program_answers_is_shown_but_not_asked_for() -> None:
    chat = Chat(approval(kind="callback"))
    assert chat.lines == ["? refund (c1): a client sends its result"]
    assert chat.requests.format_prompt() is None
    assert chat.enter("y") == "y"


CHOICES = {"enum": ["savings", "checking"], "type": "string"}


@pytest.mark.parametrize(
    ("form", "shown", "text", "value"),
    [
        (None, [], "5", "5"),
        ({"type": "string"}, [], "y", "y"),
        (CHOICES, ["1) savings", "2) checking"], "2", "checking"),
        (CHOICES, ["1) savings", "2) checking"], "savings", "savings"),
        ({"enum": ["2", "1"]}, ['as JSON: {"enum": ["2", "1"]}'], "2", "2"),
        ({"enum": [2, 1]}, ['as JSON: {"enum": [2, 1]}'], "1", 1),
        ({"type": "boolean"}, ["y or n"], "Y", True),
        ({"type": "boolean"}, ["y or n"], "false", False),
        ({"type": "number"}, ["a number"], "2.5", 2.5),
        ({"type": "integer"}, ["a whole number"], "3", 3),
        (
            {"type": "object", "required": ["a"]},
            ['as JSON: {"type": "object", "required": ["a"]}'],
            '{"a": 1}',
            {"a": 1},
        ),
    ],
)
def test_a_question_is_answered_in_its_type(form: Any, shown: list[str], text: str, value: Any) -> None:
    chat = Chat(question(form))
    assert chat.lines == ["? pay (q1): How\\x1b[2J?", "  Say.", *(f"  {line}" for line in shown)]
    assert chat.enter(text) == AnswerEntry(question(form), value)
    assert chat.enter("/no the bank is closed") == AnswerEntry(question(form), error="the bank is closed")
    assert chat.enter("/say 2") == "2"


@pytest.mark.parametrize(
    ("form", "text"),
    [(CHOICES, "3"), (CHOICES, "none"), ({"type": "number"}, "y"), ({"type": "object", "required": ["a"]}, "{}")],
)
def test_an_answer_that_does_not_fit_can_be_corrected(form: Any, text: str) -> None:
    chat = Chat(question(form))
    with pytest.raises(InvalidInputError, match="the answer"):
        chat.enter(text)
    assert chat.requests.format_prompt() is not None


def test_an_answer_to_a_question_that_is_gone_is_not_a_message() -> None:
    chat = Chat(question())
    chat.begin("5")
    assert chat.wait() == ["(pay (q1) waits no longer)"]
    with pytest.raises(InvalidInputError, match="'500' was not sent"):
        chat.requests.read_line("500")
    assert chat.requests.read_line("500") == "500", "on a second Enter it is sent, as nothing waits"


def test_a_line_for_a_question_that_is_gone_never_answers_the_next_one() -> None:
    chat = Chat(question())
    chat.begin("5")
    asked = question(call_id="q2", hash="h-2", since="t2")
    chat.wait(asked)
    for _ in range(2):
        chat.requests.format_prompt()
        with pytest.raises(InvalidInputError, match=r"pay \(q1\) waits no longer: '500' was not sent") as refused:
            chat.requests.read_line("500")
        assert refused.value.hint == "Empty the line for what is asked now, or send it as a message: /say …"
    assert chat.requests.read_line("/say 500") == "500"
    chat.requests.follow_text("")
    assert chat.enter("500") == AnswerEntry(asked, "500")


@pytest.mark.parametrize("text", ["/no", "/NO", "/no  ", "/say"])
def test_a_command_without_its_text_is_no_answer(text: str) -> None:
    with pytest.raises(InvalidInputError, match="needs a "):
        Chat(question()).enter(text)
    assert Chat(question()).enter("/no\nthe bank") == AnswerEntry(question(), error="the bank")
