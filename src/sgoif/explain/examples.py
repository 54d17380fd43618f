"""From a prediction to the training examples behind it: by their influence, and by what the head sees of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SgoifError
from sgoif.explain.attribution import Pairs, iterate_features, mean_direction
from sgoif.findings.effects import effect_percent, effect_table
from sgoif.findings.poison import Contrast, Nearest
from sgoif.gradients import Layer, find_head, select_layers, survey
from sgoif.gradients.models import default_forward, plain_model, predict_classes
from sgoif.influence import HoldOut
from sgoif.inputs.examples import Examples
from sgoif.tasks.classification import cross_entropy

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DIRECTIONS", "attribute", "examples_behind"]

log = logging.getLogger(__name__)

NUM_OBSERVED = 20_000  # examples from which curvature is measured, and those of a class that the line is drawn from

# Which examples of a query come first, by I: positive harms it.
DIRECTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "either": torch.abs,
    "harmful": lambda influence: influence,
    "helpful": torch.neg,
}


def attribute(
    model: nn.Module,
    dataset: Any,
    queries: Any,
    *,
    top: int = 10,
    direction: str = "either",
    run: Any = None,
    as_matrix: bool = False,
    layers: str | Sequence[str] = "head",
    curvature: str = "kfac",
    curvature_settings: Mapping[str, Any] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    forward: Callable[[Any], Tensor] | None = None,
    num_observed: int = 20_000,
    batch_size: int = 256,
    class_names: Sequence[str] | None = None,
) -> pa.Table | NDArray[np.floating[Any]]:
    """Which training examples moved the loss of each query most, and by how much: a table, by a finished model.

    ``effect`` is what training without the example would change in the loss of the query, to first order and by way of
    the layers asked about: ``-I/n`` with ``I(i, v) = -g_vᵀ H⁻¹ g_i`` and ``n`` training examples. **Negative: the loss
    would fall, so the example harms the query; positive: it helps.** It says nothing about layers that were left out,
    nor about the path that training took. Memory grows with ``top`` and the queries, not with the training examples.

    Args:
        model: trained; used in eval mode and left as found.
        dataset: all training examples, as in :func:`audit`.
        queries: examples with the labels whose loss is asked about, or inputs alone: then the labels are what the model
            predicts.
        top: rows per query.
        direction: which come first: ``"either"`` way the largest, ``"harmful"`` or ``"helpful"``.
        run: a run over the same examples, for ``p_mislabeled`` and the names of the classes.
        as_matrix: give ``I`` itself instead, ``[examples, queries]``, rows in the order of the dataset; **positive
            where an example harms**. Linear in the query: the mean over some columns is the influence on their mean
            loss.
        layers: ``"head"``, ``"all"`` that can be scored, or names. All are more faithful, and cost a pass over the
            training examples for every 256 MB of query gradients.
        curvature: a backend's name, or ``"gauss-newton"``: the matrix itself by conjugate gradients, the most faithful
            and by far the most expensive, some 30 passes over the training examples for a block of queries.
        curvature_settings: its keyword arguments; of ``"gauss-newton"``: ``damping`` (0.01), ``products`` (30),
            ``tolerance`` (0.001).
        loss: as in :func:`watch`.
        forward: as in :func:`watch`.
        num_observed: training examples that a backend measures curvature on.
        batch_size: examples per forward pass.
        class_names: for labels that are names, and for ``given_name``; those of the run by default.

    Returns:
        One row per query and example, queries in their order, each with its ``top`` examples, the largest first:
        ``query`` (its id), ``query_label``, ``query_loss``, ``id``, ``given_label``, ``given_name``, ``effect`` in nats
        (the unit of ``query_loss``), ``effect_percent`` of ``query_loss``, ``p_mislabeled``, and ``no_p_reason`` where
        that is null.
    """
    if direction not in DIRECTIONS:
        raise SgoifError(f"direction= must be one of {', '.join(DIRECTIONS)}, got {direction!r}.")
    if top < 1:
        raise SgoifError(f"top= is the number of rows per query and at least 1, got {top}.")
    names = class_names or getattr(run, "class_names", None) or None
    model = plain_model(model)
    device = next(model.parameters()).device
    run_forward = forward or default_forward(model)
    wanted = Examples(queries, role="queries", device=device)
    guesses = None if wanted.has_labels else predict_classes(model, run_forward, wanted, batch_size)
    asked = HoldOut(wanted, device=device, class_names=names, labels=guesses)
    scored = _layers(model, layers, lambda: run_forward(asked.inputs(torch.arange(min(2, len(asked))))))
    examples = HoldOut(dataset, device=device, class_names=names, role="dataset")
    pairs = Pairs(model, scored, run_forward, loss or cross_entropy(0.0), examples, asked, batch_size)
    solve = pairs.solver(curvature, curvature_settings or {}, num_observed)
    if as_matrix:
        return pairs.influence(solve)
    positions, influence = pairs.strongest(solve, top, DIRECTIONS[direction])
    return _effects(pairs, positions, influence, names, run)


def _layers(model: nn.Module, layers: str | Sequence[str], run_few: Callable[[], Any]) -> Sequence[Layer]:
    if layers == "head":
        scored: Sequence[Layer] = [find_head(model, run_few)]
    else:
        coverage = survey(model)
        if layers == "all" and coverage.uncovered:
            log.warning("attribute() cannot speak for all layers: %s", coverage)
        scored = select_layers(model, None if layers == "all" else [layers] if isinstance(layers, str) else layers)
    return scored


def _effects(
    pairs: Pairs, positions: Tensor, influence: Tensor, class_names: Sequence[str] | None, run: Any
) -> pa.Table:
    """The table of the strongest examples, ``[V, top]``, of every query."""
    top = positions.shape[1]
    asked = torch.arange(len(pairs.queries)).repeat_interleave(top).tolist()
    rows = positions.flatten().tolist()
    given = pairs.examples.labels.cpu()[positions.flatten()]
    return effect_table(
        {
            "query": [pairs.queries.ids[v] for v in asked],
            "query_label": pairs.queries.labels.cpu().repeat_interleave(top).tolist(),
            "query_loss": pairs.query_losses().repeat_interleave(top).tolist(),
        },
        {"id": [pairs.examples.ids[i] for i in rows], "given_label": given.tolist()},
        -influence.flatten().double().numpy() / len(pairs.examples),
        class_names=class_names,
        sql=None if run is None else run.sql,
    )


def _one_query(query: Any, dataset: Any) -> Any:
    """One input as a batch of one; where it is one already, as the shape of the dataset's inputs tells, as it is."""
    if not hasattr(query, "ndim"):
        return [query]
    first = Examples(dataset, role="dataset").inputs(torch.zeros(1, dtype=torch.long))
    is_batch = isinstance(first, Tensor) and tuple(query.shape) == tuple(first.shape)
    return query if is_batch else query[None]


