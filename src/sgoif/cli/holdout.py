"""``sgoif holdout``: a person verifies the most doubtful hold-out labels, and later runs rest on them.

The examples to look at go into a CSV file with an empty column; once filled in, they are merged into one file of
verified labels, ``id,label``, which grows from run to run.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.options import Images, Json, MaybeText, Page, RunPath
from sgoif.cli.output import clean, count, emit_json, print_lines, shorten
from sgoif.cli.report import open_images
from sgoif.cli.run import name_of, open_run, read_one
from sgoif.errors import SgoifError
from sgoif.files.tables import read_csv_rows, write_csv_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sgoif.run import Run

_COLUMN = "verified_label"
_HEADER = ("id", "given_label", "given_name", "suggested_name", "p_mislabeled", _COLUMN)
_FEW = 5  # of a class: what a run needs of verified labels to rest on them


def holdout(
    run: RunPath,
    size: Annotated[int, typer.Option(metavar="N", min=1, help="Choose this many examples to verify.")] = 300,
    out: Annotated[
        MaybeText, typer.Option(metavar="FILE.csv", help="Write the examples to verify to this file.")
    ] = None,
    page: Page = None,
    images: Images = None,
    filled: Annotated[
        MaybeText,
        typer.Option(metavar="FILE.csv", help="Read that file when it is filled in, or the decisions of the page."),
    ] = None,
    verified: Annotated[
        MaybeText, typer.Option(metavar="FILE.csv", help="Keep all verified labels in this file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out even if it is filled in.")] = False,
    as_json: Json = False,
) -> None:
    """Verify the most doubtful hold-out labels by hand, for later runs to rest on.

    First --page verify.html, to decide on, or --out verify.csv, to fill in; then --filled FILE.csv --verified
    verified.csv.
    """
    if sum(option is not None for option in (out, page, filled)) != 1:
        raise SgoifError(
            "choose one of --page FILE.html or --out FILE.csv, to verify, and --filled FILE.csv, to merge."
        )
    import numpy as np

    opened = open_run(run)
    if opened.info.get("kind") == "scan":
        raise SgoifError(
            f"{run!r} is a scan, which holds nothing out. To know how many of its labels are wrong, check a sample: "
            f"`sgoif verify {run} --page check.html`; labels that a person has checked go into `sgoif scan --verified`."
        )
    if filled is not None:
        return _merge_filled(opened, filled, verified or "verified.csv", as_json=as_json)
    known = set(_read_verified(verified)) if verified is not None and os.path.exists(verified) else set()
    if out is not None and os.path.exists(out) and not force and _is_filled(out):
        raise SgoifError(
            f"'{out}' has verified labels in it, which would be lost. Merge them first: `sgoif holdout {run} --filled "
            f"{out} --verified {verified or 'verified.csv'}`; or pass --force."
        )
    rows = _read_held_out(opened, known)
    p, labels = np.array([row["p"] for row in rows], float), np.array([row["given_label"] for row in rows])
    chosen = [rows[int(i)] for i in choose_doubtful(p, labels, size)]
    counts = {"written": len(chosen), "already_verified": len(known)}
    if page is not None:
        from sgoif.run import load

        ids, loaded = [row["id"] for row in chosen], load(run)
        title = f"Verify {count(len(ids), 'held-out label')}"
        loaded.report(page, ids=ids, images=open_images(loaded, images), title=title)
        if as_json:
            return emit_json("holdout", run=run, out=page, **counts)
        lines = [
            f"{clean(page)} shows {count(len(chosen))} of {count(len(rows))} hold-out examples, the most doubtful "
            "ones. Open it in any browser, decide, download the decisions. Then:"
        ]
    else:
        write_csv_rows(str(out), _HEADER, (_cells(opened, row) for row in chosen))
        per_class = Counter(name_of(opened, row["given_label"]) for row in chosen)
        if as_json:
            return emit_json("holdout", run=run, out=out, **counts, per_class=dict(per_class))
        lines = [
            f"{count(len(chosen))} of {count(len(rows))} hold-out examples written to {clean(out)}, the most doubtful "
            f"first; every class has at least {min(per_class.values(), default=0)}.",
            f"Fill in the column {_COLUMN} with the name or number of the true class, and leave empty what you cannot "
            "tell. Then:",
        ]
    to_fill = "decisions.csv" if out is None else clean(out)
    merge_it = f"  sgoif holdout {clean(run)} --filled {to_fill} --verified {clean(verified or 'verified.csv')}"
    print_lines([*lines, merge_it])


def _merge_filled(run: Run, filled: str, verified: str, *, as_json: bool) -> None:
    """Take what a person filled in into the file of verified labels; what is there for the same id is replaced."""
    held = run.sql("select id::varchar as id from holdout")["id"].to_pylist()
    found = _read_filled(run, filled, set(held))
    labels = _read_verified(verified) if os.path.exists(verified) else {}
    fresh = {ident: name for ident, name in found.items() if labels.get(ident) != name}
    replaced = sum(ident in labels for ident in fresh)
    labels |= fresh
    write_csv_rows(verified, ("id", "label"), labels.items())
    if as_json:
        counts = {"read": len(found), "added": len(fresh) - replaced, "replaced": replaced, "total": len(labels)}
        return emit_json("holdout", run=run.url, verified=verified, **counts)
    print_lines(
        [
            f"{count(len(found), 'verified label')} read from {clean(filled)}: {count(len(fresh) - replaced)} new, "
            f"{count(replaced)} changed.",
            f"{clean(verified)} holds {count(len(labels), 'verified label')} now. Use them:",
            f"  sgoif scan DATA --verified {clean(verified)}",
        ]
    )


def choose_doubtful(p: NDArray[np.float64], labels: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Choose rows by ``p``, largest first, with a share of at least half its even part for every class.

    >>> import numpy as np
    >>> choose_doubtful(np.array([0.9, 0.8, 0.7, 0.1]), np.array([0, 0, 0, 1]), 3).tolist()
    [0, 1, 3]
    """
    import numpy as np

    order = np.argsort(-np.nan_to_num(p, nan=-1.0), kind="stable")
    classes = np.unique(labels)
    share = max(min(_FEW, size // max(len(classes), 1)), size // (2 * max(len(classes), 1)))
    taken = np.zeros(len(p), bool)
    for label in classes:
        taken[order[labels[order] == label][:share]] = True
    for i in order:
        if taken.sum() >= size:
            break
        taken[i] = True
    return order[taken[order]][:size]


def _read_verified(path: str) -> dict[str, str]:
    """Read the file of verified labels."""
    return {row["id"]: row["label"].strip() for _, row in read_csv_rows(path, ["id", "label"]) if row["label"].strip()}


def _read_held_out(run: Run, known: set[str]) -> list[dict[str, Any]]:
    """Hold-out examples that nobody has verified, with what the run thinks of them."""
    from sgoif.summary import why_no_probabilities

    if not read_one(run, "select count(p_mislabeled) as n from holdout"):
        raise SgoifError(f"{run.url!r} has not judged its hold-out: {why_no_probabilities(run.info)}.")
    rows: list[dict[str, Any]] = run.sql(
        "select id::varchar as id, given_label, coalesce(suggested_label, -1) as suggested_label, p_mislabeled as p "
        "from holdout where not coalesce(trusted, false) and given_label >= 0 order by id"
    ).to_pylist()
    left = [row for row in rows if row["id"] not in known]
    if not left:
        raise SgoifError(f"all hold-out labels of {run.url!r} are verified already; there is nothing left to look at.")
    return left


def _cells(run: Run, row: dict[str, Any]) -> list[Any]:
    p = None if row["p"] is None else round(row["p"], 4)
    names = name_of(run, row["given_label"]), name_of(run, row["suggested_label"])
    return [row["id"], row["given_label"], *names, p, ""]


def _is_filled(path: str) -> bool:
    """Whether a person has begun to fill in a file."""
    try:
        return any(row[_COLUMN].strip() for _, row in read_csv_rows(path, ["id", _COLUMN]))
    except SgoifError as error:
        raise SgoifError(f"'{path}' is there already and was not written by this command; pass --force.") from error


def _read_filled(run: Run, path: str, held: set[str]) -> dict[str, str]:
    """Ids and true classes that a person wrote down, by name where classes have names."""
    from sgoif.review.decisions import find_class, some_of

    if not Path(path).is_file():
        raise SgoifError(f"'{path}' is no file; pass the CSV file that `sgoif holdout` wrote, filled in.")
    if _is_decisions(path):
        return _read_decided(run, path)
    found: dict[str, str] = {}
    for line, row in read_csv_rows(path, ["id", _COLUMN]):
        written = row[_COLUMN].strip()
        if not written:
            continue
        if row["id"] not in held:
            raise SgoifError(
                f"line {line} of '{path}': this run's hold-out has no id {shorten(row['id'], 80)!r}. Has a spreadsheet "
                "changed it? Format the column id as text."
            )
        label = find_class(written, run.class_names, run.num_classes)
        if label is None:
            classes = some_of(run.class_names, run.num_classes)
            raise SgoifError(f"line {line} of '{path}': there is no class {written!r}; there are {classes}.")
        name = name_of(run, label)
        if found.setdefault(row["id"], name) != name:
            raise SgoifError(
                f"line {line} of '{path}': {shorten(row['id'], 80)!r} is {name!r} here and {found[row['id']]!r} above."
            )
    if not found:
        raise SgoifError(f"'{path}' has nothing in its column {_COLUMN}; fill it in first.")
    return found


def _is_decisions(path: str) -> bool:
    """Whether a file comes from the review page instead."""
    first = next(read_csv_rows(path, []), None)
    return first is not None and "decision" in first[1] and _COLUMN not in first[1]


def _read_decided(run: Run, path: str) -> dict[str, str]:
    """Verified labels out of decisions: what was kept or relabelled. Examples outside the hold-out do not matter."""
    from sgoif.review.decisions import read_decisions
    from sgoif.review.merge import merge

    rows = run.sql("select id::varchar as id, given_label from holdout")
    given = dict(zip(rows["id"].to_pylist(), rows["given_label"].to_pylist(), strict=True))
    merged = merge(read_decisions(path, run.class_names, run.num_classes))
    found = {
        item.id: name_of(run, item.label)
        for item in merged.outcomes
        if item.action in ("keep", "relabel") and given.get(item.id) == item.given_label
    }
    if not found:
        raise SgoifError(f"'{path}' keeps or relabels no hold-out example of this run under the label that it has.")
    return found
