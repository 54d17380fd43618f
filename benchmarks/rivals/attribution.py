"""Influence by other libraries on the bare training, all computed in float32.

*TracInCP* through captum: its fast variant, exact for the last layer, at five checkpoints. A checkpoint weighs as much
as the mean learning rate since the one before it: with a one-cycle schedule the rate *at* the last one is almost zero.

*EK-FAC* through kronfluence, on the finished model: of the head, or of head and convolutions. All layers are what the
method's authors use, and take some ten times as long as the head alone. The damping is kronfluence's heuristic, a tenth
of the mean eigenvalue of each layer.

*TRAK* through traker (Park et al. 2023): random projections of the gradients of all parameters of the finished model;
one checkpoint, while the paper averages over many trainings. Two scores of one featurisation. *Self-influence* is the
diagonal of TRAK's train-by-train matrix, ``φᵢᵀ (ΦᵀΦ)⁻¹ φᵢ (1 - pᵢ)``: it needs no labels beyond the given ones.
*Trusted queries* is TRAK as it is meant, the effect of an example on the outputs of others, here the mean over the
trusted hold-out, negated: harm is suspicious.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.attributors.libraries import analyse
from benchmarks.rivals.case import Bare, Case, Checkpoint, Floats, Found, fresh_model, stopwatch

TRACIN = "TracIn, last layer"
EKFAC_HEAD, EKFAC_ALL = "EK-FAC self-influence, head", "EK-FAC self-influence, all layers"
TRAK = ("TRAK, self-influence", "TRAK, trusted queries")
PROJECTION = 512
BATCH = 125  # TRAK's gradients are 0.2 GB for 0.4 million parameters, its projection 0.8 GB


def find_tracin(case: Case, bare: Bare) -> dict[str, Found]:
    """Sum ``learning rate × |gradient|²`` of the head over the checkpoints."""
    from captum.influence import TracInCPFast

    def load(model: torch.nn.Module, checkpoint: Checkpoint) -> float:
        model.load_state_dict(checkpoint.state)
        return checkpoint.learning_rate

    model = fresh_model(case).eval()
    batches = DataLoader(TensorDataset(case.images, case.given), batch_size=500)
    with stopwatch() as clock:
        tracin = TracInCPFast(
            model=model,
            final_fc_layer=model.head,
            train_dataset=batches,
            checkpoints=bare.checkpoints,
            checkpoints_load_func=load,
            loss_fn=torch.nn.CrossEntropyLoss(reduction="sum"),
        )
        scores = tracin.self_influence(outer_loop_by_checkpoints=True)
    return {TRACIN: Found(scores.double().numpy(), clock.seconds)}


def find_ekfac(case: Case, bare: Bare, name: str = EKFAC_HEAD) -> dict[str, Found]:
    """Compute ``gᵢᵀ (H + λ)⁻¹ gᵢ`` of the loss for every example, over the head or all layers."""
    from kronfluence.arguments import FactorArguments, ScoreArguments

    dataset, layers = TensorDataset(case.images, case.given), ["head"] if name == EKFAC_HEAD else None
    torch.manual_seed(case.seed)  # the Fisher matrix samples its labels
    with stopwatch() as clock, analyse(copy.deepcopy(bare.model), layers) as analyzer:
        strategy, damping = FactorArguments(strategy="ekfac"), ScoreArguments(damping_factor=None)
        analyzer.fit_all_factors("ekfac", dataset, per_device_batch_size=BATCH, factor_args=strategy)
        analyzer.compute_self_scores("self", "ekfac", dataset, per_device_train_batch_size=BATCH, score_args=damping)
        scores = analyzer.load_self_scores("self")["all_modules"].double().numpy()
    return {name: Found(scores, clock.seconds)}


def find_trak(case: Case, bare: Bare) -> dict[str, Found]:
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
        TRAK[0]: Found(diagonal, featurising.seconds + itself.seconds),
        TRAK[1]: Found(harm, featurising.seconds + queries.seconds, group="trusted"),
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
