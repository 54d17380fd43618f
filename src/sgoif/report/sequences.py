"""Pages about sequences of a language model: one card per suspicious sequence, or per sampled one to check."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sgoif.errors import SgoifError
from sgoif.files.tables import write_text
from sgoif.findings.sequences import harm_by_group, sequence_issues
from sgoif.findings.suspects import Sql
from sgoif.report.findings import Findings
from sgoif.report.html import Assets, render_html
from sgoif.report.similar import find_similar
from sgoif.report.token_harms import TokenHarms, read_token_harms
from sgoif.review.decisions import NO_CLASS
from sgoif.review.sequences import read_sequence_decisions
from sgoif.review.verify import CheckedList
from sgoif.sources.sequences import SequenceText, open_sequence_texts
from sgoif.sources.written import written_hash
from sgoif.summary import summarise_sequences
from sgoif.wording import count

__all__ = ["SequenceReportSettings", "make_sequence_report", "read_sample_texts", "write_sequence_sample"]

log = logging.getLogger(__name__)

_ASSETS = Assets(
    "sequences.html",
    ("document", "browser", "decisions", "loading", "sequence_cards", "sequences"),
    ("page", "sequences"),
)
_FIXED = {"format": 1, "sequences": True, "reviewer": "", "secret": False, "classes": [], "extras": {}}
_NUMBERS = ("suspicion", "loss", "loss_first", "loss_last", "loss_tuned", "harm", "conflict", "coverage", "worst")
_LONGEST = 20_000  # characters of a prompt or completion that the page holds
_LONGEST_BESIDE = 600
_NUM_SIMILAR = 3
_MOST_COMPARED = 20_000  # sequences, drawn at random, among which similar prompts are looked for


@dataclass(frozen=True, slots=True)
class SequenceReportSettings:
    """What the page of a run about sequences shows."""

    images: Any = None  # where the texts are, see `sgoif.sources.sequences.open_sequence_texts`; without, ids alone
    top: int | None = 500  # how many sequences, most suspicious first; None or 0 for all
    ids: Sequence[Any] | None = None  # show these instead
    by: str = "suspicion"  # what they are ranked by, see `Run.sequence_issues`
    tokens: str | os.PathLike[str] | None = None  # a file of `sgoif.experimental.write_token_harms`
    decisions: Sequence[str | os.PathLike[str]] = ()  # files of earlier ones, which are not asked for again
    title: str | None = None


@dataclass(frozen=True, slots=True)
class _Beside:
    """What is known of the cards' texts."""

    about: str | None = None  # where they come from; None where nobody said
    texts: Mapping[str, SequenceText] | None = None  # by the text of an id, of all sequences that are compared
    similar: Sequence[Sequence[tuple[str, float]]] = ()  # by card: ids and cosines
    num_compared: int = 0


def make_sequence_report(
    run: Findings, out: str | os.PathLike[str], settings: SequenceReportSettings, *, run_url: str | None = None
) -> list[Path]:
    """Write the page.

    Raises:
        SgoifError: There is nothing to show, or a file cannot be understood.
    """
    past = {item.id for path in settings.decisions for item in read_sequence_decisions(path)}
    top = settings.top or None
    most = None if top is None or settings.ids is not None else top + len(past)
    rows = sequence_issues(run.sql, run.info, by=settings.by, top=most, ids=settings.ids).to_pylist()
    rows = [row for row in rows if str(row["id"]) not in past][: None if settings.ids is not None else top]
    if not rows:
        raise SgoifError("there is nothing to show: no sequence is left that nobody has decided on.")
    keys = [str(row["id"]) for row in rows]
    beside = _Beside() if settings.images is None else _read_texts(run.sql, keys, settings.images)
    if beside.texts is not None:
        _warn_of_lost(sum(key not in beside.texts for key in keys), len(keys), str(beside.about))
    tokens = {} if settings.tokens is None else read_token_harms(settings.tokens, set(keys))
    summary = summarise_sequences(run.sql, run.info, run=run_url or "run in memory")
    document = {
        **_FIXED,
        "list": _name_list(keys),
        "run": run_url,
        "by": settings.by,
        "groups": list(summary.groups),
        "has_texts": beside.texts is not None,
        "cards": _describe_cards(run.sql, rows, beside, tokens),
    }
    html = render_html(
        _ASSETS,
        document,
        is_sample=False,
        title=settings.title or "Sequence review",
        about=_describe_contents(keys, beside, tokens, past),
        lines=[_plain(line) for line in replace(summary, warnings=[]).lines()],
        warnings=[_plain(text) for text in summary.warnings],
        has_texts=beside.texts is not None,
        has_tokens=bool(tokens),
        has_conflicts=any(row["conflict"] is not None for row in rows),
        has_coverage=any(row["coverage"] is not None for row in rows),
        has_tuned=any(row["loss_tuned"] is not None for row in rows),
        num_compared=beside.num_compared,
        num_sequences=summary.num_examples,
        by=settings.by,
    )
    write_text(out, html)
    return [Path(out)]


