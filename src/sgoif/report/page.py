"""One self-contained HTML file: what a run found, to look at and decide about. No server, no network.

The page's policy lets it run its own script and nothing else, and connect to nowhere. Everything that comes from the
user's data is data on the page, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from sgoif.findings.label import class_name
from sgoif.report.cards import Beside, Card, Context
from sgoif.report.findings import Findings, Overview
from sgoif.report.gallery import Gallery
from sgoif.report.health import health_figures, health_signs

__all__ = ["PageSettings", "render_page"]

SCRIPTS = (
    *("document", "estimate", "csv", "decisions", "grid", "actions"),
    *("finder", "opened", "keys", "loading", "main"),
)
_FORMAT = 1
_OWN = ("low", "high", "confidence", "visits")


@dataclass(frozen=True, slots=True)
class PageSettings:
    """What distinguishes one page of a run from another."""

    title: str
    about: str
    list_id: str
    reviewer: str = ""
    blind: bool = False
    tokens: Sequence[str] | None = None  # what cards are called where ids would tell what some are there for
    links: Mapping[str, str] | None = None  # addresses of originals, by the text of an id
    asked: Sequence[Any] = ()  # what the cards are an answer to
    is_sample: bool = False  # a random sample of labels to check, in random order: one question, and no findings
    texts: Mapping[str, str] | None = None  # what examples are, where that is text; by the text of an id


def render_page(
    run: Findings,
    overview: Overview,
    cards: Sequence[Card],
    context: Context,
    gallery: Gallery,
    settings: PageSettings,
) -> str:
    """Write the page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    style, script = _asset("page.css"), _script()
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string(_asset("page.html"))
    document = _document(run, overview, cards, context, gallery, settings)
    return template.render(
        title=settings.title,
        about=settings.about,
        policy=_policy(style, script, gallery.mode),
        style=Markup(style),
        script=Markup(script),
        document=Markup(_as_script_data(document)),
        overview=_drawn(overview),
        asked=settings.asked,
        is_sample=settings.is_sample,
        signs=[] if settings.is_sample else health_signs(run),
        health_figures=[] if settings.is_sample else [_figure(figure) for figure in health_figures(run)],
    )


def _document(
    run: Findings,
    overview: Overview,
    cards: Sequence[Card],
    context: Context,
    gallery: Gallery,
    settings: PageSettings,
) -> dict[str, Any]:
    """What the page's script works on: cards by columns, pictures by number."""
    links = settings.links or {}
    texts = settings.texts or {}
    on_page = sum(card.p or 0.0 for card in cards if card.source == "train")
    is_secret = settings.tokens is not None

    def beside(items: Sequence[Beside] | None) -> list[list[Any]]:
        return [[gallery.number(item.id), item.label, "" if is_secret else str(item.id)] for item in items or ()]

    return {
        "format": _FORMAT,
        "list": settings.list_id,
        "reviewer": settings.reviewer,
        "blind": settings.blind,
        "secret": is_secret,
        "asked": len(settings.asked) > 0,
        "sample": settings.is_sample,
        "mode": gallery.mode,
        "classes": _names(run, cards, context),
        "beyond": {"errors": max(overview.p_sum - on_page, 0.0)},
        "cards": {
            "id": list(settings.tokens or [str(card.id) for card in cards]),
            "given": [card.given for card in cards],
            "suggested": [[] if settings.blind else list(card.suggested) for card in cards],
            "p": [card.p for card in cards],
            # a check has no interval of its own: any that it were given would tell it from the rest
            **{name: [None if is_secret else getattr(card, name) for card in cards] for name in _OWN},
            "why": ["" if settings.blind else card.why for card in cards],
            "source": ["train" if is_secret else card.source for card in cards],
            "picture": [gallery.number(card.id) for card in cards],
            "text": [texts.get(str(card.id), "") for card in cards],
            "link": [links.get(str(card.id)) for card in cards],
            "content": [gallery.content.get(str(card.id), "") for card in cards],
        },
        "beside": {
            "typical": {str(label): beside(items) for label, items in context.typical.items()},
            "nearest": [beside(context.nearest.get(str(card.id))) for card in cards],
            "harmed": [beside(context.harmed.get(str(card.id))) for card in cards],
            "epochs": [list(context.epochs.get(str(card.id), ())) for card in cards],
        },
        "pictures": list(gallery.sources),
    }


def _names(run: Findings, cards: Sequence[Card], context: Context) -> list[str]:
    """Names of all classes that may be chosen or occur on the page; numbers where they have none."""
    used = [label for card in cards for label in (card.given, *card.suggested)]
    for items in (*context.nearest.values(), *context.harmed.values(), *context.typical.values()):
        used += [item.label for item in items]
    count = max([len(run.class_names), len(run.info.get("held_out_per_class") or ()), *(label + 1 for label in used)])
    return [class_name(label, run.class_names) for label in range(count)]


def _drawn(overview: Overview) -> dict[str, Any]:
    figures = [_figure(figure) for figure in overview.figures]
    return {"numbers": overview.numbers, "classes": overview.classes, "figures": figures}


def _figure(figure: Any) -> dict[str, Any]:
    from markupsafe import Markup

    return {"heading": figure.heading, "svg": Markup(figure.svg), "caption": figure.caption}


def _as_script_data(document: Mapping[str, Any]) -> str:
    r"""Write JSON that ends no script element and starts no comment, whatever it holds.

    >>> _as_script_data({"id": "</script><!--"})
    '{"id":"\\u003c/script\\u003e\\u003c!--"}'
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "backslashreplace").decode()


def _policy(style: str, script: str, mode: str) -> str:
    """What the browser may do: this very script and style, pictures as chosen, and no connection at all."""
    pictures = {"embed": "data:", "link": "data: file: http: https:", "none": "data:"}[mode]
    return (
        f"default-src 'none'; img-src {pictures}; style-src 'sha256-{_digest(style)}'; "
        f"script-src 'sha256-{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _script() -> str:
    parts = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


def _asset(name: str) -> str:
    return (resources.files("sgoif.report") / "assets" / name).read_text(encoding="utf-8")
