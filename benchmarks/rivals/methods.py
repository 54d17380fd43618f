"""What needs no influence: trajectories of the outputs, confident learning, and what a trusted hold-out gives.

*Trajectories* are what the outputs of every visit say: loss, AUM, EL2N, forgetting, Data-IQ. All of it is there while
the model trains, so it costs next to nothing. The functions take visits as a monitored training keeps them
(``Trained.visits``) or as :func:`benchmarks.rivals.case.train_bare` records them.

*Confident learning* through cleanlab: the same network and recipe, four times on three quarters of the data.

*Gold* loss correction, and a linear probe on the same features, learn from the hold-out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import loops
from benchmarks.metrics import weighted_mean
from benchmarks.models import ResNet9
from benchmarks.rivals.case import Bare, Case, Floats, Found, fresh_model, outputs, stopwatch
from sgoif.tasks.classification import margins

TRAJECTORIES = ("loss EMA", "AUM", "EL2N", "forgetting", "Data-IQ, confidence", "Data-IQ, aleatoric", "Data-IQ, hard")
CONFIDENT = {
    "confident learning, self-confidence": "self_confidence",
    "confident learning, normalised margin": "normalized_margin",
    "confident learning, weighted entropy": "confidence_weighted_entropy",
}
GOLD = ("gold loss correction", "linear probe on the hold-out")
DECAY = 0.9  # of the loss average, per epoch
NUM_FOLDS = 4

Visits = Mapping[str, NDArray[Any]]


def find_trajectories(case: Case, bare: Bare) -> dict[str, Found]:
    """Score every example by what its visits showed; each score pays for the recording and for itself."""
    with stopwatch() as clock:
        scores = score_visits(bare.visits, len(case.given))
    seconds = bare.seconds_recording + clock.seconds
    return {name: Found(values, seconds) for name, values in scores.items()}


def score_visits(visits: Visits, count: int) -> dict[str, Floats]:
    """Turn visits into scores.

    - Loss EMA: exponential average of the loss, the bias of its start removed.
    - AUM (Pleiss et al. 2020): mean margin of the given label, negated. EL2N (Paul et al. 2021): mean ``|p - e_y|``.
    - Forgetting (Toneva et al. 2019): see :func:`forgetting_events`.
    - Data-IQ (Seedat et al. 2022): low confidence ``mean p``; aleatoric uncertainty ``mean p (1 - p)``; and its *hard*
      group, where both are low, as one number: ``1 - mean p - mean p (1 - p) = mean (1 - p)²``.
    """
    ids, p = visits["id"], visits["p_given"].astype(np.float64)
    recent = DECAY ** (visits["epoch"].max() - visits["epoch"]).astype(np.float64)

    def mean(values: NDArray[Any], weight: NDArray[Any] | None = None) -> Floats:
        return weighted_mean(ids, values.astype(np.float64), np.ones(len(ids)) if weight is None else weight, count)

    found = (
        mean(visits["loss"], recent),
        mean(-visits["margin"]),
        mean(visits["el2n"]),
        forgetting_events(visits, count),
        mean(1 - p),
        mean(p * (1 - p)),
        mean((1 - p) ** 2),
    )
    return dict(zip(TRAJECTORIES, found))


def forgetting_events(visits: Visits, count: int) -> Floats:
    """Count how often an example was right at a visit and wrong at its next; never right counts as most of all."""
    order = np.lexsort((visits["epoch"], visits["id"]))
    ids, is_right = visits["id"][order], visits["margin"][order] > 0
    forgotten = (ids[1:] == ids[:-1]) & is_right[:-1] & ~is_right[1:]
    events = np.bincount(ids[1:][forgotten], minlength=count).astype(np.float64)
    ever_right = np.bincount(ids[is_right], minlength=count) > 0
    return np.where(ever_right, events, float(visits["epoch"].max()) + 1)


def find_confident(case: Case, bare: Bare) -> dict[str, Found]:
    """Rank by cleanlab's three label-quality scores; its flags (``find_label_issues``) go with the first."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    with stopwatch() as training:
        probabilities = crossval_probabilities(case)
    given = case.given.numpy()
    with stopwatch() as flagging:
        flags = np.asarray(find_label_issues(given, probabilities, n_jobs=1), dtype=bool)
    found: dict[str, Found] = {}
    for name, method in CONFIDENT.items():
        with stopwatch() as ranking:
            scores = -get_label_quality_scores(given, probabilities, method=method)
        found[name] = Found(scores, training.seconds + ranking.seconds)
    name, first = next(iter(found.items()))
    return {**found, name: replace(first, seconds=first.seconds + flagging.seconds, flags=flags)}


