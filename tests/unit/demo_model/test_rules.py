"""The demo model on real files: it finds what is there, says where, and admits what is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perdure.cli.demo.worker import Folder
from perdure.demo_model.model import reply
from perdure.demo_model.planning import MOST_CALLS, Ask, Conversation, Tool, Turn
from tests.unit.demo_model.reader import TOOLS, Reader

OVEN = """OVEN_LIMIT = 250


def preheat(degrees: int) -> None:
    'Heat the oven.'
    if degrees > OVEN_LIMIT:
        raise ValueError('too hot')
"""
ORDERS = """from oven import preheat


def place_order(loaves: int) -> str:
    preheat(220)
    return 'ok'
"""
FILES = {
    "README.md": "# Bakery\n\nOrders bread from the oven service.\nIt retries twice.\n",
    "src/oven.py": OVEN,
    "src/orders.py": ORDERS + "# padding\n" * 40,
    "docs/refunds.md": "# Refunds\n\nA refund is paid within fourteen days.\nAsk Ana for exceptions.\n",
    "notes.txt": "buy flour\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


SHAPES = ["text", "json", "bare"]


@pytest.fixture(params=SHAPES)
def reader(folder: Path, request: pytest.FixtureRequest) -> Reader:
    """Tools that answer in text, in JSON, or without sizes."""
    return Reader(folder, shape=request.param)


def test_where(reader: Reader) -> None:
    answer = reader.ask("Where is OVEN_LIMIT defined?")
    assert "`src/oven.py`, line 1" in answer
    assert "> OVEN_LIMIT = 250" in answer


def test_which_file(reader: Reader) -> None:
    answer = reader.ask("Which file says how long refunds take?")
    assert answer.startswith("`docs/refunds.md` fits best")
    assert "refund" in answer.lower()


def test_what(reader: Reader) -> None:
    answer = reader.ask("What happens with a refund?")
    assert "`docs/refunds.md`, lines" in answer
    assert "> A refund is paid within fourteen days." in answer


def test_how_many_lines_say_it(reader: Reader) -> None:
    answer = reader.ask("How often is `preheat` called?")
    assert "3 lines with “preheat” in 2 files" in answer
    assert "`src/orders.py` 2" in answer


def test_how_many_files(reader: Reader) -> None:
    assert "5 files here" in reader.ask("How many files are there?")
    assert "2 .py files: `src/orders.py`, `src/oven.py`" in reader.ask("And how many Python files?")


def test_how_many_lines(reader: Reader) -> None:
    assert reader.ask("How many lines has oven.py?") == "`src/oven.py` has 7 lines."


@pytest.mark.parametrize(("word", "path"), [("largest", "src/orders.py"), ("smallest", "notes.txt")])
def test_size(reader: Reader, word: str, path: str) -> None:
    answer = reader.ask(f"Which file is the {word}?")
    assert f"The {word} file is `{path}`" in answer
    assert "line" in answer


def test_a_file_that_is_named(reader: Reader) -> None:
    answer = reader.ask("What does README.md say about the oven?")
    assert "`README.md`, line" in answer
    assert "> Orders bread from the oven service." in answer
    assert "src/oven.py" not in answer


def test_the_whole_folder(reader: Reader) -> None:
    answer = reader.ask("What is this project about?")
    assert answer.startswith("`README.md` begins:\n\n> # Bakery")


def test_list(reader: Reader) -> None:
    answer = reader.ask("List all files, please")
    assert all(f"`{path}`" in answer for path in FILES)


def test_nothing_found_is_admitted(reader: Reader) -> None:
    answer = reader.ask("Where is the quetzalcoatl?")
    assert "nothing" in answer
    assert "quetzalcoatl" in answer
    assert not re.search(r"\.(?:md|py|txt)", answer)


def test_a_longer_form_is_searched_by_its_stem(reader: Reader) -> None:
    assert "`src/oven.py`" in reader.ask("Where is the preheating?")


def test_the_calls_follow_from_each_other(folder: Path) -> None:
    reader = Reader(folder)
    reader.ask("What happens with a refund?")
    assert [[call.name for call in step.calls] for step in reader.steps] == [
        ["list_files"],
        ["search"],
        ["read_file"],
        [],
    ]
    assert reader.steps[2].calls[0].arguments == {"path": "docs/refunds.md", "start": 1, "lines": 16}
    assert all(step.text for step in reader.steps)


def test_several_calls_in_one_reply(folder: Path) -> None:
    reader = Reader(folder)
    reader.ask("Where are orders placed, and what limits the oven?")
    assert max(len(step.calls) for step in reader.steps) >= 2


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_question_in_the_middle_is_answered_too(reader: Reader, after: int) -> None:
    answer = reader.ask("What happens with a refund?", inject={after: "also tell me which file is the largest"})
    assert "> A refund is paid within fourteen days." in answer
    assert "You also asked “also tell me which file is the largest”: The largest file is `src/orders.py`" in answer
    assert any("further request" in step.text for step in reader.steps)


def test_an_instruction_in_the_middle_is_followed(reader: Reader) -> None:
    answer = reader.ask("What happens with a refund?", inject={1: "answer in one line"})
    assert "\n" not in answer
    assert "fourteen days" in answer


def test_the_next_turn_is_answered_from_what_is_known(folder: Path) -> None:
    reader = Reader(folder)
    reader.ask("What happens with a refund?")
    known = len(reader.calls)
    assert "\n" not in reader.ask("Shorter, please.")
    assert len(reader.calls) == known
    assert reader.ask("How many files are there?").startswith("There are 5 files")
    assert len(reader.calls) == known
    assert "oven.py" in reader.ask("Where is OVEN_LIMIT defined?")


def test_other_tools_are_understood(folder: Path) -> None:
    tools = (
        Tool("grep", {"max": {"type": "integer"}, "regex": {"type": "string"}}, frozenset({"regex", "max"})),
        Tool("openFile", {"file": {"type": "string"}, "end_line": {"type": "integer"}}, frozenset({"file"})),
        Tool("send_mail", {"to": {"type": "string"}}, frozenset({"to"})),
    )
    say = reply(Conversation([Turn("user", "What is OVEN_LIMIT?")], tools))
    assert [(call.name, call.arguments) for call in say.calls] == [("grep", {"regex": "OVEN_LIMIT", "max": 50})]
    turns = [Turn("user", "x OVEN_LIMIT?"), Turn("assistant", "", tuple(say.calls))]
    turns[1] = Turn("assistant", "", (type(say.calls[0])("grep", say.calls[0].arguments, "a"),))
    say = reply(Conversation([*turns, Turn("tool", "src/oven.py:1:OVEN_LIMIT = 250", call_id="a")], tools))
    assert [(call.name, call.arguments) for call in say.calls] == [
        ("openFile", {"file": "src/oven.py", "end_line": 16})
    ]


def test_without_tools_it_says_so() -> None:
    assert "could not look" in reply(Conversation([Turn("user", "Where is the oven?")])).text


def test_forced_to_finish_it_answers_with_what_it_has(folder: Path) -> None:
    reader = Reader(folder)
    reader.turns.append(Turn("user", "Where is OVEN_LIMIT defined?"))
    reader.step()
    reader.step()
    reader.turns.append(Turn("user", "You have reached the limit. Give your final answer now."))
    reader.tools = ()
    say = reader.step()
    assert not say.calls
    assert "`src/oven.py`, line 1" in say.text
    assert "final answer" not in say.text


def test_tools_that_fail_are_not_asked_again(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "gone")
    reader.run = lambda call: f"PermissionError: {call.name} may not"  # type: ignore[method-assign]
    answer = reader.ask("Where is the oven, and which file is the largest?")
    assert "nothing" in answer or "could not" in answer
    assert len(reader.calls) == len({(call.name, str(call.arguments)) for call in reader.calls})


def test_the_tag_protocol(folder: Path) -> None:
    answer = Reader(folder, system="When done answer in <finish>…</finish>.").ask("How many files are there?")
    assert answer.startswith("<finish>")
    assert answer.endswith("</finish>")


QUESTIONS = [
    "",
    "?",
    "hello",
    "Wo ist der Ofen?",
    "烤箱在哪里？",
    "a" * 5000,
    "Where is `*[(`?",
    "list",
    "which which which file where how many largest",
    "What do src/oven.py, src/orders.py, README.md, notes.txt and docs/refunds.md say of oven, order, refund?",
    "[]{}\\ \x00 \ud800",
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("injected", [None, "and where are the refunds, orders, loaves, exceptions and degrees?"])
def test_any_question_ends_within_the_calls(folder: Path, shape: str, injected: str | None) -> None:
    inject = dict.fromkeys(range(1, 4), injected) if injected else None
    for question in QUESTIONS:
        reader = Reader(folder, shape=shape)
        assert reader.ask(question, inject=inject).strip(), question
        assert len(reader.calls) <= MOST_CALLS, question


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 500, b"x" * 200_000, b"oven\r\n" * 3000])
def test_any_folder(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "oven 1 (copy).txt").write_bytes(content)
    for question in ("What about the oven?", "Which file is the largest?", "How often is the oven there?"):
        reader = Reader(tmp_path)
        assert reader.ask(question)
        assert len(reader.calls) <= MOST_CALLS


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "nothing" in Reader(tmp_path).ask("Where is the oven?")
    assert Reader(tmp_path).ask("Which file is the largest?")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Where is OVEN_LIMIT defined?", "> OVEN_LIMIT = 250"),
        ("What happens with a refund?", "> A refund is paid within fourteen days."),
        ("Which file is the largest?", "The largest file is `src/orders.py`"),
        ("How many lines has orders.py?", "`src/orders.py` has 46 lines."),
        ("How often is `padding` there?", "at least 40 lines"),
        ("Where is the quetzalcoatl?", "nothing"),
    ],
)
def test_the_tools_of_the_demo(folder: Path, question: str, expected: str) -> None:
    files = Folder(folder)
    reader = Reader(folder, system="Call one tool at a time.")
    reader.run = lambda call: getattr(files, call.name)(**call.arguments)  # type: ignore[method-assign]
    assert expected in reader.ask(question, inject={2: "and how many files are there?"})
    assert "5 files here" in reader.turns[-1].text
    assert max(len(step.calls) for step in reader.steps) == 1


def test_a_list_that_was_cut_is_no_count() -> None:
    turns = [
        Turn("user", "How many files are there?"),
        Turn("assistant", "", (Ask("list_files", {}, "a"),)),
        Turn("tool", "a.py (1 bytes)\nb.py (2 bytes)\n… and more: 2 are shown", call_id="a"),
    ]
    assert "at least 2 files" in reply(Conversation(turns, TOOLS)).text


def test_its_own_source(tmp_path: Path) -> None:
    root = Path(__file__).parents[3] / "perdure" / "demo_model"
    answer = Reader(root, tools=TOOLS).ask("Where is the function `use_of` defined?")
    assert "`planning.py`, line" in answer
    assert "> def use_of(name: str)" in answer
