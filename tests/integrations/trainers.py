"""Trainings by the Trainer of Transformers, and the same by the plain loop."""

import pytest
import torch
import torch.nn.functional as F

import sgoif
import tests.integrations.torchvision_operators  # noqa: F401
from tests.integrations.small import NUM, PLAN, in_order, sgd

pytest.importorskip("transformers")

import transformers

from sgoif.integrations.transformers import watch_trainer

BATCH = 16  # seven batches of 100 examples, the last of four
BUDGET = sgoif.Budget(plan=PLAN)
# of a short training that writes nothing of its own
ARGUMENTS = {
    **{"report_to": [], "logging_strategy": "no", "save_strategy": "no"},
    **{"disable_tqdm": True, "use_cpu": True, "remove_unused_columns": False},
}


class Asked(torch.utils.data.Dataset):
    """Items, with the order in which they are asked for."""

    def __init__(self, items):
        self.items, self.asked = items, []

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.items[index]


def train(model, items, held, folder, *, ids=None, collate=None, is_watched=True, resume=None, out=None, **more):
    """Train; gives the callback, the model and the order of the items."""
    given = {"num_train_epochs": 2, "per_device_train_batch_size": BATCH, "max_grad_norm": 0.0, **more}
    arguments = transformers.TrainingArguments(output_dir=str(folder), **{**ARGUMENTS, **given})
    optimizer, asked = sgd(model), Asked(items)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    dataset = sgoif.with_ids(asked, ids) if is_watched else asked
    trainer = transformers.Trainer(
        model, arguments, train_dataset=dataset, data_collator=collate, optimizers=(optimizer, constant)
    )
    watching = watch_trainer(trainer, held, out=out, budget=BUDGET) if is_watched else None
    trainer.train(resume_from_checkpoint=resume)
    assert watching is None or watching.monitor.faults == {}
    return watching, model, asked.asked


def plain_scores(model, items, held, order, *, ids, collate, accumulate=1, dtype=None, is_divided=True):
    """The scores of the plain loop over items in this order, for two epochs.

    ``is_divided`` says whether a loss is divided by the examples of the whole window, or by those of its micro-batch.
    """
    model, optimizer = model.train(), sgd(model)
    anchors = torch.utils.data.DataLoader(held, collate_fn=collate)
    monitor = sgoif.watch(model, optimizer, anchors=anchors, train_size=NUM, budget=BUDGET)
    for epoch in torch.tensor(order).split(NUM):
        parts = epoch.split(BATCH)
        for start in range(0, len(parts), accumulate):
            window = parts[start : start + accumulate]
            for number, part in enumerate(window):
                batch = collate([items[i] for i in part.tolist()])
                labels, divisor = batch.pop("labels"), sum(map(len, window)) if is_divided else len(part)
                is_last = number + 1 == len(window)
                with monitor.step([ids[i] for i in part], labels, grad_factor=divisor, is_last=is_last):
                    with torch.autocast("cpu", dtype, enabled=dtype is not None):
                        logits = model(**batch).logits
                    (F.cross_entropy(logits.float(), labels, reduction="sum") / divisor).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert monitor.faults == {}
    return in_order(monitor.close().visits)
