"""Import an author's file or module and find its agents. Errors name the author's file and line."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import logging
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ..agent.spec import AgentSpec
from ..errors import DefinitionError, InvalidInputError, MissingExtraError, PerdureError
from ..hooks.hook import evaluate_signature
from ..ports.toolset import Toolset
from ..tools import Tool

if TYPE_CHECKING:
    from ..context.auth import AuthFunction
    from ..worker import Lifespan


T = TypeVar("T")
logger = logging.getLogger("perdure.cli")

_PERDURE_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class AgentModule:
    """An author's module: its agents, and what else in it a worker uses."""

    source: str
    """The name of the module in messages."""
    agents: tuple[AgentSpec, ...]
    lifespan: Lifespan | None = None
    """Its function ``lifespan``, if it has one: what its tools share (see ``Worker``)."""
    tools: tuple[Tool, ...] = ()
    """The tools of its list ``tools``, if it has one: steps may add them to an agent (see ``Worker``), and agent files
    may name them."""
    toolsets: tuple[Toolset, ...] = ()
    """The toolsets of its list ``toolsets``, for agent files."""
    resolve_auth: AuthFunction | None = None
    """Its function ``resolve_auth``, if it has one (see ``Worker``)."""

    @property
    def worker_options(self) -> dict[str, Any]:
        """Its arguments for ``Worker`` and ``PerdurePlugin``, without the agents."""
        return {"lifespan": self.lifespan, "tools": self.tools, "resolve_auth": self.resolve_auth}

    def get_agent(self, name: str) -> AgentSpec:
        """The agent of that name. Raises ``InvalidInputError``, which names the agents of the module."""
        for agent in self.agents:
            if agent.name == name:
                return agent
        names = ", ".join(agent.name for agent in self.agents)
        raise InvalidInputError(f"{self.source} has no agent {name!r}", hint=f"It has: {names}.")

    @property
    def missing_extras(self) -> Sequence[str]:
        """The extras that the models of the agents need, and that are not installed."""
        from ..providers.registry import find_missing_extra

        models = [model for agent in self.agents for model in agent.chain if model.own is None]
        found = [find_missing_extra(model.provider) for model in models]
        return list(dict.fromkeys(extra for extra in found if extra is not None))

    def warn_of_missing_extras(self) -> None:
        """Log which extras are missing, all at once. Agents with other models are served."""
        if extras := self.missing_extras:
            from .._installation import build_missing_extra_error

            error = build_missing_extra_error(f"{self.source}: a model of its agents", *extras)
            logger.warning("%s. %s", error.message, error.hint)


def load_agent_module(target: str, *, require_agents: bool = True) -> AgentModule:
    """Import ``target``, a file or the dotted name of a module, and collect the agents at its top level.

    Raises ``InvalidInputError`` for an unknown file or module, ``DefinitionError`` for a fault in it; that it has no
    agents is one if ``require_agents``.
    """
    module = _import_file(_resolve_target_file(target)) if is_file(target) else _import_module(target)
    names = vars(module)
    agents = tuple(dict.fromkeys(value for value in names.values() if isinstance(value, AgentSpec)))
    if not agents and require_agents:
        hint = 'Define one there: assistant = Agent("assistant", "openai:gpt-5-mini", instructions="…")'
        raise DefinitionError(f"{target} has no agents at its top level", hint=hint)
    resolve_auth = names.get("resolve_auth")
    return AgentModule(
        target,
        agents,
        _check_lifespan(target, names.get("lifespan")),
        _collect_instances(names.get("tools"), Tool),
        _collect_instances(names.get("toolsets"), Toolset),
        resolve_auth if callable(resolve_auth) else None,
    )


def _collect_instances(value: Any, kind: type[T]) -> tuple[T, ...]:
    """The items of a list. () if one is of another type: the name is then used for something else."""
    items = value if isinstance(value, list | tuple) else ()
    return tuple(items) if all(isinstance(item, kind) for item in items) else ()


def _check_lifespan(target: str, lifespan: Any) -> Lifespan | None:
    """Raises ``DefinitionError`` for a function that takes arguments, as a web framework's takes its app."""
    if callable(lifespan):
        signature = evaluate_signature(f"{target}: `lifespan`", lifespan)
        try:
            if signature is not None:
                signature.bind()
        except TypeError as error:
            hint = "A worker calls lifespan() and uses what it yields as ctx.resources. "
            hint += "If the function serves another purpose, give it another name."
            raise DefinitionError(f"{target}: `lifespan` must take no arguments: {error}", hint=hint) from None
    checked: Lifespan | None = lifespan  # the worker checks the rest
    return checked


