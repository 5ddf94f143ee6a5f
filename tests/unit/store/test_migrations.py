"""The schema that the migrations make is the one that the operations expect."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import sqlalchemy as sa
from alembic.script import ScriptDirectory

from perdure.ports.store import RunRow
from perdure.ports.usage import UsageRow
from perdure.store import migrations
from perdure.store.schema import SQLITE_TABLES, TABLES


def test_they_end_in_the_current_version():
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert scripts.get_heads() == [migrations.CURRENT_VERSION]
    versions = [script.revision for script in scripts.walk_revisions()]
    assert versions == sorted(versions, reverse=True)  # so that a newer one compares as greater


def test_they_make_the_tables():
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        migrations.upgrade(connection)
        version = connection.exec_driver_sql("SELECT version_num FROM perdure_version").scalar()
        assert version == migrations.CURRENT_VERSION
        inspector = sa.inspect(connection)
        made = {name: tuple(c["name"] for c in inspector.get_columns(name)) for name in inspector.get_table_names()}
        assert made.pop(migrations.VERSION_TABLE) == ("version_num",)
        assert made == TABLES | SQLITE_TABLES
    engine.dispose()


def test_a_failure_leaves_no_half_schema(tmp_path: Path, monkeypatch):
    engine = sa.create_engine(f"sqlite:///{tmp_path}/s.db", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        migrations.upgrade(connection)
        connection.exec_driver_sql("ROLLBACK")
    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == []
    engine.dispose()


def test_a_row_of_runs_is_read_by_position():
    *columns, tenant, user, first, error_type, error = (column for column in TABLES["runs"] if column != "key_id")
    names = [field.name for field in fields(RunRow)]
    assert names == [*columns, "root", tenant, user.removesuffix("_id"), first, error_type, error], (
        "the root is of the run's events"
    )


def test_a_row_of_usage_is_read_by_position():
    names = [field.name for field in fields(UsageRow)]
    assert [name.removesuffix("_id") for name in TABLES["usage"]] == [name.removesuffix("_id") for name in names]
