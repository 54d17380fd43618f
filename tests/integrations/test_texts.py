"""A small BERT with a LoRA adapter through the Trainer: its head is found, texts are padded, weights stay the same."""

import json
import zlib

import pytest
import torch
import torch.nn.functional as F

import sgoif
import tests.integrations.torchvision_operators  # noqa: F401
from sgoif.errors import SgoifError
from tests.integrations.small import PLAN, assert_same_scores, assert_same_weights, in_order

pytest.importorskip("transformers")
pytest.importorskip("peft")

import peft
import transformers

from sgoif.integrations.transformers import watch_trainer

pytestmark = [pytest.mark.data, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]
INTENTS, EACH, HELD, BATCH = 4, 25, 10, 16  # seven batches, the last of four texts
NUM, WORDS = INTENTS * EACH, 500
HEAD = "base_model.model.classifier.modules_to_save.default"
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


class Texts(torch.utils.data.Dataset):
    """Real queries as lists of word numbers, of many lengths; notes the order in which they are asked for."""

    def __init__(self, pairs, names):
        self.words = [[1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.split()] for text, _ in pairs]
        self.labels, self.asked = [names.index(intent) for _, intent in pairs], []

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        self.asked.append(index)
        words = self.words[index]
        return {"input_ids": words, "attention_mask": [1] * len(words), "labels": self.labels[index]}


def pad(items):
    """What a user's collator does; it knows of no ids."""
    longest = max(len(item["input_ids"]) for item in items)
    batch = {
        key: torch.tensor([item[key] + [0] * (longest - len(item[key])) for item in items])
        for key in ("input_ids", "attention_mask")
    }
    return {**batch, "labels": torch.tensor([item["labels"] for item in items])}


@pytest.fixture(scope="module")
def queries(data_root):
    whole = json.loads((data_root / "text/clinc150/data_full.json").read_text())
    names = list(dict.fromkeys(intent for _, intent in whole["train"]))[:INTENTS]

    def part(key, each):
        return [pair for name in names for pair in [p for p in whole[key] if p[1] == name][:each]]

    return lambda: (Texts(part("train", EACH), names), Texts(part("val", HELD), names))


def bert(dropout=0.0):
    config = transformers.BertConfig(
        vocab_size=WORDS, num_labels=INTENTS, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **SIZES
    )
    return transformers.BertForSequenceClassification(config)


def lora(dropout=0.0, **settings):
    given = {"task_type": "SEQ_CLS", "r": 4, "target_modules": ["query", "value"], "lora_dropout": dropout, **settings}
    return peft.get_peft_model(bert(dropout), peft.LoraConfig(**given))


def fresh(make):
    torch.manual_seed(0)
    return make()


def train(parts, folder, *, make=lora, is_watched=True, epochs=2, resume=None, out=None, **arguments):
    """Train; gives the callback, the model and the order of the texts."""
    texts, held = parts
    model = fresh(make)
    given = transformers.TrainingArguments(
        output_dir=str(folder), num_train_epochs=epochs, per_device_train_batch_size=BATCH, report_to=[],
        remove_unused_columns=False, disable_tqdm=True, use_cpu=True, logging_strategy="no",
        **{"save_strategy": "no", "max_grad_norm": 0.0, **arguments},
    )  # fmt: skip
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    dataset = sgoif.with_ids(texts) if is_watched else texts
    trainer = transformers.Trainer(
        model, given, train_dataset=dataset, data_collator=pad, optimizers=(optimizer, constant)
    )
    watching = watch_trainer(trainer, held, out=out, budget=sgoif.Budget(plan=PLAN)) if is_watched else None
    trainer.train(resume_from_checkpoint=resume)
    if watching is not None:
        assert watching.monitor.faults == {}
    return watching, model, texts.asked


