"""Encrypts ``auth_context`` for Temporal's history with AES-256-GCM; Temporal never has the keys.

``PERDURE_ENCRYPTION_KEYS`` is ``id:base64,…``: the first key encrypts, all of them decrypt, so that keys can be changed
while runs are open. For a machine's own embedded server, a key is created under ``PERDURE_HOME`` if none is given.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import Client as TemporalClient

from .embedded.home import current_home
from .errors import AuthContextError, AuthContextUnavailableError, InvalidInputError, RuntimeSetupError
from .types.interface import AUTH_REF_CHARS, AUTH_TOKEN_PREFIX

KEYS_VARIABLE = "PERDURE_ENCRYPTION_KEYS"
KEY_BYTES = 32
IN_PROCESS_ADDRESS = "in-process"
"""Address of the engine of ``perdure.testing``."""
MAKE_KEY_HINT = f'Make one: export {KEYS_VARIABLE}="k1:$(openssl rand -base64 32)", the same for clients and workers.'

_NONCE_BYTES = 12
_KEY_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HOME_KEY_ID = "home"
"""Id of the key under PERDURE_HOME."""


@dataclass(frozen=True, slots=True, repr=False)
class EncryptionKey:
    """A key with its id. It is never printed."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"<Key {self.id}>"

    @property
    def fingerprint(self) -> str:
        """Distinguishes two keys of one id, so that a worker with the wrong key waits for the right one."""
        return hashlib.sha256(b"perdure key\n" + self.secret).hexdigest()[:8]

    def seal(self, plain: bytes, about: str) -> str:
        """Encrypt ``plain`` into a token that only this key opens, and only for the same ``about``."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = _build_cipher(self).encrypt(nonce, plain, self._build_associated_data(about))
        body = base64.urlsafe_b64encode(nonce + sealed).decode()
        return f"{AUTH_TOKEN_PREFIX}:{self.id}:{self.fingerprint}:{body}"

    def open(self, body: str, abouts: Iterable[str]) -> bytes | None:
        """Decrypt what was sealed for one of ``abouts``; None if it was sealed for another, or was changed."""
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.urlsafe_b64decode(body)
        except ValueError:
            return None
        cipher = _build_cipher(self)
        for about in abouts:
            associated_data = self._build_associated_data(about)
            with suppress(InvalidTag, ValueError):
                return bytes(cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], associated_data))
        return None

    def _build_associated_data(self, about: str) -> bytes:
        return "\n".join((AUTH_TOKEN_PREFIX, self.id, self.fingerprint, about)).encode()


class KeyRing:
    """Keys by their ids; the first encrypts."""

    def __init__(self, keys: Iterable[EncryptionKey] = ()) -> None:
        self._keys = {key.id: key for key in keys}

    @classmethod
    def from_environment(cls) -> KeyRing:
        """Parse ``PERDURE_ENCRYPTION_KEYS``. Raises ``RuntimeSetupError`` that names the invalid key."""
        return cls(_parse_keys(os.environ.get(KEYS_VARIABLE, ""), KEYS_VARIABLE))

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the keys, the encrypting key first."""
        return tuple(self._keys)

    def get_encryption_key(self, address: str) -> EncryptionKey:
        """Return the key that encrypts for the server at ``address``. Raises ``AuthContextUnavailableError`` if there
        is none."""
        if self._keys:
            return next(iter(self._keys.values()))
        if address == IN_PROCESS_ADDRESS:
            return _PROCESS_KEY
        from .embedded.record import read_record

        record = read_record(current_home())
        if record is not None and record.address == address:
            return _read_home_key() or _create_home_key()
        raise AuthContextUnavailableError(
            f"auth_context would be readable in the history of the Temporal server at {address}: "
            f"{KEYS_VARIABLE} has no key to encrypt it",
            hint=f"{MAKE_KEY_HINT} Or send an auth_ref, which the worker resolves.",
        )

    def find_given_key(self) -> EncryptionKey | None:
        """Return the first key of ``PERDURE_ENCRYPTION_KEYS``; None without one."""
        return next(iter(self._keys.values()), None)

    def open(self, token: str, abouts: Iterable[str], *, what: str = "the run's auth_context") -> bytes:
        """Decrypt ``token`` for one of ``abouts``. Errors call it ``what``.

        Raises ``AuthContextUnavailableError`` if its key is not here, ``AuthContextError`` for a token that was
        changed, or was made for something else.
        """
        prefix, key_id, fingerprint, body = token.split(":") if token.count(":") == 3 else ("", "", "", "")
        if prefix != AUTH_TOKEN_PREFIX:
            raise AuthContextError(f"{what} has a format that this engine does not support")
        plain = self._find_key(key_id, fingerprint, what).open(body, abouts)
        if plain is None:
            raise AuthContextError(
                f"{what} was made for another run, or was changed",
                hint="A token is valid for one conversation: send each its own auth_context.",
            )
        return plain

    def _find_key(self, key_id: str, fingerprint: str, what: str) -> EncryptionKey:
        candidates = [self._keys.get(key_id), _PROCESS_KEY, _read_home_key() if key_id == _HOME_KEY_ID else None]
        for key in candidates:
            if key is not None and (key.id, key.fingerprint) == (key_id, fingerprint):
                return key
        known = ", ".join(self._keys) or "none"
        problem = f"does not have it (it has: {known})" if candidates[0] is None else "has another key with that id"
        raise AuthContextUnavailableError(
            f"{what} was encrypted with key {key_id!r:.70}, and this worker {problem}",
            hint=f"Add the key to {KEYS_VARIABLE} of every worker; the run waits for it.",
        )


