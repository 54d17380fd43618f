"""``sgoif verify``: a person checks a random sample of labels, and what is said of all of them rests on that.

On a page, or here in the terminal: one example after the other, is its label right? The sample is kept in the run's
folder; what is found lies there in ``checked.json``, for ``info``, ``check`` and the page of the run.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import typer

from sgoif.cli.output import clean, count, emit_json, print_lines, shorten
from sgoif.cli.report import find_images
from sgoif.cli.run import Run, name_of, need_examples, need_trust, open_run
from sgoif.cli.tags import has_tags
from sgoif.errors import SgoifError
from sgoif.files.tables import read_columns
from sgoif.review.decisions import Decision, read_decisions, write_decisions
from sgoif.review.naming import find_class, some_of
from sgoif.review.verify import CheckedList, draw_list, figures_of, is_current, keep_checked, read_lists, write_list
from sgoif.run import load
from sgoif.summary import checked_lines

__all__ = ["ask", "take_verdicts", "write_sample"]

_LONGEST = 2000  # characters of an example's text in the terminal


def write_sample(
    url: str,
    *,
    page: str,
    cards: int,
    seed: int,
    images: str | None,
    table: tuple[str, str] | None,
    as_json: bool = False,
) -> None:
    """Write the sample as a page to decide on; ``table`` names a file and its column of texts."""
    from sgoif.report.questions import write_sample_page

    found = _drawn(_opened(url), cards, seed)
    texts = None if table is None else _read_texts(*table, found)
    run = load(url)
    shown = find_images(run, images)
    write_sample_page(run, found, page, images=shown, texts=texts)
    write_list(url, found)
    if as_json:
        document = {"run": url, "page": page, "list": found.list_id, "cards": len(found.cards)}
        emit_json({"command": "verify", "format": 1, **document})
        return
    lines = [
        f"{clean(page)} shows {count(len(found.cards))} of {count(found.design.num_examples, 'label')}, drawn at "
        "random. Open it in any browser, say of each whether it is right, and download the verdicts. Then:",
        f"  sgoif verify {shlex.quote(url)} --verdicts verdicts.csv",
    ]
    if shown is None and texts is None:
        lines.append("Cards show ids only; pass --images for pictures, or --table and --text for texts.")
    print_lines(lines)


def take_verdicts(url: str, paths: Sequence[str], *, as_json: bool = False) -> None:
    """Work out what verdicts say of all labels, keep it in the run, and print it."""
    run = _opened(url)
    decisions = [item for path in paths for item in read_decisions(path, run.class_names, run.num_classes)]
    _conclude(run, decisions, as_json=as_json)


def ask(url: str, *, cards: int, seed: int, images: str | None, table: tuple[str, str] | None, out: str) -> None:
    """Ask in the terminal, card by card; every answer is kept in ``out`` at once, and asking goes on where it was."""
    run = _opened(url)
    found = _drawn(run, cards, seed)
    write_list(url, found)
    texts = None if table is None else _read_texts(*table, found)
    place = None if images is None else find_images(load(url), images)
    earlier = _earlier(out, run)
    decisions = [item for item in earlier if item.list_id == found.list_id]
    others = [item for item in earlier if item.list_id != found.list_id]
    known = {item.key for item in decisions}
    print_lines(
        [
            f"{count(len(found.cards))} of {count(found.design.num_examples, 'label')}, drawn at random. Is each label "
            "right? r right, w wrong, ? cannot tell, q stop; answers are kept.",
        ]
    )
    for number, card in enumerate(found.cards, 1):
        if card.key in known:
            continue
        shown = clean(card.id) if place is None else clean(f"{place.rstrip('/')}/{card.id}")
        text = None if texts is None else texts.get(str(card.id))
        lines = [] if text is None else [shorten(" ".join(text.split()), _LONGEST)]
        print_lines(
            ["", f"{number} of {len(found.cards)}: {shown}", *lines, f"labelled {name_of(run, card.given_label)}"]
        )
        try:
            answer = _answer(run, card.given_label)
        except (EOFError, typer.Abort):  # no more input: what was answered is kept
            break
        if answer is None:
            break
        kind, labels = answer
        at = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
        decisions.append(Decision(str(card.id), card.given_label, kind, labels, decided_at=at, list_id=found.list_id))
        write_decisions([*others, *decisions], out)
    if not decisions:
        return
    print_lines(["", f"{count(len(decisions), 'verdict')} kept in {clean(out)}."])
    try:
        _conclude(run, decisions)
    except SgoifError:  # a person who stops early has made no mistake
        if len(decisions) == len(found.cards):
            raise
        print_lines(["Too few to estimate an error rate yet; the same command continues where you stopped."])


def _opened(url: str) -> Run:
    run = open_run(url)
    need_examples(run)
    need_trust(run, needs_holdout=False)  # a sample of a part is no sample of the whole
    if has_tags(run):
        raise SgoifError("`sgoif verify` draws examples with one label each; this run has several tags per example.")
    return run


def _drawn(run: Run, cards: int, seed: int) -> CheckedList:
    return draw_list(run.sql, run.files.url, num_cards=cards, seed=seed)


def _read_texts(path: str, column: str, found: CheckedList) -> dict[str, str]:
    """What the examples of a sample are, from the user's own table with a column ``id``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pa.array([str(card.id) for card in found.cards])
    table = read_columns(path, ["id", column])
    table = table.filter(pc.is_in(table["id"].cast(pa.string()), value_set=ids))
    if not table.num_rows:
        raise SgoifError(
            f"none of the examples of the sample, such as {ids[0].as_py()!r}, is in the column id of '{path}'."
        )
    return {str(ident): str(text) for ident, text in zip(table["id"].to_pylist(), table[column].to_pylist())}