def read_sample_texts(found: CheckedList, images: Any) -> tuple[str, dict[str, SequenceText]]:
    """Where the texts of a sample come from, and these by the text of an id; others are unknown.

    Raises:
        SgoifError: There are no texts, or none of these sequences.
    """
    if images is None:
        raise SgoifError(
            "a person has to read the sequences: pass --show FILE, with the ids of the run in `id`, and `prompt` and "
            "`completion`, or `messages`, or `text`."
        )
    keys = [str(card.id) for card in found.cards]
    place = open_sequence_texts(images)
    texts = place.read(keys)
    _need_texts(keys, texts, place.about, len(texts))
    _warn_of_lost(sum(key not in texts for key in keys), len(keys), place.about)
    return place.about, texts


def _warn_of_lost(lost: int, number: int, where: str) -> None:
    if lost:
        told = (count(lost), count(number, "sequence"), where)
        log.warning("%s of %s are not in %s, and are shown without a text.", *told)


def write_sequence_sample(
    found: CheckedList,
    out: str | os.PathLike[str],
    where: str,
    texts: Mapping[str, SequenceText],
    *,
    run_url: str | None = None,
) -> None:
    """Write the page of a sample to check: its sequences in random order, and nothing of what the run thinks."""
    keys = [str(card.id) for card in found.cards]
    shown = [texts.get(key) for key in keys]
    document = {
        **_FIXED,
        "sample": True,
        "list": found.list_id,
        "run": run_url,
        "by": "order",
        "groups": [],
        "has_texts": True,
        "cards": {"id": keys, "given": [NO_CLASS] * len(keys), **_describe_texts(shown)},
    }
    beside = _Beside(where, texts)
    drawn = f"{count(len(keys))} of {count(found.design.num_examples, 'sequence')}, drawn at random"
    html = render_html(
        _ASSETS,
        document,
        is_sample=True,
        title="Check these sequences",
        about=f"{drawn}. Is each completion right? {_describe_contents(keys, beside, {}, set())}",
        lines=[],
        warnings=[],
        has_texts=True,
        has_tokens=False,
        has_conflicts=False,
        has_coverage=False,
        has_tuned=False,
        num_compared=0,
        num_sequences=found.design.num_examples,
        by="order",
    )
    write_text(out, html)


def _need_texts(keys: Sequence[str], texts: Mapping[str, SequenceText], about: str, num_known: int) -> None:
    if any(key in texts for key in keys):
        return
    others = f"has texts of {count(num_known, 'other sequence')}, but of none that the page shows"
    raise SgoifError(
        f"{about} {others if num_known else 'knows no id of this run'}; its column `id` must hold the ids of the run, "
        f"such as {keys[0][:80]!r}. Without one, ids are row numbers."
    )


def _read_texts(sql: Sql, keys: Sequence[str], images: Any) -> _Beside:
    """Read the texts of the cards, and of others that they are compared with, in one pass over the file."""
    place = open_sequence_texts(images)
    sample = f"using sample reservoir({_MOST_COMPARED} rows) repeatable (0)"
    pool = dict.fromkeys([*keys, *sql(f"select id::varchar as id from examples {sample}")["id"].to_pylist()])
    texts = place.read(list(pool))
    _need_texts(keys, texts, place.about, len(texts))
    others = [key for key in pool if key in texts]
    asked = [_compared(texts[key]) if key in texts else "" for key in keys]
    near = find_similar(asked, [_compared(texts[key]) for key in others], _NUM_SIMILAR + 1)
    similar = [
        [(others[place], cosine) for place, cosine in found if others[place] != key][:_NUM_SIMILAR]
        for key, found in zip(keys, near)
    ]
    return _Beside(place.about, texts, similar, len(others))


