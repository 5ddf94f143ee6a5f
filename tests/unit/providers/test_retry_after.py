from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from perdure.providers.retry_after import duration, retry_after


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("20ms", 0.02),
        ("1h2m3.5s", 3723.5),
        ("1.5", 1.5),
        ("2d", 172800.0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("1x", None),
    ],
)
def test_duration(text: str, seconds: float | None) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("headers", "message", "seconds"),
    [
        ({}, "", None),
        ({"retry-after": "3"}, "", 3.0),
        ({"retry-after": "0"}, "", 0.0),
        ({"retry-after-ms": "1500", "retry-after": "3"}, "", 1.5),
        ({"retry-after": "nonsense"}, "", None),
        ({"retry-after": "-5"}, "", None),
        ({"retry-after": formatdate(0, usegmt=True)}, "", 0.0),
        ({}, "Rate limit reached. Please try again in 1.2s. Visit", 1.2),
        ({}, "Please try again in 6m0s.", 360.0),
        ({"x-ratelimit-reset-requests": "2s", "x-ratelimit-reset-tokens": "6m0s"}, "", 360.0),
        (
            {
                "x-ratelimit-reset-requests": "2s",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-tokens": "6m0s",
                "x-ratelimit-remaining-tokens": "99",
            },
            "",
            2.0,
        ),
        ({"x-ratelimit-reset": "7"}, "", 7.0),
    ],
)
def test_retry_after(headers: dict[str, str], message: str, seconds: float | None) -> None:
    assert retry_after(headers, message) == pytest.approx(seconds)


def test_moments_count_from_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    assert retry_after({"retry-after": formatdate(1_700_000_030, usegmt=True)}) == 30
    assert retry_after({"x-ratelimit-reset": "1700000005"}) == 5
    assert retry_after({"x-ratelimit-reset": "1700000005000"}) == pytest.approx(5)
