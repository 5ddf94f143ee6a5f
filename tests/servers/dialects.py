"""Strict fakes of servers that speak chat completions or Messages in dialects of their own: what each refuses, in its
own words, and how its model thinks and calls.

The rules are the vendors' and their users', by the server's name; they know nothing of perdure's table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.servers.wire import words

THINKERS = words("deepseek kimi zai qwen")
"""Refuse forced tools."""
DEMANDING = {"openai": words("deepseek kimi zai"), "anthropic": words("deepseek kimi minimax zai qwen")}
"""Want the thinking back with calls."""
TEMPLATES = words("vllm sglang llama.cpp lmstudio perplexity mistral")
"""Roles in turn."""
SIGNING = words("anthropic bedrock vertex azure-foundry")
"""Claude: every block of thinking is signed."""
TAGGING = words("minimax ollama llama.cpp lmstudio vllm sglang compatible")
_MESSAGE_KEYS = {
    "user": words("role content"),
    "system": words("role content"),
    "tool": words("role content tool_call_id"),
    "assistant": words("role content tool_calls refusal"),
}
_THOUGHT_KEYS = {
    **{name: {"reasoning_content"} for name in words("deepseek kimi zai minimax qwen xai together fireworks nvidia")},
    **{name: {"reasoning"} for name in words("groq cerebras")},
    **{name: words("reasoning reasoning_details reasoning_content") for name in words("openrouter vercel")},
}


def sign(server: str, model: str) -> str:
    """What ``model`` at ``server`` signs with."""
    return f"sig/{server}/{vendor(model)}/"


def vendor(model: str) -> str:
    """Whose models read each other's signatures."""
    return next((name for name in ("claude", "gemini") if name in model), model)


def refuse(format: str, server: str, body: dict[str, Any]) -> str | None:
    """Why the server refuses the request; None if it takes it."""
    own = sign(server, body["model"])
    foreign = [found for found in re.findall(r"sig/[^\"]*/", json.dumps(body)) if not found.startswith(own)]
    if foreign:
        return f"Invalid `signature` in `thinking` block: {foreign[0]}"
    return (_refuse_chat if format == "openai" else _refuse_messages)(server, body)


def _refuse_chat(server: str, body: dict[str, Any]) -> str | None:
    messages = body["messages"]
    if server in ("mistral", "databricks") and "stream_options" in body:
        return "Extra inputs are not permitted, field: 'stream_options'"
    forced = body.get("tool_choice")
    if server in THINKERS and forced not in (None, "auto"):
        return "Thinking mode does not support this tool_choice"
    if server in ("lmstudio", "llama.cpp") and isinstance(forced, dict):
        return "Invalid tool_choice type: 'object'. Supported string values: none, auto, required"
    if (server in ("openai", "azure")) == ("max_tokens" in body):
        return "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
    for index, message in enumerate(messages):
        known = _MESSAGE_KEYS[message["role"]]
        if message["role"] == "assistant":
            known = known | _THOUGHT_KEYS.get(server, set())
        if unknown := set(message) - known:
            return f"messages.{index}: Extra inputs are not permitted: {sorted(unknown)}"
        flaw = _refuse_message(server, body["model"], message)
        if flaw:
            return f"messages.{index}: {flaw}"
    return _refuse_order(messages) or (_refuse_turns(messages) if server in TEMPLATES else None)


def _refuse_message(server: str, model: str, message: dict[str, Any]) -> str | None:
    calls = message.get("tool_calls", [])
    for call in calls:
        keys = {"id", "type", "function"} | ({"extra_content"} if server in ("google", "vertex") else set())
        if set(call) - keys:
            return f"Extra inputs are not permitted: {set(call) - keys}"
    if calls and server in ("google", "vertex") and "gemini-3" in model and not calls[0].get("extra_content"):
        return "Function call is missing a thought_signature in functionCall parts."
    ids = [call["id"] for call in calls] + ([message["tool_call_id"]] if message["role"] == "tool" else [])
    for call_id in ids:
        if server == "mistral" and not re.fullmatch(r"[a-zA-Z0-9]{9}", call_id):
            return f"Tool call id was {call_id} but must be a-z, A-Z, 0-9, with a length of 9."
        if not 0 < len(call_id) <= 40:
            return "string too long. Expected a string with maximum length 40"
    if calls and server in DEMANDING["openai"] and not message.get("reasoning_content"):
        return "The `reasoning_content` in the thinking mode must be passed back to the API."
    if message["role"] == "assistant" and not calls and message.get("content") is None:
        return "Assistant message must have either content or tool_calls, but not none."
    return None


