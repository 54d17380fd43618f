"""Find wrong labels in CIFAR-10 while Lightning trains: ids in the training set, and one callback.

The labels are those that people gave (CIFAR-10N, the worst of three answers); 42% are wrong.
The module is as anybody would write it.

    pip install lightning
    python examples/lightning_cifar10.py

Measured on one core of a busy x86 server (4,000 pictures, bf16, trusted hold-out of 1,000,
8 epochs, seed 0, one trial): 98% of the first 200 are wrong, 42% of all; 77 s of
processor time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning.pytorch as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import sgoif
from sgoif.integrations.lightning import InfluenceCallback

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import data, noise
from benchmarks.models import ResNet9

SIZE = int(os.environ.get("SGOIF_EXAMPLE_SIZE", "4000"))


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = ResNet9()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=int(steps))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main() -> None:
    torch.manual_seed(0)
    parts = data.development(SIZE)
    given = noise.apply("worst", parts.train.labels, ids=parts.train.ids)
    train_set = TensorDataset(data.normalise(parts.train.pixels, *data.CIFAR10_STATS), torch.from_numpy(given))
    holdout = TensorDataset(
        data.normalise(parts.trusted.pixels, *data.CIFAR10_STATS), torch.from_numpy(parts.trusted.labels)
    )

    watching = InfluenceCallback(holdout, out="runs/lightning", trusted=True)  # line 1
    loader = DataLoader(sgoif.with_ids(train_set), batch_size=100, shuffle=True)  # line 2: with_ids
    trainer = L.Trainer(max_epochs=8, precision="bf16-mixed", callbacks=[watching], logger=False)  # line 3: callbacks
    trainer.fit(Classifier(), loader)

    is_wrong = given != parts.train.labels
    first = is_wrong[watching.run.worst(SIZE // 20)["id"]]
    print(f"{first.mean():.0%} of the first {len(first)} are wrong, {is_wrong.mean():.0%} of all")


if __name__ == "__main__":
    main()
