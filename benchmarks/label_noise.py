"""Label errors found while a small ResNet-9 trains on noisy CIFAR-10: ``python -m benchmarks.label_noise``.

The monitored training is written out here from the parts (capture, curvature, anchors, tracker, score), so that each
can be seen at work. Every signal is the mean of its visits over the second half of the training, without any gate.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import data, loops, noise
from benchmarks.metrics import detection_report
from benchmarks.models import ResNet9
from benchmarks.records import append_result
from sgoif.curvature import create
from sgoif.gradients import Capture, ExactSpace, check_factor, find_head, fit_factor, gradient_factor
from sgoif.influence import ClassAnchors, Scores, Tracker, score
from sgoif.linalg import Richardson
from sgoif.tasks.classification import logit_gradients, margins

REFRESH_EVERY, OBSERVE_EVERY = 20, 5


@dataclass
class Signals:
    """Sums of each signal over an example's visits in the second half; higher always means more suspicious."""

    num_examples: int
    sums: dict[str, Tensor] = field(default_factory=dict)
    votes: Tensor | None = None  # of the worst anchors' classes, [N, K]
    influence: Tensor | None = None  # on each class's anchor, [N, K]

    def add(self, name: str, indices: Tensor, values: Tensor) -> None:
        self.sums.setdefault(name, torch.zeros(self.num_examples)).index_add_(0, indices, values.float())

    def suggest(self, indices: Tensor, classes: Tensor, influence: Tensor) -> None:
        if self.votes is None or self.influence is None:
            self.votes = torch.zeros(self.num_examples, influence.shape[1])
            self.influence = torch.zeros(self.num_examples, influence.shape[1])
        self.votes[indices, classes] += 1
        self.influence.index_add_(0, indices, influence)

    def add_scores(self, suffix: str, indices: Tensor, scores: Scores) -> None:
        self.add(f"harm{suffix}", indices, scores.harm)
        self.add(f"worst{suffix}", indices, scores.worst)


def run(*, setting: str, seed: int, holdout: str, split: str, leak: float | None, epochs: int, examples: int) -> dict:
    """Train once and report every signal's power to find the wrong labels."""
    torch.set_num_threads(1)
    parts = data.development(examples) if split == "development" else data.reported(examples, seed)
    given, given_held = noise.apply_to_split(setting, parts, seed)
    held = parts.trusted if holdout == "trusted" else data.as_given_holdout(parts.held, given_held)
    images = data.normalise(parts.train.pixels, *data.CIFAR10_STATS)
    labels = torch.from_numpy(given.astype(np.int64))
    held_images = data.normalise(held.pixels, *data.CIFAR10_STATS)
    anchors = ClassAnchors(held_images, torch.from_numpy(held.labels), held.num_classes, seed=seed)
    started = time.perf_counter()
    signals, residuals = monitored_training(images, labels, anchors, seed, leak, epochs)
    report = _report(signals, given, parts.train.labels)
    report |= {"seconds": time.perf_counter() - started, "residual_by_epoch": residuals}
    return report


