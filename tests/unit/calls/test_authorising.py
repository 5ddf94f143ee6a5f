"""On whose behalf a call is made: opened for its run and for those below it, or resolved by the author's code."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure._encryption import KEY_BYTES, EncryptionKey, KeyRing
from perdure.calls import context_parts
from perdure.calls.author_loop import AuthorLoop
from perdure.calls.context_parts import AuthResolver, iter_bound_contexts
from perdure.context.auth import AuthContext, RunFacts
from perdure.errors import AbortError, AuthContextError, AuthContextUnavailableError, InvalidInputError
from perdure.types.subagents import Lineage, PathStep
from perdure.types.wire import CallFacts

KEY = EncryptionKey("k", b"k" * KEY_BYTES)


@pytest.fixture
def author() -> Iterator[AuthorLoop]:
    loop = AuthorLoop()
    loop.start()
    yield loop
    loop.stop()


def of(context_id: str = "run", **auth: str) -> CallFacts:
    return CallFacts(agent="a", context_id=context_id, task_id="t", scope="s", op=0, iteration=1, **auth)


async def test_a_run_without_any_has_none(author: AuthorLoop) -> None:
    assert await AuthResolver(KeyRing(), author)(of()) is None


BELOW = Lineage(root="run", agent="a", path=(PathStep(agent="b", call_id="c"),))
CHILD: dict[str, Any] = {"lineage": BELOW, "is_child": True}


@pytest.mark.parametrize(("context_id", "facts"), [("run", {}), ("run/3", CHILD), ("run/3/1", CHILD)])
async def test_it_opens_for_the_run_and_its_subagents(
    author: AuthorLoop, context_id: str, facts: dict[str, Any]
) -> None:
    token = KEY.seal(b'{"user":"ana"}', "run")
    assert await AuthResolver(KeyRing([KEY]), author)(of(context_id, auth_context=token, **facts)) == {"user": "ana"}


@pytest.mark.parametrize(
    ("context_id", "facts"),
    [
        *((other, {}) for other in ("running", "other", "other/run", "ru", "run-2/3")),
        ("run/evil", {}),
        ("run/evil", {"lineage": BELOW}),  # as the one says who has started it
        ("run/evil", {"lineage": BELOW.model_copy(update={"root": "run/evil"}), "is_child": True}),
        ("else/3", CHILD),
    ],
)
async def test_it_opens_for_no_other(author: AuthorLoop, context_id: str, facts: dict[str, Any]) -> None:
    token = KEY.seal(b'{"user":"ana"}', "run")
    with pytest.raises(AuthContextError, match="made for another run"):
        await AuthResolver(KeyRing([KEY]), author)(of(context_id, auth_context=token, **facts))


def test_what_a_token_may_have_been_made_for() -> None:
    lineage = BELOW.model_copy(update={"root": "a/b"})
    assert list(iter_bound_contexts(of("a/b/c/1", lineage=lineage, is_child=True))) == ["a/b/c/1", "a/b/c", "a/b"]


async def test_a_reference_is_resolved_by_async_and_plain_functions(author: AuthorLoop) -> None:
    async def resolve(ref: str, run: RunFacts) -> dict[str, Any]:
        return {"ref": ref, "run": run.run_id, "pool": run.resources}

    for one in (resolve, lambda ref, run: {"ref": ref, "run": run.run_id, "pool": run.resources}):
        authorise = AuthResolver(KeyRing(), author, one, lambda: "pool")
        found = await authorise(of(auth_ref="r"))
        assert isinstance(found, AuthContext)
        assert found == {"ref": "r", "run": "run", "pool": "pool"}


def raises(error: Exception) -> Callable[[str, RunFacts], Any]:
    def resolve(ref: str, run: RunFacts) -> Any:
        raise error

    return resolve


class RevokedError(AbortError):
    """Of an author's own."""


@pytest.mark.parametrize(
    ("resolve", "kind", "why"),
    [
        (None, AuthContextUnavailableError, "no resolve_auth"),
        (raises(OSError("s3cret")), AuthContextUnavailableError, "resolve_auth failed: it raised OSError, see"),
        (raises(TimeoutError("s3cret")), AuthContextUnavailableError, "resolve_auth failed: it raised TimeoutError"),
        (lambda *_: "s3cret", AuthContextUnavailableError, "it returned str, not a mapping"),
        (raises(RevokedError("revoked")), AbortError, "revoked"),
        (raises(InvalidInputError("no such session")), InvalidInputError, "no such session"),
    ],
)
async def test_what_cannot_be_resolved(author: AuthorLoop, resolve: Any, kind: type[Exception], why: str) -> None:
    with pytest.raises(kind, match=why) as caught:
        await AuthResolver(KeyRing(), author, resolve)(of(auth_ref="r"))
    assert type(caught.value) is kind
    assert "s3cret" not in "".join(traceback.format_exception(caught.value)), "its text would be in history"


async def test_one_that_does_not_return(author: AuthorLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(ref: str, run: RunFacts) -> dict[str, str]:
        await forever.wait()
        return {}

    forever = asyncio.Event()
    monkeypatch.setattr(context_parts, "RESOLVE_AUTH_TIMEOUT", 0.05)
    with pytest.raises(AuthContextUnavailableError, match=r"it did not return within 0\.05 s"):
        await AuthResolver(KeyRing(), author, resolve)(of(auth_ref="r"))
