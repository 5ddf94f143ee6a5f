"""Known forms of secrets, and texts that look like nothing else."""

from __future__ import annotations

import re

import pytest

from perdure.contrib.hooks import SECRETS

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP_mB92K27"


def masked(text: str) -> str:
    for pattern in SECRETS:
        text = re.sub(pattern, "•", text)
    return text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"a {KEY} b {KEY} c", "a • b • c"),
        (f"-----BEGIN PRIVATE KEY----- is how one begins: {KEY}", "-----BEGIN PRIVATE KEY----- is how one begins: •"),
        (f"Bearer {TOKEN}", "Bearer •"),
        (f"--token-{TOKEN}", "--token-•"),
        (f'{{"token":"{TOKEN}"}}', '{"token":"•"}'),
        ("eyJust a word", "eyJust a word"),
    ],
)
def test_keys_and_tokens_are_found(text: str, left: str) -> None:
    assert masked(text) == left


@pytest.mark.parametrize("text", ["-----BEGIN PRIVATE KEY-----\n", "eyJaaaaaaaaaa-", "eyJaaaaaaaaaa.eyJaaaaaaaaaa\n"])
@pytest.mark.parametrize("size", [30_000, pytest.param(600_000, marks=pytest.mark.slow)])
def test_what_only_begins_like_one_does_not_stall_the_worker(text: str, size: int) -> None:
    """A page that a tool has fetched may be full of it. While one pattern is looked for, the worker does nothing else:
    it took minutes for a text of the larger size.
    """
    whole = text * (size // len(text))
    assert masked(whole) == whole
