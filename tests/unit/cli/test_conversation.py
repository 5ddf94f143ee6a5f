"""A conversation as ``perdure show`` prints it."""

from __future__ import annotations

import pytest

from perdure.cli.output import format_conversation, format_cost, format_limit_use
from perdure.cli.show import RunDetails, format_run_details, serialize_run_details
from perdure.types.interface import Status
from perdure.types.limits import LimitUse
from perdure.types.messages import Message, ToolCallPart, ToolResultPart, Usage, Withheld

RESULT = ToolResultPart(call_id="1", name="look", content="one\ntwo\nthree\nfour\nfive")
MESSAGES = [
    Message.system("Be kind."),
    Message.user("What is there?"),
    Message.assistant("I look.", ToolCallPart(id="1", name="look", arguments={"path": "a" * 100, "depth": 2})),
    Message(role="tool", parts=(RESULT,)),
    Message.user("Be quick."),
    Message.assistant("", ToolCallPart(id="2", name="look", arguments={})),
    Message(role="tool", parts=(ToolResultPart(call_id="2", name="look", content="OSError: gone", is_error=True),)),
    Message.assistant("", ToolCallPart(id="3", name="look", arguments={})),
]


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_iterations_are_numbered_and_results_shortened() -> None:
    assert list(format_conversation(MESSAGES)) == [
        "system  Be kind.",
        "user    What is there?",
        "[1]     I look.",
        f'        → look(path="{"a" * 59}…, depth=2)',
        "        ← one",
        "          two",
        "          three",
        "          … 23 characters in all",
        "user    Be quick.",
        "[2]     → look()",
        "        ✗ OSError: gone",
        "[3]     → look()",
        "        … no result yet",
    ]


@pytest.mark.parametrize("word", ["x" * 2_000_000, "wörd " * 200_000], ids=["one word", "many words"])
def test_a_long_line_is_wrapped_in_pieces(word: str) -> None:
    """As a whole one of 20 MB would take minutes."""
    lines = [line[8:] for line in format_conversation([Message.user(word)])]
    assert max(map(len, lines)) <= 72
    if " " in word:
        assert set(" ".join(lines).split(" ")) == {"wörd"}, "no word is cut"
    assert "".join(lines).replace(" ", "") == word.replace(" ", "")


def test_what_a_reply_was_the_first_to_be_given_without() -> None:
    bad = Withheld(key="k", kind="file", what="image/png cat\x1b.png", reason="BadRequestError: no")
    reply = Message.assistant("Hm.").model_copy(update={"withheld": (bad,)})
    assert list(format_conversation([Message.user("Look."), reply, Message.user("And?"), reply])) == [
        "user    Look.",
        "        (withheld from here on: image/png cat\\x1b.png: BadRequestError: no)",
        "[1]     Hm.",
        "user    And?",
        "[2]     Hm.",
    ]


def test_full_shortens_nothing() -> None:
    said = "\n".join(format_conversation(MESSAGES, full=True))
    assert "five" in said
    assert "a" * 100 in said


def test_a_result_cannot_steer_the_terminal() -> None:
    result = ToolResultPart(call_id="1", name="look", content="\x1b[2Jgone\x07 \u202eback")
    said = "\n".join(format_conversation([*MESSAGES[:3], Message(role="tool", parts=(result,))]))
    assert not any(sign in said for sign in "\x1b\x07\u202e")


def test_a_huge_result_is_not_wrapped_whole() -> None:
    result = ToolResultPart(call_id="1", name="look", content="x" * 20_000_000)
    said = list(format_conversation([*MESSAGES[:3], Message(role="tool", parts=(result,))]))
    assert said[-1] == "          … 20,000,000 characters in all"


def shown(**facts: object) -> RunDetails:
    reply = MESSAGES[2].model_copy(update={"usage": Usage(input_tokens=1200, output_tokens=30), "cost_usd": 0.0021})
    status = Status.model_validate({"state": "running", "doing": "tools", "agent": "a", "context_id": "r-1", **facts})
    return RunDetails(status, [*MESSAGES[:2], reply])


def test_what_it_cost_is_the_transcripts() -> None:
    said = format_run_details(shown())
    assert said[0] == "r-1  running  agent a"
    assert said[1] == "  1 iteration · 1,200 tokens in, 30 out · $0.0021"
    assert serialize_run_details(shown())["usage"]["input_tokens"] == 1200
    assert serialize_run_details(shown())["iterations"] == 1


def test_what_it_is_at() -> None:
    call = {"call_id": "1", "tool": "look", "kind": "activity"}
    assert format_run_details(shown(calls=[call], iteration=1))[-1] == "iteration 1 · tools: look"
    assert format_run_details(shown(doing="model", iteration=1, reason="RateLimitError: slow down"))[-1] == (
        "iteration 2 · the model thinks · RateLimitError: slow down"
    )
    assert format_run_details(shown(doing="nothing", reason="no worker answers"))[-1] == "no worker answers"
    assert "perdure resume r-1" in format_run_details(shown(state="paused", doing="nothing", reason="corrupt"))[-1]


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (0, "$0.00"),
        (0.00001, "<$0.0001"),
        (0.00210000000000003, "$0.0021"),
        (0.1, "$0.10"),
        (0.123456, "$0.1235"),
        (0.99996, "$1.00"),
        (12.3, "$12.30"),
        (12345.678, "$12,345.68"),
    ],
)
def test_money_is_rounded_for_people(cost: float, text: str) -> None:
    assert format_cost(cost) == text
    use = LimitUse(name="cost_usd", scope="run", used=cost, allowed=0.5)
    assert format_limit_use(use) == f"the run has used {text} of $0.50 (cost_usd)"
    assert str(use.model_copy(update={"name": "tokens"})) == format_limit_use(use.model_copy(update={"name": "tokens"}))


def test_the_ids_of_calls_are_shown_on_demand() -> None:
    assert "[2]     → look()  2" in list(format_conversation(MESSAGES, call_ids=True))
    assert "[1]     I look." in format_run_details(shown())
    assert any(line.endswith("depth=2)  1") for line in format_run_details(shown()))
    pending = {"call_id": "c-7", "tool": "pay", "hash": "h"}
    asks = {**pending, "call_id": "c-8", "kind": "question"}
    waiting = format_run_details(shown(state="waiting", doing="approval", approvals=[pending, asks]))[-1]
    assert "waits for approval: pay (c-7); waits for an answer: pay (c-8); " in waiting


def test_a_typed_answer_is_no_call() -> None:
    rejected = ToolCallPart(id="f1", name="__finish__", arguments={"city": 7})
    answer = ToolCallPart(id="f2", name="__finish__", arguments={"city": "Oslo"})
    error = ToolResultPart(call_id="f1", name="__finish__", content="city: it must be text", is_error=True)
    messages = [Message.assistant("", rejected), Message(role="tool", parts=(error,)), Message.assistant("", answer)]
    assert list(format_conversation(messages, call_ids=True)) == [
        "[1]     → __finish__(city=7)  f1",
        "        ✗ city: it must be text",
        '[2]     = city="Oslo"',
    ]