_PROCESS_KEY = EncryptionKey(f"process-{os.getpid()}", secrets.token_bytes(KEY_BYTES))


def _build_cipher(key: EncryptionKey) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        from ._installation import build_missing_extra_error

        raise build_missing_extra_error("auth_context", "encryption", module="cryptography") from None
    return AESGCM(key.secret)


def _parse_keys(text: str, where: str) -> list[EncryptionKey]:
    keys: dict[str, EncryptionKey] = {}
    for number, entry in enumerate((part.strip() for part in text.split(",") if part.strip()), 1):
        key_id, _, secret = entry.partition(":")
        if not _KEY_ID.fullmatch(key_id) or not secret:  # not shown: it may be a key without its id
            raise RuntimeSetupError(f"{where}: key {number} is not of the form id:base64", hint=MAKE_KEY_HINT)
        if key_id in keys:
            raise RuntimeSetupError(f"{where}: two keys have the id {key_id!r}", hint="Give each key an id of its own.")
        keys[key_id] = EncryptionKey(key_id, _decode_secret(key_id, secret, where))
    return list(keys.values())


def _decode_secret(id: str, text: str, where: str) -> bytes:
    try:
        secret = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error:
        raise RuntimeSetupError(f"{where}: key {id!r} is not base64", hint=MAKE_KEY_HINT) from None
    if len(secret) != KEY_BYTES:
        raise RuntimeSetupError(
            f"{where}: key {id!r} has {len(secret)} bytes and must have {KEY_BYTES}", hint=MAKE_KEY_HINT
        )
    return secret


def _get_home_key_path() -> Path:
    return current_home().root / "encryption.key"


def _read_home_key() -> EncryptionKey | None:
    """Read this machine's own key; None if there is none yet."""
    try:
        text = _get_home_key_path().read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RuntimeSetupError(
            f"{_get_home_key_path()} cannot be read: {error.strerror}", hint="Make it readable."
        ) from None
    return next((key for key in _parse_keys(text, str(_get_home_key_path())) if key.id == _HOME_KEY_ID), None)


def _create_home_key() -> EncryptionKey:
    """Create this machine's key, readable by its owner only and complete from the first moment. If two programs do it
    at the same time, both use the first key."""
    import tempfile

    home = current_home().create()
    # A temporary file has the mode 0600.
    with home.translate_errors(), tempfile.NamedTemporaryFile("w", dir=home.root, prefix=".key-") as fresh:
        fresh.write(f"{_HOME_KEY_ID}:{base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}\n")
        fresh.flush()
        os.fsync(fresh.fileno())
        with suppress(FileExistsError):
            os.link(fresh.name, _get_home_key_path())
    key = _read_home_key()
    if key is None:
        raise RuntimeSetupError(
            f"{_get_home_key_path()} has no key {_HOME_KEY_ID!r}", hint="Remove the file: then a new key is created."
        )
    return key


# ---
# ``auth_context`` as sent: encrypted, for one conversation.


AUTH_BYTES = 8 * 1024
"""Most bytes of an ``auth_context`` as JSON. Every step of the run gets it, encrypted."""

AuthMapping = Mapping[str, Any]


def seal_auth(
    temporal: TemporalClient, context_id: str, auth_context: AuthMapping | None, auth_ref: str | None
) -> dict[str, str]:
    """Return the fields of a start or a message with the identity on whose behalf conversation ``context_id`` acts;
    empty without an identity.

    Raises ``InvalidInputError`` for a value that cannot be sent, ``AuthContextUnavailableError`` if there is no key.
    """
    if auth_context is not None and auth_ref is not None:
        raise InvalidInputError("give auth_context or auth_ref, not both", hint="Leave one out.")
    if auth_ref is not None:
        if not isinstance(auth_ref, str) or not 0 < len(auth_ref) <= AUTH_REF_CHARS:
            raise InvalidInputError(f"an auth_ref is a text of 1 to {AUTH_REF_CHARS:,} characters")
        return {"auth_ref": auth_ref}
    if auth_context is None:
        return {}
    plain = _encode_auth_context(auth_context)
    key = KeyRing.from_environment().get_encryption_key(temporal.service_client.config.target_host)
    return {"auth_context": key.seal(plain, context_id)}


def reseal_auth_token(temporal: TemporalClient, token: str, parent_id: str, context_id: str) -> str:
    """Encrypt ``token`` of a subagent's run, which may be sealed for a run above it, for its conversation
    ``context_id`` only.

    ``parent_id`` is the run that started it, according to Temporal's history. Raises ``AuthContextUnavailableError`` if
    the key is not here, ``AuthContextError``.
    """
    above = [parent_id[:end] for end, character in enumerate(parent_id) if character == "/"]
    keys = KeyRing.from_environment()
    plain = keys.open(token, [context_id, parent_id, *above])
    return keys.get_encryption_key(temporal.service_client.config.target_host).seal(plain, context_id)


def _encode_auth_context(auth_context: AuthMapping) -> bytes:
    """Encode it as JSON. Errors do not show its values."""
    hint = "Give names and plain values: what the tools need to act for the user."
    if not isinstance(auth_context, Mapping) or not all(isinstance(name, str) for name in auth_context):
        raise InvalidInputError("an auth_context is a dictionary of plain JSON", hint=hint)
    try:
        plain = json.dumps(dict(auth_context), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"an auth_context is a dictionary of plain JSON: {type(error).__name__} in one of its values", hint=hint
        ) from None
    if len(plain) > AUTH_BYTES:
        raise InvalidInputError(
            f"the auth_context has {len(plain):,} bytes as JSON; it may have {AUTH_BYTES:,}",
            hint="Store it elsewhere and send an auth_ref, which the worker resolves.",
        )
    return plain
