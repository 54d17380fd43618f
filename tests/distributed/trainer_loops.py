"""A language model through Transformers' Trainer on any number of ranks, with the same global batches."""

import os
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch.distributed as dist

import sgoif
from tests.language_models import build, padded_batch

COUNT, BATCH, STEPS = 16, 8, 6  # sequences, those of a step, and steps
PIECE = 2  # sequences of a micro-batch
PLAN = sgoif.Plan(refresh_every=2, examples_per_refresh=64, observe_every=2, early_steps=0)


def items(count=COUNT, seed=3):
    batch = padded_batch("llama", "right", count=count, seed=seed)
    sizes = batch["attention_mask"].sum(1).tolist()
    return [{key: batch[key][i, :n].tolist() for key in ("input_ids", "labels")} for i, n in enumerate(sizes)]


@contextmanager
def launched():
    """What torchrun tells a process; accelerate keeps what it found for the life of the process."""
    from accelerate.state import AcceleratorState

    rank, size = dist.get_rank(), dist.get_world_size()
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    AcceleratorState._reset_state(reset_partial_state=True)
    with mock.patch.dict(os.environ, {name: str(value) for name, value in told.items()}):
        yield
    AcceleratorState._reset_state(reset_partial_state=True)


def trained(folder, is_watched=True, out=None):
    """Train, and give the weights and the run of this rank; one process has the micro-batches of all."""
    with launched() if dist.is_initialized() else nullcontext():
        return _train(folder, is_watched, out)


def _train(folder, is_watched, out):
    import transformers

    from sgoif.influence.sequence_sets import pad_items
    from sgoif.integrations.transformers import watch_trainer

    size = dist.get_world_size() if dist.is_initialized() else 1
    model = build("llama", lora=True)
    arguments = transformers.TrainingArguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=PIECE,
        gradient_accumulation_steps=BATCH // PIECE // size, learning_rate=1e-2, seed=1, remove_unused_columns=False,
        report_to=[], save_strategy="no", use_cpu=True, logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    assert arguments.world_size == size
    data = sgoif.with_ids(items()) if is_watched else items()
    trainer = transformers.Trainer(model, arguments, train_dataset=data, data_collator=pad_items)
    groups = {"math": items(5, seed=20), "code": items(4, seed=21)}
    watching = None
    if is_watched:  # without curvature, which micro-batches of one process renew one after another
        settings = {"budget": sgoif.Budget(plan=PLAN), "method": sgoif.Method(curvature="identity")}
        watching = watch_trainer(trainer, groups, task="sequences", out=out, **settings)
    trainer.train()
    found = {"weights": {name: value.numpy() for name, value in model.state_dict().items()}}
    if watching is None:
        return found
    run = watching.run
    return found | {
        "info": {name: run.info[name] for name in ("counters", "faults", "switched_off", "num_examples")},
        "examples": run.sql("select * from examples order by id").to_pydict(),
        "effects": run.sql("select * from group_effects order by id, group_name").to_pydict(),
    }
