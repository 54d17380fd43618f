"""``sgoif apply`` for a language model: decisions about training sequences become a manifest to train on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sgoif.cli.output import clean, count, emit_json, print_lines, shorten
from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from sgoif.review.sequences import DecidedSequences
    from sgoif.run import Run

_ACTIONS = {
    "drop": "dropped",
    "edit": "with a corrected completion",
    "keep": "kept",
    "unsure": "unsure (kept)",
    "unreviewed": "not looked at",
}


def apply_sequences(run: Run, url: str, files: Sequence[str], out: str, *, as_json: bool) -> None:
    """Write the manifest of a run of sequences and say what is in it."""
    from sgoif.review.sequences import decide_sequences, read_sequence_decisions, write_sequence_manifest

    decisions = [item for path in files for item in read_sequence_decisions(path)]
    if not decisions:
        raise SgoifError(f"nothing is decided in {', '.join(map(repr, files))}: every decision is empty.")
    decided = decide_sequences(run.sql, decisions)
    write_sequence_manifest(run.sql, decided, out)
    if as_json:
        return emit_json(
            "apply",
            run=url,
            out=out,
            decisions=decided.num_decisions,
            counts=decided.counts(),
            not_in_run=len(decided.strangers),
            disagreements=decided.disagreements,
        )
    print_lines([*_describe(decided), *_warn_of_names(files), f"The manifest is in {clean(out)}. Train on it:"])
    print_lines([f"  dataset = sgoif.cleaned(dataset, {out!r})"])


def _warn_of_names(files: Sequence[str]) -> list[str]:
    """Without a reviewer, a file's name is the person's: files of one name would be taken for one person's."""
    names = Counter(Path(path).stem for path in files)
    return [
        f"Warning: {count(number)} files are called {clean(name)}: rows in them that name no reviewer count as one "
        "person's, and the latest wins. Rename the files where they are of different people."
        for name, number in names.items()
        if number > 1
    ]


def _describe(decided: DecidedSequences) -> list[str]:
    people = [f"{clean(name)} {count(number)}" for name, number in decided.num_decisions.items()]
    counts = decided.counts()
    became = [f"{count(counts[kind])} {text}" for kind, text in _ACTIONS.items() if counts[kind]]
    lines = [f"{count(sum(decided.num_decisions.values()), 'decision')} read: {', '.join(people)}."]
    lines.append(f"Of {count(decided.num_sequences, 'sequence')}: {', '.join(became)}.")
    if decided.disagreements:
        named = ", ".join(shorten(id, 40) for id in decided.disagreements[:5])
        more = ", ..." if len(decided.disagreements) > 5 else ""
        lines.append(f"People disagree about {count(len(decided.disagreements), 'sequence')}, kept: {named}{more}.")
    if decided.strangers:
        lines.append(
            f"Warning: {count(len(decided.strangers), 'decision')} not applied: the run has no such id, for example "
            f"{shorten(decided.strangers[0], 80)!r}."
        )
    return lines
