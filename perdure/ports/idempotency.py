"""The port of idempotency keys: the answers to requests that a client may repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from ..errors import InvalidInputError
from ..types.messages import clean_text

IDEMPOTENCY_KEY_CHARS = 500
"""Most characters of a key."""
IDEMPOTENCY_ANSWER_BYTES = 64 * 1024
"""Most bytes of an answer; of a longer one, store a reference."""


@dataclass(frozen=True, slots=True)
class IdempotencyClaim:
    """Whether a request may act."""

    state: Literal["new", "running", "done", "mismatch"]
    """``new``: it may. ``running``: another one of that key has not ended. ``done``: it has, with ``answer``.
    ``mismatch``: the key belongs to another request."""
    answer: bytes | None = None


class Idempotency(Protocol):
    """Keys of requests with their answers. All methods raise ``StoreError`` when the store fails."""

    async def claim_idempotency(
        self, key: str, request_hash: str, owner: str, *, lease_seconds: float, keep_seconds: float
    ) -> IdempotencyClaim:
        """Claim the key for the request of that hash; of several at once one gets ``new``, and the same owner again.

        After ``lease_seconds`` without an answer its process counts as lost, and the next request of the same hash gets
        ``new``. After ``keep_seconds`` the key is free. Raises ``InvalidInputError`` for a key that cannot be stored.
        """

    async def list_idempotency_answers(self, prefix: str, limit: int) -> list[bytes]:
        """List the answers that are kept under keys that begin with ``prefix``."""

    async def complete_idempotency(self, key: str, owner: str, answer: bytes | None) -> bool:
        """Record the answer, or with None free the key. False if ``owner`` does not have the key any more.

        Raises ``InvalidInputError`` for an answer that is too long.
        """

    async def delete_expired_idempotency(self, limit: int = 1000) -> int:
        """Delete keys whose time is over; return how many."""


def check_idempotency_key(key: str) -> None:
    """Raise ``InvalidInputError`` for a key that cannot be stored."""
    if not 0 < len(key) <= IDEMPOTENCY_KEY_CHARS:
        raise InvalidInputError(f"an idempotency key has 1 to {IDEMPOTENCY_KEY_CHARS} characters, not {len(key):,}")
    if key != clean_text(key):
        raise InvalidInputError("an idempotency key is text without NUL and lone surrogates", hint="Encode it.")


def check_idempotency_answer(answer: bytes) -> None:
    """Raise ``InvalidInputError`` for an answer that is too long."""
    if len(answer) > IDEMPOTENCY_ANSWER_BYTES:
        raise InvalidInputError(
            f"the answer has {len(answer):,} bytes and may have {IDEMPOTENCY_ANSWER_BYTES:,}",
            hint="Store a reference to it.",
        )


def build_idempotency_claim(request_hash: str, recorded_hash: str, answer: bytes | None) -> IdempotencyClaim:
    """Build the claim of a request whose key has a row of another owner."""
    if recorded_hash != request_hash:
        return IdempotencyClaim("mismatch")
    return IdempotencyClaim("running") if answer is None else IdempotencyClaim("done", answer)
