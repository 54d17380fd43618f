"""``sgoif verify``: a person checks a random sample of labels, or of sequences, and what is said of all rests on that.

On a page, or here in the terminal: one example after the other, is its label right? The sample is kept in the run's
folder; what is found lies there in ``checked.json``, for ``info``, ``check`` and the page of the run.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from sgoif.cli.issues import has_tags
from sgoif.cli.options import Json, MaybeText, MaybeTexts, RunPath, Table
from sgoif.cli.output import clean, count, emit_json, print_lines, shorten
from sgoif.cli.report import find_images
from sgoif.cli.run import name_of, need_trust, open_run
from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from sgoif.review.decisions import Decision
    from sgoif.review.verify import CheckedList
    from sgoif.run import Run
    from sgoif.sources import Pictures
    from sgoif.sources.sequences import SequenceText

log = logging.getLogger(__name__)

_LONGEST = 2000  # characters of an example's text in the terminal


def verify(
    run: RunPath,
    page: Annotated[
        MaybeText, typer.Option(metavar="FILE.html", help="Write the sample as a page to decide on.")
    ] = None,
    verdicts: Annotated[
        MaybeTexts, typer.Option(metavar="FILE", help="Read verdicts that the page gave; may be repeated.")
    ] = None,
    cards: Annotated[
        int, typer.Option(metavar="N", min=20, help="Check this many labels; a larger number extends a sample.")
    ] = 60,
    images: Annotated[
        MaybeText,
        typer.Option(
            "--images",
            "--show",
            metavar="DIR|FILE|URL|MODULE:FUNCTION",
            help="Read pictures, texts or rows here; `run` means where the scan read them.",
        ),
    ] = None,
    table: Table = None,
    text: Annotated[MaybeText, typer.Option(metavar="COLUMN", help="Show only this column of --table.")] = None,
    out: Annotated[
        MaybeText, typer.Option(metavar="FILE.csv", help="Write answers given in the terminal to this file.")
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Draw the sample from this seed; another one draws other labels.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Check a random sample of labels, or of sequences: how many of all are wrong, with an interval.

    Without options, asks in the terminal. With --page, writes a page to decide on; --verdicts takes its answers.
    """
    if page is not None and verdicts:
        raise SgoifError(
            "--page FILE.html draws a sample, and --verdicts FILE.csv reads what was found; pass one of them."
        )
    if text is not None and table is None:
        raise SgoifError("--text COLUMN goes with --table FILE.")
    if table is not None and images is not None:
        raise SgoifError("--images PLACE and --table FILE both say what examples are; pass one of them.")
    from sgoif.review.verify import draw_list, find_extended, read_lists, write_list

    opened = open_run(run, needs_examples=True, takes_sequences=True)
    need_trust(opened, needs_holdout=False)  # a sample of a part is no sample of the whole
    if has_tags(opened):
        raise SgoifError("`sgoif verify` draws examples with one label each; this run has several tags per example.")
    if out is not None and Path(out).suffix.lower() not in ("", ".csv"):
        raise SgoifError(f"answers given in the terminal are written as CSV; --out must end in .csv, got {out!r}.")
    if verdicts:
        decisions = [item for path in verdicts for item in _read_verdicts(opened, path)]
        return _conclude(opened, decisions, as_json=as_json)
    if page is None and as_json:
        raise SgoifError("--json goes with --page or --verdicts; in the terminal, questions are asked.")
    lists = read_lists(run)
    found = draw_list(opened.sql, opened.info, opened.files.url, num_cards=cards, seed=seed, earlier=lists)
    smaller = find_extended(found, lists)
    if opened.has_sequences:
        if table is not None:
            raise SgoifError("--table goes with labels; this run judged sequences, whose texts --show FILE reads.")
        return _verify_sequences(opened, run, found, smaller, page, images, out, as_json=as_json)
    named = None if table is not None else find_images(opened, images)
    place = _open_table(table, text, found) if table is not None else None if named is None else named.open()
    if page is None:
        write_list(run, found)
        where = None if named is None else named.where
        return _ask(opened, found, [item.list_id for item in smaller], _Examples(where, place), out or "verdicts.csv")
    from sgoif.report.questions import write_sample_page
    from sgoif.run import load

    write_sample_page(load(run), found, page, images=place)
    write_list(run, found)
    lines = _tell_of_page(run, found, smaller, page, "label", as_json=as_json)
    if place is None and lines:
        lines.append("Cards show ids only; pass --images for pictures, or --table for the columns of your table.")
    print_lines(lines)


