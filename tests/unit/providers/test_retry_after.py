from __future__ import annotations

import math
import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.providers.errors import parse_duration, read_retry_after


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
        ("9" * 400 + "s", None),
        ("9" * 400, None),
        ("1x", None),
    ],
)
def test_duration(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


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
        ({"retry-after": "5, 30"}, "", 30.0),
        ({"retry-after": "5, nan"}, "", None),
        ({"retry-after": "-5, -7", "x-ratelimit-reset": "7"}, "", 7.0),
        ({"retry-after": ","}, "", None),
        ({"retry-after": "Fri, 31 Dec 99999 23:59:59 GMT"}, "", None),
        ({"retry-after": "Fri, 31 Dec 0000 23:59:59 GMT"}, "", 0.0),
        ({"retry-after": "30s"}, "", 30.0),
        ({"retry-after": "500ms"}, "", 0.5),
        ({"retry-after": "1m30s, 5"}, "", 90.0),
    ],
)
def test_retry_after(headers: dict[str, str], message: str, seconds: float | None) -> None:
    assert read_retry_after(headers, message) == pytest.approx(seconds)


def test_moments_count_from_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    assert read_retry_after({"retry-after": formatdate(1_700_000_030, usegmt=True)}) == 30
    assert read_retry_after({"retry-after": "1700000030"}) == 30
    assert read_retry_after({"retry-after": "1600000000"}) == 0
    assert read_retry_after({"retry-after": "1700000030000, 7"}) == pytest.approx(30)
    assert read_retry_after({"x-ratelimit-reset": "1700000005"}) == 5
    assert read_retry_after({"x-ratelimit-reset": "1700000005000"}) == pytest.approx(5)


def test_a_date_in_the_year_9999_is_a_number_of_seconds() -> None:
    wait = read_retry_after({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"})
    assert wait is not None
    assert 2e11 < wait < 3e11


NAMES = [
    "retry-after",
    "retry-after-ms",
    *(f"x-ratelimit-{kind}{of}" for kind in ("reset", "remaining") for of in ("", "-requests")),
]
values = (
    st.text()
    | st.from_regex(r"-?\d{1,400}(\.\d+)?(e\d{1,4})?(ms|s|m|h|d)?", fullmatch=True)
    | st.datetimes().map(lambda at: at.strftime("%a, %d %b %Y %H:%M:%S GMT"))
    | st.from_regex(
        r"[A-Z][a-z]{2}, \d{1,3} (Jan|Feb|Dec) \d{1,6} \d{1,3}:\d\d:\d\d ([A-Z]{1,4}|[+-]\d{1,9})", fullmatch=True
    )
    | st.sampled_from(["", "0", "nan", "-inf", "inf", "1e999", "5, 6", "5,,6", "[1]"])
)


@given(st.dictionaries(st.sampled_from(NAMES), values), values)
def test_whatever_an_api_says_is_a_finite_wait_or_none(headers: dict[str, str], text: str) -> None:
    wait = read_retry_after(headers, f"Please try again in {text}.")
    assert wait is None or (0 <= wait < math.inf)
