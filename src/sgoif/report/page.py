"""One self-contained HTML file: what a run found, to look at and decide about. No server, no network.

The page's policy lets it run its own script and nothing else, and connect to nowhere. Everything that comes from the
user's data is data on the page, never markup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sgoif.findings.keys import LEAST_SHARE
from sgoif.findings.label import class_name
from sgoif.report.cards import Beside, Card, Context
from sgoif.report.findings import Findings, Overview, overview
from sgoif.report.gallery import Gallery, Mode
from sgoif.report.health import health_figures, health_signs
from sgoif.report.html import Assets, render_html
from sgoif.report.keys import CardKeys, keys_of_cards
from sgoif.report.layout import lay_out_examples
from sgoif.report.queues import Queues, describe_queues
from sgoif.sources import Pictures

__all__ = ["Page", "render_page"]

_ASSETS = Assets(
    "page.html",
    (
        *("document", "browser", "examples", "estimate", "csv", "decisions", "grid", "actions", "finder", "focus"),
        *("batches", "offers", "queues", "filters", "overview", "map", "result", "loading", "views", "keys", "main"),
    ),
)
_PICTURES = {"embed": "data:", "link": "data: file: http: https:", "none": "data:"}  # where they may come from
_FORMAT = 2
_OWN = ("low", "high", "confidence", "visits")


@dataclass(frozen=True, slots=True)
class Page:
    """What distinguishes one page of a run from another: what it asks, whom, and what it shows."""

    title: str = "Label review"
    about: str = ""
    list_id: str | None = None  # which list; named by its cards if left out
    reviewer: str = ""
    place: Pictures | None = None  # where examples are
    mode: Mode = "embed"
    display: Callable[[Any], Any] | None = None  # makes a picture of an item of the data, where it is not a plain one
    blind: bool = False  # hide what the run thinks
    tokens: Sequence[str] | None = None  # what cards are called where ids would tell what some are there for
    links: Mapping[str, str] = field(default_factory=dict)  # addresses of originals, by the text of an id
    overview: Overview | None = None  # the top of the page; that of the run if left out
    asked: Sequence[Any] = ()  # what the cards are an answer to: rows of pictures, see `sgoif.report.questions.Asked`
    typical: Mapping[int, Sequence[Beside]] = field(default_factory=dict)  # instead of what the run finds typical
    is_sample: bool = False  # a random sample of labels to check, in random order: one question, and no findings
    run_url: str | None = None  # where the run is, for the command that applies the decisions
    queues: Queues = field(default_factory=Queues)  # what is decided besides; for the run's owner only
    past_keys: Sequence[tuple[float, bool]] = ()  # of earlier decisions, see `sgoif.report.keys.check_first_keys`

    @property
    def is_owners(self) -> bool:
        """Whether it shows what the run found; to reviewers that would suggest answers."""
        return not (self.blind or self.is_sample or self.tokens is not None)


def render_page(run: Findings, cards: Sequence[Card], context: Context, gallery: Gallery, page: Page) -> str:
    """Write the page."""
    top = (page.overview or overview(run)) if page.is_owners or page.is_sample else None
    return render_html(
        _ASSETS,
        _describe(run, top, cards, context, gallery, page),
        pictures=_PICTURES[gallery.mode],
        title=page.title,
        about=page.about,
        overview=top,
        asked=page.asked,
        is_sample=page.is_sample,
        is_owners=page.is_owners,
        signs=health_signs(run) if page.is_owners else [],
        health_figures=health_figures(run) if page.is_owners else [],
    )


def _describe(
    run: Findings, top: Overview | None, cards: Sequence[Card], context: Context, gallery: Gallery, page: Page
) -> dict[str, Any]:
    """What the page's script works on: cards by columns, examples by number."""
    is_secret = page.tokens is not None
    queues, extras = describe_queues(page.queues if page.is_owners else Queues(), cards)
    keys = [CardKeys()] * len(cards) if page.blind else keys_of_cards(cards, context.nearest)

    def beside(items: Sequence[Beside] | None) -> list[list[Any]]:
        return [[gallery.number(item.id), item.label, "" if is_secret else str(item.id)] for item in items or ()]

    return {
        "format": _FORMAT,
        "list": page.list_id,
        "reviewer": page.reviewer,
        "blind": page.blind,
        "secret": is_secret,
        "asked": len(page.asked) > 0,
        "sample": page.is_sample,
        "least_share": LEAST_SHARE,
        "past_keys": [] if page.blind else list(page.past_keys),
        "mode": gallery.mode,
        "classes": _names(run, cards, context, page),
        **_describe_run(run, top, cards, page),
        "cards": {
            "id": list(page.tokens or [str(card.id) for card in cards]),
            "given": [card.given for card in cards],
            "suggested": [list(item.labels) for item in keys],
            "shares": [list(item.shares) for item in keys],
            "agrees": [item.agrees for item in keys],
            # by whole percents: a check's lies between those of the cards around it, and finer steps would show that
            "p": [round(card.p, 2) if is_secret and card.p is not None else card.p for card in cards],
            # a check has no interval of its own: any that it were given would tell it from the rest
            **{name: [None if is_secret else getattr(card, name) for card in cards] for name in _OWN},
            # nor has it a reason; on a reviewer's page the neighbours, which all cards have, are the reason
            "why": ["" if page.blind or is_secret else card.why for card in cards],
            "source": ["train" if is_secret else card.source for card in cards],
            "example": [gallery.number(card.id) for card in cards],
            "link": [page.links.get(str(card.id)) for card in cards],
            "content": [gallery.content.get(str(card.id), "") for card in cards],
        },
        "queues": queues,
        "extras": {
            "id": [str(card.id) for card in extras],
            "given": [card.given for card in extras],
            "source": [card.source for card in extras],
            "example": [gallery.number(card.id) for card in extras],
            "link": [page.links.get(str(card.id)) for card in extras],
            "content": [gallery.content.get(str(card.id), "") for card in extras],
        },
        "beside": {
            "typical": {str(label): beside(items) for label, items in context.typical.items()},
            "nearest": [beside(context.nearest.get(str(card.id))) for card in cards],
            "harmed": [beside(context.harmed.get(str(card.id))) for card in cards],
            "epochs": [list(context.epochs.get(str(card.id), ())) for card in cards],
        },
        "kinds": list(gallery.count_kinds()),
        "columns": list(gallery.columns),
        "examples": list(gallery.shown),
    }