def examples_behind(
    model: nn.Module,
    dataset: Any,
    queries: Any,
    target: int | str,
    *,
    forward: Callable[[Any], Tensor] | None = None,
    head: str | None = None,
    class_names: Sequence[str] | None = None,
    batch_size: int = 256,
    is_one: bool = False,
) -> dict[str, NDArray[Any]]:
    """Look at every training example that is labelled ``target``: one row each, in the order of the dataset.

    Curvature takes a pass over up to 20,000 examples of the dataset, the contrast one over as many of the class, the
    scores one over the whole class. Beyond the features of those 20,000, memory grows by the rows given back only.

    Args:
        model: trained; used in eval mode and left as found.
        dataset: the training examples, as in :func:`sgoif.audit`.
        queries: inputs ``[Q, ...]`` that the model takes for ``target``, and should not; labels are not used.
        target: the class, by number or name.
        forward: as in :func:`sgoif.watch`.
        head: as in :func:`sgoif.watch`.
        class_names: for labels that are strings.
        batch_size: examples per forward pass.
        is_one: whether ``queries`` is one input, with or without a batch axis.

    Returns:
        Columns id, given_label, score, effect, effect_percent, similarity and near_queries: see
        :meth:`sgoif.Run.explain`.
    """
    queries = _one_query(queries, dataset) if is_one else queries
    pairs = _pairs(model, dataset, queries, target, forward, head, class_names, batch_size)
    target = int(pairs.queries.labels[0])
    rows = torch.nonzero(pairs.examples.labels == target).flatten().cpu()
    if not len(rows):
        raise SgoifError(f"no training example is labelled {target}, so none can have taught it.")
    asked = _features(pairs, pairs.queries, torch.arange(len(pairs.queries)))
    # of the class an evenly spaced sample is enough
    spaced = torch.linspace(0, len(rows) - 1, min(NUM_OBSERVED, len(rows)), dtype=torch.float64).round().long()
    contrast = Contrast.between(_features(pairs, pairs.examples, rows[spaced]), asked)
    direction = mean_direction(pairs, NUM_OBSERVED)
    nearest, seen = Nearest(contrast.mean, asked), []
    for part in iterate_features(pairs, pairs.examples, rows, direction):
        nearest.add(part.features)
        seen.append((contrast.score(part.features), part.influence, contrast.similarity(part.features)))
    score, influence, similarity = (np.concatenate(column) for column in zip(*seen, strict=True))
    effect = -influence.astype(np.float64) / len(pairs.examples)
    near_queries = np.empty(len(rows), object)
    near_queries[:] = nearest.of_examples(len(rows))
    return {
        "id": np.array([pairs.examples.ids[int(i)] for i in rows]),
        "given_label": np.full(len(rows), target),
        "score": score,
        "effect": effect,
        "effect_percent": effect_percent(effect, np.full(len(rows), float(pairs.query_losses().mean()))),
        "similarity": similarity,
        "near_queries": near_queries,
    }


