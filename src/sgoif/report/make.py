"""From a run to pages on disk: one, or one for each person who reviews."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sgoif.errors import SgoifError
from sgoif.files.tables import write_text
from sgoif.report.cards import Card, apply_past_decisions, cards_of, context_of, plan_review, select_cards
from sgoif.report.findings import Findings
from sgoif.report.gallery import Gallery, Mode, build_gallery
from sgoif.report.keys import check_first_keys
from sgoif.report.page import Page, render_page
from sgoif.report.queues import find_queues
from sgoif.review.decisions import Decision, read_decisions
from sgoif.review.plan import read_plans, resolve_tokens, write_plan
from sgoif.sources import find_pictures

__all__ = ["ReportSettings", "file_name_of", "make_report", "write_page"]

log = logging.getLogger(__name__)

_NUM_SAMPLED = 1000  # rows by which it is told what is usual in a column


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """What the pages of a run show, and to whom."""

    images: Any = None  # where pictures, texts or rows are, see `sgoif.sources.find_pictures`; without, cards show ids
    top: int | None = 500  # how many examples, most suspicious first; None or 0 for all
    ids: Sequence[Any] | None = None  # show these instead
    pictures: Mode = "embed"  # examples into the page, "link" to them, or "none": ids and labels alone
    display: Callable[[Any], Any] | None = None  # makes a picture of an item of the data, where it is not a plain one
    decisions: Sequence[str | os.PathLike[str]] = ()  # files of earlier ones, which are not asked for again
    reviewers: Sequence[str] = ()  # names of people who share the work
    overlap: float = 0.05  # share of the cards that all of them get
    checks: float = 0.05  # random examples among the cards, as a share of them; only with reviewers, as are canaries
    blind: bool = False  # hide what the run thinks
    title: str | None = None
    seed: int = 0  # of what is drawn


def make_report(
    run: Findings, out: str | os.PathLike[str], settings: ReportSettings, *, run_url: str | None = None
) -> list[Path]:
    """Write the page of a run; or one page for each person, with the answer key in the run's folder.

    With reviewers, each name is put before the suffix of the file: ``report-ann.html``.

    Raises:
        SgoifError: There is nothing to show, pictures cannot be found, or a file cannot be understood.
    """
    top, ids, reviewers = settings.top or None, settings.ids, settings.reviewers
    place = None if settings.images is None else find_pictures(settings.images)
    page = Page(settings.title or "Label review", place=place, mode=settings.pictures, display=settings.display)
    page = replace(page, blind=settings.blind, run_url=run_url)
    past = _read_past(run, settings.decisions, run_url)
    cards = select_cards(run, top=None if top is None or ids is not None else top + len(past), ids=ids)
    if past:
        cards, decided = apply_past_decisions(cards, past, place)
        page = replace(page, past_keys=check_first_keys(run, decided))
    cards = cards if top is None or ids is not None else cards[:top]
    if not cards:
        raise SgoifError("there is nothing to show: no example is left that nobody has decided on.")
    if not reviewers:
        if page.is_owners and ids is None:
            page = replace(page, queues=find_queues(run, past, place))
        return [write_page(run, cards, out, page)]
    if run_url is None:
        raise SgoifError(
            "a review by several people needs a run on disk, where its answer key is kept; watch, audit or "
            "scan with `out`, and load that."
        )
    places = [_page_of(name, Path(out)) for name in reviewers]
    if len(set(places)) < len(places):
        raise SgoifError(f"two reviewers would get the same file: {', '.join(place.name for place in places)}.")
    if settings.pictures == "link":
        raise SgoifError("a link to a picture tells which example it is; embed the pictures, or show none.")
    plan = plan_review(
        run, run_url, cards, reviewers, overlap=settings.overlap, checks=settings.checks, seed=settings.seed
    )
    write_plan(run_url, plan)
    for name, where in zip(reviewers, places):
        mine = cards_of(plan, name, cards, run)
        tokens = [plan.token(card) for card in plan.cards[name]]
        write_page(run, mine, where, replace(page, reviewer=name, list_id=plan.list_id, tokens=tokens))
    return places


def write_page(run: Findings, cards: Sequence[Card], out: str | os.PathLike[str], page: Page) -> Path:
    """Write one page of some cards, in their order."""
    place, is_secret = page.place, page.tokens is not None
    context = context_of(run, cards, blind=page.blind, secret=is_secret)
    typical = {**context.typical, **page.typical}
    if page.is_sample:  # a card among the typical ones would be known to be in no doubt
        own, kept = {str(card.id) for card in cards}, typical if place is not None else {}
        typical = {label: [item for item in items if str(item.id) not in own] for label, items in kept.items()}
    context = replace(context, typical=typical)
    groups = (*context.typical.values(), *context.nearest.values(), *context.harmed.values())
    beside = [item.id for items in groups for item in items]
    gallery = build_gallery(
        place,
        [card.id for card in cards],
        beside,
        queued=[card.id for card in page.queues.cards],
        mode=page.mode,
        display=page.display,
        sample=partial(_sample_ids, run),
    )
    if gallery.num_missing:
        shown, kinds = len(gallery.shown) + gallery.num_missing, gallery.count_kinds()
        noun = f"{next(iter(kinds))}s" if len(kinds) == 1 else "examples" if kinds else "pictures"
        log.warning("%d of %d %s of %s could not be shown.", gallery.num_missing, shown, noun, out)
    links = (
        {}
        if place is None or is_secret
        else {str(card.id): place.link(card.id) for card in (*cards, *page.queues.cards)}
    )
    page = replace(
        page,
        about=_describe_contents(len(cards), gallery, page),
        list_id=page.list_id or _list_id(cards),
        links={ident: link for ident, link in links.items() if link is not None},
    )
    write_text(out, render_page(run, cards, context, gallery, page))
    return Path(out)


def file_name_of(reviewer: str) -> str:
    """A person's name as it stands in names of files; the page's script does the same."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in reviewer)