def _refuse_order(messages: list[dict[str, Any]]) -> str | None:
    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return "No tool call found for this tool message"
            open_ids.remove(message["tool_call_id"])
        elif open_ids:
            return f"tool_call_ids did not have response messages: {open_ids}"
        open_ids += [call["id"] for call in message.get("tool_calls", [])]
    return f"tool_call_ids did not have response messages: {open_ids}" if open_ids else None


def _refuse_turns(messages: list[dict[str, Any]]) -> str | None:
    rest = messages[1:] if messages[0]["role"] == "system" else messages
    expected = "user"
    for before, message in zip([None, *rest], rest, strict=False):
        role = message["role"]
        if role == "system":
            return "System message must be at the beginning."
        if role == "user" and before and before["role"] == "tool":
            return "Unexpected role 'user' after role 'tool'"
        if role == "assistant" and not (message.get("content") or message.get("tool_calls")):
            return "Assistant message must have either content or tool_calls, but not none."
        if role == "tool" or message.get("tool_calls"):
            expected = "assistant" if role == "tool" else expected
            if role == "assistant" and before and before["role"] == "assistant":
                return "Conversation roles must alternate user/assistant/user/assistant/..."
            continue
        if role != expected:
            return "After the optional system message, conversation roles must alternate user/assistant/user/..."
        expected = "assistant" if role == "user" else "user"
    return "Expected last role User or Tool but got assistant" if rest[-1]["role"] == "assistant" else None


def _refuse_messages(server: str, body: dict[str, Any]) -> str | None:
    forced = body.get("tool_choice", {}).get("type")
    if server in THINKERS and forced in ("tool", "any"):
        return "Thinking mode does not support this tool_choice"
    for index, message in enumerate(body["messages"]):
        kinds = [block["type"] for block in message["content"]]
        for block in message["content"]:
            if block["type"] == "thinking" and server in SIGNING and not block.get("signature"):
                return f"messages.{index}.content.0.thinking.signature: Field required"
        if message["role"] == "assistant" and "tool_use" in kinds and server in DEMANDING["anthropic"]:
            thoughts = [block for block in message["content"] if block["type"] == "thinking" and block["thinking"]]
            if not thoughts:
                return "The `content[].thinking` in the thinking mode must be passed back to the API."
    roles = [message["role"] for message in body["messages"]]
    if any(one == two for one, two in pairwise(roles)) or roles[0] != "user":
        return "roles must alternate"
    return None


# ---
# How its model thinks, writes and calls.


def reply(format: str, server: str, model: str, text: str, call_ids: list[str]) -> Iterator[dict[str, Any]]:
    """A streamed reply: thinking, ``text``, calls of the tool ``look`` under ``call_ids``."""
    yield from (_reply_chat if format == "openai" else _reply_messages)(server, model, text, call_ids)


def _reply_chat(server: str, model: str, text: str, call_ids: list[str]) -> Iterator[dict[str, Any]]:
    signature = sign(server, model)
    deltas: list[dict[str, Any]] = []
    if server in ("openrouter", "vercel"):
        detail = {"type": "reasoning.text", "index": 0, "text": "I look.", "signature": signature}
        deltas.append({"reasoning": "I look.", "reasoning_details": [detail]})
    elif server in TAGGING:
        deltas += [{"content": "<thi"}, {"content": "nk>\nI look.\n</think>\n\n"}]
    elif server == "mistral":
        deltas.append({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "I look."}]}]})
    elif keys := _THOUGHT_KEYS.get(server):
        deltas.append({min(keys): "I look."})
    deltas.append({"content": text})
    for index, call_id in enumerate(call_ids):
        function = {"name": "look", "arguments": '{"n": 1}'}
        call = {"index": index, "id": call_id, "type": "function", "function": function}
        if server in ("google", "vertex") and index == 0:
            call["extra_content"] = {"google": {"thought_signature": signature}}
        deltas.append({"tool_calls": [call]})
    for delta in deltas:
        yield {"model": model, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    reason = "tool_calls" if call_ids else "stop"
    yield {"model": model, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def _reply_messages(server: str, model: str, text: str, call_ids: list[str]) -> Iterator[dict[str, Any]]:
    thinking: dict[str, Any] = {"type": "thinking", "thinking": "I look."}
    if server in ("kimi", "minimax"):
        thinking["signature"] = ""
    elif server not in ("deepseek", "ollama", "lmstudio", "llama.cpp"):
        thinking["signature"] = sign(server, model)
    blocks = [thinking, {"type": "text", "text": text}]
    blocks += [{"type": "tool_use", "id": call_id, "name": "look", "input": {"n": 1}} for call_id in call_ids]
    yield {"type": "message_start", "message": {"role": "assistant", "model": model, "content": [], "usage": {}}}
    for index, block in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use" if call_ids else "end_turn"}, "usage": {}}
    yield {"type": "message_stop"}
