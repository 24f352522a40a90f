"""Asks for known vulnerabilities of what a constraints file pins. Exit code 0 only where every pin was looked up.

    scripts/audit.py PIP_AUDIT FILE

The package index's own advisories are asked first, OSV for what those don't know. A pin that nobody could be asked
about is told and is no success: 1 where something is known to be vulnerable, 3 where not everything could be looked up.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SERVICES = ("pypi", "osv")
VULNERABLE, UNKNOWN = 1, 3
PATIENCE = "10"
"""Seconds that a service may take to answer."""


def main(argv: list[str]) -> int:
    """Look up, tell, and judge."""
    tool, file = argv
    left = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if "==" in line]
    count, found, silent = len(left), [], []
    for service in SERVICES:
        if not left:
            break
        if not _asked(tool, left[:1], service):
            silent.append(service)
            continue
        answers = _asked(tool, left, service)
        found += [(each["name"], each["version"], vuln) for each in answers for vuln in each["vulns"]]
        known = {each["name"].lower().replace("_", "-") for each in answers}
        left = [pin for pin in left if pin.partition("==")[0].strip().lower().replace("_", "-") not in known]
    for name, version, vuln in found:
        mended = ", ".join(vuln.get("fix_versions", ())) or "no version"
        print(f"{name} {version}: {vuln['id']}, mended in {mended}")
    print(f"{count - len(left)} of {count} pins looked up, {len(found)} known vulnerabilities")
    if left:
        why = f" (no answer from {' and '.join(silent)})" if silent else ""
        print(f"nothing is known about {len(left)} pins{why}: {', '.join(left[:5])}{', ...' if left[5:] else ''}")
    return VULNERABLE if found else UNKNOWN if left else 0


def _asked(tool: str, pins: list[str], service: str) -> list[dict[str, Any]]:
    """What the service knows of; nothing where it can't be reached."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins) + "\n")
        file.flush()
        asking = ["--requirement", file.name, "--vulnerability-service", service, "--timeout", PATIENCE]
        plain = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
        done = subprocess.run([tool, *asking, *plain], capture_output=True, text=True, check=False)
    try:
        told = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return []
    return [each for each in told if "vulns" in each and "skip_reason" not in each]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
