"""TRAK through traker (Park et al. 2023) on the finished model: random projections of the gradients of all parameters.

Two scores of one featurisation. *Self-influence* is the diagonal of TRAK's train-by-train matrix,
``φᵢᵀ (ΦᵀΦ)⁻¹ φᵢ (1 - pᵢ)``: it needs no labels beyond the given ones. *Trusted queries* is TRAK as it is meant, the
effect of an example on the outputs of others, here the mean over the trusted hold-out, negated: harm is suspicious.
Computed in float32; one checkpoint, while the paper averages over many trainings.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.rivals.case import Bare, Case, Floats, Found, stopwatch

__all__ = ["NAMES", "find"]

NAMES = ("TRAK, self-influence", "TRAK, trusted queries")
PROJECTION = 512
BATCH = 125  # its gradients are 0.2 GB for 0.4 million parameters; the projection is 0.8 GB


def find(case: Case, bare: Bare) -> dict[str, Found]:
    """Featurise the training set once, then score it by itself and by the trusted hold-out."""
    with tempfile.TemporaryDirectory() as folder:
        with stopwatch() as featurising:
            tracer = _tracer(case, bare, folder)
            tracer.load_checkpoint(bare.model.state_dict(), model_id=0)
            for images, labels in _batches(case.images, case.given):
                tracer.featurize((images, labels), num_samples=len(labels))
            tracer.finalize_features()
        with stopwatch() as itself:
            diagonal = _diagonal(tracer)
        with stopwatch() as queries:
            tracer.projector.generate_sketch_matrix(tracer.projector.generator_states[0])  # finalising freed it
            tracer.start_scoring_checkpoint("trusted", bare.model.state_dict(), 0, len(case.trusted_labels))
            for images, labels in _batches(case.trusted_images, case.trusted_labels):
                tracer.score((images, labels), num_samples=len(labels))
            harm = -np.asarray(tracer.finalize_scores("trusted"), dtype=np.float64).mean(1)
    return {
        NAMES[0]: Found(diagonal, featurising.seconds + itself.seconds),
        NAMES[1]: Found(harm, featurising.seconds + queries.seconds, group="trusted"),
    }


def _tracer(case: Case, bare: Bare, folder: str) -> Any:
    from trak import TRAKer
    from trak.projectors import BasicProjector, ProjectionType

    model = copy.deepcopy(bare.model)
    projector = BasicProjector(
        grad_dim=sum(parameter.numel() for parameter in model.parameters()),
        proj_dim=PROJECTION,
        seed=case.seed,
        proj_type=ProjectionType.normal,
        device="cpu",
        block_size=PROJECTION,  # one block is made once and kept; several are made again for every batch
    )
    return TRAKer(
        model=model,
        task="image_classification",
        train_set_size=len(case.given),
        save_dir=folder,
        device="cpu",
        projector=projector,
        use_half_precision=False,
        logging_level=logging.ERROR,
    )


def _diagonal(tracer: Any) -> Floats:
    store = tracer.saver.current_store
    features, gradients = (np.asarray(store[name], dtype=np.float64) for name in ("features", "grads"))
    return np.asarray((features * gradients).sum(1) * np.asarray(store["out_to_loss"], dtype=np.float64)[:, 0])


def _batches(images: Tensor, labels: Tensor) -> zip[tuple[Tensor, Tensor]]:
    return zip(images.split(BATCH), labels.split(BATCH))