def is_file(target: str) -> bool:
    """Whether ``target`` is a path, and not the name of a module."""
    return target.endswith(".py") or "/" in target or os.path.exists(target)  # noqa: PTH110  # Path raises for a long name


def find_author_files(root: Path) -> set[Path]:
    """The files of loaded modules that are the author's own: under ``root``, and not in an installed package."""
    paths = [Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]
    return {path for path in paths if root in path.parents and _is_author_file(path)}


def _resolve_target_file(target: str) -> Path:
    path = Path(target).absolute()
    if path.is_dir():
        raise InvalidInputError(f"{target} is a folder", hint="Name the Python file in it that has the agents.")
    if not path.is_file():
        raise InvalidInputError(f"there is no file {target}", hint=f"Looked for {path}.")
    return path


def _import_file(path: Path) -> ModuleType:
    """Import a file as a part of its package if it is in one, so that relative imports work; else on its own."""
    root = find_package_root(path)
    sys.path.insert(0, str(root))
    if root != path.parent:
        return _import_author_code(".".join(path.relative_to(root).with_suffix("").parts), path)
    # A file called like a loaded module (test.py, agent.py …) must not take its place.
    name = path.stem if path.stem not in sys.modules else f"perdure_entry_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise InvalidInputError(f"{path} is not a Python file", hint="Name a file that ends in .py.")
    return _import_author_code(name, path, spec)


def find_package_root(path: Path) -> Path:
    """The folder from which ``path`` is imported: its own, or the one that contains its package."""
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return root


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    spec = None
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _build_import_error(error, None) from error
    except (ValueError, ImportError):
        pass
    except Exception as error:  # a parent package that fails
        raise _build_import_error(error, None) from error
    if spec is None:
        hint = "Name a file (agents.py), or a module that can be imported from here or from PYTHONPATH."
        raise InvalidInputError(f"there is no file or module {name!r}", hint=hint)
    return _import_author_code(name, Path(spec.origin) if spec.origin else None)


def _import_author_code(name: str, path: Path | None, spec: ModuleSpec | None = None) -> ModuleType:
    """Import the module by its name, or by ``spec``. What it raises becomes an error that names the author's line."""
    try:
        if spec is None or spec.loader is None:
            return importlib.import_module(name)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: a script that exits when it is imported
        sys.modules.pop(name, None)
        raise _build_import_error(error, path) from error
    return module


def _build_import_error(error: BaseException, path: Path | None) -> PerdureError:
    """An exception of the author's code as an error with the place, the reason and the way out."""
    file, line = _find_error_location(error)
    where = f"{_shorten_file_path(file)}:{line}" if file else str(path or "")
    source = linecache.getline(file, line).strip() if file and line else ""
    hint = f"The line is: {source}" if source else None
    if isinstance(error, MissingExtraError):
        missing = MissingExtraError(f"{where}: {error.message}", hint=error.hint)
        missing.extras = error.extras
        return missing
    if isinstance(error, PerdureError):
        return DefinitionError(f"{where}: {error.message}", hint=error.hint or hint)
    if isinstance(error, SystemExit):
        hint = 'Put the code that only a script runs under if __name__ == "__main__":'
        return DefinitionError(f"{where}: it exits when it is imported", hint=hint)
    if isinstance(error, ModuleNotFoundError):
        hint = f"Install it for {sys.executable}, or correct the name. {hint or ''}".strip()
    reason = error.msg if isinstance(error, SyntaxError) else str(error)
    return DefinitionError(f"{where}: {type(error).__name__}: {reason}", hint=hint)


def _find_error_location(error: BaseException) -> tuple[str, int]:
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<") and _is_author_file(Path(frame.filename))]
    return (own[-1].filename, own[-1].lineno or 0) if own else ("", 0)


def find_failing_files(error: BaseException | None) -> set[Path]:
    """The author's files in the traceback of a failed import: a change in one of them may mend it."""
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
    installed = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()]
    return [_PERDURE_ROOT, *(Path(path).resolve() for path in installed)]


def _shorten_file_path(file: str) -> str:
    """``file`` relative to the current folder, if it is in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if Path.cwd() in path.parents else file
