"""The figures as a table."""

from __future__ import annotations

from typing import Any

from loadtest import page

COMMAND = "python -m loadtest drift"
_RUNS = (
    ("undisturbed", "the same again, undisturbed"),
    ("process_wide", "process-wide values, changed after twenty tokens"),
    ("samewise", "a new profile version through Samewise"),
    ("after_the_update", "asked after it, against an undisturbed run with the new values"),
)


def table(figures: dict[str, Any]) -> str:
    """One row a run, and a line on the cost where it was measured."""
    rows = [
        "| engine | run | answers that changed | first other token | Self-BLEU | after the update | perplexity |",
        "|---|---|---|---|---|---|---|",
    ]
    for engine in figures["engines"]:
        rows += [_row(engine["engine"], words, engine[name]) for name, words in _RUNS if name in engine]
    costs = [_cost(engine["isolation"]) for engine in figures["engines"] if "isolation" in engine]
    return "\n\n".join(["\n".join(rows), *costs])


def renewed(text: str, figures: dict[str, Any]) -> str:
    """The page with this table between its marks. Raises ValueError where it has none."""
    return page.renewed(text, COMMAND, table(figures))


def _row(engine: str, words: str, run: dict[str, Any]) -> str:
    place = run["first_difference"]
    first = "none" if place is None else f"{place['least'] + 1} (median {place['median'] + 1:.0f})"
    cells = [
        engine,
        words,
        f"{run['changed']} of {run['requests']}",
        first,
        f"{run['self_bleu']:.2f}",
        f"{run['self_bleu_after']:.2f}",
        f"{run['perplexity_after']:.1f} ({100 * (run['perplexity_jump'] - 1):+.0f} %)",
    ]
    return "| " + " | ".join(cells) + " |"


def _cost(isolation: dict[str, Any]) -> str:
    rates = isolation["tokens_per_cpu_second"]
    low, high = isolation["cost_quartiles"]
    return (
        f"A sampler for each request in place of one for the process: {rates['isolated']:.0f} against "
        f"{rates['process_wide']:.0f} tokens a second of CPU time, {100 * isolation['cost']:+.1f} % "
        f"(quartiles {100 * low:+.1f} and {100 * high:+.1f}) in {isolation['pairs']} interleaved pairs."
    )
