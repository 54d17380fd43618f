"""Play the person who decides on a review page: say the truth, but for 5% slips.

    python examples/simulated_reviewer.py runs/first --truth truth.csv --top 1000

goes through the cards that ``sgoif report runs/first --top 1000`` shows and writes ``decisions.csv`` as the page does:
a label that is right is kept, another is relabelled. A slip names any other class, as a tired person does. After
``sgoif report runs/first --reviewers ann,bo``, ``--reviewer ann`` decides on the page of one of them and writes
``decisions-ann.csv``. For trials where the truth is known (``id,label``); where it is not, decide yourself.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

import numpy as np

import sgoif
from sgoif.files.tables import read_csv_rows
from sgoif.report.cards import select_cards
from sgoif.review.decisions import Decision, write_decisions
from sgoif.review.plan import read_plans

Shown = tuple[str, int]  # an example's id and the label that its card shows


def answers(cards: Sequence[Shown], truth: Mapping[str, str], names: Sequence[str], slips: float) -> Iterator[Decision]:
    """Answer every card, in the order of the page."""
    rng = np.random.default_rng(5)
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for ident, given in cards:
        said = names.index(truth[ident])
        if rng.random() < slips:
            said = (said + int(rng.integers(1, len(names)))) % len(names)
        answer = Decision(ident, given, "keep", decided_at=now, given_name=names[given])
        yield answer if said == given else replace(answer, decision="relabel", labels=(said,), label_name=names[said])


def decide(run: sgoif.Run, truth: Mapping[str, str], *, top: int, slips: float) -> list[Decision]:
    """Decide on the one page of a run."""
    cards = [(str(card.id), card.given) for card in select_cards(run, top=top)]
    return [replace(item, reviewer="simulated") for item in answers(cards, truth, run.class_names, slips)]


def decide_as(run: sgoif.Run, truth: Mapping[str, str], *, reviewer: str, slips: float) -> list[Decision]:
    """Decide on the pages that are one reviewer's, where cards go by tokens instead of ids."""
    decisions = []
    for plan in read_plans(str(run.url)):
        cards = plan.cards.get(reviewer, ())
        said = answers([card.key for card in cards], truth, run.class_names, slips)
        decisions += [
            replace(item, id=plan.token(card), reviewer=reviewer, list_id=plan.list_id)
            for card, item in zip(cards, said, strict=True)
        ]
    return decisions


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the decisions of a simulated reviewer.")
    parser.add_argument("run")
    parser.add_argument("--truth", required=True, metavar="FILE.csv", help="id,label with the true classes")
    parser.add_argument("--top", type=int, default=500, help="cards of the page")
    parser.add_argument("--reviewer", metavar="NAME", help="decide on this person's page instead")
    parser.add_argument("--slips", type=float, default=0.05, help="share of answers that are wrong")
    options = parser.parse_args()
    run, name = sgoif.load(options.run), options.reviewer
    truth = {row["id"]: row["label"] for _, row in read_csv_rows(options.truth, ["id", "label"])}
    if name is None:
        decisions = decide(run, truth, top=options.top, slips=options.slips)
    else:
        decisions = decide_as(run, truth, reviewer=name, slips=options.slips)
    out = "decisions.csv" if name is None else f"decisions-{name}.csv"
    write_decisions(decisions, out)
    print(f"{len(decisions):,} decisions in {out}")


if __name__ == "__main__":
    main()
