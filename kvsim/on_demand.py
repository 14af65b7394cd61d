"""Packages whose names are imported at first use, so that a caller loads only the modules that it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def by_name(names: Mapping[str, str]) -> dict[str, str]:
    """Return the module of each name. `names` has, for each module, its names separated by spaces."""
    return {name: module for module, listed in names.items() for name in listed.split()}


def names_of(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of `package`, which imports a name at first use.

    Args:
        package: its `__name__`.
        homes: the module of each of its public names. No public name may be the name of a module in the package,
            because the imported module would replace it.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
