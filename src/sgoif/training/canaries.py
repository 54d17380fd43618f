"""Canaries of a run: hold-out examples scored under their own and under any other label, at every refresh, for free.

The refresh has the hold-out's features and logits anyway. Each example is scored only against directions (and a
re-fitted head) made from the other fold, weighted by the gate like the training visits of that time, and what comes
out at the end are labelled positives and negatives of this very run. From them :mod:`sgoif.training.calibration` learns
``p_mislabeled``.

A hold-out with labels as given cleans itself once in a while: what it doubts loses weight in the anchors from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.evidence import (
    LIKENESS_COLUMNS,
    SIGNALS,
    Canaries,
    CleaningChoice,
    Competence,
    Holdout,
    LargestPredictions,
    PredictionSums,
    Snapshot,
    cross_fitted_signals,
    estimate_transition,
    fold_of,
    labels_to_try,
    measure_competence,
    self_clean,
    should_clean,
)
from sgoif.gradients.contractions import widen
from sgoif.influence import MIN_HELD_OUT, AnchorDraw, HeadRefit, packed_signs
from sgoif.linalg import KroneckerInverse
from sgoif.training.engine import Engine
from sgoif.types import Floats

__all__ = [
    "CALIBRATED_SIGNALS",
    "KEPT_SNAPSHOTS",
    "LOOK_EVERY",
    "LOOK_FROM",
    "CanaryLedger",
    "has_factors",
]

# What a ledger keeps of each label tried: the influence signals in the form that training examples have too, solved and
# not tracked.
CALIBRATED_SIGNALS = (
    *("loss", "margin", "p_given"),
    *("harm_solved", "worst_solved", "harm_identity", "worst_identity"),
    *("probe_loss", "probe_margin"),
)
_CROSS_FITTED = [SIGNALS.index(name.removesuffix("_solved")) for name in CALIBRATED_SIGNALS[:-2]]
KEPT_SNAPSHOTS = 8  # for self-cleaning: about 2,000 hold-out visits, bounded whatever the run's length
# Refreshes between two times that a hold-out cleans itself: 10, later a quarter of those so far. At every tenth it took
# up to 6% of a ResNet-9's training, however long that was.
_CLEAN_EVERY, _CLEAN_SHARE = 10, 4
LOOK_FROM, LOOK_EVERY = 256, 4  # above so many classes a look costs as much as a refresh: only some are made
_SUMS = ("assigned", "total", "mass", "leaks", "suggested")  # of a state
_MOST_CLASSES = 2_000  # the transition is a dense table of classes squared, 32 MB here


class CanaryLedger:
    """Sums of every hold-out example's signals under the labels it is tried under, ``[m, F, S]``, weighted by the gate.

    Up to 64 classes an example is tried under every label; above, under its own and the five that were most probable
    when it was first looked at. Above 2,000 classes there are no canaries.

    Args:
        engine: whose hold-out it is.
        trusted: whether all of the hold-out's labels are verified.
        verified: which of them are, ``[m]``, in place of ``trusted``. Those that are not clean themselves.
    """

    def __init__(self, engine: Engine, *, trusted: bool = False, verified: NDArray[np.bool_] | None = None) -> None:
        holdout = engine.holdout
        self.verified = np.full(len(holdout.labels), trusted) if verified is None else verified
        trusted = bool(self.verified.all())
        self.trusted, self.cleans_itself, self.num_classes = trusted, not trusted, holdout.num_classes
        self.labels = holdout.labels.cpu().numpy()
        self.fold = fold_of(np.asarray(holdout.ids))
        self.judged_classes = holdout.judged_classes.numpy()
        self._counted = holdout.is_anchor.cpu().numpy()
        self.is_on = holdout.num_classes <= _MOST_CLASSES and len(np.unique(self.fold)) == 2
        self._refreshes = self._looks = self._cleaned_at = 0
        self.choice: CleaningChoice | None = None
        self.forget()

    def forget(self) -> None:
        """Start the sums again, as after a change of the anchors that makes them another question."""
        count, classes = (len(self.labels), self.num_classes) if self.is_on else (0, 0)
        self._assigned = np.zeros((count, 0), np.int64)  # labels tried, [m, F]; F is known with the first look
        self._total = np.zeros((count, 0, len(CALIBRATED_SIGNALS)))
        self._predicted = PredictionSums(count, max(classes, 1))
        self._mass = np.zeros((count, 0, 1))  # weight of the looks that could tell, [m, F, 1]
        self._leaks = np.zeros((classes, classes))  # predictions summed by the example's label
        self._suggested = np.full(count, -1, np.int64)  # class of the worst anchor under its own label, when last seen
        self._recent: deque[Snapshot] = deque(maxlen=KEPT_SNAPSHOTS)
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
        is_due = self.cleans_itself and self._is_cleaning_due() and len(self._recent) > 1
        if is_due:
            self._cleaned_at = self._refreshes
            self.clean(engine)
        return is_due

    @property
    def clean_every(self) -> int:
        """Refreshes between two times that the hold-out cleans itself, at first."""
        return 2 * _CLEAN_EVERY if self.num_classes > LOOK_FROM else _CLEAN_EVERY

    def _is_cleaning_due(self) -> bool:
        return self._refreshes - self._cleaned_at >= max(self.clean_every, self._cleaned_at // _CLEAN_SHARE)

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
        if self.cleans_itself:  # nobody else asks for them
            self._recent.append(snapshot)
        self._looks += 1
        believed = engine.anchors.trust.cpu().double().numpy()
        assigned = self._labels_for(snapshot)
        part = Holdout(self.labels[rows], self.fold[rows], self.num_classes, [replace(snapshot, rows=None)])
        if len(np.unique(part.fold)) < 2:
            return
        scored = cross_fitted_signals(part, assigned, believed[rows])
        own = (assigned == self.labels[rows, None]).argmax(1)
        self._suggested[rows] = scored.worst_anchor[np.arange(len(rows)), own]
        probe = self._probe(engine, features, logits, rows)
        probe = np.take_along_axis(probe, assigned[:, :, None], axis=1)
        values = np.concatenate([scored.values[:, :, _CROSS_FITTED], probe], 2)
        # by label: the other fold may hold no example of one class, which says nothing about the others
        usable = np.isfinite(values).all(2, keepdims=True)
        self._total[rows] += trust * np.where(usable, values, 0.0)
        self._mass[rows] += trust * usable
        predicted = logits.softmax(1).cpu().double().numpy()
        self._predicted.add(rows, predicted, trust)  # no row comes twice in a look
        np.add.at(self._leaks, self.labels[rows], (trust * believed[rows])[:, None] * predicted)

    def _labels_for(self, snapshot: Snapshot) -> NDArray[np.int64]:
        """The labels that the examples of a snapshot are tried under, fixed when each is first seen."""
        rows = snapshot.rows
        assert rows is not None
        part = Holdout(self.labels[rows], np.arange(len(rows)) % 2, self.num_classes, [replace(snapshot, rows=None)])
        proposed = labels_to_try(part)
        if self._assigned.shape[1] == 0:
            self._assigned = np.full((len(self.labels), proposed.shape[1]), -1, np.int64)
            self._total = np.zeros((len(self.labels), proposed.shape[1], len(CALIBRATED_SIGNALS)))
            self._mass = np.zeros((len(self.labels), proposed.shape[1], 1))
        known = self._assigned[rows]
        self._assigned[rows] = np.where(known < 0, proposed, known)
        return self._assigned[rows]

    def _probe(self, engine: Engine, features: torch.Tensor, logits: torch.Tensor, rows: NDArray[np.int64]) -> Floats:
        """Loss change and margin under a head re-fitted on the other fold, for every label, ``[r, C, 2]``."""
        found = np.full((len(rows), self.num_classes, 2), np.nan)
        folds = torch.from_numpy(self.fold).to(features.device)
        for fold in (0, 1):
            mine = self.fold[rows] == fold
            if not mine.any():
                continue
            trust = engine.seen * engine.anchors.trust * (folds != fold)
            head = self._refits[fold].renew(engine.features, engine.holdout.labels, engine.head_weight(), trust)
            moved = features[mine] @ head.mT.to(features.dtype)
            change = logits[mine].log_softmax(1) - moved.log_softmax(1)  # CE after minus CE before, under each label
            top = moved.topk(2, 1)
            best_other = torch.where(moved >= top.values[:, :1], top.values[:, 1:], top.values[:, :1])
            found[mine, :, 0] = change.cpu().double().numpy()
            found[mine, :, 1] = (moved - best_other).cpu().double().numpy()
        return found

    def clean(self, engine: Engine) -> None:
        """Let the hold-out judge its own labels, and weigh the anchors accordingly from here on."""
        if not self._recent:  # without a re-fitted head nothing was looked at
            return
        seen = np.unique(np.concatenate([_rows(snapshot) for snapshot in self._recent]))
        snapshots = [replace(item, rows=np.searchsorted(seen, _rows(item))) for item in self._recent]
        if len(np.unique(self.fold[seen])) < 2:
            return
        cleaning = self_clean(Holdout(self.labels[seen], self.fold[seen], self.num_classes, snapshots))
        self.choice = should_clean(cleaning)
        weights = np.ones(len(self.labels))
        if self.choice.clean:
            weights[seen] = cleaning.weights
        sure = torch.from_numpy(self._counted * np.where(self.verified, 1.0, weights))
        engine.anchors.trust = sure.to(engine.anchors.trust)

    def canaries(self, engine: Engine) -> Canaries | None:
        """The table of canaries, or None where too little was seen."""
        row, tried = np.nonzero(self._select_labels())
        if len(np.unique(self.labels[row])) < 2:
            return None
        belief = engine.anchors.trust.cpu().double().numpy().clip(0, 1)
        found = Canaries(
            holdout_row=row,
            fold=self.fold[row],
            label=self.labels[row],
            assigned_label=self._assigned[row, tried],
            belief=belief[row],
            weight=belief[row],
            signals=self._total[row, tried] / self._mass[row, tried],
            worst_anchor=np.full(len(row), -1),
            num_classes=self.num_classes,
        )
        return found.reweight(estimate_transition(self._leaks, np.arange(self.num_classes)))

    def why_none(self, engine: Engine) -> str:
        """Say why there are no canaries, or too few."""
        count, draws = len(self.labels), engine.draws
        if self.num_classes > _MOST_CLASSES:
            return f"there are {self.num_classes:,} classes, and probabilities are learnt for at most {_MOST_CLASSES:,}"
        if not self.is_on:
            return (
                f"the hold-out is too small: its {count} examples fall into one of the two folds that judge each other"
            )
        if self.judged_classes.sum() < 2:
            return (
                f"the hold-out is too small: {self.judged_classes.sum()} of {self.num_classes:,} classes have at least "
                f"{MIN_HELD_OUT} held-out examples, and two are needed"
            )
        if not engine.settings.probe:
            return "the head was not re-fitted on the hold-out (probe=False), which probabilities need"
        if self._looks:
            return f"the hold-out is too small: of its {count} examples too few have another one of their class"
        if draws < 2:
            times = "only once" if draws else "never"
            return (
                f"the training was too short: it looked at the hold-out {times}, and at least two looks are needed; "
                "train longer, or lower refresh_every in the plan"
            )
        return f"the gate was shut at all {draws} looks at the hold-out: no score could be trusted"

    def competence(self, engine: Engine) -> Competence:
        """How often the model was right on the hold-out, each example as it was last seen."""
        predicted = engine.predicted.cpu().numpy()
        seen = predicted >= 0
        return measure_competence(predicted[seen] == self.labels[seen], self.labels[seen], self.num_classes)

    def _select_labels(self) -> NDArray[np.bool_]:
        """Which labels tried count, ``[m, F]``: those scored, of classes with an example scored under its own label.

        A class with few examples counts neither as an example's own nor as one that it is tried under. A class that is
        known by flips alone would learn that its label is always wrong; it is judged like the others.
        """
        scored = self._mass[:, :, 0] > 0
        own = scored & (self._assigned == self.labels[:, None]) if scored.size else scored
        is_known = np.zeros(self.num_classes, bool)
        is_known[self.labels[own.any(1)]] = True
        is_known &= self.judged_classes
        is_counted = self.judged_classes[self.labels][: len(scored), None]
        return np.asarray(scored & is_known[self._assigned] & is_counted)

    def known_classes(self, engine: Engine) -> NDArray[np.bool_]:
        """Which classes have enough hold-out examples, and one that was seen, ``[C]``; the others are not judged."""
        seen = engine.seen.cpu().numpy() > 0
        return np.asarray((np.bincount(self.labels[seen], minlength=self.num_classes) > 0) & self.judged_classes)

    def may_doubt(self, canaries: Canaries) -> NDArray[np.bool_]:
        """Whose hold-out labels nobody verified, by canary; nobody's where the hold-out may not clean itself."""
        return ~self.verified[canaries.holdout_row] & self.cleans_itself

    def margins(self) -> Floats:
        """Mean margins of the hold-out's own labels, over the looks that could tell."""
        is_own = self._select_labels() & (self._assigned == self.labels[: len(self._assigned), None])
        sums = self._total[:, :, CALIBRATED_SIGNALS.index("margin")][is_own]
        return np.asarray(sums / self._mass[:, :, 0][is_own])

    def predictions(self) -> LargestPredictions:
        """Mean predictions of hold-out examples, by row; those not seen have none."""
        return self._predicted.mean()

    def rows_seen(self, engine: Engine) -> NDArray[np.int64]:
        """Which hold-out examples were seen, ascending."""
        return np.flatnonzero(engine.predicted.cpu().numpy() >= 0)

    def table(self, engine: Engine) -> dict[str, NDArray[Any]]:
        """One row per hold-out example that was seen: its signals under its own label, not judged yet."""
        rows = self.rows_seen(engine)
        signals = np.full((len(rows), len(CALIBRATED_SIGNALS)), np.nan)
        if self._assigned.shape[1]:
            own = (self._assigned[rows] == self.labels[rows, None]).argmax(1)
            mass = self._mass[rows, own]
            signals = np.where(mass > 0, self._total[rows, own] / np.where(mass > 0, mass, 1.0), np.nan)
        belief = engine.anchors.trust.cpu().double().numpy().clip(0, 1)
        columns: dict[str, NDArray[Any]] = {
            "id": np.asarray(engine.holdout.ids)[rows],
            "given_label": self.labels[rows],
            "suggested_label": self._suggested[rows] if len(self._suggested) else np.full(len(rows), -1),
            "trusted": self.verified[rows],
            "belief": np.where(self.judged_classes[self.labels], belief, 1.0)[rows],  # of few, nobody has doubted it
        }
        columns |= {name: signals[:, i] for i, name in enumerate(CALIBRATED_SIGNALS)}
        return columns | (_last_seen(engine, rows) if engine.settings.probe else {})

    def state_dict(self) -> dict[str, Any]:
        """What was added up so far."""
        sums = {name: getattr(self, f"_{name}").copy() for name in _SUMS}
        recent = [asdict(item) for item in self._recent]
        refits = [refit.state_dict() for refit in self._refits]
        counts = {"refreshes": self._refreshes, "looks": self._looks, "cleaned_at": self._cleaned_at}
        return {**sums, **counts, "predicted": self._predicted.state_dict(), "recent": recent, "refits": refits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where another ledger stood."""
        for name in _SUMS:
            setattr(self, f"_{name}", state[name].copy())
        self._predicted.load_state_dict(state["predicted"])
        self._refreshes, self._looks = int(state["refreshes"]), int(state["looks"])
        self._cleaned_at = int(state["cleaned_at"])
        self._recent = deque((Snapshot(**item) for item in state["recent"]), maxlen=KEPT_SNAPSHOTS)
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


def _rows(snapshot: Snapshot) -> NDArray[np.int64]:
    assert snapshot.rows is not None
    return snapshot.rows


def has_factors(engine: Engine) -> bool:
    """Whether canaries are scored by Kronecker factors; else they have the identity's directions only."""
    return _kronecker(engine) is not None


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
