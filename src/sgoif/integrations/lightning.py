"""A Lightning callback: a step is opened before ``training_step`` and closed after backward, before the optimiser.

Modules need not know of it. Ids are taken out of the batch before ``training_step`` sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # the older name of the same package
    from pytorch_lightning import Callback  # type: ignore[assignment]

from sgoif.api import default_forward, watch
from sgoif.errors import SgoifError
from sgoif.integrations.closing import close_run, state_of
from sgoif.settings import as_loss

__all__ = ["InfluenceCallback"]


def take_ids(batch: Any) -> Any:
    """Take the ids out of a batch: the last of three entries, or what it has under ``"id"``."""
    if isinstance(batch, list) and len(batch) == 3:
        return batch.pop()
    if isinstance(batch, dict) and "id" in batch:
        return batch.pop("id")
    raise SgoifError(
        f"no ids in a batch of type {type(batch).__name__}: wrap the training set in sgoif.with_ids, which makes "
        "batches lists [inputs, labels, ids] or dictionaries with 'id'. Of any other batch, ids= tells them."
    )


def find_targets(batch: Any) -> Tensor:
    """Find the targets: a batch's second entry, or what it has under ``"labels"`` or ``"label"``."""
    if isinstance(batch, list | tuple):
        return batch[1]  # type: ignore[no-any-return]
    found = next((batch[key] for key in ("labels", "label") if key in batch), None)
    if not isinstance(found, Tensor):
        raise SgoifError(f"no labels in a batch with {', '.join(map(str, batch))}; pass targets=.")
    return found


class InfluenceCallback(Callback):
    """Scores every example that a ``Trainer`` trains on; after ``fit`` its run is in :attr:`run`.

    Args:
        anchors: held-out examples, as in :func:`sgoif.watch`; inputs as the module's ``forward`` takes them.
        out: folder or URL to write the run into. With several processes pass it, and read it with :func:`sgoif.load`.
        ids: the ids of a batch, where the default does not find them. It may take them out of the batch.
        targets: the targets of a batch, as they enter the loss.
        train_size: number of training examples, where the loader's dataset does not tell.
        **settings: further arguments of :func:`sgoif.watch`.
    """

    def __init__(
        self,
        anchors: Any,
        *,
        out: str | None = None,
        ids: Callable[[Any], Any] = take_ids,
        targets: Callable[[Any], Tensor] = find_targets,
        train_size: int | None = None,
        **settings: Any,
    ) -> None:
        self.anchors, self.ids, self.targets, self.train_size = anchors, ids, targets, train_size
        self.settings = {"out": out, **settings}
        self.monitor: Any = None
        self.run: Any = None
        self._saved: dict[str, Any] = {}
        self._step: AbstractContextManager[Any] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and not pl_module.automatic_optimization:
            raise SgoifError(
                "a module that optimises by hand may step whenever it likes; leave this callback out, and put "
                "`with monitor.step(ids, targets)` of sgoif.watch around forward and backward in training_step."
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        precision, forward = trainer.precision_plugin, default_forward(pl_module)
        found: dict[str, Any] = {
            "train_size": self.train_size or _train_size(trainer),
            "forward": lambda inputs: forward(precision.convert_input(inputs)),
        }
        known = {"accumulate": trainer.accumulate_grad_batches, "scaler": getattr(precision, "scaler", None)}
        found |= self.settings | {"loss": as_loss(self.settings.get("loss"), **known)}
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        self.monitor = watch(trainer.strategy.model, optimizer, anchors=self.anchors, **found)
        if self._saved:
            self.monitor.load_state_dict(self._saved)
            self._saved = {}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._drop()
        accumulate = trainer.accumulate_grad_batches  # a scheduler may change it from epoch to epoch
        is_last = (batch_idx + 1) % accumulate == 0 or trainer.is_last_batch
        ids = self.ids(batch)
        self._step = self.monitor.step(ids, self.targets(batch), accumulate=accumulate, is_last=is_last)
        self._step.__enter__()

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        step, self._step = self._step, None  # an optimiser that calls its closure again finds none
        if step is not None:
            step.__exit__(None, None, None)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._drop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._drop()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self.run = close_run(self.monitor)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.monitor is None else state_of(self.monitor)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict  # the monitor is made when the training starts

    def _drop(self) -> None:
        """Leave a step that no backward pass came to: the module skipped the batch, or failed."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(StopIteration, StopIteration(), None)


def _train_size(trainer: Any) -> int:
    dataset = getattr(trainer.train_dataloader, "dataset", None)
    if not isinstance(dataset, Sized):
        raise SgoifError("the training set has no length, or there are several; pass train_size=.")
    return len(dataset)