def _describe_run(run: Findings, top: Overview | None, cards: Sequence[Card], page: Page) -> dict[str, Any]:
    """What the views of a run's owner are made of."""
    if top is None or not page.is_owners:
        return {"owner": False}
    layout = lay_out_examples(run, cards)
    on_page = sum(card.p or 0.0 for card in cards if card.source == "train")
    checked = run.info.get("checked")
    return {
        "owner": True,
        "run": page.run_url,
        "sentence": top.sentence,
        "sizes": list(top.sizes),
        "beyond": {"errors": max(top.p_sum - on_page, 0.0)},
        "checked": checked["all"] if isinstance(checked, dict) else None,
        "map": None
        if layout is None
        else {"cards": layout.cards, "others": layout.others, "count": layout.num_examples},
    }


def _names(run: Findings, cards: Sequence[Card], context: Context, page: Page) -> list[str]:
    """Names of all classes that may be chosen or occur on the page; numbers where they have none."""
    used = [label for card in (*cards, *page.queues.cards) for label in (card.given, *card.suggested)]
    for items in (*context.nearest.values(), *context.harmed.values(), *context.typical.values()):
        used += [item.label for item in items]
    count = max([len(run.class_names), len(run.info.get("held_out_per_class") or ()), *(label + 1 for label in used)])
    return [class_name(label, run.class_names) for label in range(count)]
