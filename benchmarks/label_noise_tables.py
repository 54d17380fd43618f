"""Tables of label errors found while a network trains: ours, the free rivals, and which part does the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.tables.rows import (
    Run,
    calibration_cells,
    calibration_header,
    describe_seeds,
    group_runs,
    interval,
    latest,
    means,
    table,
)

SIGNALS = ("p_mislabeled", "worst", "harm", "probe_margin", "harm_identity", "margin", "loss", "el2n")
FILE = "label_noise_reported.jsonl"
# rates and sparsities of the labels that were published with the confident-learning study
PUBLISHED = tuple(f"cl-{rate}-{sparsity}" for rate in (20, 40, 70) for sparsity in ("0", ".2", ".4", ".6"))
ORDER = (
    *("sym-2", "pair-3", "pair-10", "pair-20", "sym-20", "sym-40"),
    *(*PUBLISHED, "idn-20", "tail-20", "aggre", "worst"),
)
FREE = {"loss": "loss", "margin": "AUM", "el2n": "EL2N"}  # what falls out of any training
WINDOWS = ("gate", "second half", "all")

Place = tuple[str, str, str]  # dataset, setting, hold-out


def places() -> list[tuple[Place, list[Run]]]:
    """Runs of tier M with errors, by dataset, setting and hold-out."""
    with_errors = (run for run in latest(FILE) if "signals" in run["report"])
    found = group_runs(with_errors, ("dataset", "setting", "holdout"))
    return sorted(((place, runs) for place, runs in found), key=lambda item: _rank(item[0]))  # type: ignore[misc]


def _rank(place: tuple[str, ...]) -> tuple[Any, ...]:
    dataset, setting, holdout = place
    return dataset, ORDER.index(setting) if setting in ORDER else len(ORDER), setting, holdout != "trusted"


def name_of(dataset: str, setting: str) -> str:
    return setting if dataset == "cifar10" else f"CIFAR-100 {setting}"


def values(runs: Sequence[Run], signal: str, key: str = "ap", window: str = "gate") -> list[float]:
    """One metric of a signal, by run; NaN where the run could not be calibrated."""
    reports = [run["report"] for run in runs]
    if signal == "p_mislabeled":
        return [report[signal][key] if report[signal] else float("nan") for report in reports]
    return [report["signals"][signal][window][key] for report in reports]


def is_judged(runs: Sequence[Run]) -> bool:
    """Whether all of these runs have probabilities."""
    return all(run["report"]["p_mislabeled"] for run in runs)


def best_free(runs: Sequence[Run]) -> tuple[str, list[float]]:
    """The best of loss, AUM and EL2N, each over all visits, the second half, or weighted by our gate: generous."""
    found = {(signal, window): values(runs, signal, window=window) for signal in FREE for window in WINDOWS}
    best = max(found, key=lambda key: float(np.mean(found[key])))
    return FREE[best[0]], found[best]


def label_noise() -> str:
    """AP of ``p_mislabeled`` beside the best free rival of the same training, paired by seed."""
    rows = []
    for (dataset, setting, holdout), runs in places():
        ours, (rival, theirs) = values(runs, "p_mislabeled"), best_free(runs)
        ahead = [a - b for a, b in zip(ours, theirs, strict=True)]
        first = runs[0]["report"]["signals"]["harm"]["gate"]
        audits = [
            run["report"]["audit"]["p_mislabeled"]["ap"] for run in runs if "p_mislabeled" in run["report"]["audit"]
        ]
        rows.append(
            [
                f"{name_of(dataset, setting)} ({first['rate']:.0f}%)",
                f"{holdout}, {describe_seeds(runs)}",
                interval(ours) if is_judged(runs) else "no probabilities",
                f"{means(theirs)} ({rival})",
                interval(ahead, "+") if is_judged(runs) else "",
                _precision(runs) if is_judged(runs) else "",
                means(audits) if audits else "",
            ]
        )
    header = ("setting (rate)", "hold-out", "AP", "best free rival", "paired difference", "P@1%", "AP, audit")
    return table(header, rows)


def _precision(runs: list[Run]) -> str:
    """P@1% with the binomial standard error that it has at this size, over all seeds together."""
    found = values(runs, "p_mislabeled", "p@1%")
    counts = sum(np.ceil(run["report"]["signals"]["harm"]["gate"]["examples"] / 100) for run in runs)
    share = float(np.mean(found)) / 100
    return f"{100 * share:.1f} ± {100 * (share * (1 - share) / counts) ** 0.5:.1f}"


def signals() -> str:
    """AP of every signal, mean over seeds."""
    rows = []
    for (dataset, setting, holdout), runs in places():
        known = [signal != "p_mislabeled" or is_judged(runs) for signal in SIGNALS]
        cells = [means(values(runs, signal)) if is_known else "" for signal, is_known in zip(SIGNALS, known)]
        best = max(filter(None, cells), key=float)
        marked = [f"**{cell}**" if cell == best else cell for cell in cells]
        rows.append([f"{name_of(dataset, setting)}, {holdout}", *marked])
    return table(("setting, hold-out", *(f"`{signal}`" for signal in SIGNALS)), rows)


def calibration() -> str:
    """What probabilities say, and the true precision, of the top 1, 5 and 10%, means over seeds."""
    rows = []
    for (dataset, setting, holdout), runs in places():
        judged = [run["report"] for run in runs if run["report"]["p_mislabeled"] is not None]
        if judged:
            rows.append([f"{name_of(dataset, setting)}, {holdout}", *calibration_cells(judged)])
    return table(calibration_header("setting, hold-out"), rows)


def lengths(file: str = "label_noise_lengths.jsonl") -> str:
    """AP after one epoch, ten, forty: online, and by an audit of the finished model."""
    standard = [run for _, runs in places() for run in runs]
    longer = latest(file)
    kinds = {kind for kind, _ in group_runs(longer, ("dataset", "setting", "holdout"))}
    chosen = group_runs([*longer, *standard], ("dataset", "setting", "holdout", "epochs"))
    rows = []
    for (dataset, setting, holdout, epochs), runs in sorted(chosen):
        if (dataset, setting, holdout) not in kinds:
            continue
        reports = [run["report"] for run in runs]
        online = {name: means(values(runs, name)) for name in ("p_mislabeled", "harm", "margin")}
        rescored = means(report["audit"]["p_mislabeled"]["ap"] for report in reports)
        plain = means(report["audit"]["margin"]["ap"] for report in reports)
        accuracy = means(100 * report["accuracy"] for report in reports)
        where = [f"{setting}, {holdout}, {describe_seeds(runs)}", str(epochs), accuracy]
        rows.append([*where, online["p_mislabeled"], rescored, online["harm"], online["margin"], plain])
    header = ("setting, hold-out", "epochs", "test accuracy", "`p_mislabeled` online", "rescored by an audit")
    return table((*header, "`harm` online", "AUM online", "margin at the end"), rows)


def persistence() -> str:
    """How much of a ranking stays from one epoch to the next, over the second half of the training."""
    rows = []
    for (dataset, setting, holdout), runs in places():
        known = [run["report"]["epochs"] for run in runs if "epochs" in run["report"]]
        for signal in ("harm", "margin") if known else ():
            cells = [
                f"{np.mean([report[signal][kind][measure] for report in known]):.2f}"
                for kind in ("instant", "accumulated")
                for measure in ("spearman", "jaccard@1%", "tau@1%")
            ]
            rows.append([f"{name_of(dataset, setting)}, {holdout}", f"`{signal}`", *cells])
    measures = ("Spearman", "Jaccard of the top 1%", "tau-b of the top 1%")
    return table(
        ("setting, hold-out", "signal", *(f"{k} {m}" for k in ("one epoch:", "all so far:") for m in measures)), rows
    )


# name, signal behind `harm_`/`worst_`, window: what each visit's value is and how visits are added up
VARIANTS = (
    ("no gate: every visit counts alike", "", "all"),
    ("the last epoch alone", "", "last"),
    ("the second half alone", "", "second half"),
    ("a ramp in time", "", "ramp"),
    ("no curvature: H = I", "_identity", "gate"),
    ("each refresh solved from nothing, not tracked", "_solved", "gate"),
    ("standardised within the batch", "_std", "gate"),
)


def ablations() -> str:
    """What each switch changes in the AP of `harm` and of `worst`, paired by seed, trusted hold-out."""
    columns = [
        (name_of(dataset, setting), runs)
        for (dataset, setting, holdout), runs in places()
        if holdout == "trusted" and len(runs) > 1 and dataset == "cifar10"
    ]
    rows = []
    for signal in ("harm", "worst"):
        full = [values(runs, signal) for _, runs in columns]
        rows.append([f"`{signal}`, as it is", *map(means, full)])
        for said, suffix, window in VARIANTS:
            other = [values(runs, signal + suffix, window=window) for _, runs in columns]
            changes = [np.subtract(mine, usual).tolist() for mine, usual in zip(other, full, strict=True)]
            rows.append([said, *(interval(change, "+") for change in changes)])
    own = [values(runs, "own") for _, runs in columns]
    rows.append(["`own`: the anchor of the given class alone", *map(means, own)])
    return table(("switch", *(name for name, _ in columns)), rows)


def backends(file: str = "label_noise_backends.jsonl") -> str:
    """AP and residual by curvature and solver, on the trainings of one seed."""
    chosen = latest(file)
    kinds = {(run["settings"]["setting"], run["settings"]["holdout"], run["seed"]) for run in chosen}
    standard = [run for (dataset, *_), runs in places() if dataset == "cifar10" for run in runs]
    same = [run for run in standard if (run["settings"]["setting"], run["settings"]["holdout"], run["seed"]) in kinds]
    rows = []
    for (setting, curvature, solver), runs in sorted(group_runs([*same, *chosen], ("setting", "curvature", "solver"))):
        residual = np.mean([run["report"]["residual by epoch"][-1] for run in runs])
        found = [means(values(runs, name)) for name in ("harm", "worst", "p_mislabeled")]
        overhead = 100 * np.mean([run["report"]["overhead"] for run in runs])
        rows.append([setting, curvature, solver, f"{residual:.2f}", *found, f"{overhead:.1f}%"])
    header = ("setting", "curvature", "solver", "last residual", "`harm`", "`worst`", "`p_mislabeled`", "own clock")
    return table(header, rows)
