"""Names that a module offers and loads when they are first used (PEP 562), so that its own import is cheap.

Apart because packages of all layers have such names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def build_name_loader(module: str, names_by_home: Mapping[str, str]) -> Callable[[str], Any]:
    """Build the ``__getattr__`` of ``module``. ``names_by_home``: by relative name of the module that defines them, the
    names, separated by blanks.

    ``module`` sets it where type checkers do not look, and imports the same names where only they do. With a
    ``__getattr__`` in their sight a misspelled name would be ``Any`` to them.
    """
    homes = {name: home for home, names in names_by_home.items() for name in names.split()}

    def load_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        owner = sys.modules[module]
        value = getattr(import_module(homes[name], owner.__package__), name)
        setattr(owner, name, value)  # found at once from now on
        return value

    return load_name
