"""Label errors found while a small ResNet-9 trains on noisy images.

One monitored training gives every signal of every visit; the report shows what each signal finds when its visits are
added up by the gate, over the second half of the training, by a ramp in time, or when only the last one counts, and
what one audit of the finished model finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import label_noise_tables as tables
from benchmarks import stability
from benchmarks.experiment import Experiment
from benchmarks.metrics import calibration_of_top, detection_report, weighted_mean
from benchmarks.trainings import Setup, Trained, train

SUSPICIOUS_WHEN_LOW = ("margin", "p_given", "own", "probe_margin")
SIGNALS = (
    *("harm", "worst", "harm_std", "worst_std", "harm_identity", "worst_identity", "own", "harm_solved"),
    *("worst_solved", "probe_loss", "probe_margin", "margin", "loss", "el2n"),
)
TRACKED = ("harm", "worst", "probe_margin", "margin")  # from epoch to epoch
AUDITED = ("harm", "worst", "harm_identity", "worst_identity", "probe_loss", "probe_margin", "margin", "loss")
FACTS = ("seconds", "overhead", "counters", "accuracy")


def report_on(found: Trained) -> dict[str, Any]:
    """Everything that one training says about finding its wrong labels; of clean ones, what it claims of them."""
    if not found.wrong.any():
        claims = {name: count_claims(table) for name, table in (("watch", found.table), ("audit", found.audit))}
        said = {key: found.info.get(key) for key in ("expected_errors", "no_p_reason", "no_totals_reason")}
        return {"claimed": claims, **said, **{key: found.info[key] for key in FACTS}}
    audited = [*AUDITED, *(["p_mislabeled"] if "p_mislabeled" in found.audit else [])]
    return {
        "signals": {name: _by_window(found, name) for name in SIGNALS},
        "audit": {name: detection_report(_suspicion(found.audit, name), found.wrong) for name in audited},
        "suggested label right, of true errors": suggestion_accuracy(found),
        "confidence by epoch": _by_epoch(found.visits, found.visits["confidence"]),
        "residual by epoch": _by_epoch(found.visits, found.residual.mean(1)[found.visits["step"]]),
        "epochs": {
            name: stability.by_epoch(found.visits["epoch"], _so_far(found, name), found.wrong) for name in TRACKED
        },
        **calibration_report(found),
        **{key: found.info[key] for key in FACTS},
    }


def count_claims(table: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """What is said to be wrong where nothing is: labels more likely wrong than right, their sum, the first 1%."""
    p = np.nan_to_num(table["p_mislabeled"]) if "p_mislabeled" in table else np.zeros(len(table["id"]))
    first = np.sort(p)[-max(1, len(p) // 100) :]
    return {
        "examples": float(len(p)),
        "flagged": float((p > 0.5).sum()),
        "expected": float(p.sum()),
        "first 1%": 100 * float(first.mean()),
    }


def _by_window(found: Trained, name: str) -> dict[str, Any]:
    visits = found.visits
    when = (visits["step"] + 1) / (visits["step"].max() + 1)
    last = visits["epoch"].max()
    weights = {
        "gate": _gate(found, name),
        "second half": visits["epoch"] > last // 2,
        "all": np.ones(len(when)),
        "ramp": when,
        "ramp2": when**2,
        "last": visits["epoch"] == last,
    }
    values = _suspicion(visits, name)
    return {
        window: detection_report(weighted_mean(visits["id"], values, weight, len(found.given)), found.wrong)
        for window, weight in weights.items()
    }


def _gate(found: Trained, name: str) -> NDArray[np.float64]:
    weight: NDArray[np.float64] = found.visits["confidence_worst" if name.startswith("worst") else "confidence"]
    return weight


def _so_far(found: Trained, name: str) -> Callable[[NDArray[np.bool_]], NDArray[np.float64]]:
    """A signal's ranking from some of its visits, weighted by the gate; where the gate was shut, all count alike."""
    ids, values, gate = found.visits["id"], _suspicion(found.visits, name), _gate(found, name)

    def score(seen: NDArray[np.bool_]) -> NDArray[np.float64]:
        weight = np.where(seen, gate, 0.0)
        return weighted_mean(ids, values, weight if weight.any() else seen.astype(float), len(found.given))

    return score


def _suspicion(table: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.float64]:
    return np.nan_to_num(table[name].astype(np.float64)) * (-1 if name in SUSPICIOUS_WHEN_LOW else 1)