def _verify_sequences(
    run: Run,
    url: str,
    found: CheckedList,
    smaller: Sequence[CheckedList],
    page: str | None,
    images: str | None,
    out: str | None,
    *,
    as_json: bool,
) -> None:
    """Check sequences of a language model, on a page or in the terminal: is each completion right?"""
    from sgoif.report.sequences import read_sample_texts, write_sequence_sample
    from sgoif.review.verify import write_list

    place, texts = read_sample_texts(found, images)
    if page is None:
        write_list(url, found)
        shown = _Sequences(texts)
        return _ask(run, found, [item.list_id for item in smaller], shown, out or "sequence_verdicts.csv")
    write_sequence_sample(found, page, place, texts, run_url=url)
    write_list(url, found)
    print_lines(_tell_of_page(url, found, smaller, page, "sequence", as_json=as_json))


def _tell_of_page(
    run: str, found: CheckedList, smaller: Sequence[CheckedList], page: str, what: str, *, as_json: bool
) -> list[str]:
    """Say how to go on with a page; as JSON at once, with no lines left."""
    if as_json:
        emit_json("verify", run=run, page=page, list=found.list_id, cards=len(found.cards))
        return []
    file = "verdicts.csv" if what == "label" else "verdicts.jsonl"
    lines = [
        f"{clean(page)} shows {count(len(found.cards))} of {count(found.design.num_examples, what)}, drawn at "
        "random. Open it in any browser, say of each whether it is right, and download the verdicts. Then:",
        f"  sgoif verify {shlex.quote(run)} --verdicts {file}",
    ]
    if smaller:
        lines[0] = lines[0].replace(" Then:", "")
        lines[1:] = [
            f"The first {count(len(smaller[0].cards))} are those of the sample drawn before. Start after them if you "
            "have their verdicts, and pass both files:",
            f"  sgoif verify {shlex.quote(run)} --verdicts EARLIER{Path(file).suffix} --verdicts {file}",
        ]
    return lines


def _read_verdicts(run: Run, path: str) -> list[Decision]:
    from sgoif.review.decisions import read_decisions
    from sgoif.review.sequences import read_sequence_decisions

    if run.has_sequences:
        return read_sequence_decisions(path)
    return read_decisions(path, run.class_names, run.num_classes)


class _Shown(Protocol):
    """What the terminal says of an example."""

    def describe(self, ident: Any) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Its prompt and its completion, where its text is known."""

    texts: Mapping[str, SequenceText]

    def describe(self, ident: Any) -> list[str]:
        text = self.texts.get(str(ident))
        if text is None:
            return [clean(ident)]
        prompt = [f"prompt: {shorten(text.prompt, _LONGEST)}"] if text.prompt else []
        return [clean(ident), *prompt, f"completion: {shorten(text.completion, _LONGEST)}"]


@dataclass(frozen=True, slots=True)
class _Examples:
    """What the terminal says of an example: where its picture lies, its text or its row."""

    where: str | None
    place: Pictures | None

    def describe(self, ident: Any) -> list[str]:
        from sgoif.sources.written import as_line, is_written

        value = None if self.place is None else next(iter(self.place.read([ident])))
        if is_written(value):
            return [clean(ident), shorten(as_line(value), _LONGEST)]
        return [clean(ident) if self.where is None else clean(f"{self.where.rstrip('/')}/{ident}")]


def _ask(run: Run, found: CheckedList, smaller: Sequence[str], examples: _Shown, out: str) -> None:
    """Ask in the terminal, card by card; every answer is kept in ``out`` at once, and asking goes on where it was.

    Answers to the samples that this one extends, whose ids are ``smaller``, count as well.
    """
    from sgoif.review.decisions import Decision, write_decisions

    what = "sequence" if run.has_sequences else "label"
    earlier = _read_verdicts(run, out) if Path(out).is_file() else []
    decisions = [item for item in earlier if item.list_id in (found.list_id, *smaller)]
    others = [item for item in earlier if item.list_id not in (found.list_id, *smaller)]
    known = {item.key for item in decisions}
    print_lines(
        [
            f"{count(len(found.cards))} of {count(found.design.num_examples, what)}, drawn at random. Is each {what} "
            "right? r right, w wrong, ? cannot tell, q stop; answers are kept.",
        ]
    )
    for number, card in enumerate(found.cards, 1):
        if card.key in known:
            continue
        first, *rest = examples.describe(card.id)
        given = name_of(run, card.given_label)
        labelled = [] if run.has_sequences else [f"labelled {given}"]
        print_lines(["", f"{number} of {len(found.cards)}: {first}", *rest, *labelled])
        try:
            answer = _read_answer(run, card.given_label)
        except (EOFError, typer.Abort):  # no more input: what was answered is kept
            break
        if answer is None:
            break
        at = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
        kind, labels = answer
        names = {"given_name": given, "label_name": "|".join(name_of(run, label) for label in labels)}
        about = {"decided_at": at, "list_id": found.list_id, **names}
        decisions.append(Decision(str(card.id), card.given_label, kind, labels, **about))
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


def _open_table(path: str, column: str | None, found: CheckedList) -> Pictures:
    """Open the user's own table with a column ``id``, to show one column of it as texts, or its rows."""
    from sgoif.sources.columns import ColumnNames
    from sgoif.sources.datasets import TablePictures
    from sgoif.sources.tables import TABLE_SUFFIXES

    if not Path(path).is_file() or Path(path).suffix.lower() not in TABLE_SUFFIXES:
        raise SgoifError(f"'{path}' is no table; --table takes a {', '.join(TABLE_SUFFIXES)} file with a column id.")
    place = TablePictures([Path(path)], ColumnNames(id="id", text=column), as_rows=column is None)
    ids = [card.id for card in found.cards]
    if all(value is None for value in place.read(ids)):
        raise SgoifError(
            f"none of the examples of the sample, such as {str(ids[0])!r}, is in the column id of '{path}'."
        )
    return place


