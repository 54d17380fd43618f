"""Label errors found while a network trains: ours, the free rivals of the same training, and what the others find."""

from __future__ import annotations

import numpy as np

from benchmarks.tables.calibration import calibration_cells, calibration_header
from benchmarks.tables.rows import Run, grouped, interval, latest, means, seeds_said, table
from benchmarks.tables.watched import best_free, name_of, places, values

__all__ = ["calibration", "label_noise", "lengths", "persistence", "published", "rivals", "signals"]

SIGNALS = ("p_mislabeled", "worst", "harm", "probe_margin", "harm_identity", "margin", "loss", "el2n")
PUBLISHED = ("self-confidence", "normalised margin")


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
                f"{holdout}, {seeds_said(runs)}",
                interval(ours),
                f"{means(theirs)} ({rival})",
                interval(ahead, "+"),
                _precision(runs),
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
        cells = [means(values(runs, signal)) for signal in SIGNALS]
        best = max(cells, key=float)
        marked = [f"**{cell}**" if cell == best else cell for cell in cells]
        rows.append([f"{name_of(dataset, setting)}, {holdout}", *marked])
    return table(("setting, hold-out", *(f"`{signal}`" for signal in SIGNALS)), rows)


def calibration() -> str:
    """What probabilities say, and the true precision, of the top 1, 5 and 10%, means over seeds."""
    rows = []
    for (dataset, setting, holdout), runs in places():
        judged = [run["report"] for run in runs if run["report"]["p_mislabeled"] is not None]
        rows.append([f"{name_of(dataset, setting)}, {holdout}", *calibration_cells(judged)])
    return table(calibration_header("setting, hold-out"), rows)


def published() -> str:
    """AP and P@1% of confident learning by its own published probabilities, beside ours where we trained."""
    ours = {setting: runs for (dataset, setting, holdout), runs in places() if holdout == "as-given"}
    rows = []
    for (rate, sparsity), runs in grouped(latest("published.jsonl"), ("rate", "sparsity")):
        whole = next(run["report"] for run in runs if run["settings"]["images"] == "all")
        cells = [f"{whole[name]['ap']:.1f} ({whole[name]['p@1%']:.0f})" for name in PUBLISHED]
        setting = f"cl-{rate}-{f'.{int(sparsity) // 10}' if int(sparsity) else '0'}"
        mine = means(values(ours[setting], "p_mislabeled")) if setting in ours else ""
        rows.append([setting, *cells, mine])
    return table(("setting", *(f"{name}: AP (P@1%)" for name in PUBLISHED), "`p_mislabeled`, as given, tier M"), rows)


def lengths(file: str = "label_noise_lengths.jsonl") -> str:
    """AP after one epoch, ten, forty: online, and by an audit of the finished model."""
    standard = [run for _, runs in places() for run in runs]
    longer = latest(file)
    kinds = {(run["settings"]["setting"], run["settings"]["holdout"]) for run in longer}
    chosen = [run for run in [*longer, *standard] if _kind(run) in kinds and run["settings"]["dataset"] == "cifar10"]
    rows = []
    for (setting, holdout, epochs), runs in sorted(grouped(chosen, ("setting", "holdout", "epochs"))):
        reports = [run["report"] for run in runs]
        online = {name: means(values(runs, name)) for name in ("p_mislabeled", "harm", "margin")}
        rescored = means(report["audit"]["p_mislabeled"]["ap"] for report in reports)
        plain = means(report["audit"]["margin"]["ap"] for report in reports)
        accuracy = means(100 * report["accuracy"] for report in reports)
        where = [f"{setting}, {holdout}, {seeds_said(runs)}", str(epochs), accuracy]
        rows.append([*where, online["p_mislabeled"], rescored, online["harm"], online["margin"], plain])
    header = ("setting, hold-out", "epochs", "test accuracy", "`p_mislabeled` online", "rescored by an audit")
    return table((*header, "`harm` online", "AUM online", "margin at the end"), rows)


def _kind(run: Run) -> tuple[str, str]:
    return run["settings"]["setting"], run["settings"]["holdout"]


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


def rivals(file: str = "rivals.jsonl") -> str:
    """AP of every rival in every setting, mean over seeds, and what it costs beside the training.

    Raises:
        ValueError: The file mixes tiers, whose figures must not stand side by side.
    """
    runs = latest(file)
    for (dataset,), same in grouped(runs, ("dataset",)):
        sizes = {(run["settings"]["examples"], run["settings"]["epochs"]) for run in same}
        if len(sizes) > 1:
            raise ValueError(f"{file} mixes tiers on {dataset} (examples, epochs): {sorted(sizes)}; split the file")
    columns = [where for where, _ in grouped(runs, ("dataset", "setting"))]
    rows = []
    for group, said in (("label-free", "given labels"), ("trusted", "trusted hold-out")):
        for (rival,), same in grouped([run for run in runs if run["group"] == group], ("rival",)):
            found = dict(grouped(same, ("dataset", "setting")))
            cells = [interval([run["report"]["ap"] for run in found[key]]) if key in found else "" for key in columns]
            rows.append([said, rival, *cells, f"{np.mean([run['cost'] for run in same]):.2f}"])
            said = ""
    names = [name_of(dataset, setting) for dataset, setting in columns]
    return table(("uses", "rival", *names, "cost"), rows)
