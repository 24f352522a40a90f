"""Golden keys: `python -m tests.core.golden` (with `proxy` on the path) prints the file anew, from the cases in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samewise.core.controls import parse_controls
from samewise.core.families.registry import BY_NAME
from samewise.core.fingerprint import from_manifest
from samewise.core.plan import Context, Epochs, Snapshot, Unit
from samewise.core.request import plan

FILE = Path(__file__).parent.parent / "golden" / "keys.json"


def unit_of(case: Mapping[str, Any]) -> Unit:
    """The only unit of a case's request, under its settings and manifest."""
    settings = dict(case.get("settings", {}))
    headers = settings.pop("headers", {})
    if "snapshot" in settings:
        settings["snapshot"] = Snapshot(**settings["snapshot"])
    if "epochs" in settings:
        settings["epochs"] = Epochs(**settings["epochs"])
    environment = from_manifest(case["manifest"], case.get("origin", "contract"))
    raw = case["request"].encode("utf-8")
    found = plan(BY_NAME[case["family"]], raw, parse_controls(headers), Context(environment=environment, **settings))
    (unit,) = found.units
    return unit


def wrong(cases: list[dict[str, Any]]) -> list[str]:
    """The names of the cases whose preimage or key is another."""
    found = []
    for case in cases:
        unit = unit_of(case)
        if (unit.preimage.decode("utf-8", "surrogatepass"), unit.key) != (case["preimage"], case["key"]):
            found.append(case["name"])
    return found


def renewed(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases with what the present recipe makes of them."""
    units = [unit_of(case) for case in cases]
    return [
        {**case, "preimage": unit.preimage.decode("utf-8", "surrogatepass"), "key": unit.key}
        for case, unit in zip(cases, units, strict=True)
    ]


if __name__ == "__main__":
    json.dump(renewed(json.loads(FILE.read_text("utf-8"))), sys.stdout, indent=1)
    sys.stdout.write("\n")
