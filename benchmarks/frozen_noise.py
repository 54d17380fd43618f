"""Label errors found on frozen pretrained features.

Heads are fitted to the noisy labels, each judging what it has not seen, as ``sgoif scan --features`` does. In
the same run, on the same features: cross-validated confident learning (three scores), the vote of the nearest
neighbours and, with a trusted hold-out, a linear probe fitted on it.

With a trusted hold-out, 100 test images per class with verified labels are scanned with the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import data, frozen, noise
from benchmarks.experiment import FROZEN, Experiment
from benchmarks.label_noise_tables import ORDER
from benchmarks.metrics import best_other, calibration_of_top, detection_report
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
from benchmarks.trust.rivals import differing_neighbours
from sgoif.evidence import hash_ids
from sgoif.scanning.frozen import audit_embeddings
from sgoif.scanning.standardise import standardise

SETTINGS = ("pair-20", "sym-40", "aggre", "worst")
OURS = "p_mislabeled"
CONFIDENT = ("confident learning, adjusted margin", "confident learning, self-confidence", "confident learning, margin")
LABEL_FREE = (*CONFIDENT, "nearest neighbours")
PROBE = "linear probe on the hold-out"
NEIGHBOURS = 20
NUM_FOLDS = 4  # of the linear heads of confident learning
_BATCH, _STEPS, _RATE = 250, 180, 1.28 / 1280  # how these are trained

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One draw of the noise."""

    setting: str = "pair-20"
    split: Literal["development", "reported"] = "reported"
    holdout: Literal["trusted", "as-given"] = "trusted"
    seed: int = 1


def examine(setup: Setup, examples: int = 20_000) -> dict[str, Any]:
    """Run one draw, ours and the rivals; returns what each finds, in percent."""
    seed, is_trusted = setup.seed, setup.holdout == "trusted"
    case = noisy_features(setup.setting, setup.split, setup.holdout, seed, examples)
    rows, given, clean, ids, held = case.rows, case.given, case.clean, case.ids, case.held
    found = audit_embeddings(rows, given, ids, num_classes=10, verified=held)
    assert (found.table["id"] == ids).all()
    mine = np.flatnonzero(~held)
    wrong = given[mine] != clean[mine]
    scores = {OURS: found.table[OURS][mine]}
    others = rivals(rows, given, ids, held, is_trusted, seed)
    scores |= {name: values[mine] for name, values in others.items()}
    report = {name: detection_report(np.nan_to_num(values), wrong) for name, values in scores.items()}
    is_right = found.table["suggested_label"][mine] == clean[mine]
    return {
        "report": report,
        "precision": calibration_of_top(np.nan_to_num(scores[OURS]), wrong),
        "errors": {"expected": found.info["expected_errors"], "true": int(wrong.sum())},
        "suggested_right": float(is_right[wrong].mean()),
    }


@dataclass(frozen=True, slots=True)
class NoisyFeatures:
    """Frozen features with labels as given and as they should be, the hold-out among them."""

    rows: NDArray[np.float32]  # [N, 1280]
    given: Labels
    clean: Labels
    ids: NDArray[np.str_]
    held: NDArray[np.bool_]  # with verified labels


def noisy_features(setting: str, split: str, holdout: str, seed: int, examples: int = 20_000) -> NoisyFeatures:
    """One draw of the noise on one split, beside verified labels where a hold-out is trusted."""
    parts = data.draw(split, examples, seed)
    given = noise.apply_to_split(setting, parts, seed)[0].astype(np.int64)
    rows, clean = frozen.embeddings("train")[parts.train.ids], parts.train.labels
    ids = np.array([f"train/{i}" for i in parts.train.ids])
    if holdout == "trusted":
        rows = np.concatenate([rows, frozen.embeddings("test")[parts.trusted.ids]])
        ids = np.concatenate([ids, [f"test/{i}" for i in parts.trusted.ids]])
        given, clean = (np.concatenate([labels, parts.trusted.labels]) for labels in (given, clean))
        held = np.arange(len(ids)) >= len(parts.train.ids)
    else:
        held = np.zeros(len(ids), bool)
    return NoisyFeatures(rows, given, clean, ids, held)


