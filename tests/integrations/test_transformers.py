"""A ViT, and a BERT with LoRA, through the Trainer and the plain loop: the same weights, and the same scores."""

import json
import zlib

import pytest
import torch

import sgoif
from sgoif.errors import SgoifError
from tests.integrations import trainers
from tests.integrations.small import IDS, NUM, assert_same_scores, assert_same_weights, fresh, in_order, pictures
from tests.integrations.trainers import ARGUMENTS, plain_scores, transformers, watch_trainer

pytestmark = [pytest.mark.data, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]
INTENTS, WORDS = 4, 500
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
RESNET = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic", "num_labels": 10}
HEADS = {"vit": "classifier", "lora": "base_model.model.classifier.modules_to_save.default"}


def vit():
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_hidden_layers=1, num_labels=10, **SIZES)
    return transformers.ViTForImageClassification(config)


def resnet():
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**RESNET))


def adapted(dropout=0.0, **settings):
    peft = pytest.importorskip("peft")
    off = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = transformers.BertConfig(vocab_size=WORDS, num_labels=INTENTS, num_hidden_layers=2, **SIZES, **off)
    given = {"r": 4, "target_modules": ["query", "value"], "lora_dropout": dropout, **settings}
    return peft.get_peft_model(transformers.BertForSequenceClassification(config), peft.LoraConfig(**given))


def lora(dropout=0.0):
    return adapted(dropout, task_type="SEQ_CLS")


