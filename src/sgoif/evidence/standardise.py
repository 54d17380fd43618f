"""Put the scores of every step on one scale, so that visits of different steps can be added up.

A score's unit moves as training moves: gradients shrink, directions grow. What stays comparable is where a score lies
among the scores of its own step, so each is measured from the median in units of the median absolute deviation (MAD).
Both are smoothed over steps, since a small batch gives them with noise. No scale of the scores is assumed: shifting all
of them, or multiplying all by one positive number, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SgoifError

__all__ = ["WINSORISE_AT", "Standardiser"]

WINSORISE_AT = 6.0  # MADs; about 4 standard deviations of a normal: a visit may be outstanding, not decisive
_MIN_SCORES = 8  # fewer say too little about a median and less about a MAD


@dataclass(slots=True)
class Standardiser:
    """Running median and MAD of one signal.

    For the step's finite scores ``x`` with median ``m`` and MAD ``s``, in this order:

    1. *Observe*: ``m`` and ``s`` enter the running ``centre`` and ``scale`` as ``0.9 old + 0.1 new``; the first ones
       are taken as they are. Both moves are linear, which is what makes the result free of units.
    2. *Transform*: ``(x - centre) / scale``, cut to ±6, then ``tanh(· / temperature)`` where a temperature is given.

    A step with fewer than 8 finite scores waits; its scores are pooled with those of the next steps until there are 8,
    and count as one step then. A step whose MAD is zero moves nothing. In both cases the running values alone
    transform the scores. Scores that are not finite, and all scores before the first usable step, come out as NaN,
    which :meth:`sgoif.evidence.Evidence.add` counts as a visit that adds nothing.

    With several processes, :meth:`observe` the gathered scores on each and :meth:`transform` the local ones.

    >>> signal = Standardiser()
    >>> signal.apply([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 1000.0]).tolist()
    [-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 6.0]
    >>> signal.apply([9.0]).tolist()  # too few to measure by: the running values serve
    [2.0]
    """

    decay: float = 0.9
    temperature: float | None = None
    centre: float = field(default=float("nan"), init=False)
    scale: float = field(default=float("nan"), init=False)
    num_steps: int = field(default=0, init=False)  # steps that moved the running values
    _waiting: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise SgoifError(f"decay must lie in [0, 1), got {self.decay}; 0.9 remembers about ten steps.")
        if self.temperature is not None and not self.temperature > 0:
            raise SgoifError(f"temperature must be positive, got {self.temperature}; None leaves the scores unbent.")

    def apply(self, values: ArrayLike) -> NDArray[np.float32]:
        """Observe one step's scores ``[B]`` and standardise them: the step is measured by values that include it."""
        scores = _vector(values)
        self.observe(scores)
        return self.transform(scores)

    def observe(self, values: ArrayLike) -> None:
        """Let one step's scores move the running values."""
        scores = _vector(values)
        finite = scores[np.isfinite(scores)]
        if len(finite) < _MIN_SCORES:
            finite = np.concatenate([self._waiting, finite])
            if len(finite) < _MIN_SCORES:
                self._waiting = finite
                return
            self._waiting = np.empty(0)
        centre = float(np.median(finite))
        scale = float(np.median(np.abs(finite - centre)))
        # Rounding leaves a MAD near 1e-16 |x| where all scores are one number; that is no spread.
        if not scale > 1e-12 * max(abs(centre), float(np.abs(finite).max())):
            return
        keep = self.decay if self.num_steps else 0.0
        self.centre = keep * self.centre + (1 - keep) * centre if keep else centre
        self.scale = keep * self.scale + (1 - keep) * scale if keep else scale
        self.num_steps += 1

    def transform(self, values: ArrayLike) -> NDArray[np.float32]:
        """Standardise scores by the running values, without moving them."""
        scores = _vector(values)
        scores = np.where(np.isfinite(scores), scores, np.nan)
        found = np.clip((scores - self.centre) / self.scale, -WINSORISE_AT, WINSORISE_AT)
        if self.temperature is not None:
            found = np.tanh(found / self.temperature)
        return found.astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on as if it had not stopped."""
        return {
            "centre": self.centre,
            "scale": self.scale,
            "num_steps": self.num_steps,
            "waiting": self._waiting.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state; decay and temperature are settings and stay as constructed."""
        missing = [key for key in ("centre", "scale", "num_steps", "waiting") if key not in state]
        if missing:
            raise SgoifError(f"the state lacks {', '.join(missing)}; pass what Standardiser.state_dict returned.")
        self.centre, self.scale = float(state["centre"]), float(state["scale"])
        self.num_steps = int(state["num_steps"])
        self._waiting = np.asarray(state["waiting"], dtype=np.float64)


def _vector(values: ArrayLike) -> NDArray[np.float64]:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1:
        raise SgoifError(f"scores of one signal are a vector, got shape {scores.shape}; use one Standardiser a signal.")
    return scores
