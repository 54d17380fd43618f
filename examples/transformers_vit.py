"""Find wrong labels in CIFAR-10 while a Transformers Trainer trains a small ViT: ids in the items, and one call.

The labels are those that people gave (CIFAR-10N, the worst of three answers); 42% are wrong.
The model is made from a config; nothing is downloaded.

    pip install transformers accelerate
    python examples/transformers_vit.py

Measured on one core of a busy x86 server (4,000 pictures, bf16, trusted hold-out of 1,000,
10 epochs, seed 0, one trial): 86% of the first 200 are wrong, 42% of all; 97 s of
processor time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import sgoif
from sgoif.integrations.transformers import watch_trainer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import data, noise

SIZE = int(os.environ.get("SGOIF_EXAMPLE_SIZE", "4000"))


def items(images: data.Images, labels) -> list[dict[str, object]]:
    """Pictures as the model takes them: a dictionary each."""
    pixels = data.normalise(images.pixels, *data.CIFAR10_STATS)
    return [{"pixel_values": x, "labels": int(y)} for x, y in zip(pixels, labels, strict=True)]


def main() -> None:
    torch.manual_seed(0)
    parts = data.development(SIZE)
    given = noise.apply("worst", parts.train.labels, ids=parts.train.ids)
    config = ViTConfig(
        image_size=32, patch_size=8, hidden_size=96, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
        num_labels=10,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir="runs/vit", num_train_epochs=10, per_device_train_batch_size=100, learning_rate=2e-3, bf16=True,
        warmup_steps=40, remove_unused_columns=False, report_to=[], save_strategy="no", use_cpu=True,
    )  # fmt: skip
    train_set = sgoif.with_ids(items(parts.train, given))  # line 1
    trainer = Trainer(ViTForImageClassification(config), arguments, train_dataset=train_set)
    holdout = items(parts.trusted, parts.trusted.labels)
    watching = watch_trainer(trainer, holdout, out="runs/transformers", trusted=True)  # line 2
    trainer.train()

    is_wrong = given != parts.train.labels
    first = is_wrong[watching.run.worst(SIZE // 20)["id"]]
    print(f"{first.mean():.0%} of the first {len(first)} are wrong, {is_wrong.mean():.0%} of all")


if __name__ == "__main__":
    main()
