"""Other scores of training sequences for the same model: without gradients, of first order, and by other libraries.

All are arrays ``[n, V]``, positive where training sequence i harms passage v.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.sequences import ekfac
from benchmarks.sequences.retraining import held_losses

__all__ = ["Scores", "Trained", "attribute_kronfluence", "gradient_products", "score_at_the_end", "sum_products"]

Scores = NDArray[np.float64]
Scales = Mapping[str, Mapping[str, Tensor] | None]  # what gradients are divided by, by parameter; None for nothing


@dataclass(frozen=True)
class Trained:
    """A model trained on all sequences, and what is asked of it."""

    model: nn.Module
    train: Tensor  # [n, T]
    passages: Tensor  # [V, G, T]
    layers: Mapping[str, Sequence[str]]  # names of modules, by what they are called in the results
    moments: Mapping[str, Tensor]  # Adam's second moments by parameter, with their bias corrected


def score_at_the_end(trained: Trained) -> dict[str, Scores]:
    """Scores of the finished model that need no curvature."""
    size = len(trained.passages)
    losses = held_losses(trained.model, trained.train)
    found = {"final loss": np.repeat(losses[:, None], size, 1), "text similarity": -similarity(trained)}
    roots = {name: value.sqrt() + 1e-8 for name, value in trained.moments.items()}
    products = gradient_products(trained, {"gradient product": None, "gradient product, Adam": roots})
    return found | {name: -values for name, values in products.items()}


def similarity(trained: Trained) -> Scores:
    """Cosine of the frequencies of one to three characters in a row, weighted by their rarity."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = ["".join(chr(0x100 + token) for token in row) for row in trained.train.tolist()]
    asked = ["".join(chr(0x100 + token) for token in row) for row in trained.passages.flatten(1).tolist()]
    vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), lowercase=False, sublinear_tf=True)
    rows = vectorizer.fit_transform(texts)
    found: Scores = (rows @ vectorizer.transform(asked).T).toarray()
    return found


def gradient_products(trained: Trained, scales: Scales) -> dict[str, Scores]:
    """``g_v · g_i`` over all parameters and over the named layers, after ``g_v`` was divided by each of the scales."""
    model = trained.model.eval()
    asked = [_gradient(model, rows, mean=True) for rows in trained.passages]
    names = list(asked[0])
    directions: dict[str, Tensor] = {}
    for name in names:
        plain = torch.stack([gradient[name].flatten() for gradient in asked])
        parts = [plain if scale is None else plain / scale[name].flatten() for scale in scales.values()]
        directions[name] = torch.cat(parts)  # [scales · V, P]
    found = np.zeros((len(names), len(trained.train), len(scales), len(asked)))
    for place, row in enumerate(trained.train):
        gradient = _gradient(model, row[None])
        for number, name in enumerate(names):
            products = directions[name] @ gradient[name].flatten()
            found[number, place] = products.view(len(scales), len(asked)).numpy()
    parts_of = {"all parameters": range(len(names))} | {
        part: [number for number, name in enumerate(names) if name.rpartition(".")[0] in modules]
        for part, modules in trained.layers.items()
    }
    return {
        f"{scale}, {part}": found[list(chosen)].sum(0)[:, number]
        for number, scale in enumerate(scales)
        for part, chosen in parts_of.items()
    }


def _gradient(model: nn.Module, rows: Tensor, *, mean: bool = False) -> dict[str, Tensor]:
    """Of the summed loss of some sequences, or of their mean per token."""
    model.zero_grad()
    _sum_losses(model(input_ids=rows).logits, rows).div((rows.shape[1] - 1) * len(rows) if mean else 1).backward()
    found = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    return found


def _sum_losses(logits: Tensor, rows: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")


def sum_products(parts: Sequence[tuple[float, dict[str, Scores]]]) -> dict[str, Scores]:
    """Sum products of several checkpoints, each times its learning rate (TracIn, Pruthi et al. 2020)."""
    return {name: np.sum([rate * products[name] for rate, products in parts], axis=0) for name in parts[0][1]}


def attribute_kronfluence(trained: Trained) -> dict[str, Scores]:
    """EK-FAC of the finished model, with the default damping and with a tenth of each layer's mean eigenvalue."""
    found: dict[str, Scores] = {}
    for layers in trained.layers.keys() - {"output layer"}:
        for name, scores in fit_kronfluence(trained, list(trained.layers[layers])).items():
            found[f"kronfluence EK-FAC, {name}, {layers}"] = scores
    return found


def fit_kronfluence(trained: Trained, modules: Sequence[str], strategy: str = "ekfac") -> dict[str, Scores]:
    """Fit the factors on the training sequences and score all pairs, by damping."""
    dampings = {"default damping": ekfac.DEFAULT, "heuristic damping": ekfac.HEURISTIC}
    train, asked = as_items(trained.train), as_items(trained.passages.flatten(0, 1))
    found = ekfac.score_pairs(trained.model, train, asked, modules, dampings=dampings, batch=32, strategy=strategy)
    shape = len(trained.passages), -1, len(trained.train)
    return {name: pairs.view(shape).mean(1).T.double().numpy() for name, pairs in found.items()}


def as_items(rows: Tensor) -> list[dict[str, Tensor]]:
    """Sequences all of whose tokens are to be predicted."""
    return [{"input_ids": row, "labels": row} for row in rows]
