"""Secrets are removed from error text in whatever form an API or an SDK shows them, and the text stays readable."""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Callable
from html import escape
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.errors import RateLimitError
from perdure.types.redaction import (
    MAX_TEXT_CHARS,
    REDACTION_MARK,
    Redaction,
    find_address_secrets,
    find_argument_secrets,
    find_option_secrets,
    find_variable_secrets,
)

SECRET = 'k3y/with+odd="chars" & more:ü'


def within(before: str, secret: str, after: str) -> tuple[str, str]:
    """Base64 of a text with ``secret`` in it, and what of it comes from ``secret`` alone."""
    encoded = base64.b64encode(f"{before}{secret}{after}".encode()).decode()
    begin, end = len(before.encode()), len(f"{before}{secret}".encode())
    return encoded, encoded[(begin * 8 + 5) // 6 : end * 8 // 6]


def same(encode: Callable[[str], str]) -> Callable[[str], tuple[str, str]]:
    return lambda text: (encode(text), encode(text))


ENCODINGS: dict[str, Callable[[str], tuple[str, str]]] = {
    "as it stands": same(str),
    "url": same(lambda text: quote(text, safe="")),
    "url, slashes kept": same(quote),
    "form": same(quote_plus),
    "url twice": same(lambda text: quote(quote(text, safe=""), safe="")),
    "url, lower case": same(lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe=""))),
    "json": same(lambda text: json.dumps(text)[1:-1]),
    "json, unicode": same(lambda text: json.dumps(text, ensure_ascii=False)[1:-1]),
    "json twice": same(lambda text: json.dumps(json.dumps(text)[1:-1])[1:-1]),
    "json, slashes escaped": same(lambda text: json.dumps(text)[1:-1].replace("/", "\\/")),
    "repr": same(lambda text: repr(text)[1:-1]),
    "repr of bytes": same(lambda text: repr(text.encode())[2:-1]),
    "html": same(escape),
    "base64": lambda text: within("", text, ""),
    "base64 for urls": same(lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")),
    "base64 within a text": lambda text: within("user:", text, "!"),
    "base64 within another": lambda text: within('{"a":"', text, '"}'),
    "base64, url": same(lambda text: quote(base64.b64encode(text.encode()).decode(), safe="")),
}
letters = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
secrets = st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=30)


@given(secrets, letters, letters)
def test_no_encoding_shows_a_secret(secret: str, before: str, after: str) -> None:
    secret = secret.strip()
    redaction = Redaction([secret])
    assume(len(secret) >= 8 and redaction.redact_text(secret) != secret)  # else it is trivial
    for encoding, encode in ENCODINGS.items():
        shown, core = encode(secret)
        text = redaction.redact_text(f"{before} <{shown}> {after}")
        pieces = {core[at : at + 8] for at in range(len(core) - 7)}
        left = {piece for piece in pieces if piece in text and piece not in f"{before} <> {after}{REDACTION_MARK}"}
        assert not left, encoding


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_each_encoding_of_one_secret(encoding: str) -> None:
    shown, _ = ENCODINGS[encoding](SECRET)
    text = Redaction([SECRET]).redact_text(f"invalid header <{shown}> at line 3")
    assert "k3y" not in text
    assert text.startswith("invalid header <")
    assert text.endswith("> at line 3")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_run_of_backslashes_is_part_of_a_secret(encoding: str) -> None:
    for count, after in itertools.product([1, 2, 7], ["x", '"', "/", "\n", "ü", "\N{KEY}", "'", ""]):
        secret = "k3ys3cr3t" + "\\" * count + after + "z9y8x7w6"
        shown, _ = ENCODINGS[encoding](secret)
        text = Redaction([secret]).redact_text(f"invalid header <{shown}> at line 3")
        assert text == f"invalid header <{REDACTION_MARK}> at line 3" or encoding.startswith("base64"), secret
        assert "k3ys" not in text, secret
        assert "w6" not in text, secret


@pytest.mark.parametrize("count", [6, 200, 3000])
@pytest.mark.parametrize("before", ["", "k3y"])
def test_backslashes_without_end_are_not_shared_out_in_every_way(count: int, before: str) -> None:
    redaction = Redaction([before + "\\" * count + "secret12"])
    assert redaction.redact_text(before + "\\" * 30_000)  # it was tried until the end of days