@pytest.fixture(scope="module")
def data(data_root):
    """Give the training examples and the hold-out of each model, as dictionaries."""
    train_set, holdout = pictures()
    shown = [
        [{"pixel_values": pixels, "labels": int(label)} for pixels, label in zip(*part)]
        for part in (train_set.tensors, holdout)
    ]
    whole = json.loads((data_root / "text/clinc150/data_full.json").read_text())
    names = list(dict.fromkeys(intent for _, intent in whole["train"]))[:INTENTS]
    written = [
        [as_item(text, place) for place, name in enumerate(names) for text in texts_of(whole[key], name)[:each]]
        for key, each in (("train", NUM // INTENTS), ("val", 10))
    ]
    return {"vit": shown, "lora": written}


def texts_of(pairs, name):
    return [text for text, intent in pairs if intent == name]


def as_item(text, label):
    """A real query as a list of word numbers."""
    words = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.split()]
    return {"input_ids": words, "attention_mask": [1] * len(words), "labels": label}


def pad(items):
    """What a user's collator does with texts of many lengths; it knows of no ids."""
    longest = max(len(item["input_ids"]) for item in items)
    batch = {
        key: torch.tensor([item[key] + [0] * (longest - len(item[key])) for item in items])
        for key in ("input_ids", "attention_mask")
    }
    return {**batch, "labels": torch.tensor([item["labels"] for item in items])}


KINDS = {"vit": (vit, transformers.default_data_collator), "lora": (lora, pad)}


def train(kind, data, folder, *, make=None, **settings):
    usual, collate = KINDS[kind]
    return trainers.train(fresh(make or usual), *data[kind], folder, ids=IDS, collate=collate, **settings)


@pytest.mark.parametrize(
    ("kind", "accumulate", "bf16", "rtol"),
    [
        ("vit", 1, False, 1e-5),
        ("vit", 2, False, 1e-5),
        ("vit", 2, True, 1e-5),
        ("lora", 1, False, 1e-5),
        ("lora", 2, True, 1e-3),  # the Trainer's autocast covers the loss, too
    ],
)
def test_scores_are_those_of_the_plain_loop_and_weights_those_of_the_trainer_alone(
    kind, accumulate, bf16, rtol, data, tmp_path
):
    """BERT's loss is the mean of a micro-batch, whatever the window."""
    settings = {"gradient_accumulation_steps": accumulate, "bf16": bf16}
    _, bare, asked = train(kind, data, tmp_path, is_watched=False, **settings)
    watching, model, order = train(kind, data, tmp_path, **settings)
    assert order == asked
    assert_same_weights(model.state_dict(), bare.state_dict())
    assert watching.run.info["method"]["layers"] == [HEADS[kind]]
    found, (make, collate) = in_order(watching.run.visits), KINDS[kind]
    assert found["step"].max() + 1 == 2 * -(-7 // accumulate) and len(found["id"]) == 2 * NUM
    how = {"accumulate": accumulate, "dtype": torch.bfloat16 if bf16 else None, "is_divided": kind == "vit"}
    expected = plain_scores(fresh(make), *data[kind], order, ids=IDS, collate=collate, **how)
    assert_same_scores(found, expected, rtol=rtol)


def test_dropout_draws_what_it_would_draw_alone(data, tmp_path):
    def make():
        return lora(dropout=0.1)

    _, bare, _ = train("lora", data, tmp_path, make=make, is_watched=False)
    after_bare = torch.get_rng_state()
    _, model, _ = train("lora", data, tmp_path, make=make)
    assert_same_weights(model.state_dict(), bare.state_dict())
    assert torch.equal(after_bare, torch.get_rng_state())
    assert any((a != b).any() for a, b in zip(model.state_dict().values(), fresh(make).state_dict().values()))


def test_gradient_checkpointing_changes_no_score(data, tmp_path):
    runs = [
        train("lora", data, tmp_path, num_train_epochs=1, gradient_checkpointing=is_checkpointed)[0].run
        for is_checkpointed in (False, True)
    ]
    assert_same_scores(*(in_order(run.visits) for run in runs), rtol=1e-5)


def test_a_training_that_goes_on_from_a_checkpoint_gives_the_scores_of_an_unbroken_one(data, tmp_path):
    """With a ResNet: Transformers 5 saves a ViT under other names than its Trainer looks for when it resumes."""
    settings = {"save_strategy": "steps", "save_steps": 5, "make": resnet, "out": str(tmp_path / "run")}
    whole, unbroken, _ = train("vit", data, tmp_path, **settings)
    expected = in_order(whole.run.visits)
    again, model, _ = train("vit", data, tmp_path, resume=str(tmp_path / "checkpoint-5"), **settings)
    assert_same_weights(model.state_dict(), unbroken.state_dict())
    visits = in_order(again.run.visits)
    assert len(visits["id"]) == 2 * NUM
    assert set(again.run.visits["attempt"]) == {0, 1}
    assert_same_scores(visits, expected)


def test_a_loss_that_the_model_averages_itself(data, tmp_path):
    """A model that takes no arguments for its loss: the Trainer divides by the micro-batches of the window."""

    class Averaging(transformers.ViTForImageClassification):
        accepts_loss_kwargs = False

    settings = {"num_train_epochs": 1, "gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1}
    watching, _, _ = train("vit", data, tmp_path, make=lambda: Averaging(vit().config), **settings)
    assert len(watching.run.visits["id"]) == NUM


def test_labels_that_the_loss_ignores_are_not_counted_in_its_divisor(data, tmp_path):
    own, held = data["vit"]
    some = [{**item, "labels": -100} if place % 3 == 0 else item for place, item in enumerate(own)]
    settings = {"num_train_epochs": 1, "gradient_accumulation_steps": 2}
    watching, _, _ = train("vit", {"vit": (some, held)}, tmp_path, **settings)
    assert len(watching.run.table["id"]) == NUM - len(range(0, NUM, 3))


@pytest.mark.parametrize(("target", "what"), [("value", "frozen"), ("classifier", "adapter")])
def test_a_head_that_is_frozen_or_inside_an_adapter_is_refused_with_the_cure(target, what, data, tmp_path):
    with pytest.raises(SgoifError, match=rf"classifier.*{what}.*modules_to_save"):
        train("lora", data, tmp_path, make=lambda: adapted(target_modules=["query", target]))


def test_columns_that_would_be_removed_and_a_second_watch_are_refused(data, tmp_path):
    own, held = data["vit"]
    for removes, said in ((True, "remove_unused_columns=False"), (False, "watched already")):
        given = {**ARGUMENTS, "remove_unused_columns": removes}
        arguments = transformers.TrainingArguments(output_dir=str(tmp_path), **given)
        trainer = transformers.Trainer(fresh(vit), arguments, train_dataset=sgoif.with_ids(own, IDS))
        if not removes:
            watch_trainer(trainer, held)
        with pytest.raises(SgoifError, match=said):
            watch_trainer(trainer, held)
