"""The confidence gate: how far each anchor's direction can be trusted at this step.

The relative residual ``e_v = |g_v - Hφ_v| / |g_v|`` is compared with a tolerance ``τ``: ``c_v = 1 / (1 + (e/τ)⁴)``,
one half where the residual is the tolerance. Far above it the weights still compare, so that a run whose residuals stay
large is judged by its best steps and not thrown away. A gate common to all examples of a step cannot re-rank them
within the step. It works between anchors, and over time, by weighting what each visit adds.

All of it stays on the device: no branch looks at a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from sgoif.errors import SgoifError

__all__ = ["Gate", "GateMode", "GateReading", "GateSettings"]

GateMode = Literal["relative", "linear", "paper", "moving-average", "ramp", "ramp2", "none"]


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How the tolerance is chosen.

    ``relative`` is the default: ``τ = κ (β/β_ref)^q (Γ/Γ_ref)^p`` within ``tau_range`` of ``κ``, with ``q = p = 0`` a
    constant 0.1, and the smooth confidence above. On the development set (AP of `harm` / `worst`) it gave 68.7 / 74.6
    on pair-20 and 91.0 / 74.9 on sym-40, where ``linear`` gave 65.6 / 72.6 and 91.0 / 73.1 and ``ramp2`` 68.1 / 74.6
    and 91.2 / 74.6; ``linear`` at a tolerance of 0.15 does as well there and shuts for good where residuals stay above.

    ``linear`` is ``c = clip(1 - e/τ, 0, 1)`` at a tolerance of 0.4. ``paper`` is the source paper's literal form
    (absolute residual, ``τ = κ β Γ``), which shuts the gate for good at any usual learning rate; it is kept for
    comparison, as are ``moving-average`` (linear, ``τ`` twice the running residual), ``ramp`` (``c = t/T``), ``ramp2``
    and ``none``.
    """

    mode: GateMode = "relative"
    kappa: float | None = None  # 0.1 for `relative`, 0.4 for the others
    tau_range: tuple[float, float] = (0.75, 2.5)  # in units of κ
    beta_power: float = 0.0  # q
    gamma_power: float = 0.0  # p
    subtract_noise: bool = False  # hold only the part of the residual against τ that is not sampling noise of g_v
    rate_weight: float = 1.0  # g1, of η Gbar / n
    decay_weight: float = 1.0  # g2, of λ_w / n

    def __post_init__(self) -> None:
        if self.mode not in get_args(GateMode):
            raise SgoifError(f"gate must be one of {', '.join(get_args(GateMode))}, got {self.mode!r}.")
        if self.kappa is not None and not self.kappa > 0:
            raise SgoifError(f"kappa is the tolerance of a residual and positive, got {self.kappa!r}.")
        if not 0 < self.tau_range[0] <= self.tau_range[1]:
            raise SgoifError(f"tau_range is a lower and an upper end, both positive, got {self.tau_range!r}.")

    @property
    def scale(self) -> float:
        """``κ``, as given or the mode's own."""
        return self.kappa if self.kappa is not None else (0.1 if self.mode == "relative" else 0.4)


@dataclass(frozen=True, slots=True)
class GateReading:
    """One step's gate, on the device."""

    residual: Tensor  # e_v, as measured, [K]
    noise: Tensor  # what of it is sampling noise, [K]
    tau: Tensor  # 0-d
    confidence: Tensor  # c_v, [K]
    beta: Tensor  # stability proxy, 0-d
    gamma: Tensor  # condition proxy, 0-d