def _read_past(run: Findings, paths: Sequence[str | os.PathLike[str]], run_url: str | None) -> list[Decision]:
    """Earlier decisions; those on planned cards of this run have their examples' ids again."""
    count = max(len(run.class_names), len(run.info.get("held_out_per_class") or ()))
    found = [item for path in paths for item in read_decisions(path, run.class_names, count)]
    return resolve_tokens(found, read_plans(run_url)) if found and run_url is not None else found


def _page_of(reviewer: str, out: Path) -> Path:
    return out.with_name(f"{out.stem}-{file_name_of(reviewer)}{out.suffix or '.html'}")


def _sample_ids(run: Findings) -> list[Any]:
    """Some examples at random: what is usual among all is not what is usual among the suspicious."""
    table = run.sql(f"select id from examples using sample reservoir({_NUM_SAMPLED} rows) repeatable (0)")
    return list(table["id"].to_pylist())


def _describe_contents(count: int, gallery: Gallery, page: Page) -> str:
    """Say whose data the page holds: it may be sent on."""
    number, far = len(page.queues.pairs), len(page.queues.outliers)
    others = [f"{number:,} {'pair' if number == 1 else 'pairs'} of duplicates"] if number else []
    others += [f"{far:,} {'outlier' if far == 1 else 'outliers'}"] if far else []
    *first, last = f"{count:,} examples", *others
    shown = f"{', '.join(first)} and {last} to look at" if first else f"{last} to look at"
    shown += f", for {page.reviewer}" if page.reviewer else ""
    named = [*([] if page.tokens is not None else ["ids"]), "labels"]
    if page.place is None or gallery.mode == "none":
        return f"{shown}. This file holds {' and '.join(named)} only."
    kinds = gallery.count_kinds() or {"example": 0}
    parts = [f"{number:,} {kind}{'' if number == 1 else 's'}" for kind, number in kinds.items()]
    lost = f"; {gallery.num_missing:,} could not be read" if gallery.num_missing else ""
    texts = "1 text is" if gallery.num_cut == 1 else f"{gallery.num_cut:,} texts are"
    cut = f"; {texts} cut at {gallery.longest:,} characters" if gallery.num_cut else ""
    if gallery.mode == "link":
        held = f"{' and '.join(named)}, and links to {' and '.join(parts)}"
    else:
        *first, last = *named, *parts
        held = f"{', '.join(first)} and {last}"
    return f"{shown}. This file holds {held} of {page.place.about}{lost}{cut}."


def _list_id(cards: Sequence[Card]) -> str:
    """Name a list by what is on it, so that a page that is made again knows what was decided on it."""
    digest = hashlib.blake2b(digest_size=6)
    for card in cards:
        digest.update(f"{card.id}\0{card.given}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
