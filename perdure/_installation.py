"""How this copy of perdure was installed, its extras, and the command that installs more of them.

perdure may have come from a checkout, a wheel, a repository or an index, into a virtual environment or a tool's own
environment. pip records that beside the package (``direct_url.json``, PEP 610), so an error can name a command that
works. Imports ``importlib.metadata`` when it is asked, because an error is the exception.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

from .errors import MissingExtraError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

PACKAGE = "perdure"
_COLLECTIONS = ("all", "dev")
"""Extras that are made of the others, and of tools for this repository."""
_PROJECT_ROOT = Path(__file__).parents[1]
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_EXTRA_MARKER = re.compile(r"""\bextra\s*==\s*['"]([A-Za-z0-9._-]+)['"]""")

Source = Literal["checkout", "folder", "file", "url", "index"]
Tool = Literal["pip", "uv", "uv tool", "pipx"]


# ---
# Extras, as the package's metadata lists them.


@dataclass(frozen=True)
class Extra:
    """An extra of perdure and the packages that it needs beside perdure's own."""

    name: str
    packages: Mapping[str, str | None]
    """The installed version of each; None if it is not installed."""

    @property
    def missing(self) -> Sequence[str]:
        """The packages that are not installed."""
        return [package for package, version in self.packages.items() if version is None]


def list_extras() -> Sequence[Extra]:
    """List the extras in the metadata of this copy, but ``all`` and ``dev``; none if it runs from its source."""
    distribution = _find_distribution()
    if distribution is None:
        return []
    names = dict.fromkeys(distribution.metadata.get_all("Provides-Extra") or ())
    packages: dict[str, dict[str, str | None]] = {name: {} for name in names if name not in _COLLECTIONS}
    for line in distribution.requires or ():
        requirement, _, marker = line.partition(";")
        found = _REQUIREMENT.match(requirement)
        for name in _EXTRA_MARKER.findall(marker):
            if found is not None and name in packages:
                packages[name][found[1]] = find_version(found[1])
    return [Extra(name, needed) for name, needed in packages.items()]


def find_version(package: str) -> str | None:
    """The installed version of ``package``; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def build_missing_extra_error(purpose: str, *extras: str, module: str | None = None) -> MissingExtraError:
    """Build the error for a purpose whose ``extras`` are not installed, with the command that installs all of them.

    ``module`` is the one that could not be imported, which is named where the metadata names no package.
    """
    known = {extra.name: extra for extra in list_extras()}
    packages = [package for name in extras if name in known for package in known[name].missing]
    packages = list(dict.fromkeys(packages)) or [module.partition(".")[0]] if module else packages
    noun, verb = ("extra", "is") if len(extras) == 1 else ("extras", "are")
    detail = f" (missing: {', '.join(packages)})" if packages else ""
    message = f"{purpose} needs the {noun} {' and '.join(map(repr, extras))} of perdure, which {verb} not installed"
    error = MissingExtraError(message + detail, hint=f"Install it: {build_install_command(extras)}")
    error.extras = extras
    return error


# ---
# The command.


@dataclass(frozen=True)
class Installation:
    """Where a copy of perdure came from, and what installed it."""

    source: Source
    location: str = ""
    """The folder, file or URL; empty for an index."""
    tool: Tool = "pip"
    exists: bool = True
    """False if the folder or file is gone."""

    def get_requirement(self, extras: Iterable[str] = ()) -> str:
        """What pip is given: ``./perdure-….whl[server]``, relative to the current folder if it is in it."""
        names = ",".join(extras)
        suffix = f"[{names}]" if names else ""
        if self.source == "index":
            return f"{PACKAGE}{suffix}"
        if self.source == "url":
            return f"{PACKAGE}{suffix} @ {self.location}"
        return f"{_shorten_path(Path(self.location))}{suffix}"

    def get_dependency(self, extras: Iterable[str] = ()) -> str:
        """The line of a project's dependencies (PEP 508) that installs the same copy."""
        names = ",".join(extras)
        suffix = f"[{names}]" if names else ""
        if self.source == "index":
            version = find_version(PACKAGE)
            return f"{PACKAGE}{suffix}" if version is None else f"{PACKAGE}{suffix}>={version}"
        url = self.location if self.source == "url" else Path(self.location).as_uri()
        return f"{PACKAGE}{suffix} @ {url}"


