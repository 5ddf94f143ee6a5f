"""Which reply is the answer, and what a model is told about the ones that are not."""

from __future__ import annotations

import pytest

from perdure.loop.finish import classify, force, forced, reminder
from perdure.types.limits import LimitUse
from perdure.types.messages import Message, ThinkingPart, ToolCallPart
from perdure.types.wire import Finish

CALL = ToolCallPart(id="c1", name="look")


@pytest.mark.parametrize(
    ("protocol", "text", "reason", "answer"),
    [
        ("text", "42", "stop", Finish(content="42")),
        ("text", "  42\n", "stop", Finish(content="  42\n")),
        ("text", "42 and th", "length", Finish(content="42 and th")),
        ("text", "<finish>42</finish>", "stop", Finish(content="<finish>42</finish>")),
        ("text", "", "stop", None),
        ("text", " \n\t", "stop", None),
        ("text", "", "length", None),
        ("text", "", "refusal", Finish(content="")),
        ("text", "I will not.", "refusal", Finish(content="I will not.")),
        ("text", "", "content_filter", Finish(content="")),
        ("tag", "<finish>42</finish>", "stop", Finish(content="42", called=True)),
        ("tag", "So: <finish>\n 42 \n</finish> Bye.", "stop", Finish(content="42", called=True)),
        ("tag", "<finish></finish>", "stop", Finish(content="", called=True)),
        ("tag", "<finish>1</finish> no: <finish>2</finish>", "stop", Finish(content="2", called=True)),
        ("tag", "I use the <finish> tag now: <finish>42</finish>", "stop", Finish(content="42", called=True)),
        ("tag", "<finish>42</finish> cut", "length", Finish(content="42", called=True)),
        ("tag", "<finish>42", "stop", Finish(content="42", called=True)),
        ("tag", "The <finish> tag: <finish>42", "stop", Finish(content="42", called=True)),
        ("tag", "<finish>42 and th", "length", None),
        ("tag", "<finish>42 and th", "other", None),
        ("tag", "42", "stop", None),
        ("tag", "42</finish>", "stop", None),
        ("tag", "", "stop", None),
        ("tag", "I will not.", "refusal", Finish(content="I will not.")),
        ("tag", "", "content_filter", Finish(content="")),
    ],
)
def test_classify(protocol, text, reason, answer):
    assert classify(protocol, Message.assistant(text), reason) == answer


@pytest.mark.parametrize("protocol", ["text", "tag"])
@pytest.mark.parametrize("reason", ["stop", "tool_calls", "length", "refusal", "content_filter", "other"])
def test_a_reply_with_tool_calls_is_never_the_answer(protocol, reason):
    assert classify(protocol, Message.assistant("<finish>42</finish>", CALL), reason) is None


def test_a_thought_is_no_answer():
    assert classify("text", Message(role="assistant", parts=(ThinkingPart(text="hm"),)), "stop") is None


@pytest.mark.parametrize(
    ("protocol", "text", "answer"),
    [
        ("text", "42", Finish(content="42")),
        ("text", "", Finish(content="")),
        ("tag", "so <finish>42</finish>", Finish(content="42", called=True)),
        ("tag", "so <finish>42", Finish(content="42", called=True)),
        ("tag", "42", Finish(content="42")),
    ],
)
def test_a_forced_reply_is_always_an_answer(protocol, text, answer):
    assert forced(protocol, text) == answer


def test_what_the_model_is_told_names_the_tag_only_under_its_protocol():
    assert "<finish>" in reminder("tag")
    steps = LimitUse(name="max_iterations", scope="turn", used=7, allowed=7)
    assert "<finish>" in force("tag", steps)
    assert "<finish>" not in reminder("text") + force("text", steps)
    assert "all 7 steps" in force("text", steps)


def test_what_the_model_is_told_names_the_limit():
    spent = LimitUse(name="cost_usd", scope="run", used=0.52, allowed=0.5)
    assert "the run has used $0.52 of $0.5 (cost_usd)" in force("text", spent)