class Gate:
    """Turns residuals into confidences.

    >>> gate = Gate(GateSettings(), train_size=1000, planned_steps=100)
    >>> reading = gate.read(torch.tensor([0.1, 0.5]), torch.zeros(2), torch.ones(2))
    >>> reading.confidence
    tensor([0.5000, 0.0016])
    """

    def __init__(
        self,
        settings: GateSettings,
        *,
        train_size: int,
        planned_steps: int | None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if settings.mode in ("ramp", "ramp2") and not planned_steps:
            raise SgoifError(
                f"gate {settings.mode!r} needs the planned number of steps; pass Method(planned_steps=...)."
            )
        self.settings, self.train_size, self.planned_steps = settings, train_size, planned_steps
        self._zero = torch.zeros((), device=device, dtype=dtype)
        self._reference_steps = max(50, (planned_steps or 1000) // 20)
        self.steps = 0
        self._gradient_norm = self._zero.clone()  # EMA of the training gradient's norm
        self._condition = self._zero + 1  # Γ
        self._residual_average: Tensor | None = None
        self._early: list[Tensor] = []  # (β, Γ) of the first steps, until the references are known
        self._reference = torch.ones(2, device=device, dtype=dtype)

    @property
    def needs_gradient(self) -> bool:
        """Whether the tolerance looks at the training gradient's norm at all."""
        return self.settings.mode == "paper" or self.settings.beta_power != 0

    @property
    def needs_condition(self) -> bool:
        """Whether the tolerance looks at the curvature's condition number at all."""
        return self.settings.mode == "paper" or self.settings.gamma_power != 0

    def observe_condition(self, smallest: Tensor, largest: Tensor) -> None:
        """Take ``Γ``, the ratio of the ends of the curvature's spectrum; one that is no number is passed over."""
        found = (largest / smallest.clamp_min(torch.finfo(smallest.dtype).tiny)).to(self._zero)
        self._condition = torch.where(found.isfinite(), found.clamp_min(1), self._condition)

    def observe_gradient(self, norm: Tensor) -> None:
        """Fold one step's gradient norm into the stability proxy; one that is no number is passed over."""
        kept = 0.95 if self.steps else 0.0
        folded = kept * self._gradient_norm + (1 - kept) * norm.to(self._zero)
        self._gradient_norm = torch.where(folded.isfinite(), folded, self._gradient_norm)

    def read(
        self,
        residual: Tensor,
        noise: Tensor,
        gradient_size: Tensor,
        *,
        learning_rate: float = 0.0,
        weight_decay: float = 0.0,
    ) -> GateReading:
        """Judge one step.

        Args:
            residual: relative residuals ``e_v``, ``[K]``.
            noise: relative standard errors of ``g_v``, ``[K]``.
            gradient_size: ``|g_v|``, ``[K]``, to turn relative residuals into the paper's absolute ones.
            learning_rate: of the training step.
            weight_decay: of the training step.
        """
        s, gamma = self.settings, self._condition
        beta = (s.rate_weight * learning_rate * self._gradient_norm + s.decay_weight * weight_decay) / self.train_size
        beta = beta + self._zero
        excess = (residual.square() - noise.square()).clamp_min(0).sqrt() if s.subtract_noise else residual
        tau = self._tolerance(beta, gamma, excess)
        self.steps += 1
        measured = (residual * gradient_size if s.mode == "paper" else excess) / tau.clamp_min(1e-30)
        confidence = 1 / (1 + measured**4) if s.mode == "relative" else (1 - measured).clamp(0, 1)
        if s.mode in ("ramp", "ramp2", "none"):
            progress = min(1.0, self.steps / (self.planned_steps or 1))
            value = {"ramp": progress, "ramp2": progress**2, "none": 1.0}[s.mode]
            confidence = torch.full_like(residual, value)
        confidence = torch.where(torch.isfinite(residual), confidence, torch.zeros_like(confidence))
        return GateReading(residual, noise, tau, confidence, beta, gamma)

    def read_steps(
        self, residuals: Tensor, noise: Tensor, gradient_size: Tensor, steps: Sequence[tuple[float, float]]
    ) -> tuple[GateReading, Tensor]:
        """Judge several steps: the last reading, and the confidences of all, ``[T, K]``.

        Args:
            residuals: relative residuals, ``[T, K]``.
            noise: as in :meth:`read`, the same for all.
            gradient_size: as in :meth:`read`, the same for all.
            steps: learning rate and weight decay of each.
        """
        if self._is_constant:
            rate, decay = steps[-1]
            reading = self.read(residuals, noise, gradient_size, learning_rate=rate, weight_decay=decay)
            self.steps += len(steps) - 1
            return replace(reading, residual=residuals[-1]), reading.confidence
        readings = [
            self.read(residual, noise, gradient_size, learning_rate=rate, weight_decay=decay)
            for residual, (rate, decay) in zip(residuals.unbind(0), steps)
        ]
        return readings[-1], torch.stack([reading.confidence for reading in readings])

    @property
    def _is_constant(self) -> bool:
        """Whether every step is judged by the same tolerance."""
        s = self.settings
        return s.mode in ("relative", "linear", "none") and s.beta_power == 0 and s.gamma_power == 0

    def _tolerance(self, beta: Tensor, gamma: Tensor, excess: Tensor) -> Tensor:
        s = self.settings
        if s.mode == "paper":
            return s.scale * beta * gamma
        if s.mode == "moving-average":
            mean = torch.nan_to_num(excess, nan=1.0, posinf=1.0).mean()
            old = mean if self._residual_average is None else self._residual_average
            self._residual_average = 0.95 * old + 0.05 * mean
            return 2 * self._residual_average
        if s.beta_power == 0 and s.gamma_power == 0:
            return self._zero + s.scale
        if self.steps < self._reference_steps:
            self._early.append(torch.stack([beta, gamma]))
            self._reference = torch.stack(self._early).median(0).values
        else:
            self._early.clear()
        ratio = torch.stack([beta, gamma]) / self._reference.clamp_min(1e-30)
        return s.scale * (ratio[0] ** s.beta_power * ratio[1] ** s.gamma_power).clamp(*s.tau_range)

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "gradient_norm": self._gradient_norm.clone(),
            "condition": self._condition.clone(),
            "residual_average": None if self._residual_average is None else self._residual_average.clone(),
            "early": [value.clone() for value in self._early],
            "reference": self._reference.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = int(state["steps"])
        self._gradient_norm = state["gradient_norm"].to(self._zero)
        self._condition = state["condition"].to(self._zero)
        average = state["residual_average"]
        self._residual_average = None if average is None else average.to(self._zero)
        self._early = [value.to(self._zero) for value in state["early"]]
        self._reference = state["reference"].to(self._reference)
