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
from torch.utils.data import DataLoader
from transformers import TrainerCallback, default_data_collator
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from sgoif.api import audit, watch
from sgoif.errors import SgoifError
from sgoif.gradients import quiet_eval
from sgoif.gradients.models import plain_model
from sgoif.inputs.items import is_map_style
from sgoif.integrations.closing import close_run, state_of
from sgoif.integrations.packing import is_packed, refuse_mixing, refuse_packed_dataset
from sgoif.rng import find_generators, preserve_rng
from sgoif.run import Run
from sgoif.settings import Method, as_loss
from sgoif.training.method import ADAM

__all__ = ["InfluenceCallback", "watch_trainer"]

log = logging.getLogger(__name__)

_IGNORED = -100  # label of an item that no loss counts
_MOST_IDS = 10**6  # examples, up to which repeated ids are looked for
_AUDITED = ("layers", "curvature", "curvature_settings")  # of the method, that an audit after the training repeats


def watch_trainer(trainer: Any, anchors: Any, *, out: str | None = None, **settings: Any) -> InfluenceCallback:
    """Watch a trainer: call it once, before ``trainer.train()``.

    Args:
        trainer: a ``Trainer`` or a class of your own made from it. Items of its training set have an ``"id"``
            (``sgoif.with_ids``), and its arguments say ``remove_unused_columns=False``, which would remove that.
        anchors: held-out examples: items as those of the training set, collated as these are (so texts are padded), or
            as in :func:`sgoif.watch`. With ``task="sequences"``, a dictionary of such datasets by group.
        out: folder or URL to write the run into.
        **settings: further arguments of :func:`sgoif.watch`.

    Returns:
        The callback; after ``trainer.train()`` its attribute ``run`` is the run, and with ``task="sequences"`` its
        ``audit()`` scores the finished model.
    """
    if trainer.args.remove_unused_columns:
        raise SgoifError("the Trainer would remove the ids from the batch; pass remove_unused_columns=False to it.")
    if isinstance(trainer.data_collator, IdCollator):
        raise SgoifError(
            "this trainer is watched already; call watch_trainer once, or make another Trainer. To score the finished "
            "model with other settings use sgoif.audit."
        )
    if settings.get("task") == "sequences":
        refuse_packed_dataset(trainer)
    collate = trainer.data_collator
    given = (
        {name: _collate_as_trained(group, collate) for name, group in anchors.items()}
        if isinstance(anchors, Mapping)
        else _collate_as_trained(anchors, collate)
    )
    callback = InfluenceCallback(trainer, given, {"out": out, **settings})
    trainer.data_collator = IdCollator(trainer.data_collator)
    trainer.training_step = callback.surround(trainer.training_step)
    trainer.add_callback(callback)
    return callback


@dataclass(frozen=True)
class IdCollator:
    """Collates examples by the user's collator, which sees no ids, and adds these; others pass as they are."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, features: list[Any]) -> Any:
        if not any(isinstance(item, Mapping) and "id" in item for item in features):
            return self.collate(features)
        batch = self.collate([{key: value for key, value in item.items() if key != "id"} for item in features])
        batch["id"] = [item.get("id") for item in features]  # one that has none costs its batch the scores
        return batch


def _collate_as_trained(anchors: Any, collate: Callable[[list[Any]], Any]) -> Any:
    """Give a dataset of dictionaries the trainer's own collator, without which texts of many lengths make no batch."""
    if collate is default_data_collator or isinstance(anchors, tuple) or not is_map_style(anchors) or not len(anchors):
        return anchors
    with preserve_rng(own=find_generators(anchors, collate)):  # a dataset may draw random numbers
        if not isinstance(anchors[0], Mapping):
            return anchors
    return DataLoader(anchors, collate_fn=IdCollator(collate))


