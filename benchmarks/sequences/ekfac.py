"""Harm by kronfluence's EK-FAC of a finished model (Grosse et al. 2023)."""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.tasks.sequences import IGNORED, next_tokens, sequence_losses, token_losses

__all__ = ["DEFAULT", "HEURISTIC", "score_pairs", "with_linear_layers"]

DEFAULT, HEURISTIC = 1e-8, None  # kronfluence's damping; the second is a tenth of each layer's mean eigenvalue


def score_pairs(
    model: nn.Module,
    train: Any,
    queries: Any,
    modules: Sequence[str],
    *,
    dampings: Mapping[str, float | None],
    seed: int = 0,
    batch: int = 64,
    **options: Any,
) -> dict[str, Tensor]:
    """Fit the factors on training sequences and score them against queries, ``[Q, n]`` by damping: positive is harmful.

    Args:
        model: with ``Conv1D`` or linear layers.
        train: a map-style dataset of dictionaries with ``input_ids`` and ``labels``, all of one length.
        queries: the same.
        modules: names of the layers that are scored.
        dampings: by name.
        seed: of the labels that the Fisher matrix samples.
        batch: sequences in one pass.
        options: ``strategy`` of the factors, ``aggregate_query_gradients`` of the scores.
    """
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task

    class Completion(Task):  # type: ignore[misc]
        def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> Tensor:
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            logits, targets = model(**inputs).logits, next_tokens(batch["labels"], is_causal=True)
            if sample:
                drawn = torch.multinomial(logits.detach().flatten(0, 1).softmax(1), 1).view_as(targets)
                targets = torch.where(targets == IGNORED, targets, drawn)
            return sequence_losses(token_losses(logits, targets)).sum()

        def compute_measurement(self, batch: Any, model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

        def get_influence_tracked_modules(self) -> list[str]:
            return list(modules)

    torch.manual_seed(seed)
    task, quiet = Completion(), {"log_level": logging.ERROR, "disable_tqdm": True}
    factors = FactorArguments(strategy=options.pop("strategy", "ekfac"))
    sizes = {"per_device_query_batch_size": batch, "per_device_train_batch_size": batch}
    found: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kronfluence's own
        prepared = prepare_model(with_linear_layers(copy.deepcopy(model)).eval(), task)
        analyzer = Analyzer("analysed", prepared, task, cpu=True, output_dir=folder, **quiet)
        analyzer.fit_all_factors("factors", train, per_device_batch_size=batch, factor_args=factors)
        for name, damping in dampings.items():
            settings = ScoreArguments(damping_factor=damping, **options)
            analyzer.compute_pairwise_scores(name, "factors", queries, train, score_args=settings, **sizes)
            found[name] = -analyzer.load_pairwise_scores(name)["all_modules"]
    return found


def with_linear_layers(model: nn.Module) -> nn.Module:
    """The same model with GPT-2's transposed linear layers as ``nn.Linear``, which kronfluence knows."""
    from transformers.pytorch_utils import Conv1D

    for name, layer in list(model.named_modules()):
        if isinstance(layer, Conv1D):
            linear = nn.Linear(*layer.weight.shape)
            linear.load_state_dict({"weight": layer.weight.detach().T.clone(), "bias": layer.bias.detach().clone()})
            model.set_submodule(name, linear)
    return model