def rivals(
    rows: Floats, given: Labels, ids: NDArray[Any], held: NDArray[np.bool_], trusted: bool, seed: int
) -> dict[str, Floats]:
    """What others would do with the same features; high is suspicious. Rows of the hold-out mean nothing here."""
    inputs, targets = standardise(rows, ~held).inputs, torch.from_numpy(given)
    kept = np.flatnonzero(~held)
    fold = (hash_ids(ids[kept]).astype(np.uint64) >> np.uint64(7)) % np.uint64(NUM_FOLDS)
    probabilities = cross_validate(inputs, targets, kept, fold, seed)
    each = np.arange(len(given))
    own = probabilities[each, given]
    mean_own = np.array([own[kept][given[kept] == c].mean() for c in range(10)])
    adjusted = probabilities - mean_own
    found = {
        "confident learning, self-confidence": -own,
        "confident learning, margin": best_other(probabilities, given) - own,
        "confident learning, adjusted margin": best_other(adjusted, given) - adjusted[each, given],
        "nearest neighbours": np.zeros(len(given)),
    }
    unit = torch.nn.functional.normalize(inputs[kept], dim=1)
    found["nearest neighbours"][kept] = differing_neighbours(unit, given[kept], NEIGHBOURS)
    if trusted:
        from sklearn.linear_model import LogisticRegression

        probe = LogisticRegression(C=0.01, max_iter=300).fit(inputs[held].numpy(), given[held])
        probed = np.log(probe.predict_proba(inputs.numpy()) + 1e-6)
        found[PROBE] = best_other(probed, given) - probed[each, given]
    return found


def cross_validate(inputs: Tensor, targets: Tensor, rows: Labels, fold: NDArray[Any], seed: int) -> NDArray[np.float64]:
    """Probabilities of linear heads for the rows that they were not fitted to, ``[N, 10]``; 0 for all others."""
    found = np.zeros((len(targets), 10))
    for number in range(int(fold.max()) + 1):
        forward = _train_head(inputs, targets, rows[fold != number], seed)
        with torch.no_grad():
            out = rows[fold == number]
            found[out] = forward(inputs[out]).double().softmax(1).numpy()
    return found


def _train_head(inputs: Tensor, targets: Tensor, rows: Labels, seed: int) -> torch.nn.Linear:
    """Train a linear head on some rows for 180 steps, or two passes: one that has time learns the wrong labels too."""
    generator = torch.Generator().manual_seed(seed)
    head, mine = torch.nn.Linear(inputs.shape[1], 10), torch.from_numpy(rows)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    optimizer = torch.optim.Adam(head.parameters(), _RATE, weight_decay=1e-4)
    for _ in range(max(2, round(_STEPS * _BATCH / len(mine)))):
        for batch in mine[torch.randperm(len(mine), generator=generator)].split(_BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(head(inputs[batch]), targets[batch]).backward()
            optimizer.step()
    return head


def frozen_places(settings: Sequence[str] = SETTINGS) -> list[tuple[tuple[str, ...], list[Run]]]:
    """Runs of some settings by setting and hold-out, in the order of the other tables."""
    runs = [run for run in latest("frozen_noise.jsonl") if run["settings"]["setting"] in settings]
    found = group_runs(runs, ("setting", "holdout"))
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
                f"{holdout}, {describe_seeds(runs)}",
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


NOISE = Experiment(
    name="frozen_noise",
    settings=Setup,
    run=examine,
    tables={"frozen_noise": frozen_noise, "frozen_calibration": frozen_calibration},
    full={"setting": SETTINGS, "holdout": ("trusted", "as-given"), "seed": (1, 2, 3)},
    needs=FROZEN,
    describe=lambda row: ", ".join(f"{name} AP {found['ap']:.1f}" for name, found in row["report"].items()),
)
