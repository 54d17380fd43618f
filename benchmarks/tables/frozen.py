"""Label errors found on frozen features, and by ``sgoif scan``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.label_noise_tables import ORDER
from benchmarks.tables.rows import (
    Run,
    calibration_cells,
    calibration_header,
    grouped,
    interval,
    latest,
    means,
    seeds_said,
    table,
)

__all__ = ["LABEL_FREE", "PROBE", "aps", "frozen_calibration", "frozen_noise", "frozen_places", "scan", "verified"]

CONFIDENT = ("confident learning, adjusted margin", "confident learning, self-confidence", "confident learning, margin")
LABEL_FREE = (*CONFIDENT, "nearest neighbours")
PROBE = "linear probe on the hold-out"


def frozen_places() -> list[tuple[tuple[str, ...], list[Run]]]:
    """Runs by setting and hold-out, in the order of the other tables."""
    found = grouped(latest("frozen_noise.jsonl"), ("setting", "holdout"))
    return sorted(found, key=lambda item: (ORDER.index(item[0][0]), item[0][1] != "trusted"))


def aps(runs: Sequence[Run], method: str) -> list[float]:
    return [run["report"][method]["ap"] for run in runs if method in run["report"]]


def frozen_noise() -> str:
    """AP on frozen features beside the rivals that may use the same."""
    rows = []
    for (setting, holdout), runs in frozen_places():
        ours = aps(runs, "p_mislabeled")
        known = [name for name in CONFIDENT if aps(runs, name)]
        confident = max((aps(runs, name) for name in known), key=np.mean)
        probe = aps(runs, PROBE)
        best = max([confident, aps(runs, "nearest neighbours"), *([probe] if probe else [])], key=np.mean)
        ahead = [a - b for a, b in zip(ours, best, strict=True)]
        precise = [run["report"]["p_mislabeled"]["p@1%"] for run in runs]
        rows.append(
            [
                setting,
                f"{holdout}, {seeds_said(runs)}",
                interval(ours),
                means(confident),
                means(aps(runs, "nearest neighbours")),
                means(probe) if probe else "",
                interval(ahead, "+"),
                means(precise),
            ]
        )
    rivals = ("confident learning", "nearest neighbours", "probe on the hold-out")
    return table(("setting", "hold-out", "AP", *rivals, "over the best of them", "P@1%"), rows)


def frozen_calibration() -> str:
    """What probabilities say, and the true precision, on frozen features, means over seeds."""
    rows = [[f"{setting}, {holdout}", *calibration_cells(runs)] for (setting, holdout), runs in frozen_places()]
    return table(calibration_header("setting, hold-out"), rows)


def scan() -> str:
    """True errors among the first 100 of ``sgoif scan``, one line per run."""
    rows = [
        [
            f"{run['settings']['path']}, {run['seed']}",
            *map(str, (run["top_100"], run["margin_top_100"], run["worst_top_100"])),
            f"{run['ap']:.1f}",
            f"{run['seconds']:.0f}",
        ]
        for run in latest("scan.jsonl")
    ]
    return table(("path, seed", "of the first 100", "by margin alone", "by `worst` alone", "AP", "seconds"), rows)


def verified() -> str:
    """AP by number of verified hold-out labels, mean over seeds."""
    rows = []
    for (setting,), runs in grouped(latest("verified.jsonl"), ("setting",)):
        for items in zip(*(run["curve"] for run in runs), strict=True):
            expected, true = (np.mean([item[key] for item in items]) for key in ("expected_errors", "true_errors"))
            ap = interval([item["ap"] for item in items])
            rows.append([setting, str(items[0]["verified"]), ap, f"{expected:.0f} / {true:.0f}"])
    return table(("setting", "verified", "AP", "errors expected / true"), rows)
