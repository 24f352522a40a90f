"""Figures of one run: measured beside each other, turn by turn; kept as JSON, shown as a table and as a plot."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from loadtest.load import Measured
from loadtest.stage import Server

RESULTS = Path(__file__).parent.parent / "results"
KEPT = Path(__file__).parent.parent.parent / "docs" / "performance.json"
"""The figures that the documentation shows, and that later ones are compared with."""
ROUNDS = 5


class Figure(msgspec.Struct, kw_only=True):
    """One thing that is measured. `least` or `most` is what it should be; None in `value`: not here, see `note`."""

    name: str
    value: float | None
    unit: str = ""
    least: float | None = None
    most: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """None where there is nothing to hold, or nothing was measured."""
        if self.value is None or (self.least is None and self.most is None):
            return None
        return self.value >= (self.least or float("-inf")) and self.value <= (self.most or float("inf"))


class Options(msgspec.Struct, frozen=True):
    """How long each measurement takes, how often it is made, and how large what is large is."""

    seconds: float = 3.0
    rounds: int = ROUNDS
    entries: int = 1_000_000


def options(argv: Sequence[str], name: str) -> Options:
    """From a command line."""
    parser = argparse.ArgumentParser(prog=f"python -m loadtest {name}")
    parser.add_argument("--seconds", type=float, default=Options().seconds, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of which the median counts")
    parser.add_argument("--entries", type=int, default=Options().entries, help="in the largest cache")
    given = parser.parse_args(argv)
    return Options(seconds=given.seconds, rounds=given.rounds, entries=given.entries)


class Turn(msgspec.Struct):
    """One measurement of one server: what the client saw, and requests by second of the server's processor time."""

    seen: Measured
    capacity: float


def in_turns(rounds: int, servers: Mapping[str, tuple[Server, Callable[[Server], Measured]]]) -> dict[str, list[Turn]]:
    """Each server in each round, in turn, so that what else the machine does weighs on all alike; one round more
    before the first, which doesn't count."""
    turns: dict[str, list[Turn]] = {name: [] for name in servers}
    for number in range(rounds + 1):
        for name, (server, load) in servers.items():
            before = server.cpu()
            seen = load(server)
            spent = server.cpu() - before
            if number:
                turns[name].append(Turn(seen, seen.requests / max(spent, 0.01)))
    return turns


def rate(turns: Sequence[Turn]) -> float:
    """The median of requests a second."""
    return median(turn.seen.rate for turn in turns)


def seen_rate(turn: Turn) -> float:
    """Requests a second."""
    return turn.seen.rate


def ratio(one: Sequence[Turn], other: Sequence[Turn], of: Callable[[Turn], float] = seen_rate) -> float:
    """The median over the rounds. Raises RuntimeError where one of them answered nothing."""
    if not all(turn.seen.requests for turn in (*one, *other)):
        raise RuntimeError("a server answered nothing for a whole measurement: it is broken, or the machine too busy")
    return median(of(a) / of(b) for a, b in zip(one, other, strict=True))


def compared(name: str, one: Sequence[Turn], other: Sequence[Turn], least: float) -> list[Figure]:
    """How one server does against another: in requests a second, and a second of processor time."""
    return [
        Figure(name=name, value=ratio(one, other), unit="x", least=least),
        Figure(name=f"{name}, by processor time", value=ratio(one, other, lambda turn: turn.capacity), unit="x"),
    ]


def told(name: str, figures: Sequence[Figure], *, keep: bool = True) -> int:
    """Print the table, keep the JSON. 1 where a figure isn't what it should be."""
    print(table(figures))
    if keep:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(report(name, figures))
    return int(any(figure.holds is False for figure in figures))


def report(name: str, figures: Sequence[Figure]) -> str:
    """JSON, with what it was measured on."""
    made = {"scenario": name, **machine(), "figures": msgspec.to_builtins(list(figures))}
    return json.dumps(made, indent=1) + "\n"


def table(figures: Sequence[Figure]) -> str:
    """Markdown."""
    rows = ["| | measured | should be | |", "|---|---|---|---|"]
    for figure in figures:
        value = "not here" if figure.value is None else shown(figure.value, figure.unit)
        target = "" if figure.least is None else f"at least {shown(figure.least, figure.unit)}"
        target = target if figure.most is None else f"at most {shown(figure.most, figure.unit)}"
        mark = {True: "holds", False: "**missed**", None: ""}[figure.holds]
        rows.append(f"| {figure.name} | {value} | {target} | {mark}{' ' if figure.note else ''}{figure.note} |")
    return "\n".join(rows)


def shown(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".strip()


def machine() -> dict[str, Any]:
    """What it was measured on."""
    model = next(
        (line.partition(":")[2].strip() for line in _read("/proc/cpuinfo").splitlines() if "model name" in line), ""
    )
    return {
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("samewise", "aiohttp", "uvloop", "redis")},
            "nginx": _said("nginx", "-v"),
            "wrk": _said("wrk", "-v").split(" [")[0],
            "redis-server": _said("redis-server", "--version")[:20],
        },
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _said(program: str, flag: str) -> str:
    binary = shutil.which(program)
    if binary is None:
        return ""
    done = subprocess.run([binary, flag], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().partition("\n")[0].removeprefix(f"{program} version: ")


def into_page(page: Path, figures: Sequence[Figure]) -> None:
    """Put the table, and what it was measured on, between the marks of a page."""
    on = machine()
    versions = ", ".join(f"{name} {number}" for name, number in on["versions"].items() if number)
    said = f"{on['at'][:10]}, {on['processor']}, {on['cores']} cores, load {on['load']:.1f} at the end; {versions}."
    begin, end = "<!-- python -m loadtest peers -->", "<!-- end -->"
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}\n\n{said}\n\n{table(figures)}\n\n{end}{rest.partition(end)[2]}")


def plot(figures: Sequence[Figure], title: str) -> str:
    """A bar for each figure that has a target, in parts of its target; light and dark grounds alike."""
    rows = [(figure, _part(figure)) for figure in figures if figure.value is not None and figure.holds is not None]
    height = 46 + 26 * len(rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" font-size="13">',
        f"<title>{title}</title>",
        "<desc>One bar a figure, as a share of its target; bars that fall short are in another colour. "
        "The table beside it has the numbers.</desc>",
        "<style>text{fill:#555} .bar{fill:#2a78b8} .miss{fill:#c5542d} line{stroke:#888}"
        "@media (prefers-color-scheme:dark){text{fill:#ccc}}</style>",
        f'<text x="10" y="20" font-size="15">{title}</text>',
    ]
    for at, (figure, part) in enumerate(rows):
        top = 36 + 26 * at
        width = 180 * min(part, 2.0)
        kind = "bar" if figure.holds else "miss"
        name = figure.name.replace("&", "&amp;").replace("<", "&lt;")
        lines += [
            f'<text x="430" y="{top + 14}" text-anchor="end">{name}</text>',
            f'<rect class="{kind}" x="440" y="{top + 2}" width="{width:.0f}" height="16"/>',
            f'<text x="{446 + width:.0f}" y="{top + 14}">{shown(figure.value or 0, figure.unit)}</text>',
        ]
    lines += [f'<line x1="620" x2="620" y1="30" y2="{height - 8}" stroke-dasharray="3 3"/>', "</svg>"]
    return "\n".join(lines) + "\n"


def _part(figure: Figure) -> float:
    value = figure.value or 0.0
    return value / figure.least if figure.least is not None else (figure.most or 0) / max(value, 1e-9)
