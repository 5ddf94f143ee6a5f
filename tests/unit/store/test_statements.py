"""The files of SQL: how they are read and checked, that every statement is used, and that both databases take all."""

from __future__ import annotations

import ast
import asyncio
import itertools
import re
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure.store import statements
from perdure.store.administration import migrate_store
from perdure.store.postgres_connection import bind_statement
from perdure.store.retention import RUN_TABLES
from perdure.store.sqlite_connection import SqliteDatabase
from perdure.store.statements import Statement, StatementError, StatementFile, load_statements, parse_statements
from tests.support.postgres import Databases

FILES = sorted(path.stem for path in statements.FOLDER.glob("*.sql"))
EVERY_STATEMENT = [
    pytest.param(load_statements(file), name, id=f"{file}-{name}") for file in FILES for name in load_statements(file)
]


def parse(text: str) -> StatementFile:
    return parse_statements("waits.sql", text)


FLAWS = {
    "a name twice": ("-- name: a\nSELECT 1\n-- name: a\nSELECT 2", "waits.sql, line 3: the name a is given twice"),
    "no name": ("SELECT 1", "waits.sql, line 1: a statement without a name: write `-- name: …` above it"),
    "an empty name": (
        "-- name:\nSELECT 1",
        "waits.sql, line 1: '-- name:' names no statement: write `-- name: list_waits`",
    ),
    "a database that is unknown": (
        "-- name: a (mysql)\nSELECT 1",
        "waits.sql, line 1: '-- name: a (mysql)' names no statement: write `-- name: list_waits`",
    ),
    "a method's name": (
        "-- name: get\nSELECT 1",
        "waits.sql, line 1: get is a method of mappings: choose another name",
    ),
    "no such part": (
        "-- name: a\nSELECT 1\n-- include: filters",
        "waits.sql, line 3: there is no part filters above it: write `-- part: filters`",
    ),
    "a part twice": (
        "-- part: filters\nAND a\n-- part: filters\nAND b",
        "waits.sql, line 3: the part filters is given twice",
    ),
    "no SQL": ("-- name: a\n-- A comment.\n", "waits.sql: a has a name and no SQL"),
    "a variant without its twin": (
        "-- name: a (sqlite)\nSELECT 1",
        "waits.sql: a is for one database: write it for sqlite and postgresql, or for both at once",
    ),
    "a variant beside the statement of both": (
        "-- name: a (sqlite)\nSELECT 1\n-- name: a\nSELECT 1",
        "waits.sql: a is for one database: write it for sqlite and postgresql, or for both at once",
    ),
    "twins of other parameters": (
        "-- name: a (sqlite)\nSELECT :x, :y\n-- name: a (postgresql)\nSELECT :x, :z",
        "waits.sql: a: only one of its two databases has the parameter y, z",
    ),
    "another comment behind SQL": (
        "-- name: a\nSELECT 1 -- one",
        "waits.sql, line 2: a comment behind SQL is `-- if NAME`: write others on a line of their own",
    ),
    "two statements": ("-- name: a\nSELECT 1;\nSELECT 2", "waits.sql, line 2: a statement has no semicolon"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_of_a_file_is_named(flaw: str):
    text, message = FLAWS[flaw]
    with pytest.raises(StatementError) as raised:
        parse(text)
    assert str(raised.value) == message


def test_a_part_stands_in_each_statement_that_includes_it():
    sql = parse(
        "-- part: filters\n-- Which.\nAND a = :a -- if a\n\n"
        "-- name: one\nSELECT 1 WHERE true\n    -- include: filters\nLIMIT 1\n\n"
        "-- name: two\nSELECT 2 WHERE b\n    -- include: filters"
    )
    assert list(sql) == ["one", "two"]
    assert sql.one.render("sqlite", {"a": 1}) == "SELECT 1 WHERE true AND a = :a LIMIT 1"
    assert sql.two.render("postgresql", {"a": 1}) == "SELECT 2 WHERE b AND a = :a"
    assert sql.two.render("postgresql", {}) == "SELECT 2 WHERE b"


def test_a_file_of_one_database_has_no_variants():
    with pytest.raises(StatementError, match="the file is of postgresql alone, so its names have no database"):
        parse_statements("postgres.sql", "-- name: a (postgresql)\nSELECT 1")
    file = parse_statements("postgres.sql", "-- name: a\nSELECT 1")
    assert file.a.dialects == ("postgresql",)
    with pytest.raises(StatementError, match=r"^postgres.sql: a is not a statement for sqlite$"):
        file.a.render("sqlite", {})


LISTED = parse("""
-- A file.

-- name: list_things (sqlite)
-- The comment of a statement.
SELECT 'a:b' FROM things
WHERE true
    AND name = :name -- if name
    AND kind = 1 -- if state = open
    AND kind = 2 -- if not state
ORDER BY name -- if by_name
LIMIT :limit

-- name: list_things (postgresql)
SELECT 'a:b'::text FROM things
WHERE name = :name -- if name
    AND kind = 1 -- if state = open
    AND kind = 2 -- if not state
ORDER BY name -- if by_name
LIMIT :limit
""")


@pytest.mark.parametrize(
    ("values", "sql"),
    [
        ({"limit": 1}, "SELECT 'a:b' FROM things WHERE true AND kind = 2 LIMIT :limit"),
        (
            {"limit": 1, "name": "", "state": "open"},
            "SELECT 'a:b' FROM things WHERE true AND name = :name AND kind = 1 LIMIT :limit",
        ),
        (
            {"limit": 1, "name": None, "by_name": True, "state": "x"},
            "SELECT 'a:b' FROM things WHERE true ORDER BY name LIMIT :limit",
        ),
        ({"limit": 1, "by_name": False, "state": "x"}, "SELECT 'a:b' FROM things WHERE true LIMIT :limit"),
    ],
)
def test_lines_belong_to_a_statement_by_what_is_given(values: dict[str, Any], sql: str):
    for _ in range(2):  # the second time it is remembered
        assert LISTED.list_things.render("sqlite", values) == sql


def test_a_wrong_call_is_named():
    assert LISTED.list_things.names == {"name", "state", "by_name", "limit"}
    with pytest.raises(StatementError, match=r"^waits.sql has no statement list_thing: it has list_things$"):
        LISTED.list_thing  # noqa: B018  # what is asked for is what raises
    with pytest.raises(
        StatementError, match=r"^waits.sql: list_things has no parameter nmae: it has by_name, limit, name, state$"
    ):
        LISTED.list_things.render("sqlite", {"limit": 1, "nmae": "x"})
    database = SqliteDatabase(sqlite3.connect(":memory:"))
    with pytest.raises(StatementError, match=r"^waits.sql: list_things needs the parameter limit$"):
        database.run(LISTED.list_things, state="x")
    database.connection.close()


def test_a_list_is_bound_as_each_database_takes_it():
    file = parse(
        "-- name: find\nSELECT value FROM json_each('[1, 2, 3]') WHERE value NOT IN (:without) AND value IN (:keys)"
    )
    database = SqliteDatabase(sqlite3.connect(":memory:"))
    found = {
        (keys, without): [value for (value,) in database.run(file.find, keys=keys, without=without)]
        for keys in ((), (1,), (3, 1, 2), (1, 2, 3, 3, 2))
        for without in ((), (2,))
    }
    many = range(20_000)
    assert [value for (value,) in database.run(file.find, keys=many, without=[])] == [1, 2, 3]
    database.connection.close()
    assert found == {(keys, without): sorted({*keys} - {*without}) for keys, without in found}
    sql, values = bind_statement(file.find, {"keys": ["a\0"], "without": []})
    assert sql == "SELECT value FROM json_each('[1, 2, 3]') WHERE value <> ALL($1) AND value = ANY($2)"
    assert values == [[], ["a\1\1"]]


def test_every_statement_is_used_and_every_used_one_exists():
    used = set(find_used())
    known = {(file, name) for file in FILES for name in load_statements(file)}
    assert used - known == set()
    assert known - used == set(), "statements that no code runs"


def find_used() -> Iterator[tuple[str, str]]:
    """Find ``SQL.name``, ``SQL[f"delete_{table}"]`` and ``journal.SQL.name`` in the modules of the store."""
    for path in sorted(statements.FOLDER.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        loads = re.findall(r"^ *(\w+(?:, \w+)*) = (load_statements.*)$", source, re.MULTILINE)
        files: dict[str, str] = {}
        for names, calls in loads:
            files |= dict(zip(names.split(", "), re.findall(r'"(\w+)"', calls), strict=True))
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=statement) if name in files:
                    yield files[name], statement
                case ast.Attribute(value=ast.Attribute(value=ast.Name(id=module), attr="SQL"), attr=statement):
                    yield ("meta" if module == "migrations" else module), statement
                case ast.Subscript(value=ast.Name(id="SQL"), slice=ast.JoinedStr()):  # of retention.py
                    tables = (*RUN_TABLES, "waits", "failing_calls", "run_references")
                    yield from ((files["SQL"], f"delete_{table}") for table in tables)
                case _:
                    pass


BUILT = {
    "encrypted_bodies.py": "counts by key of the tables that a store has",
    "postgres.py": "calls of functions with up to 68 arguments",
    "postgres_copy.py": "statements of any table",
    "sqlite_copy.py": "statements of any table",
    "status.py": "row counts of the tables that a store has",
}
"""The modules that build SQL, and what of: a comment there says so, too."""


def test_no_other_module_has_sql():
    found: dict[str, list[str]] = {}
    for path in sorted(statements.FOLDER.glob("*.py")):
        for text in find_texts(ast.parse(path.read_text(encoding="utf-8"))):
            if re.match(r"\s*(SELECT|INSERT INTO|INSERT OR|UPDATE|DELETE FROM|WITH) \S", text):
                found.setdefault(path.name, []).append(text)
    assert found.keys() == BUILT.keys(), found


def find_texts(tree: ast.AST) -> Iterator[str]:
    """Find the literals of code, without docstrings; of an f-string its first part."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                node.value.value = ""
            case ast.Constant(value=str(text)):
                yield text
            case _:
                pass


def test_a_wheel_has_the_files(tmp_path: Path):
    root = statements.FOLDER.parent.parent
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".sql")}
    assert packed == {str(path.relative_to(root)) for path in statements.FOLDER.rglob("*.sql")}
    assert len(packed) > 20


def make_forms(statement: Statement) -> list[dict[str, Any]]:
    """Return values for every form that a statement has: every combination of its conditions, or if these are many,
    each alone and all that go together."""
    choices: dict[str, set[Any]] = {}
    for condition in statement.conditions:
        choices.setdefault(condition.name, {None}).add(condition.word or "x")
    if "key" in choices:  # the sums have always one
        choices["key"].discard(None)
    options = [[(name, value) for value in sorted(values, key=str)] for name, values in choices.items()]
    if len(statement.conditions) > 6:
        first = [of_name[0] for of_name in options]
        return [dict([*first, choice]) for of_name in options for choice in of_name] + [
            dict(of_name[-1] for of_name in options)
        ]
    return [dict(form) for form in itertools.product(*options)]


def complete(statement: Statement, form: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {name: ["x", "y", "z"] if name in statement.lists else 1 for name in statement.parameters}
    return values | {name: ["x"] if name in statement.lists and value == "x" else value for name, value in form.items()}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "store.db"
    asyncio.run(migrate_store(f"sqlite:///{path}"))
    return path


class Explaining(sqlite3.Connection):
    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().execute(f"EXPLAIN {sql}", parameters)


@pytest.mark.parametrize(("file", "name"), EVERY_STATEMENT)
def test_sqlite_takes_every_statement(file: StatementFile, name: str, template: Path):
    statement = file[name]
    if "sqlite" not in statement.dialects:
        return
    connection = sqlite3.connect(template, factory=Explaining)
    try:
        for form in make_forms(statement):
            assert SqliteDatabase(connection).run(statement, **complete(statement, form)).fetchall(), form
    finally:
        connection.close()


@pytest.mark.postgres
async def test_postgresql_takes_every_statement(postgres_databases: Databases):
    url = postgres_databases.make()
    await migrate_store(url)
    connection = await asyncpg.connect(url)
    prepared = 0
    for file in FILES:
        for name, statement in load_statements(file).items():
            if "postgresql" not in statement.dialects:
                continue
            for form in make_forms(statement):
                sql, values = bind_statement(statement, complete(statement, form))
                parameters = (await connection.prepare(sql)).get_parameters()
                assert len(parameters) == len(values), (file, name, form)
                prepared += 1
    await connection.close()
    assert prepared > 150