def _conclude(run: Run, decisions: Sequence[Decision], *, as_json: bool = False) -> None:
    named = {item.list_id for item in decisions}
    lists = [found for found in read_lists(run.files.url) if found.list_id in named]
    if not lists:
        raise SgoifError(
            f"none of {count(len(decisions), 'verdict')} is about a sample of this run; pass the file that the page of "
            f"`sgoif verify {run.url} --page FILE.html` gave."
        )
    if not all(is_current(found, run.sql) for found in lists):
        raise SgoifError(
            "the run has changed since this sample was drawn, so it is no random sample of its ranking any more; draw "
            f"another: `sgoif verify {run.url} --page FILE.html`."
        )
    document = figures_of(lists, decisions)
    keep_checked(run.files.url, document)
    if as_json:
        emit_json({"command": "verify", "run": run.url, **document})
        return
    print_lines(checked_lines(document))
    if document["num_open"]:
        print_lines([f"{count(document['num_open'], 'card')} of the sample are still open: more answers, less width."])


def _earlier(out: str, run: Run) -> list[Decision]:
    return read_decisions(out, run.class_names, run.num_classes) if Path(out).is_file() else []


def _answer(run: Run, given: int) -> tuple[str, tuple[int, ...]] | None:
    """Ask until the answer can be understood; None where the person stops."""
    while True:
        said = typer.prompt("right, wrong, ? or quit", prompt_suffix=" > ").strip().casefold()
        if said in ("r", "right"):
            return "keep", ()
        if said in ("?", "u", "unsure"):
            return "unsure", ()
        if said in ("q", "quit"):
            return None
        if said in ("w", "wrong"):
            return _class(run, given)
        print_lines(["Answer r, w, ? or q."])


def _class(run: Run, given: int) -> tuple[str, tuple[int, ...]]:
    while True:
        name = typer.prompt("which class is it (Enter for none or unknown)", default="", show_default=False).strip()
        if not name:
            return "none", ()
        label = find_class(name, run.class_names, run.num_classes)
        if label is not None and label != given:
            return "relabel", (label,)
        if label == given:
            return "keep", ()
        print_lines([f"There is no class {clean(name)!r}; there are {some_of(run.class_names, run.num_classes)}."])
