"""What a trusted hold-out gives without influence: gold loss correction, and a linear probe on the same features."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import loops
from benchmarks.models import ResNet9
from benchmarks.rivals.case import Bare, Case, Floats, Found, fresh_model, outputs, stopwatch
from sgoif.tasks.classification import margins

__all__ = ["NAMES", "find", "given_posterior", "probe_margin", "transition"]

NAMES = ("gold loss correction", "linear probe on the hold-out")


def find(case: Case, bare: Bare) -> dict[str, Found]:
    """Score by the posterior of the given label under a corrected network, and by a probe of the bare one."""
    with stopwatch() as correcting:
        matrix = transition(outputs(bare.model, case.trusted_images, case.recipe).softmax(1), case.trusted_labels)
        model = train_corrected(case, matrix)
        posterior = given_posterior(outputs(model, case.images, case.recipe).softmax(1), case.given, matrix)
    with stopwatch() as probing:
        features, trusted = (penultimate(bare.model, part, case.recipe) for part in (case.images, case.trusted_images))
        margin = probe_margin(trusted, case.trusted_labels, features, case.given, case.num_classes)
    return {
        NAMES[0]: Found(1 - posterior.double().numpy(), correcting.seconds, group="trusted"),
        NAMES[1]: Found(-margin, probing.seconds, group="trusted"),
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
