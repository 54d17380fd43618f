"""Label errors found on frozen pretrained features: ``python -m benchmarks.frozen_noise``.

Heads are fitted to the noisy labels, each judging what it has not seen, as ``sgoif scan --features`` does. In
the same run, on the same features: cross-validated confident learning (three scores), the vote of the nearest
neighbours and, with a trusted hold-out, a linear probe fitted on it.

A trusted hold-out is 100 test images per class. As given, a tenth of the noisy data itself is held out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import data, frozen, noise
from benchmarks.metrics import calibration_of_top, detection_report
from benchmarks.records import append_result, is_recorded
from sgoif.cli.holdout import choose_doubtful
from sgoif.evidence import hash_ids
from sgoif.scan.frozen import NUM_FOLDS, audit_embeddings, train_head
from sgoif.scan.holdout import choose_holdout
from sgoif.scan.standardise import standardise

SETTINGS = ("pair-20", "sym-40", "aggre", "worst")
OURS = ("p_mislabeled", "worst", "harm", "worst_identity", "harm_identity", "probe_loss", "probe_margin")
LOW_IS_BAD = ("probe_margin",)
NEIGHBOURS = 20

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]


def examine(setting: str, split: str, holdout: str, seed: int, examples: int = 20_000) -> dict[str, Any]:
    """Run one draw, ours and the rivals; returns what each finds, in percent."""
    torch.set_num_threads(1)
    case = noisy_features(setting, split, holdout, seed, examples)
    rows, given, clean, ids, held = case.rows, case.given, case.clean, case.ids, case.held
    is_trusted = holdout == "trusted"
    what: dict[str, Any] = {"num_classes": 10, "verified": held & is_trusted, "seed": seed}
    found = audit_embeddings(rows, given, ids, held, **what)
    order = np.argsort(found.table["id"])
    mine = np.flatnonzero(~held)[np.argsort(ids[~held])]
    assert (found.table["id"][order] == ids[mine]).all()
    wrong = given[mine] != clean[mine]
    scores = {
        name: (-1 if name in LOW_IS_BAD else 1) * found.table[name][order] for name in OURS if name in found.table
    }
    others = rivals(rows, given, ids, held, is_trusted, seed)
    scores |= {name: values[mine] for name, values in others.items()}
    report = {name: detection_report(np.nan_to_num(values), wrong) for name, values in scores.items()}
    is_right = found.table["suggested_label"][order] == clean[mine]
    return {
        "report": report,
        "precision": calibration_of_top(np.nan_to_num(scores["p_mislabeled"]), wrong),
        "errors": {"expected": found.info.get("expected_errors"), "true": int(wrong.sum())},
        "suggested_right": float(is_right[wrong].mean()),
        "cleaning": found.info.get("holdout_cleaning"),
    }


@dataclass(frozen=True, slots=True)
class NoisyFeatures:
    """Frozen features with labels as given and as they should be, the hold-out among them."""

    rows: NDArray[np.float32]  # [N, 1280]
    given: Labels
    clean: Labels
    ids: NDArray[np.str_]
    held: NDArray[np.bool_]


def noisy_features(setting: str, split: str, holdout: str, seed: int, examples: int = 20_000) -> NoisyFeatures:
    """One draw of the noise on one split, with a hold-out of either kind."""
    parts = data.development(examples) if split == "development" else data.reported(examples, seed)
    given = noise.apply_to_split(setting, parts, seed)[0].astype(np.int64)
    rows, clean = frozen.embeddings("train")[parts.train.ids], parts.train.labels
    ids = np.array([f"train/{i}" for i in parts.train.ids])
    if holdout == "trusted":
        rows = np.concatenate([rows, frozen.embeddings("test")[parts.trusted.ids]])
        ids = np.concatenate([ids, [f"test/{i}" for i in parts.trusted.ids]])
        given, clean = (np.concatenate([labels, parts.trusted.labels]) for labels in (given, clean))
        held = np.arange(len(ids)) >= len(parts.train.ids)
    else:
        held = choose_holdout(ids, given, 10)
    return NoisyFeatures(rows, given, clean, ids, held)


def verified_curve(setting: str, split: str, seed: int, counts: Sequence[int]) -> list[dict[str, float]]:
    """What verifying the most doubtful hold-out labels by hand, as ``sgoif holdout`` proposes them, is worth."""
    torch.set_num_threads(1)
    parts = data.development() if split == "development" else data.reported(seed=seed)
    given, clean = noise.apply_to_split(setting, parts, seed)[0].astype(np.int64), parts.train.labels
    rows, ids = frozen.embeddings("train")[parts.train.ids], np.array([f"train/{i}" for i in parts.train.ids])
    held = choose_holdout(ids, given, 10)
    place = {name: number for number, name in enumerate(ids)}
    first = audit_embeddings(rows, given, ids, held, num_classes=10, seed=seed)
    doubtful = first.holdout()
    order = np.array([place[name] for name in doubtful["id"].to_pylist()])
    asked = order[choose_doubtful(doubtful["p_mislabeled"].to_numpy(), given[order], len(order))]
    found = []
    for count in counts:
        verified, labels = np.zeros(len(ids), bool), given.copy()
        verified[asked[:count]] = True
        labels[verified] = clean[verified]
        run = audit_embeddings(rows, labels, ids, held, num_classes=10, verified=verified, seed=seed)
        wrong = np.array([given[place[name]] != clean[place[name]] for name in run.table["id"].tolist()])
        expected, true = run.info["expected_errors"], int(wrong.sum())
        report = detection_report(np.nan_to_num(run.table["p_mislabeled"]), wrong)
        found.append({"verified": int(verified.sum()), "expected_errors": expected, "true_errors": true, **report})
    return found


def rivals(
    rows: Floats, given: Labels, ids: NDArray[Any], held: NDArray[np.bool_], trusted: bool, seed: int
) -> dict[str, Floats]:
    """What others would do with the same features; high is suspicious. Rows of the hold-out mean nothing here."""
    inputs, targets = standardise(rows, ~held).inputs, torch.from_numpy(given)
    kept = np.flatnonzero(~held)
    fold = (hash_ids(ids[kept]).astype(np.uint64) >> np.uint64(7)) % np.uint64(NUM_FOLDS)
    probabilities = np.zeros((len(given), 10))
    for number in range(NUM_FOLDS):
        _, forward = train_head(inputs, targets, kept[fold != number], 10, seed=seed)
        with torch.no_grad():
            out = kept[fold == number]
            probabilities[out] = forward(inputs[out]).double().softmax(1).numpy()
    each = np.arange(len(given))
    own = probabilities[each, given]
    mean_own = np.array([own[kept][given[kept] == c].mean() for c in range(10)])
    adjusted = probabilities - mean_own
    found = {
        "confident learning, self-confidence": -own,
        "confident learning, margin": _others(probabilities, given) - own,
        "confident learning, adjusted margin": _others(adjusted, given) - adjusted[each, given],
        "nearest neighbours": _neighbours(inputs, targets, kept),
    }
    if trusted:
        from sklearn.linear_model import LogisticRegression

        probe = LogisticRegression(C=0.01, max_iter=300).fit(inputs[held].numpy(), given[held])
        probed = np.log(probe.predict_proba(inputs.numpy()) + 1e-6)
        found["linear probe on the hold-out"] = _others(probed, given) - probed[each, given]
    return found


def _others(values: Floats, given: Labels) -> Floats:
    """The largest value among the classes that were not given."""
    masked = values.copy()
    masked[np.arange(len(given)), given] = -np.inf
    return np.asarray(masked.max(1))


def _neighbours(inputs: torch.Tensor, targets: torch.Tensor, kept: NDArray[np.int64]) -> Floats:
    """Share of the nearest neighbours by angle that have another label."""
    unit = torch.nn.functional.normalize(inputs[kept], dim=1)
    differ = np.zeros(len(inputs))
    for start in range(0, len(kept), 2000):
        near = (unit[start : start + 2000] @ unit.mT).topk(NEIGHBOURS + 1, 1).indices[:, 1:]
        mine = targets[kept[start : start + 2000]]
        differ[kept[start : start + 2000]] = (targets[kept][near] != mine[:, None]).double().mean(1).numpy()
    return differ


def show(settings: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Print one draw."""
    print(f"{settings['setting']}, {settings['holdout']}, seed {settings['seed']}, {settings['split']}:")
    for name, row in found["report"].items():
        print(f"  {name:40s} AP {row['ap']:5.1f}  P@1% {row['p@1%']:5.1f}")
    for item in found["precision"]:
        print(f"  top {100 * item['top']:.0f}%: mean p {item['value']:.2f}, wrong {item['true']:.2f}")
    print(f"  errors expected {found['errors']['expected']:.0f}, true {found['errors']['true']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--split", choices=["development", "reported"], default="development")
    parser.add_argument("--holdout", choices=["trusted", "as-given", "both"], default="both")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--verified", help="instead, with so many hold-out labels verified: 0,100,300,500")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--again", action="store_true", help="measure also what that file holds already")
    options = parser.parse_args()
    kinds = ["trusted", "as-given"] if options.holdout == "both" else [options.holdout]
    for seed in map(int, options.seeds.split(",")):
        for setting in options.settings:
            if options.verified:
                what = {"setting": setting, "split": options.split}
                curve = verified_curve(seed=seed, **what, counts=[int(n) for n in options.verified.split(",")])
                for item in curve:
                    print(json.dumps({**what, "seed": seed, **item}), flush=True)
                if options.save:
                    append_result(
                        options.save, {"benchmark": "verified", "settings": what, "seed": seed, "curve": curve}
                    )
                continue
            for holdout in kinds:
                what = {"setting": setting, "split": options.split, "holdout": holdout}
                if options.save and not options.again and is_recorded(options.save, what, seed):
                    continue
                found = examine(seed=seed, **what)
                print(json.dumps(found)) if options.json else show({**what, "seed": seed}, found)
                if options.save:
                    append_result(options.save, {"benchmark": "frozen_noise", "settings": what, "seed": seed, **found})


if __name__ == "__main__":
    main()
