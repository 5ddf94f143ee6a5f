"""What a new process loads: no SDK and no driver before it is needed. Each test starts one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.store import open_store

HEAVY = (
    "openai",
    "anthropic",
    "google.genai",
    "pydantic_ai",
    "mcp",
    "sqlalchemy",
    "alembic",
    "aiosqlite",
    "asyncpg",
    "genai_prices",
)
PARTS = ("client", "workflows", "agent", "worker", "tools", "mcp", "artifacts")


def test_no_sdk_and_no_driver_is_loaded() -> None:
    """By no import, nor by an agent of a known provider: a worker that never calls it need not have it, and a client's
    process starts quickly. One process for all of them: what one has loaded is still there behind the next. The first
    import loads no module but its own and those of Python.
    """
    steps = [f"import {name}" for name in ("perdure", *(f"perdure.{part}" for part in PARTS))]
    steps.append("perdure.Agent('a', 'openai:gpt-5', settings={'temperature': 0})")
    code = (
        "import sys, json\n"
        "before = set(sys.modules)\n"
        "import perdure\n"
        "print(json.dumps([name for name in sys.modules if name not in before"
        " and name.partition('.')[0] not in sys.stdlib_module_names]))\n"
        f"print(json.dumps([[step, exec(step, globals()) or [one for one in {HEAVY!r} if one in sys.modules]]"
        f" for step in {steps!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own, loaded = map(json.loads, done.stdout.splitlines())
    assert sorted(own) == ["perdure", "perdure._lazy"]
    assert loaded == [[step, []] for step in steps]


def test_checking_and_making_the_providers_load_no_sdk() -> None:
    code = (
        "import sys, perdure.providers as p\n"
        "for name in ('openai', 'openai-responses', 'anthropic', 'google'):\n"
        "    p.check_settings(name, {'temperature': 1}, {}); p.get_provider(name)\n"
        "heavy = ('openai', 'anthropic', 'google.genai', 'httpx', 'httpx2', 'genai_prices', 'temporalio')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


PROGRAM = "from perdure import Agent, Client, tool"
NOT_FOR_A_PROGRAM = (
    *("temporalio.worker", "temporalio.contrib", "temporalio.testing", "httpx", "httpx2", "aiohttp", "http.client"),
    *("sqlite3", "starlette", "jinja2", "typer", "rich", "yaml", "importlib.metadata", "email", "docstring_parser"),
    *("perdure.workflows", "perdure.worker", "perdure.calls", "perdure.embedded.server"),
    *("perdure.client.pages", "perdure.client.retention", "perdure.client.tokens"),
    "perdure.client.webhook_subscriptions",
    *("perdure.types.state", "perdure.types.wire", "perdure.types.events", "perdure.loop.decide"),
    *("perdure.ports.store", "perdure.ports.model", "perdure.hooks.dispatch", "perdure.hooks.step"),
    *("perdure.providers.endpoint", "perdure.providers.pricing", "perdure.store.objects", "perdure.client.inbox"),
    "perdure.store.statements",
    *("perdure.client.fork", "perdure.client.schedules", "perdure.agent.xml", "perdure.types.compaction"),
    *("perdure.local_engine.engine", "perdure.local_engine.on_approval", "perdure.agent.agent_file"),
    "perdure.temporal.namespaces",
    *("perdure.embedded.address", "perdure.embedded.record", "temporalio.envconfig"),
)
NOT_FOR_A_CLIENT = ("perdure.agent", "perdure.providers", "perdure.tools", "perdure.hooks")


def run_python(code: str) -> Any:
    """Run ``code`` in a new interpreter, and return what it prints as JSON."""
    return json.loads(subprocess.check_output([sys.executable, "-c", code], text=True))


@pytest.mark.parametrize(
    ("code", "without", "most"),
    [
        (PROGRAM, NOT_FOR_A_PROGRAM, 87),
        ("from perdure import Client", (*NOT_FOR_A_PROGRAM, *NOT_FOR_A_CLIENT), 60),
    ],
    ids=["program", "client"],
)
def test_a_program_loads_what_it_uses(code: str, without: tuple[str, ...], most: int) -> None:
    """More modules make each start slower: ``most`` is raised on purpose only. `make bench` has the seconds."""
    loaded = run_python(f"{code}; import sys, json; print(json.dumps(list(sys.modules)))")
    assert [name for name in without if name in loaded] == []
    assert sum(name.partition(".")[0] == "perdure" for name in loaded) <= most


def test_a_store_is_opened_without_the_classes_of_events() -> None:
    loaded = run_python("import perdure.store.sqlite, sys, json; print(json.dumps(list(sys.modules)))")
    assert "perdure.types.events" not in loaded


LIST_BUILT_MODELS = """
import json, pydantic
models = [pydantic.BaseModel]
for model in models:
    models += model.__subclasses__()
ours = [model for model in models if model.__module__.startswith("perdure.")]
print(json.dumps([len(ours), sum(model.__pydantic_complete__ for model in ours)]))
"""


def test_schemas_are_built_by_workers_alone() -> None:
    _, built = run_python(PROGRAM + LIST_BUILT_MODELS)
    assert built == 0
    models, built = run_python("import perdure.workflows" + LIST_BUILT_MODELS)
    assert models == built > 80


def test_a_command_loads_its_own_module() -> None:
    code = (
        "import sys, json, perdure.cli\n"
        "at_first = [name for name in ('prompt_toolkit', 'temporalio', 'pydantic', 'asyncio') if name in sys.modules]\n"
        "perdure.cli.app(['list', '--help'], standalone_mode=False)\n"
        "print(json.dumps([at_first, [name for name in sys.modules if name.startswith('perdure.')]]))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    at_first, loaded = json.loads(printed.splitlines()[-1])
    assert at_first == []
    shared = {"_lazy", "cli", "cli.connection", "cli.options", "cli.output", "errors", "_terminal"}
    shared |= {"types", "types.run_states"}  # the states that --status takes
    assert set(loaded) == {f"perdure.{name}" for name in {*shared, "cli.list_runs"}}


def test_the_help_of_all_commands_loads_no_client() -> None:
    code = (
        "import sys, json, perdure.cli\n"
        "perdure.cli.app(['--help'], standalone_mode=False)\n"
        "heavy = ('prompt_toolkit', 'temporalio', 'pydantic')\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert json.loads(printed.splitlines()[-1]) == []


IMPORTS = """
import asyncio, sys
import perdure.store
assert not {"sqlalchemy", "alembic", "sqlite3", "aiosqlite"} & set(sys.modules), "too early"

async def main():
    store = perdure.store.open_store(sys.argv[1])
    await store.open()
    print({"sqlalchemy", "alembic"} & set(sys.modules))
    await store.close()

asyncio.run(main())
"""


async def test_a_store_that_exists_is_opened_without_alembic(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    await store.open()
    await store.close()
    assert "alembic" in sys.modules, "a new store needs it"
    command = [sys.executable, "-c", IMPORTS, f"sqlite:///{tmp_path}/store.db"]
    assert subprocess.check_output(command, text=True) == "set()\n"


WITHOUT_DRIVER = """
import sys
sys.modules["asyncpg"] = None
from perdure.errors import MissingExtraError
from perdure.store import open_store
try:
    open_store("postgresql://ana:secret@db/perdure")
except MissingExtraError as error:
    print(error.message, error.hint)
"""


def test_without_the_driver_the_extra_is_named() -> None:
    said = subprocess.check_output([sys.executable, "-c", WITHOUT_DRIVER], text=True)
    assert "a store in PostgreSQL needs the extra 'postgres'" in said
    assert "missing: asyncpg" in said
