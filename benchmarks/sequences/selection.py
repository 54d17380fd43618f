"""Choose a tenth of a mixture of domains for one of them: by help to its evaluation set, by embeddings, at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiment import Experiment, option
from benchmarks.sequences import rivals
from benchmarks.sequences.instructions import Instructions, Items, load_instructions
from benchmarks.sequences.training import METHODS, Setup, exact_match, train
from benchmarks.tables.rows import describe_seeds, latest, table

# Intents of three of CLINC150's ten domains, as published; the file of the set does not name them.
DOMAINS = {
    "banking": (
        "account_blocked balance bill_balance bill_due freeze_account interest_rate min_payment order_checks pay_bill "
        "pin_change report_fraud routing spending_history transactions transfer"
    ),
    "kitchen": (
        "accept_reservations calories cancel_reservation confirm_reservation cook_time food_last how_busy "
        "ingredient_substitution ingredients_list meal_suggestion nutrition_info recipe restaurant_reservation "
        "restaurant_reviews restaurant_suggestion"
    ),
    "travel": (
        "book_flight book_hotel car_rental carry_on exchange_rate flight_status international_visa lost_luggage "
        "plug_type timezone translate travel_alert travel_notification travel_suggestion vaccines"
    ),
}


CHOICES = {
    "help, kfac": '`most_helpful`, `"kfac"`',
    "help, adam": '`most_helpful`, `"adam"`',
    "nearest embeddings": "nearest embeddings",
    "random": "random",
    "of the domain": "the domain's own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSetup(Setup):
    """What is watched, and how long is trained on what was chosen."""

    source: str = option("clinc150", ("clinc150",))
    each: int = 30
    share: float = 0.1
    chosen_epochs: int = 20


def run(setup: SelectionSetup) -> dict[str, Any]:
    """Watch one training on the mixture; train on every choice and judge it by the domain's other queries."""
    data = load_instructions(setup.source, setup.each, 20, setup.intents)
    anchored, judged = data.split_held()
    items = [data.item(query, data.completion(int(c))) for query, c in zip(data.queries, data.intents)]
    members = {name: _members(data, intents) for name, intents in DOMAINS.items()}
    groups = {name: _held(anchored, inside) for name, inside in members.items()}
    model, runs = train(setup, len(data.vocabulary), items, groups, METHODS)
    count, embedded = round(setup.share * len(items)), rivals.embed(model, items, prompts_only=False)
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for domain, inside in members.items():
        choices = {f"help, {name}": found.most_helpful(domain, count)["id"].to_numpy() for name, found in runs.items()}
        wanted = rivals.embed(model, groups[domain], prompts_only=False)
        choices["nearest embeddings"] = np.argsort(-(embedded @ wanted.mean(0)), kind="stable")[:count]
        choices["random"] = np.random.default_rng(setup.seed).permutation(len(items))[:count]
        choices["of the domain"] = np.flatnonzero(inside[data.intents])[:count]
        rows[domain] = {}
        for name, chosen in choices.items():
            short = replace(setup, epochs=setup.chosen_epochs)
            again, _ = train(short, len(data.vocabulary), [items[place] for place in np.sort(chosen)])
            rows[domain][name] = {
                "exact_match": exact_match(again, _held(judged, inside)),
                "of_the_domain": float(inside[data.intents[chosen]].mean()),
            }
    return {"num_sequences": len(items), "num_chosen": count, "domains": rows}


def _members(data: Instructions, intents: str) -> NDArray[np.bool_]:
    wanted = {name.replace("_", " ") for name in intents.split()}
    missing = wanted - set(data.names)
    assert not missing, missing
    return np.array([name in wanted for name in data.names])


def _held(data: Instructions, inside: NDArray[np.bool_]) -> Items:
    return [item for item, intent in zip(data.held_items, data.held_intents) if inside[intent]]


def describe(row: dict[str, Any]) -> str:
    """One line."""
    names = next(iter(row["domains"].values()))
    means = {name: np.mean([found[name]["exact_match"] for found in row["domains"].values()]) for name in names}
    return "exact match: " + ", ".join(f"{name} {value:.1%}" for name, value in means.items())


def choices() -> str:
    """Exact match by domain and choice, mean over seeds, with the share of the domain's own sequences."""
    rows: list[list[str]] = []
    runs = latest(EXPERIMENT.results)
    for domain in DOMAINS:
        found = [run["domains"][domain] for run in runs]
        cells = [
            f"{100 * np.mean([one[name]['exact_match'] for one in found]):.1f} "
            f"({100 * np.mean([one[name]['of_the_domain'] for one in found]):.0f})"
            for name in CHOICES
        ]
        rows.append([domain, describe_seeds(runs), *cells])
    return table(("domain", "seeds", *CHOICES.values()), rows)


EXPERIMENT = Experiment(
    name="sequence_selection",
    settings=SelectionSetup,
    run=run,
    tables={"sequence_selection": choices},
    full={"seed": (1, 2, 3)},
    small={"each": 2, "epochs": 1, "chosen_epochs": 1, "seed": 0},
    needs=("transformers",),
    describe=describe,
)
