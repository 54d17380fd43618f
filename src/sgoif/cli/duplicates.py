"""``sgoif duplicates``: examples that are the same or nearly, those with differing labels first."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from sgoif.cli.output import clean, count, emit_json, print_lines, print_table, shorten
from sgoif.cli.run import Run, name_of, need_examples, open_run
from sgoif.files.tables import write_csv

__all__ = ["show_duplicates"]


def show_duplicates(url: str, *, top: int | None = 50, csv: str | None = None, as_json: bool = False) -> None:
    """Print or write pairs of copies."""
    run = open_run(url)
    need_examples(run)
    pairs = run.duplicates()
    differ = int(pc.sum(pairs["labels_differ"]).as_py() or 0)
    across = int(pc.sum(pairs["is_across_holdout"]).as_py() or 0)
    shown = pairs if top is None else pairs.slice(0, top)
    if csv is not None:
        write_csv(shown, csv)
        print_lines([f"{count(len(shown), 'pair')} written to {csv}."])
        return
    if as_json:
        counts = {"num_pairs": len(pairs), "num_labels_differ": differ, "num_across_holdout": across}
        emit_json({"command": "duplicates", "format": 1, **counts, "pairs": shown.to_pylist()})
        return
    print_lines(
        [
            f"{count(len(pairs), 'pair')} of examples {'is' if len(pairs) == 1 else 'are'} the same or nearly so; the "
            f"labels differ in {count(differ)}, and {count(across)} {'has' if across == 1 else 'have'} one example in "
            "the training set and one in the hold-out."
        ]
    )
    if len(shown):
        print_lines([""])
        _print_pairs(run, shown.to_pylist())


def _print_pairs(run: Run, rows: list[dict[str, Any]]) -> None:
    print_table(
        ["id", "copy", "labels", "alike"],
        [
            [
                shorten(row["id"]) + (" (hold-out)" if row["source"] == "holdout" else ""),
                shorten(row["other_id"]) + (" (hold-out)" if row["other_source"] == "holdout" else ""),
                f"{clean(name_of(run, row['given_label']))} and {clean(name_of(run, row['other_label']))}"
                if row["labels_differ"]
                else f"both {clean(name_of(run, row['given_label']))}",
                "same" if row["bits_apart"] == 0 else f"nearly ({row['bits_apart']} of 256 bits differ)",
            ]
            for row in rows
        ],
        shrink=["id", "copy"],
    )
