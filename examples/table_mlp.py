"""Find wrong labels in a table while an MLP trains: a plain PyTorch loop, with three lines added.

The tables come with scikit-learn (breast cancer, wine, digits as 64 columns). 5% of the labels are made wrong, in the
training rows and in the held-out ones alike, as they would be in a table of your own.

    python examples/table_mlp.py
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
from benchmarks.metrics import average_precision, precision_at


@dataclass(frozen=True)
class Settings:
    """One training."""

    table: str = "breast_cancer"  # or "wine", "digits"
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


def rank(run: sgoif.Run) -> dict[str, np.ndarray]:
    """Suspicion of each row by the run, and by its training loss: the mean over all epochs, and the last one."""
    ids, loss = run.visits["id"], run.visits["loss"]
    mean = np.bincount(ids, loss) / np.maximum(np.bincount(ids), 1)
    last = np.zeros(len(mean))
    order = np.argsort(run.visits["step"], kind="stable")
    last[ids[order]] = loss[order]
    suspicion = np.nan_to_num(run.table["p_mislabeled" if run.is_calibrated else "worst"], nan=-1.0)
    return {"sgoif": suspicion, "mean loss": mean[run.table["id"]], "last loss": last[run.table["id"]]}


def main(settings: Settings = Settings(), out: str = "runs/table") -> dict[str, dict[str, float]]:
    """Train and say how well the run ranks the wrong labels, beside the training loss of the same run."""
    table = getattr(sklearn.datasets, f"load_{settings.table}")()
    true = table.target.astype(np.int64)
    given = noise.flip_symmetric(true, 0.05, len(table.target_names), settings.seed)
    spread = table.data.std(0)
    columns = (table.data - table.data.mean(0)) / np.where(spread > 0, spread, 1)
    run = train(settings, torch.from_numpy(columns).float(), torch.from_numpy(given), out)

    is_wrong = (given != true)[run.table["id"]]
    found = {}
    for name, values in rank(run).items():
        found[name] = {"ap": average_precision(values, is_wrong), "p@5%": precision_at(values, is_wrong, 0.05)}
        print(f"{name}: average precision {found[name]['ap']:.0%}, {found[name]['p@5%']:.0%} of the first 5% are wrong")
    return found


if __name__ == "__main__":
    main()
