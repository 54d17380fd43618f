"""What one step shows of the model: hooks at the scored layers while it runs, read when its backward pass is done."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.distributed import is_sharded
from sgoif.errors import HeadError, SgoifError
from sgoif.gradients import Capture, Layer, LayerCapture
from sgoif.training.losses import Loss, check_loss
from sgoif.training.targets import GivenLabels, read_classes

__all__ = ["StepCapture", "StepHooks"]

log = logging.getLogger(__name__)


class StepHooks(ABC):
    """Hooks on the model while one (micro-)step runs; what goes wrong inside them waits for the end of the step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._failed: Exception | None = None
        self.is_checked = False  # whether the loss was found to be the declared one
        self.autocast: torch.dtype | None = None  # that the training step runs in

    @abstractmethod
    def open(
        self,
        targets: Any,
        grad_factor: float | Tensor | None,
        accumulate: float | Tensor | None,
        weights: Tensor | None,
    ) -> None:
        """Put the hooks on; the arguments are those of :meth:`BaseMonitor.step`."""

    @abstractmethod
    def close(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Take the hooks off."""

    def forget_failure(self) -> None:
        """A new step begins."""
        self._failed = None

    def raise_failure(self) -> None:
        """Raise what failed inside a hook."""
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error

    def _catch(self, error: Exception) -> None:
        """An error inside a hook: keep it for the end of the step, so that the user's backward goes on."""
        self._failed = error

    def precision(self, dtype: torch.dtype | None) -> AbstractContextManager[object]:
        """Autocast to this type; to none, where it is None."""
        device = self._device.type
        if not torch.amp.is_autocast_available(device) or (dtype is None and not torch.is_autocast_enabled(device)):
            return nullcontext()  # a context of autocast takes longer than the work of some steps
        return torch.autocast(device, dtype, enabled=dtype is not None)


class StepCapture(StepHooks):
    """Captures the scored layers of one (micro-)step, and checks on the first that the loss is the declared one.

    Args:
        model: that is trained.
        head: the layer that gives the outputs.
        layers: all scored layers, the head among them.
        loss: that is back-propagated.
        device: where the model is.
        compiled: modules of scored layers that run compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        head: Layer,
        layers: Sequence[Layer],
        loss: Loss,
        device: torch.device,
        *,
        compiled: Sequence[str] = (),
    ) -> None:
        super().__init__(device)
        self._model, self._head, self._loss = model, head, loss
        self._hooks = Capture(layers, keep_outputs=[head.module_name], compiled=compiled, on_error=self._catch)
        self._has_warned = False
        self.given: GivenLabels | None = None  # of the step that is under way, where its targets are class numbers

    def open(
        self,
        targets: Tensor,
        grad_factor: float | Tensor | None,
        accumulate: float | Tensor | None,
        weights: Tensor | None,
    ) -> None:
        if weights is not None and weights.shape != (len(targets),):
            raise SgoifError(f"step() got weights of shape {tuple(weights.shape)} for {len(targets)} targets.")
        is_classes = targets.dim() == 1 and not targets.is_floating_point()
        self.given = read_classes(targets, self._head.shape.outputs) if is_classes else None
        size: int | Tensor = len(targets) if self.given is None else self.given.num_classed
        if weights is not None:
            size = weights.detach().sum()
        self._hooks.scale = self._loss.scale(size, accumulate) if grad_factor is None else grad_factor
        self._hooks.weights = None if weights is None else weights.detach()
        self._hooks.num_examples = len(targets)
        self._hooks.__enter__()

    def close(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._hooks.__exit__(kind, error, trace)

    def take(self) -> tuple[list[LayerCapture], LayerCapture]:
        """All captured calls, and the head's. Raises what failed inside a hook."""
        calls = list(self._hooks.calls)
        self._hooks.clear()
        self.raise_failure()
        found = [call for call in calls if call.layer == self._head.name]
        if len(found) != 1:
            raise HeadError(
                f"the head {self._head.name!r} received {len(found)} gradients in this step, expected one; "
                "run forward and backward of one batch inside `with monitor.step(...)`, and pass watch() the model as "
                "it is called: after torch.compile, not before."
            )
        return calls, found[0]

    def check_loss(self, head: LayerCapture, outputs: Tensor, targets: Tensor) -> bool:
        """Whether the gradient at the head was found to be that of the declared loss; raises where it is not."""
        return check_loss(self._loss, head, outputs, targets, self._hooks.scale)

    def note_precision(self, head: LayerCapture) -> None:
        """Learn from a step which precision it ran in."""
        is_low = head.output_grad.dtype in (torch.bfloat16, torch.float16)
        weights = list(self._head.parameters.values())
        if is_low and weights[0].dtype == torch.float32 and not is_sharded(*weights):  # whose policy is the model's own
            self.autocast = head.output_grad.dtype

    def warn_of_one(self, step: int) -> None:
        """A batch norm over one example ruins its running statistics, watched or not; worth a word, once."""
        norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        if not self._has_warned and any(isinstance(part, norms) and part.training for part in self._model.modules()):
            self._has_warned = True
            log.warning("step %d has one example, by which a batch norm cannot go: drop_last=True", step)