def _compared(text: SequenceText) -> str:
    return text.prompt or text.completion


def _describe_cards(
    sql: Sql, rows: Sequence[Mapping[str, Any]], beside: _Beside, tokens: Mapping[str, Sequence[TokenHarms]]
) -> dict[str, Any]:
    """Cards by columns, as the script reads them."""
    keys, texts = [str(row["id"]) for row in rows], beside.texts or {}
    harms = harm_by_group(sql, keys)
    shown = [texts.get(key) for key in keys]
    return {
        "id": keys,
        "given": [NO_CLASS] * len(keys),
        **{name: [_round(row[name]) for row in rows] for name in _NUMBERS},
        "p": [[_round(row[f"p_mislabeled{tail}"]) for tail in ("", "_low", "_high")] for row in rows],
        "worst_group": [row["worst_group"] for row in rows],
        "num_tokens": [row["num_tokens"] for row in rows],
        "visits": [row["n_visits"] for row in rows],
        "harms": [[[group, _round(value)] for group, value in harms.get(key, {}).items()] for key in keys],
        **_describe_texts(shown),
        "similar": [
            [[key, cosine, *_shorten(texts[key]), texts[key].completion == text.completion] for key, cosine in found]
            if text is not None
            else []
            for text, found in zip(shown, beside.similar or [[]] * len(keys))
        ],
        "tokens": [[[item.group, item.tokens] for item in tokens.get(key, ())] for key in keys],
    }


def _describe_texts(shown: Sequence[SequenceText | None]) -> dict[str, Any]:
    """What the script knows of the texts of cards."""
    return {
        "prompt": [None if text is None else text.prompt[:_LONGEST] for text in shown],
        "completion": [None if text is None else text.completion[:_LONGEST] for text in shown],
        "left": [[0, 0] if text is None else _count_left(text) for text in shown],
        "content": ["" if text is None else written_hash(text.completion) for text in shown],
    }


def _shorten(text: SequenceText) -> tuple[str, str]:
    def cut(part: str) -> str:
        return part if len(part) <= _LONGEST_BESIDE else f"{part[:_LONGEST_BESIDE]}…"

    return cut(text.prompt), cut(text.completion)


def _count_left(text: SequenceText) -> list[int]:
    """Characters of the prompt and of the completion that the page does not hold."""
    return [max(len(part) - _LONGEST, 0) for part in (text.prompt, text.completion)]


def _plain(text: str) -> str:
    """A sentence of the terminal, where commands stand between backticks."""
    return text.replace("`", "")


def _round(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _describe_contents(
    keys: Sequence[str], beside: _Beside, tokens: Mapping[str, Sequence[TokenHarms]], past: set[str]
) -> str:
    """Say whose data the page holds: it may be sent on."""
    shown = f"{count(len(keys), 'sequence')} to look at"
    shown += f", without {count(len(past), 'sequence')} decided on earlier" if past else ""
    if beside.texts is None:
        return f"{shown}. This file holds ids and numbers only."
    lost = sum(key not in beside.texts for key in keys)
    missing = f"; {count(lost)} of them {'is' if lost == 1 else 'are'} not in it" if lost else ""
    cut = sum(any(_count_left(text)) for key in keys if (text := beside.texts.get(key)))
    long = f"; {count(cut, 'text')} cut at {count(_LONGEST)} characters" if cut else ""
    marked = f", and the tokens of {count(len(tokens), 'sequence')}" if tokens else ""
    return f"{shown}. This file holds ids, numbers and texts of {beside.about}{missing}{long}{marked}."


def _name_list(keys: Sequence[str]) -> str:
    """Name a list by what is on it, so that a page that is made again knows what was decided on it."""
    return hashlib.blake2b("\0".join(keys).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
