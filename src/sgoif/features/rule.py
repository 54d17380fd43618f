"""Is this input like those that the model was made for? A score of what the network sees of it; high is unlike.

``S(x) = z(−log t) + β · relu(ū − q) / sd``. The *studentised margin*
``t(x) = max_c (f_c − mean f) / sqrt(h̃ᵀ(Ã + λI)⁻¹h̃)`` is the largest logit in units of its own uncertainty under the
head's K-FAC posterior: ``h̃ = [h; 1]`` is what enters the head, ``Ã`` its second moment. ``ū`` is the mean, over hidden
layers, of the standardised log-leverage of the layer's pooled input. The gate stays shut for the share ``q`` of
in-distribution inputs, so that near ones are ordered by ``t`` alone, and opens for what no layer has seen. The formula
is our own; the parts are older: leverage is the Mahalanobis distance (Lee et al. 2018), pooled over layers.

*Leverage* is how unlike those seen before a vector is, in units of how they vary: ``D(x) = (x − μ)ᵀ (Σ + λI)⁻¹ (x −
μ)`` with ``λ`` a share of Σ's mean eigenvalue. About the origin (``μ = 0``, Σ the second moment) it is the input side
of a head's self-influence: ``gᵀF⁻¹g = (δᵀG⁻¹δ) · D`` for a K-FAC block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.features.extraction import HeadFeatures
from sgoif.linalg.factor import cholesky, factor_dtype

__all__ = ["Base", "Leverage", "OodRule", "Scale"]

Base = Literal["margin", "energy"]

# Not the IHVP's damping: 0.1 costs 0.8 AUROC at the head. Hidden layers have more directions than pictures to fit them.
_HEAD_DAMPING, _HIDDEN_DAMPING = 1e-3, 1e-2
_SHUT = 0.95  # share of in-distribution inputs for which the gate stays shut
_TINY = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Leverage:
    """Leverage over ``n`` examples, factorised once in float64: ``O(d²)`` to hold and per vector.

    >>> seen = torch.tensor([[1.0], [-1.0]])  # of variance 1, to which the damping adds 1
    >>> Leverage.fit(seen, damping=1.0, centred=True).of(torch.tensor([[3.0]])).round(decimals=6).tolist()
    [4.5]
    """

    mean: Tensor  # μ, [d]
    whitener: Tensor  # L⁻ᵀ of Σ + λI = LLᵀ, [d, d]
    count: int  # n
    is_centred: bool

    @classmethod
    def fit(cls, rows: Tensor, *, damping: float, centred: bool) -> Leverage:
        """Factorise the (co)variance of ``rows``, ``[n, d]``: ``O(nd² + d³)``."""
        wide = rows.to(factor_dtype(rows.device))
        mean = wide.mean(0) if centred else torch.zeros_like(wide[0])
        about = wide - mean
        moment = about.mT @ about / len(rows)
        level = moment.diagonal().mean().clamp_min(_TINY)  # of a layer whose input never changes
        eye = torch.eye(len(mean), dtype=wide.dtype, device=wide.device)
        # the least that keeps Cholesky sound where there are fewer rows than columns
        lower = cholesky(moment + max(damping, 1e-10) * level * eye).lower
        whitener = torch.linalg.solve_triangular(lower, eye, upper=False).mT
        return cls(mean, whitener, len(rows), centred)

    def of(self, rows: Tensor) -> Tensor:
        """Leverage of new vectors, ``[B, d] -> [B]``."""
        return ((rows.to(self.mean.dtype) - self.mean) @ self.whitener).square().sum(1).clamp_min(_TINY)

    def of_seen(self, rows: Tensor) -> Tensor:
        """Leverage of vectors that the fit has seen, each as if it had not: Sherman and Morrison, no second fit.

        Without it a vector's own share in Σ makes those seen look more usual than any new one will.
        """
        own, n = self.of(rows), self.count
        if not self.is_centred:
            return own / (1 - own / n).clamp_min(_TINY)
        return (n / (n - 1)) ** 2 * own / (1 - own / (n - 1)).clamp_min(_TINY)

    def to(self, device: torch.device | str) -> Leverage:
        """Move it."""
        return replace(self, mean=self.mean.to(device), whitener=self.whitener.to(device))


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
        return replace(self, head=self.head.to(device), hidden=hidden)

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return named tensors, and what goes into a header of JSON: the parts of a file."""
        tensors: dict[str, Tensor] = {}
        for name, part in {"head": self.head, **{f"hidden/{name}": part for name, part in self.hidden.items()}}.items():
            tensors |= {f"{name}/mean": part.mean.contiguous(), f"{name}/whitener": part.whitener.contiguous()}
        return tensors, {
            "count": self.head.count,
            "base": self.base,
            "gate_weight": self.gate_weight,
            "base_scale": asdict(self.base_scale),
            "gate": asdict(self.gate),
            "hidden": {name: asdict(scale) for name, scale in self.hidden_scales.items()},
        }

    @classmethod
    def unpack(cls, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> OodRule:
        """Undo :meth:`pack`."""

        def part(name: str, *, is_centred: bool) -> Leverage:
            return Leverage(tensors[f"{name}/mean"], tensors[f"{name}/whitener"], header["count"], is_centred)

        return cls(
            part("head", is_centred=False),
            {name: part(f"hidden/{name}", is_centred=True) for name in header["hidden"]},
            header["base"],
            header["gate_weight"],
            Scale(**header["base_scale"]),
            {name: Scale(**scale) for name, scale in header["hidden"].items()},
            Scale(**header["gate"]),
        )


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
