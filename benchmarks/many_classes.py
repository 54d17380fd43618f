"""Made data of a thousand classes: what the form of the curvature's output factor does to scores.

Classes come in groups of ten whose centres are near each other; a fifth of the labels is that of another class of the
same group. A perceptron learns them, watched with trusted labels. Above 64 classes the default has a diagonal output
factor; ``exact`` is the whole matrix, ``identity`` no curvature at all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import sgoif
from benchmarks.experiment import Experiment, option
from benchmarks.metrics import average_precision
from benchmarks.tables.rows import describe_seeds, group_runs, latest, means, table

FORMS = {
    "diagonal": sgoif.Method(curvature="kfac"),
    "exact": sgoif.Method(curvature="kfac", curvature_settings={"diagonal_above": 10**9}),
    "identity": sgoif.Method(curvature="identity"),
}
COLUMNS = ("harm", "worst", "margin", "loss")
GROUP = 10  # classes whose centres are near each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One training."""

    form: str = option("diagonal", FORMS)
    classes: int = 1000
    each: int = 30  # training examples of a class
    held: int = 20  # hold-out examples of a class
    inputs: int = 64
    width: int = 128
    wrong: float = 0.2
    epochs: int = 10
    batch: int = 128
    seed: int = 1


def run(settings: Settings) -> dict[str, Any]:
    """Train once, watched, and say how each column ranks the wrong labels."""
    started = time.process_time()
    torch.manual_seed(settings.seed)
    centres = draw_centres(settings)
    inputs, right = draw_examples(centres, settings.each)
    held = draw_examples(centres, settings.held)
    given = flip_within_groups(right, settings.wrong, settings.seed)
    model = nn.Sequential(
        nn.Linear(settings.inputs, settings.width), nn.ReLU(), nn.Linear(settings.width, len(centres))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    steps = settings.epochs * -(-len(inputs) // settings.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    monitor = sgoif.watch(
        model, optimizer, anchors=held, train_size=len(inputs), trusted=True, seed=settings.seed,
        method=FORMS[settings.form], budget=sgoif.Budget(plan=sgoif.Plan(), keep_visits="none"),
    )  # fmt: skip
    for _ in range(settings.epochs):
        for chosen in torch.randperm(len(inputs)).split(settings.batch):
            with monitor.step(chosen, given[chosen]):
                F.cross_entropy(model(inputs[chosen]), given[chosen]).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    found = monitor.close()
    assert found.info["counters"]["faults"] == 0, found.info["faults"]
    with torch.no_grad():
        accuracy = float((model(held[0]).argmax(1) == held[1]).float().mean())
    is_wrong = (given != right).numpy()
    return {
        "ap": {name: score(found, name, is_wrong) for name in COLUMNS},
        "accuracy": accuracy,
        "num_wrong": int(is_wrong.sum()),
        "cpu_s": time.process_time() - started,
    }


def draw_centres(settings: Settings) -> Tensor:
    """Centres of the classes, those of a group near that of the group."""
    groups = torch.randn(settings.classes // GROUP, settings.inputs)
    return groups.repeat_interleave(GROUP, 0) + 0.6 * torch.randn(settings.classes, settings.inputs)


def draw_examples(centres: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """Some examples of every class, around its centre."""
    labels = torch.arange(len(centres)).repeat(each)
    return centres[labels] + torch.randn(len(labels), centres.shape[1]), labels


def flip_within_groups(labels: Tensor, share: float, seed: int) -> Tensor:
    """Give some examples the label of another class of their group."""
    rng = np.random.default_rng(seed)
    moved = torch.from_numpy(rng.integers(1, GROUP, len(labels)))
    flipped = labels // GROUP * GROUP + (labels % GROUP + moved) % GROUP
    return torch.where(torch.from_numpy(rng.random(len(labels)) < share), flipped, labels)


def score(found: sgoif.Run, name: str, is_wrong: NDArray[np.bool_]) -> float:
    """Average precision of a column, in percent; larger is more suspicious, but for the margin."""
    values = np.full(len(is_wrong), np.nan)
    values[found.table["id"]] = found.table[name]
    return 100 * average_precision(np.nan_to_num(-values if name == "margin" else values, nan=-np.inf), is_wrong)


def describe(row: dict[str, Any]) -> str:
    found = (f"{name} {value:.1f}" for name, value in row["ap"].items())
    return f"accuracy {row['accuracy']:.0%}; AP: {', '.join(found)}; {row['cpu_s']:.0f} s"


def forms() -> str:
    """Average precision by the form of the output factor, mean over seeds."""
    rows = []
    for (form, classes), runs in group_runs(latest(EXPERIMENT.results), ("form", "classes")):
        cells = [means(run["ap"][name] for run in runs) for name in COLUMNS]
        rows.append([f"{int(classes):,}", form, describe_seeds(runs), *cells])
    return table(("classes", "output factor", "seeds", *(f"`{name}`" for name in COLUMNS)), sorted(rows))


EXPERIMENT = Experiment(
    name="many_classes",
    settings=Settings,
    run=run,
    tables={"many_classes": forms},
    full={"form": tuple(FORMS), "seed": (1, 2, 3)},
    small={"classes": 100, "each": 5, "held": 5, "epochs": 1},
    describe=describe,
)
