"""What one step of a language model shows: the losses of its tokens, and its scored layers' gradients by sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.distributed import is_sharded
from sgoif.errors import CaptureError, HeadError
from sgoif.gradients import Capture, Layer, LayerCapture, check_factor, fit_factor
from sgoif.gradients.capture import is_backward_running
from sgoif.gradients.models import find_logits
from sgoif.gradients.quiet import quiet_depth
from sgoif.gradients.segments import Segments
from sgoif.influence.groups import SequencesSeen
from sgoif.tasks.sequences import IGNORED, count_tokens, sequence_losses, token_losses
from sgoif.training.losses import Loss
from sgoif.training.step_capture import StepHooks

__all__ = ["ComparedLosses", "SequenceBatch", "SequenceCapture"]

_CHECKED = 64  # tokens by whose gradients the loss is checked on the first step: a vocabulary is wide
_CHECKED_LATER = 8  # those of the largest losses, in each step; of a token that is known well only rounding is left
_LEAST_LOSS = 0.1  # of a token that is checked later
_MISFIT = 0.1  # relative, of their gradients: with more it is another loss, which no factor makes fit
_OFF = 0.05  # relative, of the factor in later steps


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """The sequences of one micro-batch."""

    targets: Tensor  # the token that each position is to predict, [B, T]
    segments: Segments | None  # where sequences are packed into rows

    def __len__(self) -> int:
        return self.targets.shape[0] if self.segments is None else len(self.segments)


@dataclass(frozen=True, slots=True)
class ComparedLosses:
    """How the losses of the (micro-)batches after the first compare with the declared one."""

    number: int = 0
    num_other: int = 0
    factor: float = 1.0  # of the last of these

    def __add__(self, later: ComparedLosses) -> ComparedLosses:
        factor = later.factor if later.num_other else self.factor
        return ComparedLosses(self.number + later.number, self.num_other + later.num_other, factor)

    def describe(self) -> str:
        """A warning, where there is something to warn of."""
        if not self.num_other:
            return ""
        found = f"{self.factor:.3g} times it" if abs(self.factor - 1) > _OFF else "that of another"
        return (
            f"in {self.num_other:,} of {self.number:,} (micro-)batches after the first the gradient at the logits was "
            f"not that of the declared loss, but {found}, for example, and scores are wrong by as much. Pass as "
            "grad_factor= what the summed losses are divided by, in a last, shorter step, too"
        )


class SequenceCapture(StepHooks):
    """Captures the scored layers and reads token losses off the logits, which are not kept.

    Args:
        model: whose forward pass returns the logits that its loss is made of.
        layers: the scored layers.
        loss: that is back-propagated: a mean over the tokens of the micro-batch, or a sum.
        device: where the model is.
    """

    def __init__(self, model: nn.Module, layers: Sequence[Layer], loss: Loss, device: torch.device) -> None:
        super().__init__(device)
        self._model, self._loss = _innermost(model), loss
        self._hooks = Capture(layers, on_error=self._catch)
        self._batch: SequenceBatch | None = None
        self._handle: Any = None
        self._depth = 0
        self._losses: Tensor | None = None
        self._fit: tuple[Tensor, Tensor] | None = None  # gradients at some logits, and what the loss says they are
        self._given: float | Tensor | None = None  # grad_factor=, of the caller
        self._is_low = False
        self.is_unproven = False  # the loss could not be checked: no gradient arrived at the logits
        self._fits: list[Tensor] = []  # of later steps: the factor found by that declared, and the misfit, [2]

    def open(
        self,
        targets: Any,
        grad_factor: float | Tensor | None,
        accumulate: float | Tensor | None,
        weights: Tensor | None,
    ) -> None:
        assert isinstance(targets, SequenceBatch)
        size = (targets.targets != IGNORED).sum().clamp_min(1)
        self._given = grad_factor
        self._hooks.scale = self._loss.scale(size, accumulate) if grad_factor is None else grad_factor
        self._hooks.num_examples = targets.targets.shape[0]
        self._batch, self._losses, self._fit = targets, None, None
        self._depth = quiet_depth()
        self._hooks.__enter__()
        self._handle = self._model.register_forward_hook(self._read_logits)

    def close(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._hooks.__exit__(kind, error, trace)

    def _read_logits(self, _module: nn.Module, _args: Any, output: Any) -> None:
        """Compute the losses of the tokens; an error waits for the end of the step."""
        if quiet_depth() > self._depth or is_backward_running() or not torch.is_grad_enabled():
            return
        try:
            assert self._batch is not None
            if self._losses is not None:
                raise CaptureError("the model was called twice in one step; surround one forward and backward pass.")
            fused, targets = getattr(output, "log_probs", None), self._batch.targets
            if isinstance(fused, Tensor):
                self._read_log_probs(fused, targets)
                return
            logits = find_logits(output)
            if logits.dim() != 3 or logits.shape[:2] != targets.shape:
                raise CaptureError(
                    f"the model's logits have shape {tuple(logits.shape)}, but the labels {tuple(targets.shape)}; "
                    "expected logits [B, T, V] for labels [B, T]."
                )
            with torch.no_grad(), self.precision(None):
                self._losses = token_losses(logits.detach(), targets)
        except Exception as error:
            self._catch(error)
            return
        if logits.requires_grad and not self.is_unproven:
            try:
                self._note_expected(logits, targets, self._losses if self.is_checked else None)
            except Exception as error:
                self._catch_comparing(error)

    def _catch_comparing(self, error: Exception) -> None:
        """An error of the comparison: on the first step it counts, later it costs the comparison and no visit."""
        if not self.is_checked:
            self._catch(error)

    def _read_log_probs(self, found: Tensor, targets: Tensor) -> None:
        """Read the losses of TRL's fused output layer, which gives ``log p`` of every target in place of logits."""
        wanted = targets != IGNORED
        short = targets.shape[1] - found.shape[1]
        if found.shape[0] != targets.shape[0] or short not in (0, 1):
            raise CaptureError(f"log_probs have shape {tuple(found.shape)}, but the labels {tuple(targets.shape)}.")
        self._losses = -F.pad(found.detach().float(), (0, short)) * wanted
        if found.requires_grad:
            shown = self._losses[:, : found.shape[1]].flatten()
            values, places = shown.topk(min(_CHECKED_LATER if self.is_checked else _CHECKED, len(shown)))
            used = -(values > 0).float()

            def keep(grad: Tensor) -> None:
                try:
                    self._is_low, self._fit = False, (grad.detach().float().flatten()[places] * -used, used)
                except Exception as error:  # the user's backward pass goes on
                    self._catch_comparing(error)

            found.register_hook(keep)

    @torch.no_grad()
    def _note_expected(self, logits: Tensor, targets: Tensor, losses: Tensor | None) -> None:
        """Keep what the gradient at some logits ought to be, times the factor, and have the real one kept beside it.

        At the first tokens that are predicted; or at those of the largest losses, which asks nothing of the host.
        """
        if losses is None:
            places = (targets != IGNORED).nonzero()[:_CHECKED].unbind(1)
            used = torch.ones_like(places[0], dtype=torch.bool)
        else:
            values, flat = losses.flatten().topk(min(_CHECKED_LATER, losses.numel()))
            places, used = (flat // losses.shape[1], flat % losses.shape[1]), values > _LEAST_LOSS
        rows = logits.detach()[places]
        rows = rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows
        expected = rows.softmax(-1)
        expected.scatter_add_(1, targets[places].clamp_min(0)[:, None], -torch.ones_like(expected[:, :1]))
        expected, is_cast = expected * used[:, None], logits.dtype != expected.dtype

        def keep(grad: Tensor) -> None:  # must not hold the logits, which hold it: the step's graph would stay for ever
            try:
                self._is_low = grad.dtype in (torch.bfloat16, torch.float16) or is_cast
                self._fit = grad.detach()[places].to(expected.dtype) * used[:, None], expected
            except Exception as error:  # the user's backward pass goes on
                self._catch_comparing(error)

        logits.register_hook(keep)

    def take(self) -> SequencesSeen:
        """What was captured, by sequence. Raises what failed inside a hook."""
        calls, batch, losses = list(self._hooks.calls), self._batch, self._losses
        self._hooks.clear()
        self.raise_failure()
        assert batch is not None
        if losses is None:
            raise CaptureError(
                "the model gave no logits in this step; run its forward and backward pass inside `with "
                "monitor.step(...)`, and pass watch() the model that is called. Fused losses that never make logits "
                "are not supported."
            )
        self._note_precision(calls)
        if not calls:
            raise CaptureError("no gradient arrived at the scored layers; was backward run inside the step?")
        if batch.segments is not None:
            calls = batch.segments.split_all(calls)
        counts = count_tokens(batch.targets, batch.segments)
        return SequencesSeen(calls, sequence_losses(losses, batch.segments), counts)

    def _note_precision(self, calls: Sequence[LayerCapture]) -> None:
        """Learn which precision the step ran in: gradients are narrower than the weights under autocast.

        They are too where a sharded model has a policy, which is its own in every pass.
        """
        narrow = {call.output_grad.dtype for call in calls} & {torch.bfloat16, torch.float16}
        weights = [value for layer in self._hooks.layers for value in layer.parameters.values()]
        wide = all(value.dtype == torch.float32 for value in weights)
        self.autocast = narrow.pop() if narrow and wide and not is_sharded(*weights) else None

    def check_loss(self) -> bool:
        """Whether the gradient at the logits was found to be that of the declared loss; raises where it is not.

        Where the model's output is a copy (mixed precision by Accelerate) no gradient arrives there: nothing is proven,
        :attr:`is_unproven` says so, and there is nothing more to wait for.
        """
        if self._fit is None:
            self.is_unproven = True
            return True
        grad, expected = self._fit
        self._fit = None
        if not bool(torch.isfinite(grad).all()) or not bool(grad.any()):
            return False
        fit = fit_factor(grad, expected)
        try:
            check_factor(fit, self._hooks.scale, low_precision=self._is_low)
        except HeadError as error:
            given, is_this_loss = "", float(fit.misfit) < _MISFIT and float(fit.factor) > 0
            if self._given is not None and is_this_loss:
                given = f" You passed grad_factor={float(self._given):g}; {1 / float(fit.factor):g} would fit."
            raise HeadError(
                f"{error}{given} For sequences the loss is the cross-entropy of the next token, without smoothing, "
                "averaged over the tokens of a micro-batch whose label is not -100, or divided by what you pass as "
                "grad_factor=, which counts accumulated micro-batches, too."
            ) from None
        return True

    def note_loss(self) -> None:
        """Remember, on the device, how the gradient at the logits compares with the declared loss in a later step."""
        fit, self._fit = self._fit, None
        if fit is not None:
            grad, expected = fit
            found = fit_factor(grad, expected)
            product = (found.factor * self._hooks.scale).reshape(()).where(expected.any(), torch.nan)
            self._fits.append(torch.stack([product, found.misfit.to(product)]))

    def read_losses(self) -> ComparedLosses:
        """Those since the last call. Waits for the device."""
        fits, self._fits = self._fits, []
        if not fits:
            return ComparedLosses()
        products, misfits = torch.stack(fits).double().cpu().unbind(1)
        is_known = products.isfinite() & misfits.isfinite()
        is_other = is_known & ((misfits > _MISFIT) | ((products - 1).abs() > _OFF))
        example = float(products[is_other][-1]) if is_other.any() else 1.0
        return ComparedLosses(int(is_known.sum()), int(is_other.sum()), example)


def _innermost(model: nn.Module) -> nn.Module:
    """The module that computes the loss: inside of an adapter's wrapper, whose forward a framework may replace."""
    get = getattr(model, "get_base_model", None)
    found = get() if callable(get) else model
    return found if isinstance(found, nn.Module) else model
