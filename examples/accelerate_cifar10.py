"""Find wrong labels in CIFAR-10 in a loop of Accelerate: ids in the training set, and the three lines of any loop.

The labels are those that people gave (CIFAR-10N, the worst of three answers); 42% are wrong.
Nothing of ours knows of Accelerate.

    pip install accelerate
    python examples/accelerate_cifar10.py

Measured on one core of a busy x86 server (4,000 pictures, bf16, trusted hold-out of 1,000,
8 epochs in windows of two micro-batches, seed 0, one trial): 94% of the first 200 are
wrong, 42% of all; 71 s of processor time.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import sgoif

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import data, noise
from benchmarks.models import ResNet9

SIZE, EPOCHS, ACCUMULATE = int(os.environ.get("SGOIF_EXAMPLE_SIZE", "4000")), 8, 2


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATE, mixed_precision="bf16")
    parts = data.development(SIZE)
    given = noise.apply("worst", parts.train.labels, ids=parts.train.ids)
    train_set = TensorDataset(data.normalise(parts.train.pixels, *data.CIFAR10_STATS), torch.from_numpy(given))
    trusted = data.normalise(parts.trusted.pixels, *data.CIFAR10_STATS), torch.from_numpy(parts.trusted.labels)

    model = ResNet9()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    loader = DataLoader(sgoif.with_ids(train_set), batch_size=50, shuffle=True)  # line 1: with_ids
    steps = EPOCHS * math.ceil(len(loader) / ACCUMULATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    monitor = sgoif.watch(
        model, optimizer, anchors=trusted, trusted=True, train_size=SIZE, out="runs/accelerate",
        loss=sgoif.Loss(accumulate=ACCUMULATE, scaler=accelerator.scaler),
    )  # fmt: skip  # line 2
    accelerator.register_for_checkpointing(monitor)  # if you save_state and load_state
    for _ in range(EPOCHS):
        for x, y, ids in loader:
            with accelerator.accumulate(model):
                with monitor.step(ids, y, is_last=accelerator.sync_gradients):  # line 3
                    accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                schedule.step()
    run = monitor.close(train_set)

    if accelerator.is_main_process:
        is_wrong = given != parts.train.labels
        first = is_wrong[run.worst(SIZE // 20)["id"]]
        print(f"{first.mean():.0%} of the first {len(first)} are wrong, {is_wrong.mean():.0%} of all")


if __name__ == "__main__":
    main()
