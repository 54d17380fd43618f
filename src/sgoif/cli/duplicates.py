"""``sgoif duplicates``: examples that are the same or nearly, those with differing labels first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sgoif.cli.options import Json, MaybeText, RunPath, how_many, need_one_of
from sgoif.cli.output import count, emit_json, print_lines, print_table, shorten
from sgoif.cli.run import name_of, open_run
from sgoif.files.tables import write_csv


def duplicates(
    run: RunPath,
    top: Annotated[int, how_many("pairs")] = 50,
    csv: Annotated[MaybeText, typer.Option(metavar="FILE", help="Write the pairs as CSV.")] = None,
    as_json: Json = False,
) -> None:
    """Show examples that are the same or nearly, those with differing labels first."""
    import pyarrow.compute as pc

    need_one_of(csv=csv, json=as_json)
    opened = open_run(run, needs_examples=True, takes_sequences=True)
    pairs = opened.duplicates()
    if opened.has_sequences:
        return _show_sequences(pairs, top=top, csv=csv, as_json=as_json)
    differ, across = (int(pc.sum(pairs[name]).as_py() or 0) for name in ("labels_differ", "is_across_holdout"))
    shown = pairs.slice(0, top or None)
    if csv is not None:
        write_csv(shown, csv)
        return print_lines([f"{count(len(shown), 'pair')} written to {csv}."])
    if as_json:
        counts = {"num_pairs": len(pairs), "num_labels_differ": differ, "num_across_holdout": across}
        return emit_json("duplicates", **counts, pairs=shown.to_pylist())
    print_lines(
        [
            f"{count(len(pairs), 'pair')} of examples {'is' if len(pairs) == 1 else 'are'} the same or nearly so; the "
            f"labels differ in {count(differ)}, and {count(across)} {'has' if across == 1 else 'have'} one example in "
            "the training set and one in the hold-out."
        ]
    )
    if not len(shown):
        return

    def name_labels(row: Mapping[str, Any]) -> str:
        given, other = (name_of(opened, row[f"{kind}_label"]) for kind in ("given", "other"))
        return f"{given} and {other}" if row["labels_differ"] else f"both {given}"

    print_lines([""])
    print_table(
        shown.to_pylist(),
        {
            "id": lambda row: _show_id(row["id"], row["source"]),
            "copy": lambda row: _show_id(row["other_id"], row["other_source"]),
            "labels": name_labels,
            "alike": lambda row: f"nearly ({row['bits_apart']} of 256 bits differ)" if row["bits_apart"] else "same",
        },
        shrink=["id", "copy"],
    )


def _show_sequences(pairs: Any, *, top: int, csv: str | None, as_json: bool) -> None:
    kinds = pairs["kind"].to_pylist()
    other, held, same = (kinds.count(kind) for kind in ("other completion", "evaluation", "same"))
    shown = pairs.slice(0, top or None)
    if csv is not None:
        write_csv(shown, csv)
        return print_lines([f"{count(len(shown), 'row')} written to {csv}."])
    if as_json:
        counts = {"num_other_completions": other, "num_in_evaluation": held, "num_same": same}
        return emit_json("duplicates", **counts, pairs=shown.to_pylist())
    print_lines(
        [
            f"sequences with the prompt of another and a different completion: {count(other)}",
            f"sequences that an evaluation group has too: {count(held)}",
            f"sequences that repeat another: {count(same)}",
        ]
    )
    if len(shown):
        print_lines([""])
        against = {"other completion": "completed otherwise", "evaluation": "evaluation group", "same": "same as"}
        print_table(
            shown.to_pylist(),
            {
                "id": lambda row: shorten(row["id"]),
                "found": lambda row: against[row["kind"]],
                "beside": lambda row: shorten(row["other_id"] or row["group_name"]),
                "times": lambda row: count(row["n_same"]),
            },
            shrink=["id", "beside"],
        )


def _show_id(ident: Any, source: str) -> str:
    return shorten(ident) + (" (hold-out)" if source == "holdout" else "")
