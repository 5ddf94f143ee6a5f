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
        module, home = sys.modules[self._module], self.homes[name]
        if package := home.rpartition(".")[0]:
            # First: an import of a module of a package that is not loaded holds the module's lock while it loads the
            # package. That imports its modules, and in two threads each would wait for the other's lock.
            import_module(package, module.__package__)
        value = getattr(import_module(home, module.__package__), name)
        setattr(module, name, value)  # this function is not asked for it again
        return value

    def list_names(self) -> list[str]:
        """The ``__dir__`` of the module."""
        return sorted({*vars(sys.modules[self._module]), *self.homes})
