"""``perdure new``: makes a project with an agent, tools, a workflow, tests and a deployment.

The files of a project are those under ``templates``, with ``{{name}}`` and the other placeholders replaced. In their
paths ``package`` becomes the name of the Python package, ``dot-`` a dot, and ``.tmpl`` is dropped.
"""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ..._installation import Installation, read_installation
from ...errors import InvalidInputError, PerdureError
from ..output import OutputOptions

_TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[_-][a-z0-9]+)*")
_MAX_NAME_CHARS = 40
_TAKEN = frozenset(("tests", "deploy", "docs", "package"))
"""Folders that a project has beside its package."""
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def new(
    path: Annotated[
        Path, typer.Argument(metavar="NAME", help="Name or path of the folder to make; . for this one, if it is empty.")
    ],
    *,
    output: OutputOptions,
) -> None:
    """Make a project: an agent, tools, a workflow, tests, a deployment. It runs without an API key.

    It depends on perdure as this copy was installed: a checkout, a wheel or an index.
    """
    folder = path.absolute() if path != Path() else Path.cwd()
    name = check_name(folder.name)
    installation = read_installation()
    files = dict(render_project(name, installation))
    try:
        check_folder(folder)
        for relative, text in files.items():
            file = folder / relative
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        hint = f"Remove what was made of {folder}, and try again." if path != Path() else None
        raise PerdureError(f"cannot write {error.filename or folder}: {error.strerror}", hint=hint) from None
    lines = [f"made {folder}: {len(files)} files; README.md says what they are"]
    lines += [f"  cd {shlex.quote(str(path))}"] if path != Path() else []
    lines.append("  make demo    # the workflow and its agent, once; the first time it installs everything")
    lines.append("  make test    # the tests")
    if not installation.exists:
        lines.append(f"perdure was installed from {installation.location}, which is gone: correct pyproject.toml first")
    output.print_result({"folder": str(folder), "files": [str(file) for file in files]}, lines)


def check_name(name: str) -> str:
    """Check the name of a project, which is that of its package, too. Raises ``InvalidInputError``."""
    package = name.replace("-", "_")
    hint = "For instance: perdure new invoice-desk."
    if len(name) > _MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name[:80]!r} cannot be the name of a Python package: lower-case letters, digits, - and _, "
            f"a letter first, at most {_MAX_NAME_CHARS}",
            hint=hint,
        )
    if keyword.iskeyword(package) or package in sys.stdlib_module_names:
        raise InvalidInputError(f"{name!r} is a word or a module of Python's own", hint=hint)
    if package in _TAKEN or _is_installed(package):
        raise InvalidInputError(f"there is a package {package!r} already, which the project would hide", hint=hint)
    return name


def _is_installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None  # a folder without a module in it is none


def check_folder(folder: Path) -> None:
    """Check that the folder is not there, or is empty but for ``.git``. Raises ``InvalidInputError``."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise InvalidInputError(f"{folder} is not a folder", hint="Name one that does not exist yet.")
    if found := sorted(entry.name for entry in folder.iterdir() if entry.name != ".git"):
        raise InvalidInputError(
            f"the folder {folder} is not empty: it has {', '.join(found[:3])}{' …' if len(found) > 3 else ''}",
            hint="Name a folder that does not exist yet, or an empty one.",
        )


def render_project(name: str, installation: Installation) -> Iterator[tuple[Path, str]]:
    """Yield the files of a project that depends on perdure as it was installed: path in its folder, and text."""
    values = {
        "name": name,
        "package": name.replace("-", "_"),
        "dependency": json.dumps(installation.get_dependency(["server"])),
        "requirement": installation.get_dependency(),
    }
    for template in sorted(_TEMPLATES.rglob("*.tmpl")):
        relative = str(template.relative_to(_TEMPLATES).with_suffix(""))
        relative = re.sub(r"(^|/)package/", rf"\g<1>{values['package']}/", relative)
        relative = re.sub(r"(^|/)dot-", r"\1.", relative)
        text = template.read_text(encoding="utf-8")
        yield Path(relative), _PLACEHOLDER.sub(lambda match: values[match[1]], text)
