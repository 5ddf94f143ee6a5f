"""Texts of the engine inside messages: tags that it writes around texts, and ids of its own messages.

A model cannot tell the engine's ``<system>`` from one that a user has typed, so people cannot write it: their texts are
escaped where they come in by HTTP, and wherever the engine puts a text between tags. Their messages cannot have ids of
the engine's, either: messages with these are in no event, and no hook sees them.
"""

from __future__ import annotations

import re

ENGINE_ID_PREFIX = "perdure:"
"""Begins the ids of messages that the engine itself writes."""

_INVISIBLE = "[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]{0,4}"
_BLANK = r"[\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff]{0,8}"
_OPENING = "<\uff1c\ufe64"
_ENDING = ">\uff1e\ufe65"


class EngineText(str):
    """A text of the engine itself: not escaped as those of people are."""

    __slots__ = ()


def _build_tag_pattern(*tags: str) -> re.Pattern[str]:
    names = "|".join(_INVISIBLE.join(tag) for tag in tags)
    return re.compile(rf"[{_OPENING}](?={_BLANK}/?{_BLANK}(?:{names}){_INVISIBLE}(?:[\s/{_ENDING}]|$))", re.IGNORECASE)


_TAG = _build_tag_pattern("system", "conversation")


def escape_engine_tags(text: str) -> str:
    """Return ``text`` with ``&lt;`` for the ``<`` of each tag of the engine, opening or closing. Other tags stay."""
    return _TAG.sub("&lt;", text)


def enclose_text(tag: str, text: str) -> EngineText:
    """Return ``text`` between the engine's tags, which it cannot close itself."""
    return EngineText(f"<{tag}>\n{escape_engine_tags(text)}\n</{tag}>")
