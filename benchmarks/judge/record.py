"""Record trainings as ``sgoif.watch`` sees them: ``python -m benchmarks.judge.record [development|reported]``.

Each is watched with the defaults and audited when it is finished. What is kept of it, once, is what any judge of its
labels may ask: log probabilities of every visit and of every look at the hold-out, both at the end, features, and what
watch and audit answered. Records lie in the folder of :mod:`benchmarks.cache` and are not part of the repository; one
that is there is not made again.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import sgoif
from benchmarks import cache, records
from benchmarks.judge.cells import GROUPS, Cell
from benchmarks.judge.networks import RECIPES, Recipe, predict
from benchmarks.judge.sets import Drawn, draw

LOOKS = 4  # at the hold-out, an epoch
FLAGGED = 0.5  # p_mislabeled from which on a label is more likely wrong than right
BARE_STEPS, WARM_STEPS = 20, 2
SIGNALS = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high", "margin", "loss")
SAID = ("expected_errors", "error_rate_low", "error_rate_high", "no_p_reason", "no_totals_reason", "competence")

Arrays = dict[str, NDArray[Any]]


def read_record(cell: Cell) -> Arrays:
    """The record of a training, which is made where it is missing; ``facts`` is JSON.

    ``given``, ``clean``, ``final`` [N, C], ``visits`` [epochs, N, C], ``features`` [N, D] are of training examples,
    ``held_*`` of the hold-out that was watched with; ``looks`` [L, H, C] are those at the hold-out while it trained, at
    ``moments`` in epochs. All predictions are log probabilities. Of the visits the monitor has ``scored`` [epochs, N]
    some. ``watch_*`` and ``audit_*`` are one value per training example.
    """
    return cache.keep(f"judge/{cell.name}.npz", lambda: record(cell))


def is_kept(cell: Cell) -> bool:
    """Whether the training has been recorded."""
    return (cache.folder() / "judge" / f"{cell.name}.npz").exists()


def record(cell: Cell) -> Arrays:
    """Train, watch, look, audit."""
    begun = time.process_time()
    drawn, recipe = draw(cell), RECIPES[cell.data]
    torch.manual_seed(cell.seed)
    model, labels = recipe.make(), torch.from_numpy(drawn.given)
    training = _Training(model, recipe, drawn, cell)
    run = training.watch()
    started = time.process_time()
    audited = sgoif.audit(model, (drawn.inputs, labels), anchors=training.anchors, trusted=cell.holdout == "trusted")
    seconds = {**training.seconds, "audit": time.process_time() - started, "bare": training.time_bare()}
    (final, features), (held_final, held_features) = (predict(model, x) for x in (drawn.inputs, training.anchors[0]))
    count = len(held_final)
    answers: Arrays = {"scored": _scored(run, training.visits.shape[:2])}
    facts = {"seconds": seconds, "commit": _commit(), "host": records.host()}
    for name, found in (("watch", run), ("audit", audited)):
        arrays, facts[name] = _answers(found, len(labels))
        answers |= {f"{name}_{key}": values for key, values in arrays.items()}
    seconds["all"] = time.process_time() - begun
    return {
        **{"given": drawn.given, "clean": drawn.clean},
        **{"held_given": drawn.held_given[:count], "held_clean": drawn.held_clean[:count]},
        **{"final": final.numpy(), "held_final": held_final.numpy()},
        **{"features": features.half().numpy(), "held_features": held_features.half().numpy()},
        **{"visits": training.visits, "looks": np.stack(training.looks), "moments": np.array(training.moments)},
        **answers,
        "facts": np.array(json.dumps(facts)),
    }


@functools.cache
def _commit() -> str:
    """The commit that this process began with: hours later the checkout may be at another."""
    return records.commit()


class _Training:
    """One watched training, and what is noted while it goes on."""

    def __init__(self, model: nn.Sequential, recipe: Recipe, drawn: Drawn, cell: Cell) -> None:
        self.model, self.recipe, self.drawn, self.cell = model, recipe, drawn, cell
        self.anchors = drawn.holdout(cell.holdout)
        count = len(drawn.given)
        self.steps = -(-count // recipe.batch_size)  # of an epoch; the last batch may be short
        self.visits = np.full((cell.epochs, count, drawn.num_classes), np.nan, np.float16)
        self.looks: list[NDArray[np.float32]] = []
        self.moments: list[float] = []
        self.seconds = {"train and watch": 0.0}

    def watch(self) -> sgoif.Run:
        """Train under ``sgoif.watch``; seconds are those of a user, without what is noted here."""
        started, noting = time.process_time(), 0.0
        optimizer = self.recipe.optimizer(self.model)
        schedule = self.recipe.schedule(optimizer, self.cell.epochs * self.steps)
        monitor = sgoif.watch(
            self.model,
            optimizer,
            anchors=self.anchors,
            train_size=len(self.drawn.given),
            trusted=self.cell.holdout == "trusted",
        )
        labels = torch.from_numpy(self.drawn.given)
        for step, (epoch, batch) in enumerate(self._batches(), start=1):
            with monitor.step(batch, labels[batch]):
                logits = self.model(self.drawn.inputs[batch])
                F.cross_entropy(logits, labels[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            before = time.process_time()
            self._note(step, epoch, batch, logits.detach())
            noting += time.process_time() - before
        run = monitor.close()
        self.seconds["train and watch"] = time.process_time() - started - noting
        return run

    def _batches(self) -> Iterator[tuple[int, Tensor]]:
        generator = torch.Generator().manual_seed(self.cell.seed)
        for epoch in range(self.cell.epochs):
            order = torch.randperm(len(self.drawn.given), generator=generator)
            yield from ((epoch, batch) for batch in order.split(self.recipe.batch_size))

    def _note(self, step: int, epoch: int, batch: Tensor, logits: Tensor) -> None:
        self.visits[epoch, batch.numpy()] = logits.log_softmax(1).half().numpy()
        place = (step - 1) % self.steps + 1
        if place * LOOKS // self.steps > (place - 1) * LOOKS // self.steps:
            self.looks.append(predict(self.model, self.anchors[0])[0].numpy())
            self.moments.append(step / self.steps)

    def time_bare(self) -> float:
        """CPU seconds of the same training without a monitor, from a few steps of a copy."""
        model = copy.deepcopy(self.model)
        optimizer, labels = self.recipe.optimizer(model), torch.from_numpy(self.drawn.given)
        batches, started = self._batches(), 0.0
        for step in range(WARM_STEPS + BARE_STEPS):
            if step == WARM_STEPS:
                started = time.process_time()
            _, batch = next(batches)
            F.cross_entropy(model(self.drawn.inputs[batch]), labels[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.process_time() - started) / BARE_STEPS * self.steps * self.cell.epochs


def _scored(run: sgoif.Run, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which visits the monitor scored: where steps are quick, its governor passes most of them over."""
    found = np.zeros(shape, bool)
    found[run.visits["epoch"], np.asarray(run.visits["id"]).astype(np.int64)] = True
    return found


