"""Watches a Transformers ``Trainer``, whose callbacks never see a batch: its collator carries the ids there, and its
training step takes them out before the model sees them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from sgoif.api import watch
from sgoif.errors import SgoifError
from sgoif.integrations.closing import close_run, state_of
from sgoif.settings import Method, as_loss

__all__ = ["InfluenceCallback", "watch_trainer"]

log = logging.getLogger(__name__)


def watch_trainer(trainer: Any, anchors: Any, *, out: str | None = None, **settings: Any) -> InfluenceCallback:
    """Watch a trainer: call it once, before ``trainer.train()``.

    Args:
        trainer: a ``Trainer`` or a class of your own made from it. Items of its training set have an ``"id"``
            (``sgoif.with_ids``), and its arguments say ``remove_unused_columns=False``, which would remove that.
        anchors: held-out examples: items as those of the training set, or as in :func:`sgoif.watch`.
        out: folder or URL to write the run into.
        **settings: further arguments of :func:`sgoif.watch`.

    Returns:
        The callback; after ``trainer.train()`` its attribute ``run`` is the run.
    """
    if trainer.args.remove_unused_columns:
        raise SgoifError("the Trainer would remove the ids from the batch; pass remove_unused_columns=False to it.")
    callback = InfluenceCallback(trainer, anchors, {"out": out, **settings})
    trainer.data_collator = IdCollator(trainer.data_collator)
    trainer.training_step = callback.surround(trainer.training_step)
    trainer.add_callback(callback)
    return callback


@dataclass(frozen=True)
class IdCollator:
    """Collates examples by the user's collator, which sees no ids, and adds these; others pass as they are."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, features: list[Any]) -> Any:
        if not isinstance(features[0], Mapping) or "id" not in features[0]:
            return self.collate(features)
        batch = self.collate([{key: value for key, value in item.items() if key != "id"} for item in features])
        batch["id"] = [item["id"] for item in features]
        return batch


class InfluenceCallback(TrainerCallback):
    """The monitor of a trainer, from the first step to the last; made by :func:`watch_trainer`."""

    def __init__(self, trainer: Any, anchors: Any, settings: Mapping[str, Any]) -> None:
        self.trainer, self.anchors, self.settings = trainer, anchors, dict(settings)
        self.monitor: Any = None
        self.run: Any = None

    def surround(self, training_step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Surround the trainer's step, forward and backward pass of one micro-batch."""

        def step(model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
            ids = inputs.pop("id", None)
            if ids is None:
                raise SgoifError("the batch has no ids; wrap the training set in sgoif.with_ids.")
            targets = inputs["labels"]
            accumulate, is_last = self._divisor(len(targets), num_items_in_batch), self._is_last()
            with self.monitor.step(ids, targets, accumulate=accumulate, is_last=is_last):
                return training_step(model, inputs, num_items_in_batch)

        return step

    def _is_last(self) -> bool:
        return bool(self.trainer.accelerator.sync_gradients)

    def _divisor(self, count: int, num_items: Any) -> Any:
        """What the mean loss of a micro-batch is divided by.

        Where the number of items of all micro-batches is known, the loss is their sum divided by it, times the number
        of processes where it counts the items of all of them.
        """
        if num_items is None or getattr(self.trainer, "loss_is_scaled_for_ga", None) is False:
            return self.trainer.current_gradient_accumulation_steps
        is_of_all = self.trainer.args.average_tokens_across_devices
        return num_items / (count * (self.trainer.accelerator.num_processes if is_of_all else 1))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainer = self.trainer
        found = {
            "accumulate": args.gradient_accumulation_steps,
            "scaler": trainer.accelerator.scaler,
            "label_smoothing": args.label_smoothing_factor,
        }
        method = self.settings.get("method") or Method()
        settings = {
            "train_size": len(trainer.train_dataset),
            **self.settings,
            "loss": as_loss(self.settings.get("loss"), **found),
            "method": replace(method, planned_steps=method.planned_steps or state.max_steps),
        }
        self.monitor = watch(trainer.model_wrapped, trainer.optimizer, anchors=self.anchors, **settings)
        if state.global_step:
            self._resume(args, state)

    def _resume(self, args: Any, state: Any) -> None:
        """Take up this process's state, else that of the first, where there were fewer."""
        files = [_state_file(args, state, rank) for rank in (args.process_index, 0)]
        file = next((file for file in files if file.exists()), None)
        if file is None:
            log.warning("no scores of earlier steps: %s is missing; those of later steps start anew.", files[0])
        else:
            self.monitor.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        file = _state_file(args, state, args.process_index)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save(state_of(self.monitor), file)
        except OSError:
            log.exception("the monitor's state could not be saved beside the checkpoint, which is whole.")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.run = close_run(self.monitor)


def _state_file(args: Any, state: Any, rank: int) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}" / f"sgoif_state_{rank}.pt"
