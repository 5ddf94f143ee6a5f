"""Exceptions of SDKs: all that a module has, and an instance of each."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai

from tests.servers.google import error_body
from tests.support.adapters import KEY


def exceptions_of(module: Any) -> Iterator[type[Exception]]:
    """Public ones."""
    for name in sorted(vars(module)):
        value = getattr(module, name)
        # Not isinstance: it asks openai's proxies for their class, and each imports the part of the SDK it stands for.
        if issubclass(type(value), type) and issubclass(value, Exception) and not name.startswith("_"):
            yield value


REQUEST = httpx2.Request("POST", "https://api.test/v1/chat/completions", headers={"authorization": f"Bearer {KEY}"})
INFO: Any = type(
    "Info", (), {"real_url": f"https://api.test/?key={KEY}", "ssl": None, "host": "h", "port": 1, "is_ssl": True}
)()


def make(cls: Any, status: int = 400, body: Any = None, headers: dict[str, str] | None = None) -> Exception:
    """An instance of any of them, with the key wherever it can get."""
    response = httpx2.Response(status, request=REQUEST, headers=headers)
    attempts: list[Callable[[], Exception]] = [
        lambda: cls(f"x {KEY}", response=response, body=body),
        lambda: cls(response=response, body=body),
        lambda: cls(f"x {KEY}", REQUEST, body=body),
        lambda: cls(message=f"x {KEY}", request=REQUEST),
        lambda: cls(request=REQUEST),
        lambda: cls(completion=openai.types.chat.ChatCompletion.model_construct(usage=None)),
        lambda: cls(f"x {KEY}", unsent_messages=[]),
        lambda: cls(f"x {KEY}", request=REQUEST, response=response),
        lambda: cls(400, error_body(400, f"bad {KEY}", "INVALID_ARGUMENT"), response),
        lambda: cls(INFO, OSError(1, f"x {KEY}")),
        lambda: cls(INFO, OSError(1, f"x {KEY}"), ssl.SSLError()),
        lambda: cls(INFO, ()),
        lambda: cls(f"x {KEY}"),
        lambda: cls(1000, f"x {KEY}"),
        lambda: cls(b"expected", b"got", "host", 1),
        lambda: cls(f"x {KEY}", "{", 0),
        lambda: cls(response, body),
        lambda: cls(),
    ]
    for attempt in attempts:
        try:
            made = attempt()
            str(made)
        except (TypeError, AttributeError, ValueError):
            continue
        return made
    raise AssertionError(f"cannot make a {cls.__name__}")
