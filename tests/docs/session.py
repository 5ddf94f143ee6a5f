"""Run pieces of Python one after the other in one namespace and one event loop, ``await`` allowed at the top level.

As in ``python -m asyncio``, where a reader may paste them: ``python -m tests.docs.session FILE…``.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import types
from pathlib import Path


async def session(files: list[str]) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    for file in files:
        code = compile(Path(file).read_text(), file, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, module.__dict__)  # noqa: S307 - the documentation's own programs
        if inspect.isawaitable(result):
            await result


if __name__ == "__main__":
    asyncio.run(session(sys.argv[1:]))
