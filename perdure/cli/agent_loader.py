"""Import an author's file or module and find its agents. What is wrong in it is said in terms of their code."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import linecache
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ..agent.agent import Agent
from ..errors import DefinitionError, InvalidInputError, PerdureError
from ..ports import Toolset
from ..tools import Tool

if TYPE_CHECKING:
    from ..tools.context import AuthFunction
    from ..worker import Lifespan


T = TypeVar("T")

_PERDURE_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class AgentModule:
    """An author's module: its agents by name, and what it is called in messages."""

    source: str
    agents: tuple[Agent, ...]
    lifespan: Lifespan | None = None
    """Its function ``lifespan``, if it has one: what its tools share (see ``Worker``)."""
    tools: tuple[Tool, ...] = ()
    """The tools of its list ``tools``, if it has one: steps may add them to an agent (see ``Worker``), and agent files
    may name them."""
    toolsets: tuple[Toolset, ...] = ()
    """The toolsets of its list ``toolsets``, for agent files."""
    resolve_auth: AuthFunction | None = None
    """Its function ``resolve_auth``, if it has one (see ``Worker``)."""

    def get_agent(self, name: str) -> Agent:
        """The agent of that name. Raises ``InvalidInputError``, which names the ones there are."""
        found = next((agent for agent in self.agents if agent.name == name), None)
        if found is None:
            here = ", ".join(agent.name for agent in self.agents)
            raise InvalidInputError(f"{self.source} has no agent {name!r}", hint=f"It has: {here}.")
        return found


def load_agent_module(target: str, *, alone: bool = True) -> AgentModule:
    """Import ``target``, a file or the dotted name of a module, and collect the agents at its top level; it may have
    none where it is not ``alone``.

    Raises ``InvalidInputError`` when there is no such file or module, ``DefinitionError`` for what is wrong in it.
    """
    if is_file(target):
        module = _import_file(_resolve_target_file(target))
    else:
        module = _import_module(target)
    agents = tuple(dict.fromkeys(value for value in vars(module).values() if isinstance(value, Agent)))
    if not agents and alone:
        raise DefinitionError(
            f"{target} has no agents at its top level",
            hint='Define one there: assistant = Agent("assistant", "openai:gpt-5-mini", instructions="…")',
        )
    found = vars(module)
    resolve = found.get("resolve_auth")
    return AgentModule(
        target,
        agents,
        _check_lifespan(target, found.get("lifespan")),
        _collect_instances(found.get("tools"), Tool),
        _collect_instances(found.get("toolsets"), Toolset),
        resolve if callable(resolve) else None,
    )


def _collect_instances(found: Any, kind: type[T]) -> tuple[T, ...]:
    """A list of that name that has something else in it is none of ours."""
    listed = found if isinstance(found, list | tuple) else ()
    return tuple(listed) if all(isinstance(one, kind) for one in listed) else ()


def _check_lifespan(target: str, found: Any) -> Lifespan | None:
    """Raises ``DefinitionError`` for one that takes something, as a web framework's takes its app."""
    if callable(found):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise DefinitionError(
                f"{target}: a worker enters the file's `lifespan`, and calls it with nothing: {error}",
                hint="It yields what ctx.resources is to be. If it is something else, give it another name.",
            ) from None
    checked: Lifespan | None = found  # whatever else is wrong with it, the worker says
    return checked


def is_file(target: str) -> bool:
    """Whether ``target`` is meant as a file, and not as the name of a module."""
    return target.endswith(".py") or "/" in target or Path(target).exists()


def find_author_files(root: Path) -> set[Path]:
    """The files of loaded modules that are the author's own: under ``root``, and no installed package."""
    files = set()
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and root in Path(path).parents and _is_author_file(Path(path)):
            files.add(Path(path))
    return files


def _resolve_target_file(target: str) -> Path:
    path = Path(target).absolute()
    if path.is_dir():
        raise InvalidInputError(f"{target} is a folder", hint="Name the Python file in it that has the agents.")
    if not path.is_file():
        raise InvalidInputError(f"there is no file {target}", hint=f"Looked for {path}.")
    return path


def _import_file(path: Path) -> ModuleType:
    """As a part of its package if it is in one, so that relative imports work; else as a module by itself."""
    root = find_package_root(path)
    sys.path.insert(0, str(root))
    if root != path.parent:
        return _import_author_code(".".join(path.relative_to(root).with_suffix("").parts), path)
    # A file called like a loaded module (test.py, agent.py …) must not take its place.
    name = path.stem if path.stem not in sys.modules else f"perdure_entry_{path.stem}"
    return _import_author_code(name, path, alone=True)


def find_package_root(path: Path) -> Path:
    """The folder from which ``path`` is imported: its own, or the one around its package."""
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return root


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _build_import_error(error, None) from error
        found = None
    except (ValueError, ImportError):
        found = None
    except Exception as error:  # a parent package that fails
        raise _build_import_error(error, None) from error
    if found is None:
        raise InvalidInputError(
            f"there is no file or module {name!r}",
            hint="Name a file (agents.py), or a module that can be imported from here or from PYTHONPATH.",
        )
    return _import_author_code(name, Path(found.origin) if found.origin else None)


def _import_author_code(name: str, path: Path | None, *, alone: bool = False) -> ModuleType:
    """Import it; whatever it raises is the author's to mend. ``alone``: by its path, under ``name``."""
    try:
        if not alone or path is None:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise InvalidInputError(f"{path} is no Python file")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a script that ends itself when it is imported
        sys.modules.pop(name, None)
        raise _build_import_error(error, path) from error
    return module


def _build_import_error(error: BaseException, path: Path | None) -> PerdureError:
    """What an exception in the author's code comes down to: the place, the reason, the way out."""
    if isinstance(error, InvalidInputError) and not error.__traceback__:
        return error
    file, line = _find_error_location(error)
    where = f"{_shorten_file_path(file)}:{line}" if file else str(path or "")
    source = linecache.getline(file, line).strip() if file and line else ""
    hint = f"The line is: {source}" if source else None
    if isinstance(error, PerdureError):
        return DefinitionError(f"{where}: {error.message}", hint=error.hint or hint)
    if isinstance(error, SystemExit):
        return DefinitionError(
            f"{where}: it ends the program when it is imported",
            hint='Put what only a script does under if __name__ == "__main__":',
        )
    if isinstance(error, ModuleNotFoundError):
        hint = f"Install it for {sys.executable}, or correct the name. {hint or ''}".strip()
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return DefinitionError(f"{where}: {type(error).__name__}: {said}", hint=hint)


def _find_error_location(error: BaseException) -> tuple[str, int]:
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<") and _is_author_file(Path(frame.filename))]
    return (own[-1].filename, own[-1].lineno or 0) if own else ("", 0)


def find_failing_files(error: BaseException | None) -> set[Path]:
    """The author's files that an import failed in: with one of them mended it may succeed."""
    files: set[Path] = set()
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            files.add(Path(error.filename))
        files.update(Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__))
        error = error.__cause__
    return {file for file in files if file.is_absolute() and _is_author_file(file)}


def _is_author_file(path: Path) -> bool:
    resolved = path.resolve()
    return not any(root in resolved.parents for root in _list_installed_roots())


@cache
def _list_installed_roots() -> Iterable[Path]:
    paths = sysconfig.get_paths()
    named = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()]
    return [_PERDURE_ROOT, *(Path(name).resolve() for name in named)]


def _shorten_file_path(file: str) -> str:
    """Relative to here where that is shorter."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if Path.cwd() in path.parents else file