def crossval_probabilities(case: Case) -> Floats:
    """Predict every example by the one network of four that was not trained on it: ``[N, C]``, rows sum to one."""
    fold = np.random.default_rng(case.seed).permutation(len(case.given)) % NUM_FOLDS
    probabilities = np.zeros((len(case.given), case.num_classes))
    for number in range(NUM_FOLDS):
        kept, out = (torch.from_numpy(np.flatnonzero(part)) for part in (fold != number, fold == number))
        model = fresh_model(case)
        loops.train(model, case.images[kept], case.given[kept], case.recipe, case.seed)
        probabilities[out.numpy()] = outputs(model, case.images[out], case.recipe).double().softmax(1).numpy()
    return probabilities


def find_gold(case: Case, bare: Bare) -> dict[str, Found]:
    """Score by the posterior of the given label under a corrected network, and by a probe of the bare one."""
    with stopwatch() as correcting:
        matrix = transition(outputs(bare.model, case.trusted_images, case.recipe).softmax(1), case.trusted_labels)
        model = train_corrected(case, matrix)
        posterior = given_posterior(outputs(model, case.images, case.recipe).softmax(1), case.given, matrix)
    with stopwatch() as probing:
        features, trusted = (penultimate(bare.model, part, case.recipe) for part in (case.images, case.trusted_images))
        margin = probe_margin(trusted, case.trusted_labels, features, case.given, case.num_classes)
    return {
        GOLD[0]: Found(1 - posterior.double().numpy(), correcting.seconds, group="trusted"),
        GOLD[1]: Found(-margin, probing.seconds, group="trusted"),
    }


def transition(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Estimate ``C[i, j] = p(given j | true i)`` by the mean prediction over trusted examples of class ``i``.

    Hendrycks et al. 2018; the predictions are those of a network trained on the given labels. A class
    without trusted examples is taken to be given rightly.
    """
    count = probabilities.shape[1]
    members = F.one_hot(labels, count).to(probabilities.dtype)  # [M, C]
    sizes = members.sum(0)
    mean = members.mT @ probabilities / sizes.clamp(min=1)[:, None]
    return torch.where(sizes[:, None] > 0, mean, torch.eye(count, dtype=mean.dtype))


def train_corrected(case: Case, matrix: Tensor) -> ResNet9:
    """Train anew on all data, by the same recipe: given labels through the matrix, trusted ones as they are."""
    images = torch.cat([case.images, case.trusted_images])
    labels = torch.cat([case.given, case.trusted_labels])
    model = fresh_model(case)
    optimizer = loops.optimiser(model, case.recipe)
    scheduler = loops.schedule(optimizer, case.recipe, len(images))
    model.train()
    for batch in loops.epochs(images, labels, case.recipe, case.seed):
        log_p = loops.logits(model, batch.images, case.recipe).log_softmax(1)
        corrected = (log_p.exp() @ matrix).clamp(min=1e-12).log()
        is_trusted = batch.indices >= len(case.given)
        optimizer.zero_grad()
        F.nll_loss(torch.where(is_trusted[:, None], log_p, corrected), batch.labels).backward()
        optimizer.step()
        scheduler.step()
    return model.eval()


def given_posterior(probabilities: Tensor, given: Tensor, matrix: Tensor) -> Tensor:
    """Compute the probability that the given label is true: ``p(y | x) C[y, given]``, normalised over all ``y``."""
    joint = probabilities * matrix[:, given].mT  # [N, C]
    own = joint[torch.arange(len(given)), given]
    return own / joint.sum(1).clamp(min=1e-12)


@torch.no_grad()
def penultimate(model: ResNet9, images: Tensor, recipe: loops.Recipe) -> Tensor:
    """Collect what goes into the head: ``[N, width]``."""
    kept: list[Tensor] = []
    hook = model.head.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].float()))
    try:
        outputs(model, images, recipe)
    finally:
        hook.remove()
    return torch.cat(kept)


def probe_margin(trusted: Tensor, labels: Tensor, features: Tensor, given: Tensor, num_classes: int) -> Floats:
    """Fit logistic regression on trusted features and measure the log-odds of each given label against the best other.

    Features are standardised by the training set; the penalty is that of the probe on frozen features.
    """
    from sklearn.linear_model import LogisticRegression

    mean, std = features.mean(0), features.std(0) + 1e-6
    probe = LogisticRegression(C=0.01, max_iter=300).fit(((trusted - mean) / std).numpy(), labels.numpy())
    log_p = np.full((len(given), num_classes), np.log(1e-6))  # a class that the hold-out lacks
    log_p[:, probe.classes_] = np.log(probe.predict_proba(((features - mean) / std).numpy()) + 1e-6)
    return margins(torch.from_numpy(log_p), given).numpy()
