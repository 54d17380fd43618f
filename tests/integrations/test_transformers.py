"""A ViT through the Trainer and through the plain loop: the same weights, and the same scores."""

import pytest
import torch
import torch.nn.functional as F

import sgoif
import tests.integrations.torchvision_operators  # noqa: F401
from sgoif.errors import SgoifError
from tests.integrations.small import (
    IDS,
    NUM,
    PLAN,
    assert_same_scores,
    assert_same_weights,
    fresh,
    in_order,
    pictures,
    sgd,
)

pytest.importorskip("transformers")

import transformers

from sgoif.integrations.transformers import watch_trainer

pytestmark = [pytest.mark.data, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]
BATCH = 16  # seven batches, the last of four pictures
CONFIG = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
RESNET = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic", "num_labels": 10}


class Items(torch.utils.data.Dataset):
    """Pictures as dictionaries; notes the order in which they are asked for."""

    def __init__(self, pixels, labels):
        self.pixels, self.labels, self.asked = pixels, labels, []

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        self.asked.append(index)
        return {"pixel_values": self.pixels[index], "labels": int(self.labels[index])}


def vit(**settings):
    config = transformers.ViTConfig(**CONFIG, intermediate_size=32, num_labels=10, **settings)
    return transformers.ViTForImageClassification(config)


def resnet():
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**RESNET))


def train(folder, *, epochs=2, is_watched=True, resume=None, accumulate=1, bf16=False, out=None, make=vit, **arguments):
    """Train; gives the callback, the model and the order of the pictures."""
    train_set, holdout = pictures()
    items = Items(*train_set.tensors)
    model = fresh(make)
    given = transformers.TrainingArguments(
        output_dir=str(folder), num_train_epochs=epochs, per_device_train_batch_size=BATCH, report_to=[], bf16=bf16,
        gradient_accumulation_steps=accumulate, remove_unused_columns=False, disable_tqdm=True, use_cpu=True,
        logging_strategy="no", **{"save_strategy": "no", "max_grad_norm": 0.0, **arguments},
    )  # fmt: skip
    optimizer = sgd(model)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    dataset = sgoif.with_ids(items, IDS) if is_watched else items
    trainer = transformers.Trainer(model, given, train_dataset=dataset, optimizers=(optimizer, constant))
    watching = watch_trainer(trainer, Items(*holdout), out=out, plan=PLAN) if is_watched else None
    trainer.train(resume_from_checkpoint=resume)
    if watching is not None:
        assert watching.monitor.faults == {}
    return watching, model, items.asked


def plain(order, *, epochs=2, accumulate=1, dtype=None):
    """The plain loop over pictures in this order, with the loss as the Trainer divides it."""
    train_set, holdout = pictures()
    pixels, labels = train_set.tensors
    model = fresh(vit).train()
    optimizer = sgd(model)
    anchors = [({"pixel_values": x}, y) for x, y in zip(*holdout)]
    monitor = sgoif.watch(model, optimizer, anchors=anchors, train_size=NUM, budget=sgoif.Budget(plan=PLAN))
    for epoch in range(epochs):
        parts = torch.tensor(order[epoch * NUM : (epoch + 1) * NUM]).split(BATCH)
        for start in range(0, len(parts), accumulate):
            window = parts[start : start + accumulate]
            count = sum(map(len, window))
            for number, part in enumerate(window):
                ids, is_last = [IDS[i] for i in part], number + 1 == len(window)
                with monitor.step(ids, labels[part], grad_factor=count, is_last=is_last):
                    with torch.autocast("cpu", dtype, enabled=dtype is not None):
                        logits = model(pixel_values=pixels[part]).logits
                    (F.cross_entropy(logits.float(), labels[part], reduction="sum") / count).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert monitor.faults == {}
    return in_order(monitor.close().visits), model


@pytest.mark.parametrize(("accumulate", "bf16"), [(1, False), (2, False), (2, True)])
def test_scores_are_those_of_the_plain_loop_and_weights_those_of_the_trainer_alone(accumulate, bf16, tmp_path):
    settings = {"accumulate": accumulate, "bf16": bf16}
    _, bare, asked = train(tmp_path, is_watched=False, **settings)
    watching, model, order = train(tmp_path, **settings)
    assert order == asked
    assert_same_weights(model.state_dict(), bare.state_dict())
    found = in_order(watching.run.visits)
    expected, _ = plain(order, accumulate=accumulate, dtype=torch.bfloat16 if bf16 else None)
    assert found["step"].max() + 1 == 2 * -(-7 // accumulate)
    assert_same_scores(found, expected, rtol=1e-5)


def test_a_training_that_goes_on_from_a_checkpoint_gives_the_scores_of_an_unbroken_one(tmp_path):
    """With a ResNet: Transformers 5 saves a ViT under other names than its Trainer looks for when it resumes."""
    settings = {"save_strategy": "steps", "save_steps": 5, "make": resnet, "out": str(tmp_path / "run")}
    whole, unbroken, _ = train(tmp_path, **settings)
    expected = in_order(whole.run.visits)
    again, model, _ = train(tmp_path, resume=str(tmp_path / "checkpoint-5"), **settings)
    assert_same_weights(model.state_dict(), unbroken.state_dict())
    visits = in_order(again.run.visits)
    assert len(visits["id"]) == 2 * NUM
    assert set(again.run.visits["attempt"]) == {0, 1}
    assert_same_scores(visits, expected)


def test_dropout_draws_what_it_would_draw_alone(tmp_path):
    def make():
        return vit(hidden_dropout_prob=0.1)

    ends = [train(tmp_path, make=make, epochs=1, is_watched=is_watched)[1] for is_watched in (False, True)]
    assert_same_weights(*(model.state_dict() for model in ends))


def test_a_loss_that_the_model_averages_itself(tmp_path):
    """A model that takes no arguments for its loss: the Trainer divides by the micro-batches of the window."""

    class Averaging(transformers.ViTForImageClassification):
        accepts_loss_kwargs = False

    def make():
        return Averaging(vit().config)

    watching, _, _ = train(tmp_path, epochs=1, accumulate=2, make=make, label_smoothing_factor=0.1)
    assert len(watching.run.visits["id"]) == NUM


def test_labels_that_the_loss_ignores_are_not_counted_in_its_divisor(tmp_path, monkeypatch):
    train_set, holdout = pictures()
    train_set.tensors[1][::3] = -100
    monkeypatch.setattr("tests.integrations.test_transformers.pictures", lambda: (train_set, holdout))
    watching, _, _ = train(tmp_path, epochs=1, accumulate=2)
    assert len(watching.run.table["id"]) == NUM - len(range(0, NUM, 3))


def test_columns_that_would_be_removed_are_refused(tmp_path):
    with pytest.raises(SgoifError, match="remove_unused_columns=False"):
        train_set, holdout = pictures()
        items = Items(*train_set.tensors)
        arguments = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
        watch_trainer(transformers.Trainer(fresh(vit), arguments, train_dataset=items), Items(*holdout))
