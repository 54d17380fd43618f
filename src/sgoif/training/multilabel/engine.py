"""The influence engine of tags: two anchors per tag, a Kronecker curvature with a diagonal side, a re-fitted head.

Directions are solved at every refresh and not tracked: what the calibration reads are solved ones in any case, and a
solve costs one factorisation of ``A``. What a visit counts for is the share of the hold-out's uncertainty that the
network explains by then, for training examples and canaries alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.devices import send
from sgoif.gradients import Capture, ExactSpace, Layer, LayerCapture, quiet_eval
from sgoif.gradients.contractions import pool_positions, widen
from sgoif.influence.anchors import HORIZON
from sgoif.influence.holdout import MultilabelHoldOut
from sgoif.influence.multilabel import MultilabelJudge, group_gradients, notice, refit_multilabel, solve_multilabel
from sgoif.tasks.multilabel import bits_of, tag_losses

__all__ = ["MOST_ABSENT", "MultilabelDraw", "MultilabelEngine"]

MOST_ABSENT = 8  # absent tags that are kept per example and visit: those that the model most believes in
_KEPT = 0.95  # of the curvature, at every observation
_DAMPING = 0.1  # of each factor, relative to its mean eigenvalue; that of the classification head


@dataclass(frozen=True, slots=True)
class MultilabelDraw:
    """What one refresh saw of the hold-out."""

    positions: Tensor  # [R]
    features: Tensor  # with the bias column, [R, I]
    logits: Tensor  # [R, C]


class MultilabelEngine:
    """One model's influence state.

    Args:
        head: the layer that gives one logit per tag.
        holdout: the hold-out.
        per_refresh: hold-out examples per refresh.
        horizon: pairs per anchor that its averaged gradient remembers; infinite for a model that does not move.
    """

    def __init__(
        self,
        head: Layer,
        holdout: MultilabelHoldOut,
        *,
        per_refresh: int = 256,
        horizon: float = HORIZON,
    ) -> None:
        self.head, self.holdout, self.space = head, holdout, ExactSpace(head)
        self.per_refresh, self.most_absent, self.horizon = per_refresh, MOST_ABSENT, horizon
        weight = next(iter(head.parameters.values()))
        self.dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        like: dict[str, Any] = {"device": holdout.device, "dtype": self.dtype}
        tags, columns = head.shape.outputs, head.shape.inputs
        self._state: dict[str, Tensor] = {
            "inputs": torch.zeros(columns, columns, **like),  # A, times `observed`
            "spread": torch.zeros(tags, **like),  # v, times `observed`
            "observed": torch.zeros((), **like),
            "gradients": torch.zeros(2, tags, columns, **like),  # of the two groups: absent, present
            "gathered": torch.zeros(2, tags, **like),
            "features": torch.zeros(len(holdout), columns, **like),
            "seen": torch.zeros(len(holdout), **like),
            "explained": torch.zeros((), **like),
            "probe": torch.zeros(tags, columns, **like),
            "solved": torch.zeros(2, tags, columns, **like),
        }
        self.refreshes = 0
        self._measured: list[tuple[Tensor, Tensor]] = []

    @property
    def is_ready(self) -> bool:
        """Whether there is something to judge by."""
        return self.refreshes > 0

    @property
    def confidence(self) -> Tensor:
        """What a visit counts for now, in [0, 1]. Squared, the mean loss found 0.5 AP less (development set)."""
        return self._state["explained"].clamp(0, 1)

    def features_of(self, call: LayerCapture) -> Tensor:
        """What the head sees of a batch, with the bias column, ``[B, I]``."""
        return pool_positions(self.space.rows(call))[0].to(self.dtype)

    # Scoring: reads the state, never changes it.

    def judge(self) -> MultilabelJudge:
        """What pairs are judged by, as of now."""
        return MultilabelJudge(self._state["solved"], self._state["gradients"], self._state["probe"])

    def score(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        """Signals of the pairs worth keeping, packed as ``[B, W, 2 + S]``: tag (-1 for none), bit, signals."""
        logits = widen(logits)
        noticed = notice(logits, targets, self.most_absent)
        columns = noticed.tags.clamp_min(0)
        products = self.judge().products(features)
        chosen = products.gather(2, columns[:, None].expand(-1, products.shape[1], -1))
        signals = MultilabelJudge.signals(logits.gather(1, columns).to(chosen.dtype), chosen, noticed.present)
        where = torch.stack([noticed.tags, noticed.present.to(noticed.tags.dtype)], -1)
        return torch.cat([where.to(signals.dtype), signals], -1)

    # Updating: once per optimiser step.

    def measure(self, features: Tensor, logits: Tensor) -> None:
        """Note what a micro-batch says about curvature."""
        p = widen(logits).sigmoid().to(self.dtype)
        self._measured.append((features.mT @ features / len(features), (p * (1 - p)).mean(0)))

    def absorb(self) -> None:
        """Take in the curvature of all micro-batches measured since the last time."""
        if not self._measured:
            return
        inputs, spread = (torch.stack(part).mean(0) for part in zip(*self._measured, strict=True))
        self._measured = []
        new = {"inputs": inputs, "spread": spread, "observed": torch.ones_like(self._state["observed"])}
        for name, value in new.items():
            self._state[name] = _KEPT * self._state[name] + (1 - _KEPT) * value

    def refresh(self, model: nn.Module, capture: Capture, forward: Callable[[Any], Tensor]) -> MultilabelDraw:
        """Look at some hold-out examples and renew everything that depends on them. Needs curvature."""
        draw = self.look(model, capture, forward, self.holdout.next_positions(self.per_refresh))
        with torch.no_grad():
            self._take(draw)
            self._state["solved"] = self.solve(self._state["gradients"])
            self._state["probe"] = self.refit()
        self.refreshes += 1
        return draw

    def look(
        self,
        model: nn.Module,
        capture: Capture,
        forward: Callable[[Any], Tensor],
        positions: Tensor,
        source: MultilabelHoldOut | None = None,
    ) -> MultilabelDraw:
        """Pass examples through the model in eval mode, changing nothing: of the hold-out, or of another source."""
        capture.scale, capture.num_examples = 1.0, len(positions)
        with quiet_eval(model), capture:
            inputs = (source or self.holdout).inputs(positions)
            outputs = capture.forward(lambda: forward(inputs))
            with torch.enable_grad():
                capture.differentiate(widen(outputs).sum())  # for what the head saw; its gradient is not used
        (call,) = capture.calls
        with torch.no_grad():
            return MultilabelDraw(
                send(positions, outputs.device), self.features_of(call), widen(outputs.detach()).to(self.dtype)
            )

    def solve(self, gradients: Tensor) -> Tensor:
        """``H⁻¹ g`` by the curvature seen so far; half of ``A`` is that of the hold-out.

        Under batch norm the hold-out's features, seen in eval mode, may lie off the training's, which the inverse of
        the training's ``A`` alone would blow up for canaries and anchors alike. It explains a part at most: with it the
        influence of canaries fell from 2.3 to 2.0 times that of training pairs (development set, one run each).
        """
        observed = self._state["observed"].clamp_min(1e-12)
        features, seen = self._state["features"], self._state["seen"]  # those not seen yet are zero
        held = features.mT @ features / seen.sum().clamp_min(1.0)
        inputs = (self._state["inputs"] / observed + held) / 2
        return solve_multilabel(gradients, inputs, self._state["spread"] / observed, _DAMPING)

    def refit(self, without: Tensor | None = None) -> Tensor:
        """Re-fit the head on the hold-out examples seen so far, without some of them, bool ``[M]``."""
        seen = self._state["seen"]
        trust = seen if without is None else seen * (~without).to(self.dtype)
        return refit_multilabel(self._state["features"], self.holdout.targets, self.head_weight(), trust)

    def head_weight(self) -> Tensor:
        """The head's weights with the bias column, ``[C, I]``."""
        parameters = {name: value.detach() for name, value in self.head.parameters.items()}
        return self.head.block(parameters)[0].to(self.dtype)

    def _take(self, draw: MultilabelDraw) -> None:
        targets = self.holdout.targets[draw.positions]
        drawn, counts = group_gradients(draw.features, draw.logits, targets)
        step, gathered = counts, self._state["gathered"] + counts
        if self.horizon < float("inf"):
            step = (counts / self.horizon).clamp(max=1.0)
            gathered = self._state["gathered"] + step * (1 - self._state["gathered"])
        rate = step / gathered.clamp_min(1e-12)  # bias-corrected: the first draw is taken whole
        old = self._state["gradients"]
        self._state["gradients"] = old + rate[:, :, None] * (drawn - old)
        self._state["gathered"] = gathered
        self._state["features"][draw.positions] = draw.features
        self._state["seen"][draw.positions] = 1.0
        explained, last = _share_explained(draw.logits, targets), self._state["explained"]
        self._state["explained"] = explained if self.refreshes == 0 else 0.8 * last + 0.2 * explained

    def state_dict(self) -> dict[str, Any]:
        """All that later scores depend on."""
        tensors = {name: value.clone() for name, value in self._state.items()}
        return {"tensors": tensors, "refreshes": self.refreshes, "position": self.holdout.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another engine stood."""
        self._state = {name: state["tensors"][name].to(old) for name, old in self._state.items()}
        self.refreshes, self.holdout.position = int(state["refreshes"]), int(state["position"])


def _share_explained(logits: Tensor, targets: Tensor) -> Tensor:
    """Share of the tags' uncertainty that the logits explain: 1 minus loss over the loss of the tags' frequencies."""
    present, absent = bits_of(targets)
    known = (present | absent).to(logits.dtype)
    loss = (tag_losses(logits, present) * known).sum()
    share = (present.sum(0) / known.sum(0).clamp_min(1.0)).clamp(1e-6, 1 - 1e-6).to(logits.dtype)
    blind = (tag_losses(torch.logit(share).expand_as(logits), present) * known).sum()
    return 1 - loss / blind.clamp_min(1e-12)
