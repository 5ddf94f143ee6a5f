"""Schemas of later versions: expanded under old workers that go on, contracted when none is left."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from perdure.errors import StoreVersionError
from perdure.ports.store import Commit, Outcome, Store
from perdure.store import migrations, open_store
from perdure.store.administration import migrate_store
from tests.support.postgres import Databases, execute

BeLater = Callable[[str, str, str], AbstractContextManager[None]]
EXPANDING = '''
"""Labels of journal entries."""
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("journal", sa.Column("label", sa.Text()))
    op.create_table("labels", sa.Column("name", sa.Text(), primary_key=True))
'''
CONTRACTING = '''
"""No labels table."""
from alembic import op

revision = "0004"
down_revision = "0003"
contract = True
usable_from = "0003"


def upgrade() -> None:
    op.drop_table("labels")
'''


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BeLater:
    """Makes this process the code of a later version: ``with later("0003", "0004"):``."""
    folder = tmp_path / "later"
    shutil.copytree(migrations.FOLDER, folder)
    (folder / "versions" / "0003_labels.py").write_text(EXPANDING)
    (folder / "versions" / "0004_no_labels.py").write_text(CONTRACTING)

    @contextmanager
    def be_later(needed: str, current: str, usable_from: str) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(migrations, "FOLDER", folder)
            patch.setattr(migrations, "NEEDED_VERSION", needed)
            patch.setattr(migrations, "CURRENT_VERSION", current)
            patch.setattr(migrations, "USABLE_FROM", usable_from)
            yield

    return be_later


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    databases = request.getfixturevalue("postgres_databases")
    return str(databases.make())


async def record(store: Store, key: str) -> None:
    """An old worker's work."""
    await store.claim(key, "worker")
    await store.commit(Commit(outcome=Outcome(key, "model", key.encode())))
    assert await store.find_outcomes([key]) == {key: key.encode()}


async def test_old_workers_go_on_while_the_schema_is_expanded_and_are_refused_when_it_is_contracted(
    url: str, later: BeLater
) -> None:
    old = open_store(url)
    await old.open()
    await record(old, "before")
    with later("0003", "0004", "0003"):
        expansion = asyncio.create_task(migrate_store(url))
        await asyncio.gather(*(record(old, f"during {number}") for number in range(20)))
        assert (await expansion).applied == ["0003 Labels of journal entries."]
        assert (await migrate_store(url)).applied == []
        with pytest.raises(StoreVersionError) as refused:
            await migrate_store(url, contract=True)
        assert "Stop" in str(refused.value)
    await record(old, "after")
    await old.close()
    started_later = open_store(url)  # of the old code
    await started_later.open()
    assert started_later.store_id
    await record(started_later, "of an old worker that starts after it")
    await started_later.close()

    with later("0003", "0004", "0003"):
        assert (await migrate_store(url, contract=True)).applied == ["0004 No labels table."]
        new = open_store(url)
        await new.open()
        await record(new, "new")
        await new.close()
    with pytest.raises(StoreVersionError, match="has schema 0004, this perdure knows up to 0002"):
        await open_store(url).open()


async def test_a_worker_expands_an_old_schema_when_it_opens_it(url: str, later: BeLater) -> None:
    old = open_store(url)
    await old.open()
    with later("0003", "0004", "0003"):
        new = open_store(url)
        await new.open()
        assert new.store_id == old.store_id
        await asyncio.gather(record(old, "old"), record(new, "new"))
        await new.close()
    await old.close()


async def test_a_version_that_is_needed_behind_a_contraction(url: str, later: BeLater) -> None:
    old = open_store(url)
    await old.open()
    await old.close()
    with later("0004", "0004", "0003"), pytest.raises(StoreVersionError, match="comes after a contraction") as refused:
        await open_store(url).open()
    assert "perdure store migrate --contract" in str(refused.value)


async def test_migrations_at_once_wait_for_one_another(url: str, later: BeLater) -> None:
    made = await asyncio.gather(*(asyncio.to_thread(asyncio.run, migrate_store(url)) for _ in range(4)))
    assert sorted(len(migration.applied) for migration in made) == [0, 0, 0, 2]
    with later("0003", "0004", "0003"):
        expanded = await asyncio.gather(*(asyncio.to_thread(asyncio.run, migrate_store(url)) for _ in range(4)))
    assert sorted(len(migration.applied) for migration in expanded) == [0, 0, 0, 1]


@pytest.mark.postgres
async def test_a_role_that_may_not_change_the_schema_is_told_what_to_run(
    postgres_databases: Databases, later: BeLater
) -> None:
    url = postgres_databases.make()
    old = open_store(url)
    await old.open()
    await old.close()
    role = f"plain_{url.rpartition('_')[2]}"
    grant = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
    await execute(url, f"CREATE ROLE {role} LOGIN", grant)
    worker_url = url.replace("postgres@", f"{role}@")
    with later("0003", "0004", "0003"):
        with pytest.raises(StoreVersionError, match="has schema 0002, and its user may not upgrade it") as refused:
            await open_store(worker_url).open()
        assert "Run `perdure store migrate` with the URL of the user who owns the tables" in str(refused.value)
        assert (await migrate_store(url)).applied
        worker = open_store(worker_url)
        await worker.open()
        await record(worker, "it works")
        await worker.close()
    await execute(url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
