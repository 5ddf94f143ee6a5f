"""``import_messages`` of objects of the official SDKs; without any, no SDK is loaded. The rest is in tests/unit."""

from __future__ import annotations

import base64
import subprocess
import sys

from anthropic.types import TextBlock, ToolUseBlock
from google.genai import types as google
from openai.types.chat import ChatCompletionMessage

from perdure.providers import import_messages
from perdure.types.messages import FilePart
from tests.unit.providers.test_history import PNG, REQUESTS, TALK


def test_objects_of_sdks_are_read_too() -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    reply = ChatCompletionMessage.model_validate(
        {
            "role": "assistant",
            "content": "Adding.",
            "tool_calls": [called],
        }
    )
    messages, _ = REQUESTS["openai"]
    assert import_messages("openai", [*messages[:2], reply, *messages[3:]]).messages == TALK

    blocks = [
        TextBlock(type="text", text="Adding."),
        ToolUseBlock(type="tool_use", id="c1", name="add", input={"a": 1}),
    ]
    messages, _ = REQUESTS["anthropic"]
    content = {"role": "assistant", "content": blocks}
    assert import_messages("anthropic", [messages[0], content, *messages[2:]]).messages == TALK

    call = google.Part(
        function_call=google.FunctionCall(id="c1", name="add", args={"a": 1}), thought_signature=b"\xff\xfe?"
    )
    picture = google.Part.from_bytes(data=base64.b64decode(PNG), mime_type="image/png")
    talk = [google.Content(role="user", parts=[picture]), google.Content(role="model", parts=[call])]
    for contents in (talk, [content.model_dump() for content in talk]):
        asked, replied = import_messages("google", contents).messages
        assert asked.parts == (FilePart(media_type="image/png", data=PNG),)
        assert (replied.tool_calls[0].provider, replied.tool_calls[0].arguments) == ("google", {"a": 1})

    content = google.Content(parts=[google.Part(text="a")])
    assert import_messages("anthropic", [], system=content).system == "a"


def test_no_sdk_is_loaded() -> None:
    program = f"""
import sys
from perdure.providers import import_messages
for name, (messages, system) in {REQUESTS!r}.items():
    assert len(import_messages(name, messages, system=system).messages) == {len(TALK)}
print([sdk for sdk in ("openai", "anthropic", "google.genai") if sdk in sys.modules])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
