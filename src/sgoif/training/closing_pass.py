"""What the finished model says of hold-out and training examples, all at one moment: passes at ``close()``.

Visits are spread over a training, so that two examples are seen by two models. Labels are better judged by one: the
hold-out always goes through the finished model once more, and the training examples where they are given to ``close``.
A pass leaves no trace on the model, and one that fails costs itself alone: then last visits stand in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.distributed import keep_sharded
from sgoif.errors import SgoifError
from sgoif.evidence import as_ids
from sgoif.gradients import quiet_eval
from sgoif.gradients.contractions import widen
from sgoif.inputs.examples import Examples
from sgoif.judging.probe import Probe, fit_probe, last_word
from sgoif.training.engine import Engine
from sgoif.training.losses import HoldoutPass
from sgoif.types import Ints

if TYPE_CHECKING:
    from sgoif.training.monitor import Monitor

__all__ = ["FinalViews", "final_views", "predict_holdout"]

log = logging.getLogger(__name__)

_BATCH = 256
_MOST_NUMBERS = 1 << 28  # of the hold-out's log probabilities, 1 GB; a larger hold-out is predicted in part
_CHECKED = 256  # examples whose labels are compared with those of the training

Logs = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FinalViews:
    """What the finished model says."""

    held_log_p: Logs | None  # of the hold-out in its order, [m, C], NaN where there is none; None without a pass
    probe: Probe | None  # by which the training examples were predicted last, in place of the model's head
    facts: dict[str, Any]  # for the run's information


def final_views(monitor: Monitor, dataset: Any = None) -> FinalViews:
    """Ask the finished model about the hold-out, and about the training examples where they are given; never raises.

    With ``dataset`` the recorder's last predictions become those of the finished model, or of a probe of its features
    where the hold-out's labels are verified. Among several processes there is no pass: what is run in one alone may
    wait for the others.
    """
    begun, held, probe = time.perf_counter(), None, None
    if monitor.peers.is_alone and monitor.engine.draws:
        what = "the hold-out could not be predicted at the end; earlier predictions are used."
        held = _guard(monitor, what, lambda: _predict_whole_holdout(monitor))
        if held is not None and dataset is not None and monitor.holdout_scores is not None:
            probe = _guard(monitor, "no probe could be fitted to the hold-out.", lambda: _fit_probe(monitor))
    facts = {"holdout_seconds": time.perf_counter() - begun}
    begun = time.perf_counter()
    found = None if dataset is None else _view_training(monitor, dataset, probe)
    facts |= {"seconds": time.perf_counter() - begun}
    num_seen = len(monitor.recorder.index)
    counts = {"from": "visits", "examples": 0, "missing": num_seen, "not_seen": 0} if found is None else found
    return FinalViews(held, None if found is None else probe, counts | facts)


def predict_holdout(model: nn.Module, engine: Engine, seen: HoldoutPass, positions: Tensor | None = None) -> Logs:
    """Log probabilities of hold-out examples in their order, ``[m, C]``, by the model as it is.

    Costs a forward pass over the hold-out, without gradients. The model is put into eval mode; modes, random generators
    and buffers are left as found. An example that cannot be read has NaN.

    Args:
        model: that is asked.
        engine: whose hold-out it is.
        seen: how its examples go through the model.
        positions: of the examples, all by default.
    """
    holdout = engine.holdout
    asked = torch.arange(len(holdout)) if positions is None else positions
    place = np.empty(len(holdout), np.int64)
    place[asked.numpy()] = np.arange(len(asked))
    found = np.full((len(asked), holdout.num_classes), np.nan, np.float32)
    for part, log_p in _predict(model, seen.forward, holdout.inputs, asked, engine.anchors.per_refresh):
        found[place[part.numpy()]] = log_p.cpu().numpy()
    return found


def _predict_whole_holdout(monitor: Monitor) -> Logs | None:
    """Renew the engine's predictions of the hold-out; give their log probabilities where all of it was asked about."""
    engine = monitor.engine
    count, most = len(engine.holdout), max(1, _MOST_NUMBERS // engine.holdout.num_classes)
    positions = torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()
    found = predict_holdout(monitor.model, engine, monitor._as_trained(), positions)
    is_finite = np.isfinite(found).all(1)
    predicted = torch.full_like(engine.predicted, -1)
    best = torch.from_numpy(np.where(is_finite, np.nan_to_num(found).argmax(1), -1))
    predicted[positions.to(predicted.device)] = best.to(predicted)
    engine.predicted = predicted
    return found if count <= most else None


def _fit_probe(monitor: Monitor) -> Probe | None:
    """A head for the features of the finished model, fitted to a verified hold-out; None where it is not verified."""
    scores, engine = monitor.holdout_scores, monitor.engine
    if scores is None or not scores.trusted:
        return None
    rows, features = torch.from_numpy(scores.rows_seen(engine)), []
    with _watch_features(engine) as seen:
        for _ in _predict(monitor.model, monitor._as_trained().forward, engine.holdout.inputs, rows, _BATCH):
            features.append(seen.pop())
    return fit_probe(torch.cat(features), scores.labels[rows.numpy()], scores.num_classes)


@contextmanager
def _watch_features(engine: Engine) -> Iterator[list[Tensor]]:
    """What the head is given, over positions, of each batch that passes, ``[B, D]``."""
    found: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        given = widen(inputs[0].detach())
        is_linear = isinstance(module, nn.Linear)
        pooled = given.flatten(1, -2).mean(1) if is_linear and given.dim() > 2 else given
        found[:] = [pooled if is_linear else given.flatten(2).mean(2)]

    handle = engine.head.module.register_forward_pre_hook(keep)
    try:
        yield found
    finally:
        handle.remove()


def _view_training(monitor: Monitor, dataset: Any, probe: Probe | None) -> dict[str, Any] | None:
    """Replace last predictions by the finished model's; None where that cannot be done, which is said."""
    why = None
    if not monitor.peers.is_alone:
        why = "several processes trained, and a pass in one of them could wait for the others"
    elif not monitor.recorder.keeps_evidence:
        why = "the run is added up from its files, where several processes wrote it"
    if why is not None:
        log.warning("close(dataset) is not used: %s; each example's last visit stands in.", why)
        return None
    what = "the training examples could not be predicted at the end; their last visits stand in."
    return _guard(monitor, what, lambda: _replace_last(monitor, dataset, probe))


def _replace_last(monitor: Monitor, dataset: Any, probe: Probe | None) -> dict[str, Any]:
    recorder, device = monitor.recorder, monitor.engine.holdout.device
    examples = Examples(dataset, role="dataset", device=device)
    rows = recorder.index.rows(as_ids(examples.ids))
    given = np.full(len(rows), -1)
    given[rows >= 0] = recorder.given[rows[rows >= 0]]  # none where the example had soft targets alone
    positions = np.flatnonzero(given >= 0)
    if not len(positions):
        raise SgoifError(
            f"none of the {len(rows):,} examples of dataset has an id that step() was given with a class; pass the "
            "dataset that was trained on, in sgoif.with_ids where it was in it."
        )
    _check_labels(examples, positions, given, monitor.facts.get("class_names"))
    kept = []
    forward = monitor._as_trained().forward
    with _watch_features(monitor.engine) as seen:
        for part, log_p in _predict(monitor.model, forward, examples.inputs, torch.from_numpy(positions), _BATCH):
            said = log_p.cpu() if probe is None else probe.logs(seen.pop().cpu())
            kept.append(
                (
                    rows[part.numpy()],
                    *(column.numpy() for column in last_word(said, torch.from_numpy(given[part.numpy()]))),
                )
            )
    at, p_given, margin, runner_up = (np.concatenate(columns) for columns in zip(*kept, strict=True))
    recorder.last.keep(at, p_given, margin, runner_up)
    is_replaced = np.zeros(len(recorder.index), bool)
    is_replaced[at[np.isfinite(margin)]] = True
    num_replaced = int(is_replaced.sum())
    missing, not_seen = len(is_replaced) - num_replaced, int((rows < 0).sum())
    return {"from": "pass", "examples": num_replaced, "missing": missing, "not_seen": not_seen}


def _check_labels(examples: Examples, positions: Ints, given: Ints, class_names: Any) -> None:
    """Refuse a dataset whose labels are not those of the training: then its ids are those of other examples.

    Labels that cannot be compared are not, and some may have been changed on the way to the loss.
    """
    if not examples.has_labels:
        return
    some = np.unique(np.linspace(0, len(positions) - 1, min(len(positions), _CHECKED)).round().astype(np.int64))
    try:
        read, (_, labels) = _read_some(
            lambda part: examples.labelled(part, class_names), torch.from_numpy(positions[some])
        )
    except SgoifError:
        return
    alike = float((labels.cpu().numpy() == given[read.numpy()]).mean())
    shares = np.bincount(given[positions]) / len(positions)
    if alike < (1 + float((shares**2).sum())) / 2:  # half-way between all and what chance gives
        raise SgoifError(
            f"only {alike:.0%} of the labels of dataset are those that step() was given for the same ids; pass the "
            "examples that were trained on, under the same ids."
        )


@torch.no_grad()
def _predict(
    model: nn.Module, forward: Callable[[Any], Tensor], read: Callable[[Tensor], Any], positions: Tensor, batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions, without those that cannot be read, and their log probabilities, batch by batch."""
    for part in positions.split(batch):
        with keep_sharded(model), quiet_eval(model):  # for each batch: nothing is left open between them
            part, inputs = _read_some(read, part)
            log_p = widen(forward(inputs)).log_softmax(1)
        yield part, log_p


def _read_some(read: Callable[[Tensor], Any], positions: Tensor) -> tuple[Tensor, Any]:
    try:
        return positions, read(positions)
    except Exception:
        readable = [position for position in positions.split(1) if _can_read(read, position)]
        if not readable:
            raise
        return torch.cat(readable), read(torch.cat(readable))


def _can_read(read: Callable[[Tensor], Any], position: Tensor) -> bool:
    try:
        read(position)
    except Exception as error:
        log.debug("example %d is left out of the pass at the end: %s", int(position), error)
        return False
    return True


def _guard(monitor: Monitor, what: str, run: Callable[[], T]) -> T | None:
    """What a pass gives; None where it fails, which is counted and said."""
    try:
        return run()
    except Exception as error:
        monitor.fault_log.note(error, what)
        return None
