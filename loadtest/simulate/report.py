"""What the simulation found, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
_PANELS: Sequence[tuple[str, str, Callable[[Any], str]]] = (
    ("reused", "prompt tokens reused", lambda value: f"{value:.0%}"),
    ("imbalance", "busiest backend by the mean", lambda value: f"{value:.1f}"),
    ("p99", "first token, 99th percentile", lambda value: f"{value * 1e3:,.0f} ms"),
)


def table(told: Mapping[str, Any]) -> str:
    """One row a strategy, then one a way in which proxies hear of an invalidation."""
    rows = [
        "| strategy | prompt tokens reused | busiest backend by the mean | first token, median | 99th percentile |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| {each['strategy']} | {each['reused']:.1%} | {each['imbalance']:.2f} | {each['median'] * 1e3:,.0f} ms "
        f"| {each['p99'] * 1e3:,.0f} ms |"
        for each in told["strategies"]
    ]
    rows += ["", "| proxies hear of an invalidation by | median | the last one | answers under the old epoch |"]
    rows.append("|---|---|---|---|")
    for each in told["epochs"]:
        times = f"{each['median'] * 1e3:,.0f} ms | {each['last'] * 1e3:,.0f} ms"
        rows.append(f"| {each['by']} | {times} | {each['late']:,.1f} a change |")
    return "\n".join(rows)


def plot(told: Mapping[str, Any], title: str) -> str:
    """A panel a figure, a bar a strategy; light and dark grounds alike."""
    strategies: Sequence[Row] = told["strategies"]
    height = 74 + 26 * len(strategies)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" font-size="13">',
        f"<title>{title}</title>",
        "<desc>A panel each for reuse, imbalance and time to first token; one bar a strategy. The table beside it has "
        "the numbers.</desc>",
        "<style>text{fill:#555} .bar{fill:#9aa7b0} .ours{fill:#2a78b8}"
        "@media (prefers-color-scheme:dark){text{fill:#ccc} .bar{fill:#6b7680}}</style>",
        f'<text x="10" y="20" font-size="15">{title}</text>',
    ]
    for at, row in enumerate(strategies):
        lines.append(f'<text x="100" y="{78 + 26 * at}" text-anchor="end">{row["strategy"]}</text>')
    for panel, (name, label, shown) in enumerate(_PANELS):
        left = 110 + 264 * panel
        most = max(row[name] for row in strategies)
        lines.append(f'<text x="{left}" y="50">{label}</text>')
        for at, row in enumerate(strategies):
            width, kind = 190 * row[name] / most, "ours" if row["strategy"] == "prefix" else "bar"
            lines += [
                f'<rect class="{kind}" x="{left}" y="{66 + 26 * at}" width="{width:.0f}" height="16"/>',
                f'<text x="{left + 6 + width:.0f}" y="{78 + 26 * at}">{shown(row[name])}</text>',
            ]
    return "\n".join([*lines, "</svg>"]) + "\n"
