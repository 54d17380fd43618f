"""Self-influence by TracInCP through captum: its fast variant, exact for the last layer, at five checkpoints.

A checkpoint weighs as much as the mean learning rate since the one before it: with a one-cycle schedule the rate *at*
the last checkpoint is almost zero. Computed in float32.
"""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.rivals.case import Bare, Case, Checkpoint, Found, fresh_model, stopwatch

__all__ = ["NAMES", "find"]

NAMES = ("TracIn, last layer",)


def find(case: Case, bare: Bare) -> dict[str, Found]:
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
    return {NAMES[0]: Found(scores.double().numpy(), clock.seconds)}
