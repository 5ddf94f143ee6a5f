"""What a new process loads: no SDK and no driver before it is needed. Each test starts one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
PARTS = ("client", "workflows", "agent", "worker", "tools", "mcp", "toolsets")


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
    assert own == ["perdure"]
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


def test_prompt_toolkit_is_loaded_by_a_chat_alone() -> None:
    code = "import sys, perdure.cli; print([name for name in ('prompt_toolkit', 'temporalio') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


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
from perdure.errors import StoreLocationError
from perdure.store import open_store
try:
    open_store("postgresql://ana:secret@db/perdure")
except StoreLocationError as error:
    print(error.message, error.hint)
"""


def test_without_the_driver_the_extra_is_named() -> None:
    said = subprocess.check_output([sys.executable, "-c", WITHOUT_DRIVER], text=True)
    assert "needs the package asyncpg" in said
    assert 'pip install "perdure[postgres]"' in said
