"""What may not be readable in Temporal's history: keys, tokens, and what is refused."""

from __future__ import annotations

import base64
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client as TemporalClient

from perdure._encryption import AUTH_BYTES, KEY_BYTES, KEYS_VARIABLE, EncryptionKey, KeyRing, seal_auth
from perdure.context.auth import AuthContext
from perdure.embedded.home import Home
from perdure.embedded.record import ServerInfo, write_record
from perdure.errors import AuthContextError, AuthContextUnavailableError, InvalidInputError, RuntimeSetupError
from perdure.types.interface import AUTH_TOKEN_CHARS, is_auth_token

OLD, NEW = EncryptionKey("old", b"o" * KEY_BYTES), EncryptionKey("new", b"n" * KEY_BYTES)
EMBEDDED = "127.0.0.1:7233"


def written(*keys: EncryptionKey) -> str:
    return ",".join(f"{key.id}:{base64.b64encode(key.secret).decode()}" for key in keys)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.fixture
def embedded(home: Home) -> str:
    """The address of this machine's embedded server, as its record has it."""
    home.create()
    write_record(home, ServerInfo(1, EMBEDDED, EMBEDDED, "1.5.1", "now", "1", None))
    return EMBEDDED


@given(st.binary(max_size=300), st.text(max_size=30))
def test_what_is_sealed_opens_again_for_the_same_run(plain: bytes, about: str) -> None:
    token = NEW.seal(plain, about)
    assert is_auth_token(token)
    assert KeyRing([NEW]).open(token, [about]) == plain
    with pytest.raises(AuthContextError, match="made for another run"):
        KeyRing([NEW]).open(token, [f"{about}x"])


def test_the_same_twice_is_two_tokens() -> None:
    assert NEW.seal(b"ana", "run") != NEW.seal(b"ana", "run")


@given(st.data())
def test_a_changed_token_does_not_open(data: st.DataObject) -> None:
    form, key_id, mark, body = NEW.seal(b"ana", "run").split(":")
    raw = bytearray(base64.urlsafe_b64decode(body))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    changed = ":".join((form, key_id, mark, base64.urlsafe_b64encode(raw).decode()))
    with pytest.raises(AuthContextError, match="was changed"):
        KeyRing([NEW]).open(changed, ["run"])


@pytest.mark.parametrize("body", ["", "AA==", "ä", "A"])
def test_what_is_no_token_does_not_open(body: str) -> None:
    with pytest.raises(AuthContextError):
        KeyRing([NEW]).open(f"perdure1:new:{NEW.fingerprint}:{body}", ["run"])
    with pytest.raises(AuthContextError, match="a format that this engine does not support"):
        KeyRing([NEW]).open(f"perdure9:new:{NEW.fingerprint}:{body}", ["run"])


def test_the_first_key_encrypts_and_all_decrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, written(OLD))
    before = KeyRing.from_environment().get_encryption_key("cluster:7233").seal(b"ana", "run")
    monkeypatch.setenv(KEYS_VARIABLE, written(NEW, OLD))
    rotated = KeyRing.from_environment()
    assert rotated.get_encryption_key("cluster:7233").id == "new"
    assert rotated.open(before, ["run"]) == b"ana"


def test_a_key_that_is_not_here_is_waited_for() -> None:
    token = OLD.seal(b"ana", "run")
    for keys, why in (
        (KeyRing(), r"does not have it \(it has: none\)"),
        (KeyRing([NEW]), r"does not have it \(it has: new\)"),
        (KeyRing([EncryptionKey("old", NEW.secret)]), "has another key with that id"),
    ):
        with pytest.raises(AuthContextUnavailableError, match=why) as caught:
            keys.open(token, ["run"])
        assert caught.value.retryable


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (base64.b64encode(OLD.secret).decode(), "key 1 is not of the form id:base64"),
        ("k1:", "key 1 is not of the form"),
        (f"{written(OLD)},k 2:abc", "key 2 is not of the form"),
        ("k1:no base64!", "key 'k1' is not base64"),
        ("k1:c2hvcnQ=", "key 'k1' has 5 bytes and must have 32"),
        (f"{written(OLD)},{written(OLD)}", "two keys have the id 'old'"),
    ],
)
def test_a_wrong_key_is_named_and_not_shown(text: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, text)
    with pytest.raises(RuntimeSetupError, match=why) as caught:
        KeyRing.from_environment()
    assert base64.b64encode(OLD.secret).decode() not in str(caught.value)
    assert OLD.secret.decode() not in repr(OLD)