def _conclude(run: Run, decisions: Sequence[Decision], *, as_json: bool = False) -> None:
    """Work out what verdicts say of all examples, keep it in the run, and print it."""
    from sgoif.review.verify import figures_of, is_current, keep_checked, read_lists
    from sgoif.summary import describe_checked

    draw = f"sgoif verify {run.url} --page FILE.html{' --show TEXTS.jsonl' if run.has_sequences else ''}"

    named = {item.list_id for item in decisions}
    lists = [found for found in read_lists(run.files.url) if found.list_id in named]
    if not lists:
        raise SgoifError(
            f"none of {count(len(decisions), 'verdict')} is about a sample of this run; pass the file that the page of "
            f"`{draw}` gave. Rows of your own need the page's `list`, too."
        )
    if not all(is_current(found, run.sql, run.info) for found in lists):
        raise SgoifError(
            "the run has changed since this sample was drawn, so it is no random sample of its ranking any more; draw "
            f"another: `{draw}`."
        )
    drawn = {(found.list_id, *card.key) for found in lists for card in found.cards}
    if num_others := sum((item.list_id, *item.key) not in drawn for item in decisions):
        log.warning("%s not counted: the samples did not draw what they are about.", count(num_others, "verdict"))
    document = figures_of(lists, decisions)
    keep_checked(run.files.url, document)
    if as_json:
        return emit_json("verify", run=run.url, **document)
    print_lines(describe_checked(document, "sequence" if run.has_sequences else "label"))
    if document["num_open"]:
        print_lines([f"{count(document['num_open'], 'card')} of the sample are still open: more answers, less width."])


def _read_answer(run: Run, given: int) -> tuple[str, tuple[int, ...]] | None:
    """Ask until the answer can be understood; None where the person stops."""
    while True:
        answer = typer.prompt("right, wrong, ? or quit", prompt_suffix=" > ").strip().casefold()
        if answer in ("r", "right"):
            return "keep", ()
        if answer in ("?", "u", "unsure"):
            return "unsure", ()
        if answer in ("q", "quit"):
            return None
        if answer not in ("w", "wrong"):
            print_lines(["Answer r, w, ? or q."])
        elif run.has_sequences:
            return "drop", ()
        elif (found := _read_class(run, given)) is not None:
            return found


def _read_class(run: Run, given: int) -> tuple[str, tuple[int, ...]] | None:
    """Ask which class it is; None where it is the one that was called wrong."""
    from sgoif.review.decisions import find_class, some_of

    while True:
        name = typer.prompt("which class is it (Enter for none or unknown)", default="", show_default=False).strip()
        if not name:
            return "none", ()
        label = find_class(name, run.class_names, run.num_classes)
        if label is not None and label != given:
            return "relabel", (label,)
        if label == given:
            print_lines([f"{clean(name)} is the label that it has. Is that right or wrong?"])
            return None
        print_lines([f"There is no class {clean(name)!r}; there are {some_of(run.class_names, run.num_classes)}."])
