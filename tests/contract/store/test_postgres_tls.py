"""The store over TLS: what ``sslmode`` checks, and what is said where it finds something wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from perdure.errors import StoreError
from perdure.ports.store import Commit, EventBatch, NewEvent, Outcome
from perdure.store.postgres import PostgresStore
from perdure.types.events import LimitReached
from tests.support.postgres import Databases
from tests.support.tls_proxy import make_certificate, run_tls_proxy

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("certificates")
    return {name: make_certificate(folder, name) for name in ("localhost", "another")}


@pytest.fixture
def url(postgres_databases: Databases) -> str:
    return postgres_databases.make()


@pytest.fixture
async def tls_url(url: str, certificates: dict[str, tuple[Path, Path]]) -> AsyncIterator[str]:
    """The URL of a store on a server that takes TLS connections alone."""
    parts = urlsplit(url)
    async with run_tls_proxy(parts.port or 5432, *certificates["localhost"]) as port:
        yield parts._replace(netloc=f"{parts.username}@localhost:{port}").geturl()


async def test_calls_and_notifications_with_a_certificate_that_is_checked(
    tls_url: str, certificates: dict[str, tuple[Path, Path]]
):
    authority = certificates["localhost"][0]
    for mode in ("require", f"verify-ca&sslrootcert={authority}", f"verify-full&sslrootcert={authority}"):
        store = PostgresStore(f"{tls_url}?sslmode={mode}")
        await store.open()
        assert await store.commit(Commit(outcome=Outcome(mode, "tool", b"1"))) == b"1"
        waiting = asyncio.ensure_future(store.wait_for_event(mode, 0, 60))
        await store.append(EventBatch(mode, [NewEvent(LimitReached())]))
        assert await waiting == 1
        await store.close()


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("verify-full", "no TLS connection .*CERTIFICATE_VERIFY_FAILED"),
        ("verify-ca", "no TLS connection .*CERTIFICATE_VERIFY_FAILED"),
        ("disable", "cannot be reached"),
    ],
)
async def test_an_authority_that_did_not_sign_it(
    tls_url: str, certificates: dict[str, tuple[Path, Path]], mode: str, says: str
):
    with pytest.raises(StoreError, match=says) as caught:
        await PostgresStore(f"{tls_url}?sslmode={mode}&sslrootcert={certificates['another'][0]}").open()
    assert caught.value.retryable


async def test_a_certificate_of_another_host(tls_url: str, certificates: dict[str, tuple[Path, Path]]):
    there = tls_url.replace("localhost", "127.0.0.1")
    authority = certificates["localhost"][0]
    with pytest.raises(StoreError, match=r"no TLS connection .*not valid for '127\.0\.0\.1'"):
        await PostgresStore(f"{there}?sslmode=verify-full&sslrootcert={authority}").open()
    store = PostgresStore(f"{there}?sslmode=verify-ca&sslrootcert={authority}")  # the host is not checked
    await store.open()
    await store.close()


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ("sslmode=require", "no TLS connection .*rejected SSL upgrade"),
        ("sslmode=verify-full&sslrootcert=/nowhere", "a file that the URL .*names is not there"),
        ("sslmode=sometimes", "a parameter in the URL .*sslmode"),
        ("target_session_attrs=fast", "a parameter in the URL .*target_session_attrs"),
        ("poolsize=5", "a parameter in the URL .*poolsize"),
    ],
)
async def test_parameters_that_do_not_fit_the_server(url: str, parameters: str, says: str):
    with pytest.raises(StoreError, match=says) as caught:
        await PostgresStore(f"{url}?{parameters}").open()
    assert caught.value.hint
