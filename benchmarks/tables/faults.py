"""What was broken, how often, and what came of it."""

from __future__ import annotations

from benchmarks.tables.rows import latest, table

__all__ = ["faults"]


def faults() -> str:
    """One row per fault, as last tried."""
    rows = latest("faults.jsonl", key=lambda run: run["fault"])
    return table(("fault", "tried", "outcome"), ([run["fault"], str(run["tried"]), run["outcome"]] for run in rows))
