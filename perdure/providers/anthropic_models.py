"""What the name of a Claude model says of its API. Names that say nothing are taken for models of today.

Source: the model pages and the thinking guides of platform.claude.com, November 2026.
"""

from __future__ import annotations

import re

_NEW = re.compile(r"claude-(?P<line>[a-z]+)-(?P<major>\d{1,2})(?!\d)(?:[-.](?P<minor>\d{1,2})(?!\d))?")
_OLD = re.compile(r"claude-(?P<major>\d)(?:[-.](?P<minor>\d))?-(?P<line>[a-z]+)")
_LONGEST_FIRST = (
    ((4, 5), 64_000),
    ((4, 0), 32_000),
    ((3, 7), 64_000),
    ((3, 5), 8_192),
    ((0, 0), 4_096),
)
"""From this version on, so many tokens a reply: what the smallest model of the version can write, or half of it."""

Generation = tuple[str, tuple[int, int]]


def generation(model: str) -> Generation | None:
    """``"claude-opus-5-5"`` → ``("opus", (5, 5))``, with whatever a cloud puts around the name."""
    found = _NEW.search(model) or _OLD.search(model)
    return (found["line"], (int(found["major"]), int(found["minor"] or 0))) if found else None


def default_max_tokens(model: str) -> int:
    """The API wants a limit with every call: one that no usual reply reaches, and that the model allows."""
    known = generation(model)
    if known is None:
        # A Claude without a version, or another vendor's model, whose servers often stop at 8k.
        return 32_000 if "claude" in model else 8_192
    return next(limit for version, limit in _LONGEST_FIRST if known[1] >= version)


def takes_effort(model: str) -> bool:
    """Whether effort says how much it thinks; models before 4.6 take a budget of tokens instead."""
    known = generation(model)
    return known is None or known[1] >= (4, 6) or known[1] < (3, 7)


def thinks_unasked(model: str) -> bool:
    """Whether it thinks where the request does not say so."""
    known = generation(model)
    return known is not None and known[1] >= (5, 0)


def binds_thinking(model: str) -> bool:
    """Whether what it thought holds only after the very same messages, tools and system prompt."""
    known = generation(model)
    return known is not None and (known[1] >= (5, 5) or (_always(known[0]) and known[1] >= (5, 1)))


def can_be_forced(model: str) -> bool:
    """Whether a request may name the tool to call: that needs a model whose thinking can be switched off."""
    known = generation(model)
    return known is None or not (_always(known[0]) or known[1] >= (5, 5))


def _always(line: str) -> bool:
    return line in ("fable", "mythos")
