"""Find wrong labels in a table while an MLP trains: a plain PyTorch loop, with three lines added.

The tables come with scikit-learn (breast cancer, wine, digits as 64 columns). 5% of the labels are made wrong, in the
training rows and in the held-out ones alike, as they would be in a table of your own: they become any other class, or
the one whose mean is nearest.

    python examples/table_mlp.py

Measured on one core of a busy x86 server (breast cancer, 569 rows of which 30% are held out, seed 1, one trial):
average precision 93%, by the mean training loss 90%; 95% of the first 5% are wrong; 7 s of processor time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sklearn.datasets
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import sgoif

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import noise
from benchmarks.modalities import compare_with_loss, nearest_classes


@dataclass(frozen=True)
class Settings:
    """One training."""

    table: str = "breast_cancer"  # or "wine", "digits"
    noise: str = "uniform"  # or "nearest"
    epochs: int = 40
    seed: int = 1


def train(settings: Settings, columns: torch.Tensor, labels: torch.Tensor, out: str) -> sgoif.Run:
    """Train, watched."""
    torch.manual_seed(settings.seed)
    outputs = int(labels.max()) + 1
    model = torch.nn.Sequential(
        torch.nn.Linear(columns.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, outputs),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    train_set, holdout = sgoif.split(TensorDataset(columns, labels), fraction=0.3, seed=settings.seed)
    loader = DataLoader(sgoif.with_ids(train_set), batch_size=32, shuffle=True)  # line 1: with_ids
    monitor = sgoif.watch(model, optimizer, anchors=holdout, train_size=len(train_set), out=out)  # line 2
    for _ in range(settings.epochs):
        for x, y, ids in loader:
            with monitor.step(ids, y):  # line 3
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return monitor.close()


def main(settings: Settings = Settings(), out: str = "runs/table") -> dict[str, dict[str, float]]:
    """Train and say how well the run ranks the wrong labels, beside the training loss of the same run."""
    table = getattr(sklearn.datasets, f"load_{settings.table}")()
    true, spread = table.target.astype(np.int64), table.data.std(0)
    columns = ((table.data - table.data.mean(0)) / np.where(spread > 0, spread, 1)).astype(np.float32)
    if settings.noise == "uniform":
        given = noise.flip_symmetric(true, 0.05, len(table.target_names), settings.seed)
    else:
        given = noise.flip_pairs(true, 0.05, settings.seed, nearest_classes(columns, true))
    run = train(settings, torch.from_numpy(columns), torch.from_numpy(given), out)

    found = compare_with_loss(run, given != true)
    for name, shares in found.items():
        print(f"{name}: average precision {shares['ap']:.0%}, {shares['p@5%']:.0%} of the first 5% are wrong")
    return found


if __name__ == "__main__":
    main()