def test_without_a_key_it_is_refused(embedded: str) -> None:
    with pytest.raises(AuthContextUnavailableError, match="cluster:7233: PERDURE_ENCRYPTION_KEYS has no key"):
        KeyRing.from_environment().get_encryption_key("cluster:7233")


def test_the_embedded_server_has_a_key_of_this_machine(embedded: str, home: Home) -> None:
    token = KeyRing.from_environment().get_encryption_key(embedded).seal(b"ana", "run")
    assert KeyRing.from_environment().open(token, ["run"]) == b"ana"
    assert stat.S_IMODE((home.root / "encryption.key").stat().st_mode) == 0o600
    assert [path.name for path in home.root.glob(".key-*")] == []


def test_keys_that_are_given_count_on_the_embedded_server_too(embedded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = KeyRing.from_environment().get_encryption_key(embedded).seal(b"ana", "run")
    monkeypatch.setenv(KEYS_VARIABLE, written(NEW))
    assert KeyRing.from_environment().get_encryption_key(embedded).id == "new"
    assert KeyRing.from_environment().open(own, ["run"]) == b"ana"


def test_programs_that_begin_at_once_have_one_key(embedded: str) -> None:
    found: list[str] = []
    begin = threading.Barrier(8)

    def one() -> None:
        begin.wait()
        found.append(KeyRing.from_environment().get_encryption_key(embedded).fingerprint)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


class Temporal:
    """As far as sealing asks a Temporal client."""

    class service_client:  # noqa: N801  # as Temporal's client calls it
        class config:  # noqa: N801
            target_host = "in-process"


TEMPORAL: TemporalClient = Temporal()  # type: ignore[assignment]  # see there


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ("s3cret", "an auth_context is a dictionary of plain JSON"),
        ({1: "s3cret"}, "an auth_context is a dictionary"),
        ({"token": {"s3cret"}}, "TypeError in one of its values"),
        ({"token": float("nan"), "user": "s3cret"}, "ValueError in one of its values"),
        ({"token": "s3cret" + "x" * AUTH_BYTES}, r"has 8,\d+ bytes as JSON; it may have 8,192"),
    ],
)
def test_what_cannot_be_sent_is_refused_without_being_shown(given_: object, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why) as caught:
        seal_auth(TEMPORAL, "run", given_, None)  # type: ignore[arg-type]  # callers may not check types
    assert "s3cret" not in str(caught.value)


def test_there_is_one_of_the_two() -> None:
    with pytest.raises(InvalidInputError, match="not both"):
        seal_auth(TEMPORAL, "run", {"user": "ana"}, "ref")
    for wrong in ("", "x" * 1001, 7):
        with pytest.raises(InvalidInputError, match="an auth_ref is a text of 1 to 1,000"):
            seal_auth(TEMPORAL, "run", None, wrong)  # type: ignore[arg-type]
    assert seal_auth(TEMPORAL, "run", None, None) == {}
    assert seal_auth(TEMPORAL, "run", None, "ref") == {"auth_ref": "ref"}


def test_the_largest_fits_into_a_token() -> None:
    found = seal_auth(TEMPORAL, "run", {"token": "x" * (AUTH_BYTES - 12)}, None)["auth_context"]
    assert AUTH_BYTES < len(found) <= AUTH_TOKEN_CHARS


def test_what_tools_get_says_its_names_alone() -> None:
    auth = AuthContext({"user": "ana", "token": "s3cret"})
    assert auth == {"user": "ana", "token": "s3cret"}
    assert f"{auth} {auth!r} {[auth]}".count("s3cret") == 0
    assert "user, token" in repr(auth)
