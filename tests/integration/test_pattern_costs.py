"""No regular expression of the package takes more than linear time, on any text that we can think of.

The worker's event loop runs them over what models, tools and callers wrote; Python's ``re`` cannot be interrupted, and
stands in the way of every other thread meanwhile.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perdure.providers import demo_arguments, dialects
from perdure.types import engine_texts, redaction
from tests.support.patterns import FoundPattern, build_texts, find_patterns

SIZE = 2048
FLOOR = 0.002
"""Seconds of CPU that a text of twice the size may take in any case."""
RATIO = 3.0
"""What a text of twice the size may cost beside the single one: 2 is linear, 4 quadratic."""
STUCK = 2.0
"""Seconds of CPU after which a pattern is not waited for."""


def build_secret_patterns() -> Iterator[re.Pattern[Any]]:
    secrets = (
        *("sk-ant-0123456789", "a" * 40, "\\" * 20 + "x", "a b c d e f g", "%25%25%25%25%25", "é😀\n\t\"'<>&" * 3),
        *("x" * 5, "\\\\\\\\", "a\\" * 20),
    )
    for values in (*((secret,) for secret in secrets), tuple(sorted(secrets))):
        pattern, _ = redaction._compile_secrets(values)
        assert pattern is not None
        yield pattern


DYNAMIC: dict[str, Callable[[], Iterable[re.Pattern[Any]]]] = {
    "perdure.contrib.hooks.redact": tuple,  # the patterns of its caller, an author
    "perdure.providers.demo_arguments._compile_value": lambda: [
        demo_arguments._compile_value(form, after) for form in demo_arguments._PATTERNS for after in ((), ("id", "of"))
    ],
    "perdure.providers.demo_arguments._compile_word": lambda: [
        demo_arguments._compile_word(label) for label in ("urgent", "is[ _-]?urgent")
    ],
    "perdure.providers.dialects._compile": lambda: [concession.text for concession in dialects.CONCESSIONS],
    "perdure.types.engine_texts._build_tag_pattern": lambda: [engine_texts._TAG],
    "perdure.types.redaction._compile_secrets": build_secret_patterns,
}
"""Examples of the patterns that are computed."""


class StuckError(Exception):
    """A pattern takes very long."""


@contextmanager
def bounded_cpu(seconds: float) -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise StuckError

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def measure(run: Callable[[Any], Any], text: Any) -> float:
    begin = time.thread_time()
    run(text)
    return time.thread_time() - begin


def find_slow_text(found: FoundPattern) -> str | None:
    compiled = found.compile()
    for method in sorted(found.methods):
        call = getattr(compiled, method)
        run = (lambda text, call=call: sum(1 for _ in call(text))) if method == "finditer" else call
        for size in (24, 48, SIZE):  # from small ones on: one that grows exponentially ends soon
            for text, double in build_texts(found, size):
                shown = f"{method} of {found.places[0]} ({found.pattern!r:.100}) on {text[:40]!r}… of {len(text)}"
                single, twice = (
                    each.encode("utf-8", "surrogatepass") if isinstance(found.pattern, bytes) else each
                    for each in (text, double)
                )
                try:
                    with bounded_cpu(STUCK):
                        if measure(run, twice) <= FLOOR:
                            continue
                        for _ in range(3):  # a machine under load slows one of the two down now and then
                            least = [min(measure(run, each) for _ in range(5)) for each in (single, twice)]
                            if least[1] <= max(FLOOR, RATIO * least[0]):
                                break
                except StuckError:
                    return f"{shown}: no end after {STUCK:g} s"
                if least[1] > max(FLOOR, RATIO * least[0]):
                    return f"{shown}: {least[0] * 1000:.1f} ms, and {least[1] * 1000:.1f} ms for twice the size"
    return None


@pytest.mark.fault(
    "Borders",
    "A text has 30,000 letters, or tables of thousands of cells.",
    "Patterns take linear time, pages have a budget, and a call that blocks the loop again and again fails by name.",
)
@pytest.mark.slow
def test_no_pattern_takes_more_than_linear_time() -> None:
    patterns, unknown = find_patterns(DYNAMIC)
    assert not unknown, "computed patterns without an example in DYNAMIC"
    assert len(patterns) > 80
    slow = [found for pattern in patterns if (found := find_slow_text(pattern)) is not None]
    assert not slow, "\n".join(slow)


@pytest.mark.parametrize("pattern", [r"[a-z]+://", r"(a+)+$", r"\s*=\s*;", r"(?:a|aa)+b", r"<(.*?)</b>"])
def test_the_measurement_finds_a_slow_pattern(pattern: str) -> None:
    assert find_slow_text(FoundPattern(pattern, re.DOTALL, ["here"], {"search"})) is not None
