"""What a run sees of its own hold-out: each example's scores under its own label, and how its labels clean themselves.

The refresh has the hold-out's features and logits anyway. Each example is scored only against directions (and a
re-fitted head) made from the other fold, weighted by the gate like the training visits of that time.

A hold-out with labels as given is judged by the judge of labels once in a while, and what is doubted loses weight in
the anchors from then on. Left out, AP of ``harm`` is 15 to 66 lower on seven noisy sets (digits, Fashion-MNIST,
Banking77; 5 to 20% wrong); a mixture of the hold-out's own influences, the rule before, was 0.5 below on ``harm`` and
1.8 above on ``worst``, and took four times as many right labels' weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence import (
    LIKENESS_COLUMNS,
    SIGNALS,
    Competence,
    Holdout,
    Snapshot,
    cross_fitted_signals,
    fold_of,
    hash_ids,
    measure_competence,
)
from sgoif.gradients.contractions import widen
from sgoif.influence import AnchorDraw, HeadRefit, packed_signs
from sgoif.judging.judge import fit_judge
from sgoif.judging.observations import Heldout, unseen_observations
from sgoif.judging.predictions import TopPredictions
from sgoif.judging.probe import Probe, fit_probe
from sgoif.linalg import KroneckerInverse
from sgoif.training.engine import Engine
from sgoif.training.judged import NoProbabilities
from sgoif.types import Floats

__all__ = ["FIRST_CLEAN", "HOLDOUT_SIGNALS", "LOOK_EVERY", "LOOK_FROM", "MOST_CLASSES", "HoldoutScores"]

# The scores of a hold-out example, in the order of the sums: influence solved and not tracked.
HOLDOUT_SIGNALS = (
    *(f"{name}_solved" if name in ("harm", "worst", "own") else name for name in SIGNALS),
    "probe_loss",
    "probe_margin",
)
FIRST_CLEAN = 10  # refreshes until a hold-out judges its own labels; then after twice as many each time
_JUDGED = 2_000  # of its examples that are learnt from then: some tenths of a second
LOOK_FROM, LOOK_EVERY = 256, 4  # above so many classes a look costs as much as a refresh: only some are made
_SUMS = ("total", "mass", "suggested")  # of a state
MOST_CLASSES = 2_000  # above, the hold-out is not scored against itself
_KEPT = 64  # classes of a prediction that are kept
_NUMBERS = 1 << 24  # of predictions that are made at once


class HoldoutScores:
    """Sums of every hold-out example's signals under its own label, ``[m, S]``, weighted by the gate.

    Args:
        engine: whose hold-out it is.
        trusted: whether the hold-out's labels are verified; those that are not clean themselves.
    """

    def __init__(self, engine: Engine, *, trusted: bool = False) -> None:
        holdout = engine.holdout
        self.trusted, self.cleans_itself, self.num_classes = trusted, not trusted, holdout.num_classes
        self.labels = holdout.labels.cpu().numpy()
        self.fold = fold_of(np.asarray(holdout.ids))
        self.judged_classes = holdout.judged_classes.numpy()
        self._counted = holdout.is_anchor.cpu().numpy()
        self.is_on = holdout.num_classes <= MOST_CLASSES and len(np.unique(self.fold)) == 2
        self._refreshes, self._next_clean = 0, FIRST_CLEAN
        self.forget()

    def forget(self) -> None:
        """Start the sums again, as after a change of the anchors that makes them another question."""
        count = len(self.labels) if self.is_on else 0
        self._total, self._mass = np.zeros((count, len(HOLDOUT_SIGNALS))), np.zeros(count)
        self._suggested = np.full(len(self.labels), -1, np.int64)  # class of the worst anchor, when last seen
        self._refits = (HeadRefit(), HeadRefit())  # on the other fold

    def add(self, draw: AnchorDraw, engine: Engine, step: int) -> bool:
        """Score the examples that a refresh has just seen; True if the hold-out then looked at its own labels."""
        if not self.is_on or engine.reading is None or not engine.settings.probe:
            return False
        trust = float(engine.reading.confidence.mean())
        self._refreshes += 1
        is_rare = self.num_classes > LOOK_FROM and self._refreshes % LOOK_EVERY
        if trust == 0 or is_rare:
            return False
        self._look([draw], engine, step, trust)
        is_due = self.cleans_itself and self._refreshes >= self._next_clean
        if is_due:
            self._next_clean = 2 * self._refreshes
            self.clean(engine)
        return is_due

    def look(self, draws: Sequence[AnchorDraw], engine: Engine, step: int) -> None:
        """Score the examples of some draws, all taken from one state of a model, fold against fold."""
        self._refits = (HeadRefit(), HeadRefit())  # another model's are of no use
        self._look(draws, engine, step, 1.0)

    def _look(self, draws: Sequence[AnchorDraw], engine: Engine, step: int, trust: float) -> None:
        rows = torch.cat([draw.positions for draw in draws]).cpu().numpy()
        features = torch.cat([widen(draw.rows[engine.head.name].inputs)[:, 0].mean(2) for draw in draws])
        logits = torch.cat([widen(draw.outputs) for draw in draws])
        x, z = (part.cpu().numpy() for part in (features, logits))
        snapshot = Snapshot(x, z, *_solve(engine, features), rows, step)
        believed = engine.anchors.trust.cpu().double().numpy()
        part = Holdout(self.labels[rows], self.fold[rows], self.num_classes, [replace(snapshot, rows=None)])
        if len(np.unique(part.fold)) < 2:
            return
        scored = cross_fitted_signals(part, self.labels[rows, None], believed[rows])
        self._suggested[rows] = scored.worst_anchor[:, 0]
        values = np.concatenate([scored.values[:, 0], self._probe(engine, features, logits, rows)], 1)
        # the other fold may hold no example of one class, which says nothing about the others
        usable = np.isfinite(values).all(1)
        self._total[rows] += trust * np.where(usable[:, None], values, 0.0)  # no row comes twice in a look
        self._mass[rows] += trust * usable

    def _probe(self, engine: Engine, features: torch.Tensor, logits: torch.Tensor, rows: NDArray[np.int64]) -> Floats:
        """Loss change and margin under a head re-fitted on the other fold, ``[r, 2]``."""
        found = np.full((len(rows), 2), np.nan)
        folds = torch.from_numpy(self.fold).to(features.device)
        for fold in (0, 1):
            mine = self.fold[rows] == fold
            if not mine.any():
                continue
            trust = engine.seen * engine.anchors.trust * (folds != fold)
            head = self._refits[fold].renew(engine.features, engine.holdout.labels, engine.head_weight(), trust)
            given = torch.from_numpy(self.labels[rows][mine]).to(features.device)[:, None]
            moved = features[mine] @ head.mT.to(features.dtype)
            change = logits[mine].log_softmax(1) - moved.log_softmax(1)  # CE after minus CE before
            best_other = moved.scatter(1, given, float("-inf")).max(1).values
            found[mine, 0] = change.gather(1, given)[:, 0].cpu().double().numpy()
            found[mine, 1] = (moved.gather(1, given)[:, 0] - best_other).cpu().double().numpy()
        return found

    def clean(self, engine: Engine) -> None:
        """Judge the hold-out's own labels, and weigh the anchors by how likely each is right from here on."""
        rows = self.rows_seen(engine)
        some = np.argsort(hash_ids(np.asarray(engine.holdout.ids)[rows]))[:_JUDGED]
        try:
            held = self.heldout(engine)
            judge = fit_judge(unseen_observations(held.take(some)))
        except SgoifError:  # labels of one class alone, or nothing that was kept of their features
            return
        weights = np.ones(len(self.labels))
        if judge.kind in ("counted", "spread") and judge.competence.is_competent:
            weights[rows] = 1 - np.nan_to_num(judge.judge_unseen(held).p)
        engine.anchors.trust = torch.from_numpy(self._counted * weights).to(engine.anchors.trust)

    def competence(self, engine: Engine) -> Competence:
        """How often the model was right on the hold-out, each example as it was last seen."""
        predicted = engine.predicted.cpu().numpy()
        seen = predicted >= 0
        return measure_competence(predicted[seen] == self.labels[seen], self.labels[seen], self.num_classes)

    def known_classes(self, engine: Engine) -> NDArray[np.bool_]:
        """Which classes have enough hold-out examples, and one that was seen, ``[C]``; the others are not judged."""
        seen = engine.seen.cpu().numpy() > 0
        return np.asarray((np.bincount(self.labels[seen], minlength=self.num_classes) > 0) & self.judged_classes)

    def heldout(
        self, engine: Engine, probe: Probe | None = None, log_p: NDArray[np.floating[Any]] | None = None
    ) -> Heldout:
        """The hold-out as a judge sees it.

        Args:
            engine: whose hold-out it is.
            probe: the head by which the training examples were predicted last, where one was fitted.
            log_p: predictions of the finished model, ``[m, C]``; if left out, those of the model as it is, of features
                as they were last seen.
        """
        rows = self.rows_seen(engine)
        if self.num_classes > MOST_CLASSES:
            raise NoProbabilities(
                f"there are {self.num_classes:,} classes, and labels are judged among {MOST_CLASSES:,}"
            )
        return Heldout(
            labels=self.labels[rows],
            predictions=self._predictions(engine, rows) if log_p is None else TopPredictions.of(log_p[rows], _KEPT),
            trusted=self.trusted,
            probe=None if probe is None else TopPredictions.of(probe.held_logs.double().numpy(), _KEPT),
        )

    @torch.no_grad()
    def _predictions(self, engine: Engine, rows: NDArray[np.int64]) -> TopPredictions:
        if not len(engine.features):
            raise NoProbabilities(
                "the re-fitted head is off, and with it what the run keeps of the hold-out (`probe=False`)"
            )
        weight, parts = engine.head_weight().mT, []
        for some in torch.from_numpy(rows).split(max(1, _NUMBERS // self.num_classes)):
            features = widen(engine.features[some.to(engine.features.device)])
            parts.append(TopPredictions.of((features @ weight).log_softmax(1).cpu().numpy(), _KEPT))
        return TopPredictions.concatenate(parts) if parts else TopPredictions.of(np.zeros((0, self.num_classes)))

    def rows_seen(self, engine: Engine) -> NDArray[np.int64]:
        """Which hold-out examples were seen, ascending."""
        return np.flatnonzero(engine.predicted.cpu().numpy() >= 0)

    def probe(self, engine: Engine) -> Probe | None:
        """A head that was fitted to the hold-out, where its labels are verified; None elsewhere."""
        rows = self.rows_seen(engine)
        if not self.trusted or not len(rows):
            return None
        features = widen(engine.features[torch.from_numpy(rows).to(engine.features.device)])
        return fit_probe(features.detach(), self.labels[rows], self.num_classes)

    def table(self, engine: Engine) -> dict[str, NDArray[Any]]:
        """One row per hold-out example that was seen: its signals under its own label, not judged yet."""
        rows = self.rows_seen(engine)
        signals = np.full((len(rows), len(HOLDOUT_SIGNALS)), np.nan)
        if self.is_on:
            mass = self._mass[rows, None]
            signals = np.where(mass > 0, self._total[rows] / np.where(mass > 0, mass, 1.0), np.nan)
        belief = engine.anchors.trust.cpu().double().numpy().clip(0, 1)
        columns: dict[str, NDArray[Any]] = {
            "id": np.asarray(engine.holdout.ids)[rows],
            "given_label": self.labels[rows],
            "suggested_label": self._suggested[rows],
            "trusted": np.full(len(rows), self.trusted),
            "belief": np.where(self.judged_classes[self.labels], belief, 1.0)[rows],  # of few, nobody has doubted it
        }
        columns |= {name: signals[:, i] for i, name in enumerate(HOLDOUT_SIGNALS)}
        return columns | (_last_seen(engine, rows) if engine.settings.probe else {})

    def state_dict(self) -> dict[str, Any]:
        """What was added up so far."""
        sums = {name: getattr(self, f"_{name}").copy() for name in _SUMS}
        refits = [refit.state_dict() for refit in self._refits]
        counts = {"refreshes": self._refreshes, "next_clean": self._next_clean}
        return {**sums, **counts, "refits": refits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where others stood."""
        for name in _SUMS:
            setattr(self, f"_{name}", state[name].copy())
        self._refreshes, self._next_clean = int(state["refreshes"]), int(state["next_clean"])
        for refit, saved in zip(self._refits, state["refits"], strict=True):
            refit.load_state_dict(saved)


def _last_seen(engine: Engine, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """What the model made of hold-out examples when it last saw them: a prediction, and the signs of their features."""
    with torch.no_grad():
        features = widen(engine.features[torch.from_numpy(rows).to(engine.features.device)])
        predicted = (features @ engine.head_weight().mT).softmax(1).float().cpu().numpy()
        words = packed_signs(engine.likeness.signs(features)).cpu().numpy().view(np.int64)
    posterior = np.fromiter(predicted, dtype=object, count=len(rows))  # one vector per row, as tables hold them
    return {"posterior": posterior, **dict(zip(LIKENESS_COLUMNS, words.T, strict=True))}


def _solve(engine: Engine, features: torch.Tensor) -> tuple[Floats | None, Floats | None]:
    """``G⁻¹``, or its diagonal, and ``A⁻¹`` times the features; None without curvature."""
    inverse = _kronecker(engine)
    if inverse is None:
        return None, None
    solved = inverse.right.solve(features.mT[None].to(inverse.right.lower.dtype))[0].mT
    return inverse.left.inverse()[0].cpu().double().numpy(), solved.to(features.dtype).cpu().numpy()


def _kronecker(engine: Engine) -> KroneckerInverse | None:
    inverse = engine.curvature.factorise(engine.head.name).inverse
    return inverse if isinstance(inverse, KroneckerInverse) else None
