"""The clients in TypeScript of the pages about AG-UI and the Vercel AI SDK: compiled against the types of the packages,
and run against ``perdure serve``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.engine import Engine
from tests.support.front_ends import install
from tests.support.replicas import replicas_of

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
CLIENTS = {"agui": PAGES / "ag-ui.md", "ui": PAGES / "vercel-ai.md"}
MARK = "<!-- test: elsewhere tests/docs/test_front_end_pages.py -->\n```ts\n"
OPTIONS = {"target": "es2022", "module": "nodenext", "strict": True, "skipLibCheck": True, "types": ["node"]}


@pytest.mark.node
@pytest.mark.server
@pytest.mark.slow
async def test_the_clients_of_the_pages_approve_and_read_the_answer(engine: Engine, tmp_path: Path) -> None:
    folder = await asyncio.to_thread(install, tmp_path / "programs")
    files = [f"{name}.ts" for name in CLIENTS]
    for name, page in CLIENTS.items():
        *opening, program = re.findall(f"^{re.escape(MARK)}(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        (folder / f"{name}.ts").write_text(program)
        for text in opening:
            (folder / f"{name}-opening.ts").write_text(f"export {{}};\n{text}")
            files.append(f"{name}-opening.ts")
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "files": files}))
    compiled = await asyncio.to_thread(
        subprocess.run,
        ["node", "node_modules/typescript/bin/tsc"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stdout
    await engine.process("approving")
    async with replicas_of(engine) as replicas:
        url = await replicas.start()
        for name in CLIENTS:
            env = {**os.environ, "AGENT_URL": f"{url}/{name}/paying", "THREAD": f"{name}-{engine.task_queue}"}
            program = ["node", f"{name}.js", "ada bob"]
            ended = await asyncio.to_thread(
                subprocess.run, program, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
            )
            assert (ended.returncode, ended.stderr) == (0, ""), ended
            assert ended.stdout.endswith("Done.\n" if name == "ui" else "Done."), ended.stdout
            assert '{"to":"ada"}' in ended.stdout
    assert engine.ledger.counts("pay") == {"ada": 2, "bob": 2}
