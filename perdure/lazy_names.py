"""Names that a module offers and loads when they are first used (PEP 562), so that its own import is cheap.

Apart because packages of all layers have such names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


class NameLoader:
    """The ``__getattr__`` of ``module``. ``names_by_home`` has the names, separated by blanks, by the relative name of
    the module that defines them.

    ``module`` sets it where type checkers do not look, and imports the same names where only they do: in their sight a
    ``__getattr__`` makes each misspelled name an ``Any``.
    """

    def __init__(self, module: str, names_by_home: Mapping[str, str]) -> None:
        self._module = module
        self.homes = {name: home for home, names in names_by_home.items() for name in names.split()}
        """The module of each name."""

    def __call__(self, name: str) -> Any:
        """Load ``name``. Raises ``AttributeError``."""
        if name not in self.homes:
            raise AttributeError(f"module {self._module!r} has no attribute {name!r}")
        module = sys.modules[self._module]
        value = getattr(import_module(self.homes[name], module.__package__), name)
        setattr(module, name, value)  # this function is not asked for it again
        return value
