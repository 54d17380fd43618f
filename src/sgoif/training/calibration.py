"""From a run's canaries to ``p_mislabeled``: calibrated, read through a model of the noise, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence import (
    Canaries,
    CleaningChoice,
    ExpectedPrecision,
    LabelCalibration,
    LikelyOthers,
    calibrate_on,
    draw_calibrations,
    expected_precision,
)
from sgoif.training.canaries import CALIBRATED_SIGNALS, CanaryLedger, has_factors
from sgoif.training.engine import Engine
from sgoif.training.noise import Examples, Judgement, NoiseEvidence, Predictions, judge_labels, with_noise

__all__ = ["RunCalibration", "calibrate_run"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RunCalibration:
    """What the canaries say about the training labels."""

    p_mislabeled: Floats  # one per example; NaN where it was not judged
    p_low: Floats  # a 90% interval of it
    p_high: Floats
    calibration: LabelCalibration
    precision: list[ExpectedPrecision]
    choice: CleaningChoice | None  # whether an as-given hold-out was cleaned, and why
    holdout: dict[str, NDArray[Any]]  # its own labels, judged; one row per example seen
    holdout_ids: NDArray[Any]  # of all hold-out examples, by row
    noise: NoiseEvidence | None  # the model of the noise that was used

    @property
    def expected_errors(self) -> float:
        """Expected number of wrong labels among the training examples."""
        return float(self.p_mislabeled.sum())


def calibrate_run(
    ledger: CanaryLedger, examples: Mapping[str, NDArray[Any]], engine: Engine, noise: NoiseEvidence | None = None
) -> RunCalibration | None:
    """Learn ``p_mislabeled`` from the canaries; None where there are none to learn from.

    With a model of the noise, what it says of a label is one more signal, and its transition weighs the flips. Where
    none is given, one is read off a first calibration.

    Args:
        ledger: the canaries' own signals.
        examples: the run's table, one row per training example.
        engine: whose hold-out it is.
        noise: what a model of the noise says.
    """
    canaries, count = ledger.canaries(engine), len(examples["id"])
    if canaries is None or not count:
        return None
    signals = np.stack([examples[name] for name in _columns(engine)], 1)
    judged = np.asarray(np.isfinite(signals).all(axis=1))
    if judged.sum() < 2:
        return None
    given = examples["given_label"]
    asked = Examples(signals[judged], given[judged], examples["suggested_label"][judged])
    choice = ledger.choice
    if noise is None:
        adapt = ledger.trusted or (choice is not None and choice.clean)
        seen = _predictions(examples, judged, canaries, ledger)
        found = judge_labels(canaries, asked, seen, adapt=adapt, may_doubt=ledger.may_doubt(canaries))
        if found.doubt is not None:
            choice = CleaningChoice(True, f"a model of the noise doubts {found.doubt:.0%} of the hold-out")
        noise = None if found.noise is None else found.noise.at_rows(judged)
    else:
        asked, canaries = asked.with_noise(noise.log_odds(given)[judged]), with_noise(canaries, noise)
        fitted = calibrate_on(canaries, asked.signals, asked.given, noise.model.transition, is_sure=noise.is_learnt)
        found = Judgement(fitted, asked)
    calibration, asked = found.calibration, found.examples
    draws = draw_calibrations(calibration, asked.signals, asked.given)
    p, low, high = np.full((3, count), np.nan)
    p[judged] = calibration.predict(asked.signals, asked.given)
    low[judged], high[judged] = draws.bounds(asked.signals, asked.given)
    precision = expected_precision(calibration, asked.signals, asked.given, draws=draws)
    holdout = ledger.judged(calibration, engine)
    ids = np.asarray(engine.holdout.ids)
    return RunCalibration(p, np.fmin(low, p), np.fmax(high, p), calibration, precision, choice, holdout, ids, noise)


def _predictions(
    examples: Mapping[str, NDArray[Any]], judged: NDArray[np.bool_], canaries: Canaries, ledger: CanaryLedger
) -> Predictions | None:
    """What the network said of the examples that can be judged, and of the canaries; None where that is too much."""
    held = ledger.predictions(canaries)
    if held is None or not Predictions.is_affordable(len(judged), ledger.num_classes):
        return None
    mine = {name: values[judged] for name, values in examples.items() if "runner_up" in name}
    others = LikelyOthers.from_columns(mine)
    p_given, given = examples["p_given"][judged], examples["given_label"][judged]
    return Predictions(others.spread(p_given, given, ledger.num_classes), held)


def _columns(engine: Engine) -> tuple[str, ...]:
    """The training examples' columns that mean what the canaries' do: without Kronecker factors, the identity's."""
    if has_factors(engine):
        return CALIBRATED_SIGNALS
    return tuple(name.replace("_solved", "_identity") for name in CALIBRATED_SIGNALS)
