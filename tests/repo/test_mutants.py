"""The mutants of the key fit the code as it is: a change of the code that they break takes them along."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[2] / "scripts/mutate_key.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutate_key", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_mutant_finds_what_it_breaks() -> None:
    script = load()
    assert len(script.MUTANTS) >= 20
    assert [mutant.name for mutant in script.MUTANTS if not script.stands(mutant)] == []
