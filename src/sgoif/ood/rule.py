"""Is this input like those that the model was made for? A score of what the network sees of it; high is unlike.

``S(x) = z(−log t) + β · relu(ū − q) / sd``. The *studentised margin*
``t(x) = max_c (f_c − mean f) / sqrt(h̃ᵀ(Ã + λI)⁻¹h̃)`` is the largest logit in units of its own uncertainty under the
head's K-FAC posterior: ``h̃ = [h; 1]`` is what enters the head, ``Ã`` its second moment. ``ū`` is the mean, over hidden
layers, of the standardised log-leverage of the layer's pooled input. The gate stays shut for the share ``q`` of usual
inputs, so that near ones are ordered by ``t`` alone, and opens for what no layer has seen. The formula is our own; the
parts are older: leverage is the Mahalanobis distance (Lee et al. 2018), pooled over layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.ood.leverage import Leverage

__all__ = ["Base", "HeadFeatures", "OodRule"]

Base = Literal["margin", "energy"]

# Not the IHVP's damping: 0.1 costs 0.8 AUROC at the head. Hidden layers have more directions than pictures to fit them.
_HEAD_DAMPING, _HIDDEN_DAMPING = 1e-3, 1e-2
_SHUT = 0.95  # share of in-distribution inputs for which the gate stays shut
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class HeadFeatures:
    """What a network sees of some inputs."""

    features: Tensor  # what enters the head, [B, d]
    logits: Tensor  # [B, C]
    pooled: Mapping[str, Tensor]  # by hidden layer: mean of its input over positions, [B, d_l]

    def take(self, positions: Tensor) -> HeadFeatures:
        """What it sees of some of them."""
        pooled = {name: rows[positions] for name, rows in self.pooled.items()}
        return HeadFeatures(self.features[positions], self.logits[positions], pooled)


@dataclass(frozen=True, slots=True)
class Scale:
    """Centre and spread that make a number comparable with others."""

    centre: float
    spread: float

    @classmethod
    def of(cls, values: Tensor) -> Scale:
        return cls(float(values.mean()), max(float(values.std()), _TINY))

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.centre) / self.spread


@dataclass(frozen=True, slots=True, eq=False)
class OodRule:
    """The score, fitted to in-distribution inputs: no labels, nothing kept of any of them."""

    head: Leverage
    hidden: Mapping[str, Leverage]
    base: Base
    gate_weight: float  # β; 0 leaves the base alone
    base_scale: Scale
    hidden_scales: Mapping[str, Scale]
    gate: Scale  # opens at `centre`

    @classmethod
    def fit(cls, seen: HeadFeatures, *, base: Base = "margin", gate_weight: float = 1.0) -> OodRule:
        """Fit to what the network sees of ``n`` in-distribution inputs: ``O(n Σd² + Σd³)``.

        Raises:
            SgoifError: The base is unknown, or the network's output is not finite.
        """
        if base not in ("margin", "energy"):
            raise SgoifError(f"base must be 'margin' or 'energy', got {base!r}.")
        _refuse_broken(seen)
        head = Leverage.fit(_with_one(seen.features), damping=_HEAD_DAMPING, centred=False)
        hidden = {name: Leverage.fit(rows, damping=_HIDDEN_DAMPING, centred=True) for name, rows in seen.pooled.items()}
        # as new inputs will look, not as those that the fit has seen
        based = _base(base, seen.logits, head.of_seen(_with_one(seen.features)))
        logs = {name: hidden[name].of_seen(rows).log() for name, rows in seen.pooled.items()}
        scales = {name: Scale.of(values) for name, values in logs.items()}
        unusual = _mean_unusual(logs, scales)
        gate = Scale(0.0, 1.0)
        if unusual is not None:
            gate = Scale(float(unusual.quantile(_SHUT)), Scale.of(unusual).spread)
        return cls(head, hidden, base, gate_weight, Scale.of(based), scales, gate)

    def scores(self, seen: HeadFeatures, *, is_fitted: bool = False) -> Tensor:
        """Score inputs, ``[B]``, float64, high is unlike; infinite where the network's output is not finite.

        Args:
            seen: what the network sees of them.
            is_fitted: they are those of :meth:`fit`, and are to look as new ones do.
        """
        of = Leverage.of_seen if is_fitted else Leverage.of
        found = self.base_scale(_base(self.base, seen.logits, of(self.head, _with_one(seen.features))))
        logs = {name: of(leverage, seen.pooled[name]).log() for name, leverage in self.hidden.items()}
        unusual = _mean_unusual(logs, self.hidden_scales)
        if unusual is not None:
            found = found + self.gate_weight * self.gate(unusual).relu()
        return torch.where(found.isfinite(), found, torch.inf)

    def to(self, device: torch.device | str) -> OodRule:
        """Move it."""
        hidden = {name: leverage.to(device) for name, leverage in self.hidden.items()}
        settings = (self.base, self.gate_weight, self.base_scale, self.hidden_scales, self.gate)
        return OodRule(self.head.to(device), hidden, *settings)


def _base(base: Base, logits: Tensor, leverage: Tensor) -> Tensor:
    wide = logits.to(leverage.dtype)
    if base == "energy":
        return -wide.logsumexp(1)
    margin = (wide - wide.mean(1, keepdim=True)).amax(1).clamp_min(_TINY)
    return 0.5 * leverage.log() - margin.log()


def _mean_unusual(logs: Mapping[str, Tensor], scales: Mapping[str, Scale]) -> Tensor | None:
    """The mean over layers; None for a network that has no layer but its head."""
    if not logs:
        return None
    return torch.stack([scales[name](values) for name, values in logs.items()]).mean(0)


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones_like(features[:, :1])], 1)


def _refuse_broken(seen: HeadFeatures) -> None:
    parts = [seen.features, seen.logits, *seen.pooled.values()]
    is_sound = torch.stack([part.isfinite().all(1) for part in parts]).all(0)
    if not is_sound.all():
        raise SgoifError(
            f"for {int((~is_sound).sum())} of {len(is_sound)} calibration images the network's numbers are not finite; "
            "leave those images out."
        )