def _answers(run: sgoif.Run, count: int) -> tuple[Arrays, dict[str, Any]]:
    """What a run says of each training example, NaN where it says nothing, and of all of them."""
    arrays, table = {}, run.table
    ids = np.asarray(table["id"]).astype(np.int64)
    for name in SIGNALS:
        arrays[name] = np.full(count, np.nan)
        if name in table:
            arrays[name][ids] = np.asarray(table[name], dtype=np.float64)
    arrays["flag"] = np.nan_to_num(arrays["p_mislabeled"]) >= FLAGGED
    said = run.summary().document()
    return arrays, {name: said[name] for name in SAID}


def facts_of(found: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """What a record says of the whole training: seconds, reasons, numbers of errors."""
    facts: dict[str, Any] = json.loads(str(found["facts"]))
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge.record", description=__doc__)
    parser.add_argument("group", nargs="?", choices=GROUPS, help="both, if left out")
    torch.set_num_threads(1)
    _commit()
    chosen = parser.parse_args().group
    for group in [chosen] if chosen else GROUPS:
        for cell in GROUPS[group].trainings:
            if not is_kept(cell):
                found = read_record(cell)
                seconds = {name: round(spent, 1) for name, spent in facts_of(found)["seconds"].items()}
                wrong = int((found["given"] != found["clean"]).sum())
                print(f"{group} {cell.name}: {wrong} of {len(found['given'])} wrong, CPU seconds {seconds}", flush=True)


if __name__ == "__main__":
    main()
