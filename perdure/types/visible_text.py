"""Text that a person reads: characters that would hide or reorder others are shown by their number."""

from __future__ import annotations

import re

HIDING_CHARS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u06dd\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff"
    "\ue000-\uf8ff\U000f0000-\U0010ffff]"
)
"""Controls, marks of the direction of writing, invisible characters, lone surrogates, and those for private use."""


def show_controls(text: str) -> str:
    """Return ``text`` with ``⟨U+202E⟩`` in the place of each character that would hide or reorder others.

    Joiners between two letters beyond ASCII stay: emoji, Persian and Indic scripts are written with them.
    """
    if text.isascii() and text.isprintable():
        return text
    return HIDING_CHARS.sub(_name_char, text.replace("\r\n", "\n"))


def _name_char(match: re.Match[str]) -> str:
    char, text, at = match[0], match.string, match.start()
    if char in "\u200c\u200d" and 0 < at < len(text) - 1 and min(ord(text[at - 1]), ord(text[at + 1])) >= 0x300:
        return char
    return f"⟨U+{ord(char):04X}⟩"


def hides_characters(text: str) -> bool:
    """Whether :func:`show_controls` changes ``text``, so that a form could not send it back as it is."""
    return "\r" in text or show_controls(text) != text
