"""The families there are: every module beside this one that has a `FAMILY`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from samewise.core import families
from samewise.core.families.contract import Family

_OTHERS = frozenset({"contract", "registry"})


def discover() -> tuple[Family, ...]:
    """All families in the order of their names. Raises ValueError where two share a name or a path."""
    names = sorted(module.name for module in pkgutil.iter_modules(families.__path__) if module.name not in _OTHERS)
    modules = [importlib.import_module(f"{families.__name__}.{name}") for name in names]
    found = tuple(cast(Family, module.FAMILY) for module in modules if hasattr(module, "FAMILY"))
    for each in ({family.name for family in found}, {family.path for family in found}):
        if len(each) != len(found):
            raise ValueError("two families share a name or a path")
    return found


FAMILIES: tuple[Family, ...] = discover()
BY_PATH: Mapping[str, Family] = MappingProxyType({family.path: family for family in FAMILIES})
BY_NAME: Mapping[str, Family] = MappingProxyType({family.name: family for family in FAMILIES})