def _by_epoch(visits: Mapping[str, NDArray[Any]], values: NDArray[Any]) -> list[float]:
    parts = [values[visits["epoch"] == epoch] for epoch in range(int(visits["epoch"].max()) + 1)]
    finite = [part[np.isfinite(part)] for part in parts]  # a direction that has not been solved yet has no residual
    return [round(float(part.mean()), 3) if len(part) else 0.0 for part in finite]


def calibration_report(found: Trained) -> dict[str, Any]:
    """How good ``p_mislabeled`` is: its ranking, and what it says of the first beside what is true."""
    if found.info.get("expected_errors") is None:
        return {"p_mislabeled": None, "reason": found.info.get("no_p_reason") or found.info.get("no_totals_reason")}
    p = np.nan_to_num(found.table["p_mislabeled"])
    errors = {"expected": found.info["expected_errors"], "true": int(found.wrong.sum())}
    ranking = detection_report(p, found.wrong)
    return {
        "p_mislabeled": ranking,
        "precision": calibration_of_top(p, found.wrong),
        "errors": errors,
        "estimate": found.info["estimate"],
    }


def suggestion_accuracy(found: Trained) -> dict[str, float]:
    """How often the suggested label is right: over all true errors, and over those in the top 5% by ``worst``."""
    worst = np.nan_to_num(found.table["worst"], nan=-np.inf)
    right = found.table["suggested_label"] == found.clean
    top = np.argsort(-worst)[: max(1, len(worst) // 20)]
    flagged = found.wrong[top]
    return {
        "all": 100 * float(right[found.wrong].mean()),
        "top 5%": 100 * float(right[top][flagged].mean()) if flagged.any() else 0.0,
    }


def describe(row: Mapping[str, Any]) -> str:
    """What was found, in a line."""
    report = row["report"]
    if "claimed" in report:
        said = (f"{name}: {item['flagged']:.0f} of {item['examples']:.0f}" for name, item in report["claimed"].items())
        return f"no label is wrong; called so by {', '.join(said)}"
    found = {name: report["signals"][name]["gate"] for name in TRACKED}
    found |= {"p_mislabeled": report["p_mislabeled"]} if report["p_mislabeled"] else {}
    return "; ".join(f"{name} AP {item['ap']:.1f}, P@1% {item['p@1%']:.1f}" for name, item in found.items())


def measure(setup: Setup) -> dict[str, Any]:
    return {"report": report_on(train(setup))}


_SHARED: Mapping[str, Any] = {
    "settings": Setup,
    "run": measure,
    "unrecorded": (),
    "benchmark": "label_noise",
    "describe": describe,
}
_SMALL = {"examples": 800, "epochs": 2}
_CLASSIC = {"split": "reported", "holdout": ("trusted", "as-given"), "seed": (1, 2, 3)}

LABEL_NOISE = Experiment(
    name="label_noise",
    file=tables.FILE,
    tables={
        "label_noise": tables.label_noise,
        "signals": tables.signals,
        "calibration": tables.calibration,
        "persistence": tables.persistence,
        "ablations": tables.ablations,
    },
    full=(
        {**_CLASSIC, "setting": ("pair-20", "worst", "sym-40", "aggre", "sym-2", "pair-3", "clean")},
        {**_CLASSIC, "setting": ("pair-10", "sym-20"), "holdout": "as-given", "seed": 1},
        {**_CLASSIC, "setting": tables.PUBLISHED, "holdout": "as-given"},
        {
            **_CLASSIC,
            "setting": ("pair-20", "noisy"),
            "holdout": "trusted",
            "dataset": "cifar100",
            "examples": 30_000,
            "epochs": 12,
        },
    ),
    small={**_SMALL, "holdout": ("trusted", "as-given")},
    **_SHARED,
)
LENGTHS = Experiment(
    name="lengths",
    file="label_noise_lengths.jsonl",
    tables={"lengths": tables.lengths},
    full={"split": "reported", "epochs": 1, "seed": (1, 2, 3)},
    small={**_SMALL, "epochs": 1},
    **_SHARED,
)
BACKENDS = Experiment(
    name="backends",
    file="label_noise_backends.jsonl",
    tables={"backends": tables.backends},
    full={"split": "reported", "curvature": "diagonal", "seed": 1},
    small={**_SMALL, "epochs": 1, "curvature": "diagonal"},
    **_SHARED,
)
