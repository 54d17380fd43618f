"""Anchors: groups of held-out examples whose mean loss a training example may raise or lower.

A refresh takes the next few hold-out examples, whatever the number of classes, in one eval-mode pass that leaves no
trace. Each anchor's gradient ``g_v`` is an exponential average over its draws with a horizon of about 25 examples;
``noise`` says how well it is determined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.devices import send
from sgoif.gradients import Capture, Space, quiet_eval, rows_by_layer
from sgoif.gradients.contractions import combine, norm2
from sgoif.influence.holdout import HoldOut
from sgoif.linalg import norm
from sgoif.records import GradientRows

__all__ = ["HORIZON", "AnchorDraw", "Anchors"]

# Examples per anchor that an averaged gradient remembers. With 25 in a draw the draw is taken whole: averaging over
# more gained nothing on the development set (harm 67.2 against 66.7 AP) and blinds the gate, which then opens in
# epoch 2.
HORIZON = 25.0


@dataclass(frozen=True, slots=True)
class AnchorDraw:
    """What one refresh saw: all that scores of the hold-out and a re-fitted head need; no second pass is made."""

    positions: Tensor  # in the hold-out, on its device, [R]
    labels: Tensor  # [R]
    outputs: Tensor  # the model's outputs, [R, C]
    rows: Mapping[str, GradientRows]  # of the scored layers, in their spaces; gradients of the sum of the losses

    def finite(self) -> AnchorDraw:
        """The examples that gave numbers: one that did not would be in every later average."""
        sizes2 = torch.stack([norm2(rows) for rows in self.rows.values()]).sum(0)
        is_finite = sizes2.isfinite() & self.outputs.isfinite().all(1)
        if bool(is_finite.all()):
            return self
        rows = {
            name: GradientRows(name, item.inputs[is_finite], item.output_grads[is_finite])
            for name, item in self.rows.items()
        }
        return AnchorDraw(self.positions[is_finite], self.labels[is_finite], self.outputs[is_finite], rows)


class Anchors:
    """Anchor gradients over the scored layers: one anchor per class, or all classes pooled into one.

    Args:
        holdout: where the examples come from.
        spaces: the scored layers.
        pooled: keep the mean over all classes only. ``harm`` needs no more, and with many classes one vector per class
            would not fit.
        per_refresh: how many hold-out examples a refresh processes.
        horizon: examples per class that the averaged gradient remembers; infinite for a model that does not move.
        dtype: of the gradients.
    """

    def __init__(
        self,
        holdout: HoldOut,
        spaces: Mapping[str, Space],
        *,
        pooled: bool = False,
        per_refresh: int = 256,
        horizon: float = HORIZON,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.holdout, self.spaces, self.pooled, self.per_refresh = holdout, dict(spaces), pooled, per_refresh
        # pooled, a draw holds few examples of each class, and its noise would be all that the residual shows
        self.horizon = horizon * holdout.num_classes if pooled else horizon
        self.num_anchors = 1 if pooled else holdout.num_classes
        like: dict[str, Any] = {"device": holdout.device, "dtype": dtype}
        self.trust = holdout.is_anchor.to(**like)  # in each hold-out label, lowered by self-cleaning
        self.gradients = {
            name: torch.zeros(self.num_anchors, *space.shape.dims, **like) for name, space in self.spaces.items()
        }
        self.noise = torch.ones(self.num_anchors, **like)  # relative standard error of the averaged g_v
        self.gathered = torch.zeros(self.num_anchors, **like)  # weight in the average; 0 = never seen
        self.drift = torch.full((self.num_anchors,), float("nan"), **like)  # of g_v since the last draw, see `_moved`

    @property
    def known(self) -> Tensor:
        """Which anchors have been seen, ``[K]``; the others are skipped."""
        return self.gathered > 0

    def refresh(
        self,
        model: nn.Module,
        capture: Capture,
        forward: Callable[[Any], Tensor],
        losses: Callable[[Tensor, Tensor], Tensor],
    ) -> AnchorDraw:
        """Take the next draw and move ``g_v`` towards it, for one process; the arguments are those of :meth:`look`."""
        draw = self.look(model, capture, forward, losses, self.holdout.next_positions(self.per_refresh))
        with torch.no_grad():
            self.absorb(draw)
        return draw

    def look(
        self,
        model: nn.Module,
        capture: Capture,
        forward: Callable[[Any], Tensor],
        losses: Callable[[Tensor, Tensor], Tensor],
        positions: Tensor,
        before: Callable[[], None] = lambda: None,
    ) -> AnchorDraw:
        """Pass some hold-out examples through the model, changing nothing.

        Args:
            model: put into eval mode for the pass; modes, RNG states and ``.grad`` are left as found.
            capture: over the scored layers; not the one that is open around the training step.
            forward: inputs to outputs ``[R, C]``.
            losses: outputs and labels to per-example losses ``[R]``.
            positions: of the examples in the hold-out, ``[R]``.
            before: called when the examples are loaded and only the pass itself is left to do.
        """
        at = send(positions, self.holdout.device)
        labels = self.holdout.labels[at]
        capture.scale, capture.num_examples = 1.0, len(positions)
        with quiet_eval(model), capture:
            inputs = self.holdout.inputs(positions)
            before()
            outputs = capture.forward(lambda: forward(inputs))
            with torch.enable_grad():
                capture.differentiate(losses(outputs, labels).sum())
        with torch.no_grad():
            rows = rows_by_layer(capture.calls, self.spaces)
        return AnchorDraw(at, labels, outputs.detach(), rows)

    def forget(self, which: Tensor) -> None:
        """Let some anchors, ``[K]``, be made of the next draw alone."""
        self.gathered = torch.where(which, torch.zeros_like(self.gathered), self.gathered)
        self.noise = torch.where(which, torch.ones_like(self.noise), self.noise)

    def absorb(self, draw: AnchorDraw) -> None:
        """Move ``g_v`` towards a draw, already gathered over processes."""
        labels, trust = draw.labels, self.trust[draw.positions]
        groups = torch.zeros_like(labels) if self.pooled else labels
        member = nn.functional.one_hot(groups, self.num_anchors).to(trust.dtype) * trust[:, None]  # [R, K]
        counts = member.sum(0)
        share = member / counts.clamp_min(1e-12)
        drawn = {name: combine(rows, share) for name, rows in draw.rows.items()}
        relative = self._relative_error(draw, drawn, share)
        self.drift = self._moved(drawn, relative)
        step, gathered = self._weigh(counts)
        rate = step / gathered.clamp_min(1e-12)  # bias-corrected: the first draw is taken whole
        for name, old in self.gradients.items():
            self.gradients[name] = old + rate[:, None, None, None] * (drawn[name].to(old.dtype) - old)
        variance = rate.square() * relative.square() + (1 - rate).square() * self.noise.square()
        self.noise = torch.where(step > 0, variance.sqrt(), self.noise)
        self.gathered = gathered

    def _moved(self, drawn: dict[str, Tensor], relative: Tensor) -> Tensor:
        """How far ``g_v`` moved between two draws beyond their noise, ``sqrt(|Δg|² - noise²) / |g|``; NaN before two.

        That is the higher-order error of scores: the directions between two draws take ``g_v`` for constant.
        """
        size2 = norm(drawn).square().clamp_min(1e-30)
        apart2 = norm({name: drawn[name].to(old.dtype) - old for name, old in self.gradients.items()}).square() / size2
        noise2 = relative.square() + self.noise.square() * norm(self.gradients).square() / size2
        is_known = (self.gathered > 0) & (size2 > 1e-30)
        return torch.where(is_known, (apart2 - noise2).clamp_min(0).sqrt(), torch.full_like(size2, float("nan")))

    def _weigh(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The weight of this draw, 0 for an anchor that did not come up, and that of the average after it."""
        if self.horizon == float("inf"):
            return counts, self.gathered + counts
        step = (counts / self.horizon).clamp(max=1.0)
        return step, self.gathered + step * (1 - self.gathered)

    def _relative_error(self, draw: AnchorDraw, drawn: dict[str, Tensor], share: Tensor) -> Tensor:
        """``sqrt(Σ_j s_j² |g_j - g|²) / |g|``: the standard error of a draw's mean gradient; 1 for a lone example."""
        squares = share.square()
        size2 = norm(drawn).square()
        norms2 = torch.stack([norm2(rows) for rows in draw.rows.values()]).sum(0)
        spread = (squares * norms2[:, None]).sum(0) - squares.sum(0) * size2
        relative = spread.clamp_min(0).sqrt() / size2.sqrt().clamp_min(1e-30)
        return torch.where(squares.sum(0) > 0.75, torch.ones_like(relative), relative)

    def state_dict(self) -> dict[str, Any]:
        """All that later refreshes depend on."""
        tensors = {f"gradients/{name}": value.clone() for name, value in self.gradients.items()}
        tensors |= {"trust": self.trust.clone(), "noise": self.noise.clone(), "gathered": self.gathered.clone()}
        return {"tensors": tensors, "position": self.holdout.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another object stood."""
        tensors = state["tensors"]
        self.gradients = {name: tensors[f"gradients/{name}"].to(old) for name, old in self.gradients.items()}
        self.trust, self.noise = tensors["trust"].to(self.trust), tensors["noise"].to(self.noise)
        self.gathered, self.holdout.position = tensors["gathered"].to(self.gathered), int(state["position"])
