"""Attribution by kronfluence (Grosse et al. 2023): the Fisher matrix as identity, diagonal, K-FAC or EK-FAC.

The damping is its default (1e-8), its heuristic (a tenth of each layer's mean eigenvalue) or, where the objective has
an L2 term, that. Computed in float32.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.attributors.subject import Scores, Subject

__all__ = ["methods"]

BATCH = 500
DEFAULT = 1e-8


def methods(subject: Subject) -> dict[str, Callable[[], Scores]]:
    """Every strategy with every damping."""
    dampings: dict[str, float | None] = {"default damping": DEFAULT, "heuristic damping": None}
    if subject.l2:
        dampings[f"damping {subject.l2:g}"] = subject.l2
    found: dict[str, Callable[[], Scores]] = {"identity": lambda: attribute(subject, "identity", DEFAULT)}
    for strategy in ("diagonal", "kfac", "ekfac"):
        for said, damping in dampings.items():
            found[f"{strategy}, {said}"] = lambda s=strategy, d=damping: attribute(subject, s, d)  # type: ignore[misc]
    return found


def attribute(subject: Subject, strategy: str, damping: float | None) -> Scores:
    """Fit the factors on the training examples and score all pairs."""
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments

    training, test = (TensorDataset(part.pixels, part.labels) for part in (subject.training, subject.test))
    task = _classification()
    torch.manual_seed(0)  # the Fisher matrix samples its labels
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*GradScaler", FutureWarning)  # kronfluence's own
        model = prepare_model(subject.model(), task)
        analyzer = Analyzer(
            "peer", model, task, cpu=True, log_level=logging.ERROR, disable_tqdm=True, output_dir=folder
        )
        analyzer.fit_all_factors(
            "factors", training, per_device_batch_size=BATCH, factor_args=FactorArguments(strategy=strategy)
        )
        analyzer.compute_pairwise_scores(
            "scores",
            "factors",
            test,
            training,
            per_device_query_batch_size=len(subject.test.labels),
            per_device_train_batch_size=BATCH,
            score_args=ScoreArguments(damping_factor=damping),
        )
        found: Tensor = analyzer.load_pairwise_scores("scores")["all_modules"]  # [V, n], positive where helpful
    return -found.T.double().numpy()


def _classification() -> Any:
    """The task as kronfluence wants it told: a class of its own, so built where the library is known to be there."""
    from kronfluence.task import Task

    class Classification(Task):  # type: ignore[misc]
        def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> Tensor:
            pixels, labels = batch
            logits = model(pixels)
            if sample:
                labels = torch.multinomial(logits.detach().softmax(1), 1).flatten()
            return F.cross_entropy(logits, labels, reduction="sum")

        def compute_measurement(self, batch: Any, model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

    return Classification()