def build_install_command(extras: Sequence[str]) -> str:
    """Build the shell command that adds ``extras`` to this copy, in the environment that runs now."""
    installation = read_installation()
    if installation.tool in ("pipx", "uv tool"):
        # The tool makes a new environment, so it is told all extras.
        present = [extra.name for extra in list_extras() if extra.packages and not extra.missing]
        extras = list(dict.fromkeys([*present, *extras]))
    requirement = installation.get_requirement(extras)
    if installation.tool != "pip" and installation.source in ("folder", "file"):
        requirement = installation.get_dependency(extras)  # only pip takes a path with extras
    requirement = shlex.quote(requirement)
    command = f"{_find_installer(installation.tool)} {'-e ' if installation.source == 'checkout' else ''}{requirement}"
    if installation.exists:
        return command
    return f"{command} (perdure was installed from there, and it is gone: name the place where it is now)"


def read_installation() -> Installation:
    """Read how this copy was installed. A copy without metadata runs from its source, which is then the checkout."""
    distribution = _find_distribution()
    if distribution is None:
        return Installation("checkout", str(_PROJECT_ROOT), _find_tool(None))
    tool = _find_tool(distribution)
    try:
        record: Any = json.loads(distribution.read_text("direct_url.json") or "null")
        url = str(record["url"])
    except (ValueError, TypeError, KeyError):  # from an index, or damaged
        return Installation("index", tool=tool)
    if not url.startswith("file:"):
        vcs = record.get("vcs_info") or {}
        revision = f"@{vcs['commit_id']}" if vcs.get("commit_id") else ""
        prefix = f"{vcs['vcs']}+" if vcs.get("vcs") else ""
        return Installation("url", f"{prefix}{url}{revision}", tool)
    path = Path(unquote(urlsplit(url).path))
    folder = record.get("dir_info")
    source: Source = "file" if folder is None else "checkout" if folder.get("editable") else "folder"
    return Installation(source, str(path), tool, path.exists())


def _find_distribution() -> Distribution | None:
    from importlib import metadata

    try:
        return metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:  # run from its source
        return None


def _find_tool(distribution: Distribution | None) -> Tool:
    """What made this environment: uv and pipx leave a file in that of a tool, and uv its name beside each package."""
    prefix = Path(sys.prefix)
    if (prefix / "uv-receipt.toml").exists():
        return "uv tool"
    if (prefix / "pipx_metadata.json").exists():
        return "pipx"
    installer = "" if distribution is None else (distribution.read_text("INSTALLER") or "").strip()
    return "uv" if installer == "uv" and _find_pip() is None else "pip"


def _find_installer(tool: Tool) -> str:
    """The command up to what is installed, for the environment that runs now."""
    if tool == "pipx":
        return "pipx install --force"
    if tool == "uv tool":
        return "uv tool install --force"
    python = shlex.quote(_shorten_path(Path(sys.executable)))
    if tool == "uv":
        return f"uv pip install --python {python}"
    pip = _find_pip()
    if pip is None:
        return f"{python} -m pip install"
    if (on_path := shutil.which("pip")) and Path(on_path) == pip:
        return "pip install"
    return f"{shlex.quote(_shorten_path(pip))} install"


def _find_pip() -> Path | None:
    """The pip of this environment, beside its interpreter."""
    folder = Path(sys.executable).parent
    return next((path for name in ("pip", "pip.exe") if (path := folder / name).exists()), None)


def _shorten_path(path: Path) -> str:
    """``path`` relative to the current folder if it is in it. It stays a path for pip, which begins with a dot or /."""
    try:
        relative = path.relative_to(Path.cwd())
    except (ValueError, OSError):  # elsewhere; or the current folder is gone
        return str(path)
    return "." if relative == Path() else f".{os.sep}{relative}"
