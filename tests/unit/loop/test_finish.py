"""Which reply is the answer, and what a model is told about the ones that are not."""

from __future__ import annotations

import pytest

from perdure.loop.finish import build_force_finish_text, build_reminder_text, extract_answer, extract_forced_answer
from perdure.types.limits import LimitUse
from perdure.types.messages import Message, ThinkingPart, ToolCallPart
from perdure.types.wire import FinalAnswer

CALL = ToolCallPart(id="c1", name="look")


@pytest.mark.parametrize(
    ("protocol", "text", "reason", "answer"),
    [
        ("text", "42", "stop", FinalAnswer(content="42")),
        ("text", "  42\n", "stop", FinalAnswer(content="  42\n")),
        ("text", "42 and th", "length", FinalAnswer(content="42 and th")),
        ("text", "<finish>42</finish>", "stop", FinalAnswer(content="<finish>42</finish>")),
        ("text", "", "stop", None),
        ("text", " \n\t", "stop", None),
        ("text", "", "length", None),
        ("text", "", "refusal", FinalAnswer(content="")),
        ("text", "I will not.", "refusal", FinalAnswer(content="I will not.")),
        ("text", "", "content_filter", FinalAnswer(content="")),
        ("tag", "<finish>42</finish>", "stop", FinalAnswer(content="42", called=True)),
        ("tag", "So: <finish>\n 42 \n</finish> Bye.", "stop", FinalAnswer(content="42", called=True)),
        ("tag", "<finish></finish>", "stop", FinalAnswer(content="", called=True)),
        ("tag", "<finish>1</finish> no: <finish>2</finish>", "stop", FinalAnswer(content="2", called=True)),
        ("tag", "I use the <finish> tag now: <finish>42</finish>", "stop", FinalAnswer(content="42", called=True)),
        ("tag", "<finish>42</finish> cut", "length", FinalAnswer(content="42", called=True)),
        ("tag", "<finish>42", "stop", FinalAnswer(content="42", called=True)),
        ("tag", "The <finish> tag: <finish>42", "stop", FinalAnswer(content="42", called=True)),
        ("tag", "<finish>42 and th", "length", None),
        ("tag", "<finish>42 and th", "other", None),
        ("tag", "42", "stop", None),
        ("tag", "42</finish>", "stop", None),
        ("tag", "", "stop", None),
        ("tag", "I will not.", "refusal", FinalAnswer(content="I will not.")),
        ("tag", "", "content_filter", FinalAnswer(content="")),
    ],
)
def test_classify(protocol, text, reason, answer):
    assert extract_answer(protocol, Message.assistant(text), reason) == answer


@pytest.mark.parametrize("protocol", ["text", "tag"])
@pytest.mark.parametrize("reason", ["stop", "tool_calls", "length", "refusal", "content_filter", "other"])
def test_a_reply_with_tool_calls_is_never_the_answer(protocol, reason):
    assert extract_answer(protocol, Message.assistant("<finish>42</finish>", CALL), reason) is None


def test_a_thought_is_no_answer():
    assert extract_answer("text", Message(role="assistant", parts=(ThinkingPart(text="hm"),)), "stop") is None


@pytest.mark.parametrize(
    ("protocol", "text", "answer"),
    [
        ("text", "42", FinalAnswer(content="42")),
        ("text", "", FinalAnswer(content="")),
        ("tag", "so <finish>42</finish>", FinalAnswer(content="42", called=True)),
        ("tag", "so <finish>42", FinalAnswer(content="42", called=True)),
        ("tag", "42", FinalAnswer(content="42")),
    ],
)
def test_a_forced_reply_is_always_an_answer(protocol, text, answer):
    assert extract_forced_answer(protocol, text) == answer


def test_what_the_model_is_told_names_the_tag_only_under_its_protocol():
    assert "<finish>" in build_reminder_text("tag")
    steps = LimitUse(name="max_iterations", scope="turn", used=7, allowed=7)
    assert "<finish>" in build_force_finish_text("tag", steps)
    assert "<finish>" not in build_reminder_text("text") + build_force_finish_text("text", steps)
    assert "all 7 steps" in build_force_finish_text("text", steps)


def test_what_the_model_is_told_names_the_limit():
    spent = LimitUse(name="cost_usd", scope="run", used=0.52, allowed=0.5)
    assert "the run has used $0.52 of $0.5 (cost_usd)" in build_force_finish_text("text", spent)