def plain(parts, order, *, epochs, accumulate, dtype):
    """The plain loop over texts in this order; BERT's loss is the mean of a micro-batch, whatever the window."""
    texts, held = parts
    model = fresh(lora).train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(held, collate_fn=pad)
    monitor = sgoif.watch(model, optimizer, anchors=loader, train_size=NUM, budget=sgoif.Budget(plan=PLAN))
    for epoch in range(epochs):
        batches = torch.tensor(order[epoch * NUM : (epoch + 1) * NUM]).split(BATCH)
        for number, rows in enumerate(batches):
            batch = pad([texts[i] for i in rows.tolist()])
            labels = batch.pop("labels")
            is_last = (number + 1) % accumulate == 0 or number + 1 == len(batches)
            with monitor.step(rows, labels, grad_factor=len(rows), is_last=is_last):
                with torch.autocast("cpu", dtype, enabled=dtype is not None):
                    logits = model(**batch).logits
                F.cross_entropy(logits.float(), labels).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    assert monitor.faults == {}
    return in_order(monitor.close().visits)


@pytest.mark.parametrize(("accumulate", "bf16"), [(1, False), (2, False), (2, True)])
def test_scores_are_those_of_the_plain_loop_at_the_head_that_peft_trains(accumulate, bf16, queries, tmp_path):
    watching, _, order = train(queries(), tmp_path, gradient_accumulation_steps=accumulate, bf16=bf16)
    assert watching.run.info["method"]["layers"] == [HEAD]
    found = in_order(watching.run.visits)
    assert len(found["id"]) == 2 * NUM
    dtype = torch.bfloat16 if bf16 else None
    expected = plain(queries(), order, epochs=2, accumulate=accumulate, dtype=dtype)
    assert_same_scores(found, expected, rtol=1e-3 if bf16 else 1e-5)  # the Trainer's autocast covers the loss, too


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}])
def test_weights_are_those_of_the_trainer_alone_with_dropout_everywhere(settings, queries, tmp_path):
    def make():
        return lora(dropout=0.1)

    _, bare, asked = train(queries(), tmp_path, make=make, is_watched=False, **settings)
    after_bare = torch.get_rng_state()
    _, model, order = train(queries(), tmp_path, make=make, **settings)
    assert order == asked
    assert_same_weights(model.state_dict(), bare.state_dict())
    assert torch.equal(after_bare, torch.get_rng_state())
    assert any((a != b).any() for a, b in zip(model.state_dict().values(), fresh(make).state_dict().values()))


def test_gradient_checkpointing_changes_no_score(queries, tmp_path):
    runs = [
        train(queries(), tmp_path, epochs=1, gradient_checkpointing=is_checkpointed)[0].run
        for is_checkpointed in (False, True)
    ]
    assert_same_scores(*(in_order(run.visits) for run in runs), rtol=1e-5)


def test_an_adapter_that_goes_on_from_a_checkpoint_gives_the_scores_of_an_unbroken_training(queries, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 5, "out": str(tmp_path / "run")}
    whole, unbroken, _ = train(queries(), tmp_path, **settings)
    expected = in_order(whole.run.visits)
    again, model, _ = train(queries(), tmp_path, resume=str(tmp_path / "checkpoint-5"), **settings)
    assert_same_weights(model.state_dict(), unbroken.state_dict())
    assert_same_scores(in_order(again.run.visits), expected)


def test_a_head_that_stays_frozen_is_refused_with_the_cure(queries, tmp_path):
    def make():
        return peft.get_peft_model(bert(), peft.LoraConfig(r=4, target_modules=["query", "value"]))

    with pytest.raises(SgoifError, match=r"classifier.*frozen.*modules_to_save"):
        train(queries(), tmp_path, make=make)


def test_a_head_inside_an_adapter_is_refused_with_the_cure(queries, tmp_path):
    def make():
        return peft.get_peft_model(bert(), peft.LoraConfig(r=4, target_modules=["query", "classifier"]))

    with pytest.raises(SgoifError, match=r"classifier.*adapter.*modules_to_save"):
        train(queries(), tmp_path, make=make)


def test_a_trainer_is_watched_once(queries, tmp_path):
    texts, held = queries()
    given = transformers.TrainingArguments(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, remove_unused_columns=False
    )
    trainer = transformers.Trainer(fresh(lora), given, train_dataset=sgoif.with_ids(texts), data_collator=pad)
    watch_trainer(trainer, held)
    with pytest.raises(SgoifError, match="watched already"):
        watch_trainer(trainer, held)
