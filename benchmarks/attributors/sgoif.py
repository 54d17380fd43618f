"""Our attribution through the front door, ``sgoif.attribute``; and TracIn, plain products summed over checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import sgoif
from benchmarks.attributors.subject import Scores, Subject

__all__ = ["CHOSEN_DAMPING", "methods"]

CHOSEN_DAMPING = 1e-2  # of Gauss-Newton, chosen before any LDS was seen; the others show how much hangs on it
OTHER_DAMPINGS = (1e-3, 1e-1)


def methods(subject: Subject) -> dict[str, Callable[[], Scores]]:
    """Every curvature, over all layers and at the head alone."""
    found: dict[str, Callable[[], Scores]] = {
        "identity": lambda: attribute(subject, "identity"),
        "diagonal": lambda: attribute(subject, "diagonal"),
        "kfac": lambda: attribute(subject, "kfac"),
        "kfac, corrected eigenvalues": lambda: attribute(subject, "kfac", eigenvalue_corrected=True),
    }
    if subject.l2:
        found[f"kfac, damping {subject.l2:g}"] = lambda: attribute(subject, "kfac", damping=subject.l2)
    else:
        found["kfac, head alone"] = lambda: attribute(subject, "kfac", layers="head")
        found["gauss-newton, head alone"] = lambda: attribute(subject, "gauss-newton", layers="head")
        found[f"tracin, {len(subject.states)} checkpoints"] = lambda: tracin(subject)
    for damping in (subject.l2,) if subject.l2 else (CHOSEN_DAMPING, *OTHER_DAMPINGS):
        limits: dict[str, Any] = {"products": 200, "tolerance": 1e-4} if subject.l2 else {}  # at a minimum it pays
        found[f"gauss-newton, damping {damping:g}"] = lambda d=damping, more=limits: attribute(  # type: ignore[misc]
            subject, "gauss-newton", damping=d, **more
        )
    return found


def attribute(subject: Subject, curvature: str, *, layers: str = "all", model: Any = None, **settings: Any) -> Scores:
    found = sgoif.attribute(
        subject.model() if model is None else model,
        (subject.training.pixels, subject.training.labels),
        (subject.test.pixels, subject.test.labels),
        layers=layers,
        curvature=curvature,
        curvature_settings=settings,
        batch_size=1000,
        as_matrix=True,
    )
    return found.astype(np.float64)


def tracin(subject: Subject) -> Scores:
    """Sum plain inner products of gradients over checkpoints, times the learning rate (Pruthi et al. 2020)."""
    total = np.zeros((len(subject.training.labels), len(subject.test.labels)))
    for state in subject.states:
        model = subject.make()
        model.load_state_dict(state)
        total += subject.learning_rate * attribute(subject, "identity", model=model)
    return total
