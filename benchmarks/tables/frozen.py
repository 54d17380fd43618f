"""What ``sgoif scan`` finds."""

from __future__ import annotations

from benchmarks.tables.rows import latest, table


def scan() -> str:
    """True errors among the first 100 of ``sgoif scan``, one line per run."""
    rows = [
        [
            f"{run['settings']['path']}, {run['seed']}",
            *map(str, (run["top_100"], run["margin_top_100"], run["worst_top_100"])),
            f"{run['ap']:.1f}",
            f"{run['seconds']:.0f}",
        ]
        for run in latest("scan.jsonl")
    ]
    return table(("path, seed", "of the first 100", "by margin alone", "by `worst` alone", "AP", "seconds"), rows)