class InfluenceCallback(TrainerCallback):
    """The monitor of a trainer, from the first step to the last; made by :func:`watch_trainer`."""

    def __init__(self, trainer: Any, anchors: Any, settings: Mapping[str, Any]) -> None:
        self.trainer, self.anchors, self.settings = trainer, anchors, dict(settings)
        self.monitor: Any = None
        self.run: Any = None
        self._is_divided: bool | None = (
            None  # whether the model's loss is divided by the number of items; None: unknown
        )
        self._has_checked_packing = False

    def surround(self, training_step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Surround the trainer's step, forward and backward pass of one micro-batch."""

        def step(model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
            ids = inputs.pop("id", None)
            if ids is None and not self.monitor.step_count:
                raise SgoifError(
                    "the batch has no ids; wrap the training set in sgoif.with_ids, or give it a column `id` and set "
                    "remove_unused_columns=False (TRL: in SFTConfig)."
                )
            ids = [None] * len(inputs["labels"]) if ids is None else ids
            with self.monitor.step(ids, inputs["labels"], **self._about_step(model, inputs, num_items_in_batch)):
                return training_step(model, inputs, num_items_in_batch)

        return step

    def _about_step(self, model: nn.Module, inputs: Mapping[str, Any], num_items: Any) -> dict[str, Any]:
        """The arguments of the monitor's step besides ids and targets."""
        about: dict[str, Any] = {"is_last": self._is_last()}
        divisor = self._divisor(model, inputs, num_items)
        if self.settings.get("task") != "sequences" or not self.monitor.is_on:
            return about | {"accumulate": divisor}
        if self._is_divided and num_items is not None:
            about["grad_factor"] = float(num_items) / self._num_counted()
        else:
            about["accumulate"] = divisor
        if not is_packed(inputs):
            return about
        if not self._has_checked_packing:
            refuse_mixing(plain_model(model), inputs)
            self._has_checked_packing = True
        return about | {"position_ids": inputs["position_ids"]}

    def _is_last(self) -> bool:
        return bool(self.trainer.accelerator.sync_gradients)

    def _num_counted(self) -> int:
        """How many processes' items a number of items is about; the Trainer multiplies the loss by as many."""
        trainer = self.trainer
        return int(trainer.accelerator.num_processes) if trainer.args.average_tokens_across_devices else 1

    def _divisor(self, model: nn.Module, inputs: Mapping[str, Any], num_items: Any) -> Any:
        """What the mean loss of a micro-batch is divided by.

        Where the number of items of all micro-batches is known, the loss is their sum divided by it, times the number
        of processes where it counts the items of all of them. Many models (BERT) take that number and return a mean
        all the same; the Trainer then divides by nothing, and gradients of micro-batches add up.
        """
        trainer = self.trainer
        if num_items is None or getattr(trainer, "loss_is_scaled_for_ga", None) is False:
            return trainer.current_gradient_accumulation_steps
        processes = self._num_counted()
        if self._is_divided is None and self.monitor.is_on:
            is_own = trainer.label_smoother is None and trainer.compute_loss_func is None
            self._is_divided = not is_own or _divides_loss(plain_model(model), inputs, num_items)
        if self._is_divided is False:
            return 1 / processes
        return num_items / (inputs["labels"].ne(_IGNORED).sum().clamp_min(1) * processes)

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
        if self.monitor.is_on and (repeated := _count_repeated_ids(trainer.train_dataset)):
            self.monitor._warn_once(
                "repeated_ids",
                f"{repeated:,} of {len(trainer.train_dataset):,} training examples have an id that an earlier one has; "
                "visits of one id are added up as one example: give each an id of its own",
            )
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

    def audit(self, *, out: str | None = None, overwrite: bool = False, batch_size: int | None = None) -> Run:
        """Score every training sequence by the finished model, by :func:`sgoif.audit` with the trainer's data.

        It has the anchors, layers and curvature of the training (K-FAC in place of ``"adam"``), and finds wrong
        completions better than the means over a training.

        Args:
            out: folder to write the run into, another one than the training's.
            overwrite: delete the run that it holds.
            batch_size: sequences per pass; 16 by default.

        Raises:
            SgoifError: the training is not over, or is none of sequences, or several processes trained.
        """
        if self.settings.get("task") != "sequences":
            raise SgoifError("watching.audit() is for task='sequences'; call sgoif.audit with your model and datasets.")
        if self.run is None:
            raise SgoifError("the training is not over; call trainer.train() first.")
        if "method" not in self.run.info:
            raise SgoifError("the monitor was switched off, so there is nothing to repeat; call sgoif.audit.")
        if self.trainer.args.world_size > 1:
            raise SgoifError("an audit of sequences runs in one process; save the model and call sgoif.audit there.")
        used = self.run.info["method"]
        asked = Method(
            layers=used["layers"], curvature=used["curvature"], curvature_settings=used["curvature_settings"]
        )
        if asked.curvature == ADAM:
            asked = Method(layers=asked.layers)
        trained = _collate_as_trained(self.trainer.train_dataset, self.trainer.data_collator.collate)
        return audit(
            self.trainer.model, trained, anchors=self.anchors, task="sequences", method=asked, out=out,
            forward=self.settings.get("forward"), overwrite=overwrite, batch_size=batch_size,
            seed=self.settings.get("seed", 0),
        )  # fmt: skip


def _count_repeated_ids(dataset: Any) -> int:
    """How many rows have an id that an earlier row has, where that can be told without reading every example."""
    try:
        if len(dataset) > _MOST_IDS:
            return 0
        if isinstance(dataset, list):
            ids = [item["id"] for item in dataset if isinstance(item, Mapping) and "id" in item]
        elif "id" in (getattr(dataset, "column_names", None) or ()):
            ids = list(dataset.with_format(None)["id"])  # no transform of the user's is called
        else:
            return 0
        return len(ids) - len(set(ids))
    except Exception:  # a warning that cannot be given is no reason to stop a training
        log.debug("repeated ids were not looked for.", exc_info=True)
        return 0


def _divides_loss(model: nn.Module, inputs: Mapping[str, Any], num_items: Any) -> bool:
    """Whether a model's loss becomes smaller when it is to be divided by more items: found by two passes, once."""
    try:
        with quiet_eval(model), torch.no_grad():
            one, half = (model(**inputs, num_items_in_batch=count)["loss"] for count in (num_items, 2 * num_items))
        return bool((one - half).abs() > 0.25 * one.abs())
    except Exception:  # the trainer calls the model in a way of its own; the first step checks the factor
        log.debug("the loss could not be tried with two numbers of items.", exc_info=True)
        return True


def _state_file(args: Any, state: Any, rank: int) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}" / f"sgoif_state_{rank}.pt"