@given(st.lists(st.text(), max_size=5), st.text(), st.integers(0, 3))
def test_any_text_and_any_secrets_can_be_redacted(given: list[str], text: str, repeated: int) -> None:
    shown = Redaction(given).redact_text(text * 10**repeated)
    assert len(shown) <= (MAX_TEXT_CHARS + 1) * len(REDACTION_MARK)


@pytest.mark.parametrize("mark", ["", "…", "...", "')", "'…)"])
def test_a_secret_that_was_cut_is_not_shown_in_part(mark: str) -> None:
    secret = "Qm7xT2pLw9RzK4vBn8cYd3sHf6jGa1"
    redaction = Redaction([secret])
    for length in range(4, 30):
        text = redaction.redact_text(f"the key is {secret[:length]}{mark}")
        assert secret[:4] not in text, text


@pytest.mark.parametrize(
    "value",
    ["", "1", "on", "abc", "true", "None", "application/json", "application/json; charset=utf-8", "2023-06-01", "8192"],
)
def test_trivial_values_leave_the_text_as_it_is(value: str) -> None:
    text = "400: on=1 abc true None application/json; charset=utf-8 since 2023-06-01, at most 8192 tokens"
    assert Redaction([value]).redact_text(text) == text


def test_a_short_value_is_a_secret_as_a_whole_word() -> None:
    redaction = Redaction(["test"])
    assert redaction.redact_text("Incorrect API key: test. The latest testing") == (
        f"Incorrect API key: {REDACTION_MARK}. The latest testing"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("Bearer Xy12345678", "Xy12345678"),
        ("Bearer secret", "secret"),
        ("Basic " + base64.b64encode(b"ana:hunter2-hunter2").decode(), "hunter2-hunter2"),
        ("Basic " + base64.b64encode(b"ana:hunter2").decode(), "hunter2"),
        ("session=9f8e7d6c5b4a; theme=dark", "9f8e7d6c5b4a"),
    ],
)
def test_a_piece_of_a_header_is_a_secret_too(value: str, shown: str) -> None:
    assert Redaction([value]).redact_text(f"not valid: {shown}") == f"not valid: {REDACTION_MARK}"


@pytest.mark.parametrize(
    ("value", "shown"), [(b"s3cr3t-0123", "s3cr3t-0123"), ("grün-0123".encode("latin-1"), "grün-0123")]
)
def test_a_secret_in_bytes_is_one(value: bytes, shown: str) -> None:
    assert Redaction([value]).redact_text(f"not valid: {shown}") == f"not valid: {REDACTION_MARK}"


def test_what_is_a_credential() -> None:
    url = "https://ana:pass%40word@x.dev/v1?sig=abcdefgh&v=2"
    assert {"pass@word", "abcdefgh", "ana"} <= set(find_address_secrets(url))
    assert {"pass@word"} <= set(find_address_secrets("http://ana:pass@word@[::1"))  # no address
    assert list(find_address_secrets("https://x.dev/a@b")) == []
    arguments = ["-y", "remote", "--token", "T0KEN-1", "--api-key=KEY-22", "-e", "DB_PASSWORD=pw-333", "--header"]
    found = {*find_argument_secrets([*arguments, "Authorization: Bearer b-4444", "postgres://u:pw-5@h/d", "/srv/docs"])}
    assert {"T0KEN-1", "KEY-22", "pw-333", "Bearer b-4444", "pw-5"} <= found
    assert not found & {"-y", "remote", "/srv/docs", "--header"}
    assert {*find_variable_secrets({"PATH": "/usr/bin", "X_TOKEN": "/abc", "DSN": "pg://u:pw@h"})} >= {"/abc", "pw"}
    assert "/usr/bin" not in {*find_variable_secrets({"PATH": "/usr/bin"})}
    tools = [{"type": "mcp", "headers": {"X-Any": "h-1"}, "authorization": "a-2", "server_url": "https://u:p-3@x"}]
    assert {"h-1", "a-2", "p-3"} <= {*find_option_secrets({"tools": tools, "max_tokens": 3})}
    assert "mcp" not in {*find_option_secrets({"tools": tools})}


def test_an_errors_hint_and_arguments_are_redacted_too() -> None:
    error = RateLimitError("slow down, s3cr3t-0123", hint="Look at s3cr3t-0123.", retry_after=3, status=429)
    assert Redaction(["s3cr3t-0123"]).redact_error(error) is error
    assert (str(error), error.args) == (
        f"slow down, {REDACTION_MARK}.\nLook at {REDACTION_MARK}.",
        (f"slow down, {REDACTION_MARK}",),
    )
    assert (error.retry_after, error.status) == (3, 429)