def monitored_training(
    images: Tensor, labels: Tensor, anchors: ClassAnchors, seed: int, leak: float | None, num_epochs: int
) -> tuple[Signals, list[float]]:
    """Train the tier-M recipe and score every visit at the head."""
    torch.manual_seed(seed)
    recipe = loops.Recipe(num_epochs=num_epochs)
    model = ResNet9(num_classes=anchors.num_classes)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = loops.optimiser(model, recipe)
    scheduler = loops.schedule(optimizer, recipe, len(images))

    def forward(inputs: Tensor) -> Tensor:
        return loops.logits(model, inputs, recipe)

    head = find_head(model, lambda: forward(images[:2]))
    spaces, shapes = {head.name: ExactSpace(head)}, {head.name: head.shape}
    curvature = create("kfac", shapes)
    tracker = Tracker(shapes, anchors.num_classes, solver=Richardson(leak_horizon=leak))
    step_capture, anchor_capture = Capture([head]), Capture([head])
    signals, residuals = Signals(len(images)), []
    gradients: dict[str, Tensor] = {}
    model.train()
    for batch in loops.epochs(images, labels, recipe, seed):
        step_capture.scale = gradient_factor(loss_reduction="mean", num_examples=len(batch.labels))
        with step_capture:
            logits = forward(batch.images)
            F.cross_entropy(logits, batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        (call,) = step_capture.calls
        if batch.step == 0:
            fit = fit_factor(call.grad, logit_gradients(logits.detach(), batch.labels))
            check_factor(fit, step_capture.scale, low_precision=True)
        if batch.step % OBSERVE_EVERY == 0:
            curvature.observe([spaces[head.name].rows(call)])
            tracker.use_operator(curvature.operator())
        if batch.step % REFRESH_EVERY == 0:
            gradients = anchors.gradients(model, anchor_capture, spaces, forward)
        residuals.append(tracker.advance(gradients).mean())
        if batch.epoch < num_epochs // 2:
            continue
        directions = {"": tracker.directions, " solved": curvature.solve(gradients), " identity": gradients}
        for suffix, found in directions.items():
            dots = spaces[head.name].dots(call, found[head.name])
            scores = score(dots, batch.labels)
            signals.add_scores(suffix, batch.indices, scores)
            if not suffix:
                signals.suggest(batch.indices, scores.worst_anchor, -dots)
        signals.add("aum", batch.indices, -margins(logits.detach(), batch.labels))
        signals.add("loss", batch.indices, F.cross_entropy(logits.detach(), batch.labels, reduction="none"))
    per_epoch = torch.stack(residuals).reshape(num_epochs, -1).mean(1)
    return signals, [round(value, 4) for value in per_epoch.tolist()]


def _report(signals: Signals, given: NDArray[np.integer], clean: NDArray[np.integer]) -> dict:
    wrong = given != clean
    report: dict = {name: detection_report(total.numpy(), wrong) for name, total in signals.sums.items()}
    assert signals.votes is not None and signals.influence is not None
    others = signals.influence.scatter(1, torch.from_numpy(given.astype(np.int64))[:, None], float("-inf"))
    for name, suggested in (("votes", signals.votes.argmax(1)), ("mean influence", others.argmax(1))):
        report[f"suggested by {name}, right of true errors"] = 100 * float((suggested.numpy() == clean)[wrong].mean())
    return report


def show(report: dict) -> None:
    print(f"{'signal':18s} {'AP':>6s} {'AUROC':>6s} {'P@1%':>6s}")
    for name, row in report.items():
        if isinstance(row, dict) and "ap" in row:
            print(f"{name:18s} {row['ap']:6.1f} {row['auroc']:6.1f} {row['p@1%']:6.1f} +- {row['p@1%_se']:.1f}")
    for name in ("votes", "mean influence"):
        print(f"label suggested by {name}: right for {report[f'suggested by {name}, right of true errors']:.0f}%")
    print(f"relative residual by epoch {report['residual_by_epoch']}; {report['seconds']:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", default="pair-20", help=f"one of {', '.join(noise.settings('cifar10'))}")
    parser.add_argument("--seeds", default="0", help="comma-separated")
    parser.add_argument("--holdout", choices=["trusted", "as-given"], default="trusted")
    parser.add_argument("--split", choices=["development", "reported"], default="development")
    parser.add_argument("--leak", type=float, default=800.0, help="steps of memory of the tracked directions; 0 = none")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    parser.add_argument("--save", metavar="FILE", help="append to a JSONL file under benchmarks/results")
    options = parser.parse_args()
    results = []
    for seed in (int(text) for text in options.seeds.split(",")):
        settings = {
            "setting": options.setting,
            "holdout": options.holdout,
            "split": options.split,
            "leak": options.leak or None,
            "epochs": options.epochs,
            "examples": options.examples,
        }
        print(f"\n{options.setting}, {options.holdout} hold-out, {options.split} set, seed {seed}", flush=True)
        report = run(seed=seed, **settings)
        show(report)
        result = {"benchmark": "label_noise", "settings": settings, "seed": seed, "report": report}
        results.append(append_result(options.save, result) if options.save else result)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
