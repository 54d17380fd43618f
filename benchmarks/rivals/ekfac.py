"""Self-influence by EK-FAC through kronfluence, on the finished model: of the head, or of head and convolutions.

All layers are what the method's authors use, and take some ten times as long as the head alone. The damping is
kronfluence's heuristic, a tenth of the mean eigenvalue of each layer. Computed in float32.
"""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

from benchmarks.rivals.case import Bare, Case, Found, stopwatch

__all__ = ["ALL_LAYERS", "HEAD", "find_all_layers", "find_head"]

HEAD = "EK-FAC self-influence, head"
ALL_LAYERS = "EK-FAC self-influence, all layers"
BATCH = 125  # larger ones only take more memory


def find_head(case: Case, bare: Bare) -> dict[str, Found]:
    """Score by the gradients of the last layer."""
    return {HEAD: self_influence(case, bare, ["head"])}


def find_all_layers(case: Case, bare: Bare) -> dict[str, Found]:
    """Score by the gradients of all convolutions and the head."""
    return {ALL_LAYERS: self_influence(case, bare, None)}


def self_influence(case: Case, bare: Bare, layers: list[str] | None) -> Found:
    """Compute ``gᵢᵀ (H + λ)⁻¹ gᵢ`` of the loss for every example, over the named layers or all of them."""
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments

    dataset = TensorDataset(case.images, case.given)
    task = _classification(layers)
    torch.manual_seed(case.seed)  # the Fisher matrix samples its labels
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), stopwatch() as clock:
        warnings.filterwarnings("ignore", ".*GradScaler", FutureWarning)  # kronfluence's own
        model = prepare_model(copy.deepcopy(bare.model), task)
        analyzer = Analyzer(
            "rival", model, task, cpu=True, log_level=logging.ERROR, disable_tqdm=True, output_dir=folder
        )
        analyzer.fit_all_factors(
            "ekfac", dataset, per_device_batch_size=BATCH, factor_args=FactorArguments(strategy="ekfac")
        )
        analyzer.compute_self_scores(
            "self",
            "ekfac",
            dataset,
            per_device_train_batch_size=BATCH,
            score_args=ScoreArguments(damping_factor=None),
        )
        scores = analyzer.load_self_scores("self")["all_modules"].double().numpy()
    return Found(scores, clock.seconds)


def _classification(layers: list[str] | None) -> Any:
    """The task as kronfluence wants it told: a class of its own, so built where the library is known to be there."""
    from kronfluence.task import Task

    class Classification(Task):  # type: ignore[misc]
        def compute_train_loss(self, batch: Any, model: torch.nn.Module, sample: bool = False) -> Tensor:
            images, labels = batch
            logits = model(images)
            if sample:
                labels = torch.multinomial(logits.detach().softmax(1), 1).flatten()
            return F.cross_entropy(logits, labels, reduction="sum")

        def compute_measurement(self, batch: Any, model: torch.nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

        def get_influence_tracked_modules(self) -> list[str] | None:
            return layers

    return Classification()