def _pairs(
    model: nn.Module,
    dataset: Any,
    queries: Any,
    target: int | str,
    forward: Callable[[Any], Tensor] | None,
    head: str | None,
    class_names: Sequence[str] | None,
    batch_size: int,
) -> Pairs:
    model = plain_model(model)
    device = next(model.parameters()).device
    run_forward = forward or default_forward(model)
    wanted = Examples(queries, role="queries", device=device)
    found = find_head(model, lambda: run_forward(wanted.inputs(torch.arange(min(2, len(wanted))))), name=head)
    classes = found.shape.outputs
    labels = torch.full((len(wanted),), _target(target, classes, class_names))
    asked = HoldOut(wanted, num_classes=classes, device=device, labels=labels)
    examples = HoldOut(dataset, num_classes=classes, device=device, class_names=class_names, role="dataset")
    return Pairs(model, [found], run_forward, cross_entropy(0.0), examples, asked, batch_size)


def _target(target: int | str, num_classes: int, class_names: Sequence[str] | None) -> int:
    """The class by its number."""
    names = list(class_names or ())
    number = names.index(target) if isinstance(target, str) and target in names else target
    if isinstance(number, str):
        known = f"their names are {', '.join(names)}" if names else "they have no names here: pass class_names="
        raise SgoifError(f"there is no class {target!r}; the model has classes 0 to {num_classes - 1}, and {known}.")
    if not 0 <= number < num_classes:
        raise SgoifError(f"the model has classes 0 to {num_classes - 1}, got target={target}.")
    return int(number)


def _features(pairs: Pairs, source: HoldOut, positions: Tensor) -> NDArray[np.float32]:
    """What the head sees of some examples, ``[n, D]``."""
    return np.concatenate([part.features for part in iterate_features(pairs, source, positions)])
