"""A GPT-2 with LoRA through Trainer and SFTTrainer: weights to the bit, and the scores of the plain loop."""

import pytest
import torch

import sgoif
from sgoif.errors import SgoifError
from sgoif.influence.sequence_sets import pad_items
from tests.language_models import build, packed_batch, padded_batch

pytest.importorskip("transformers")
pytest.importorskip("peft")

import transformers

from sgoif.integrations.packing import refuse_mixing
from sgoif.integrations.transformers import _count_repeated_ids, watch_trainer

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]
PLAN = sgoif.Plan(refresh_every=2, examples_per_refresh=4, observe_every=2, early_steps=0)
COUNT, BATCH = 10, 2


def items(count=COUNT, seed=3, family="gpt2"):
    batch = padded_batch(family, "right", count=count, seed=seed)
    if family == "t5":  # labels have a length of their own
        return [{key: value[i].tolist() for key, value in batch.items()} for i in range(count)]
    sizes = batch["attention_mask"].sum(1).tolist()
    return [{key: batch[key][i, :n].tolist() for key in ("input_ids", "labels")} for i, n in enumerate(sizes)]


def train(folder, *, watched, accumulate=1, collate=pad_items, bf16=False, family="gpt2", checkpoint=False):
    model = build(family, lora=True, **({"resid_pdrop": 0.1} if family == "gpt2" else {}))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=6, per_device_train_batch_size=BATCH, gradient_accumulation_steps=accumulate,
        learning_rate=1e-2, seed=1, remove_unused_columns=False, report_to=[], save_strategy="no", use_cpu=True,
        logging_strategy="no", disable_tqdm=True, bf16=bf16,
        gradient_checkpointing=checkpoint, gradient_checkpointing_kwargs={"use_reentrant": False},
    )  # fmt: skip
    own = items(family=family)
    data = sgoif.with_ids(own) if watched else own
    trainer = transformers.Trainer(model, arguments, train_dataset=data, data_collator=collate)
    groups = {"math": items(5, seed=20, family=family), "code": items(4, seed=21, family=family)}
    watching = None
    if watched:
        watching = watch_trainer(trainer, groups, task="sequences", budget=sgoif.Budget(plan=PLAN))
    trainer.train()
    return watching, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(("accumulate", "bf16"), [(1, False), (2, False), (2, True)])
def test_weights_are_those_of_the_trainer_alone_to_the_bit(accumulate, bf16, tmp_path):
    settings = {"accumulate": accumulate, "bf16": bf16}
    _, bare = train(tmp_path, watched=False, **settings)
    watching, weights = train(tmp_path, watched=True, **settings)
    assert all(torch.equal(bare[name], weights[name]) for name in bare)
    assert watching.monitor.faults == {}
    counters = watching.run.info["counters"]
    assert counters["visits"] == counters["visits_offered"] == (6 * BATCH if accumulate == 1 else 2 * COUNT)
    assert watching.run.sequence_issues(top=3).num_rows == 3
    assert watching.run.most_helpful("code", 2).num_rows == 2
    assert watching.monitor._seen.is_checked and not watching.monitor._seen.is_unproven


def test_an_item_without_an_id_costs_its_batch_the_scores_and_not_the_training(tmp_path):
    """Before, it was a KeyError in the collator, in the midst of the training."""
    _, bare = train(tmp_path, watched=False)
    model = build("gpt2", lora=True, resid_pdrop=0.1)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=BATCH, learning_rate=1e-2, seed=1,
        remove_unused_columns=False, report_to=[], save_strategy="no", use_cpu=True, logging_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    data = [{**item, "id": f"seq {place}"} for place, item in enumerate(items())]
    data[9]["id"] = "seq 8"
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0)).tolist()
    trainer = transformers.Trainer(model, arguments, train_dataset=data, data_collator=pad_items)
    watching = watch_trainer(trainer, {"math": items(5, seed=20)}, task="sequences", budget=sgoif.Budget(plan=PLAN))
    with torch.random.fork_rng():
        first = next(iter(trainer.get_train_dataloader()))["id"]
    del data[next(place for place in order if f"seq {place}" not in first)]["id"]
    trainer.train()
    assert all(torch.equal(bare[name], value) for name, value in model.state_dict().items())
    counters = watching.run.info["counters"]
    assert (
        "1 of 10 training examples have an id that an earlier one has" in watching.run.info["warnings"]["repeated_ids"]
    )
    assert counters["visits_refused"] >= BATCH and counters["visits"] == 6 * BATCH - counters["visits_refused"]


def test_repeated_ids_are_looked_for_without_a_transform_of_the_users():
    datasets = pytest.importorskip("datasets")
    asked = []
    rows = datasets.Dataset.from_dict({"id": ["a", "b", "a"], "text": ["x", "y", "z"]})
    rows.set_transform(lambda batch: asked.append(1) or {"text": batch["text"]})
    assert _count_repeated_ids(rows) == 1 and not asked
    assert _count_repeated_ids([{"id": ["not", "hashable"]}]) == 0  # said at the first step, as any wrong id


def test_the_finished_model_is_audited_with_the_data_of_the_trainer(tmp_path):
    watching, weights = train(tmp_path, watched=True)
    found = watching.audit(out=str(tmp_path / "audit"))
    model = watching.trainer.model
    groups = {"math": items(5, seed=20), "code": items(4, seed=21)}
    expected = sgoif.audit(model, sgoif.with_ids(items()), anchors=groups, task="sequences").sequence_issues()
    rows = sgoif.load(str(tmp_path / "audit")).sequence_issues()
    assert rows["id"].to_pylist() == expected["id"].to_pylist() and found.info["kind"] == "audit"
    for column in ("suspicion", "conflict", "harm"):
        assert rows[column].to_pylist() == pytest.approx(expected[column].to_pylist(), rel=1e-6)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    watching.settings["method"] = sgoif.Method(curvature="adam")  # of which a finished model has nothing
    assert watching.audit().info["method"]["curvature"] == "kfac"


def test_an_audit_is_refused_before_the_training_and_of_other_tasks(tmp_path):
    watching, _ = train(tmp_path, watched=True)
    watching.run = None
    with pytest.raises(SgoifError, match="not over"):
        watching.audit()
    watching.settings.pop("task")
    with pytest.raises(SgoifError, match=r"call sgoif\.audit"):
        watching.audit()


@pytest.mark.parametrize(("family", "checkpoint"), [("t5", False), ("bert", False), ("llama", True), ("t5", True)])
def test_other_models_and_checkpointing_through_the_trainer(family, checkpoint, tmp_path):
    settings = {"accumulate": 2, "family": family, "checkpoint": checkpoint}
    _, bare = train(tmp_path, watched=False, **settings)
    watching, weights = train(tmp_path, watched=True, **settings)
    assert all(torch.equal(bare[name], weights[name]) for name in bare)
    assert watching.monitor.faults == {} and watching.run.info["num_not_judged"] == 0
    assert watching.monitor._seen.is_checked and not watching.monitor._seen.is_unproven


def test_batches_packed_by_position_are_scored_by_sequence(tmp_path):
    collate = transformers.DataCollatorWithFlattening()
    _, bare = train(tmp_path, watched=False, collate=collate, family="llama")
    watching, weights = train(tmp_path, watched=True, collate=collate, family="llama")
    assert all(torch.equal(bare[name], weights[name]) for name in bare)
    assert watching.monitor.faults == {} and watching.run.info["counters"]["visits"] == 6 * BATCH
    assert set(watching.run.table["id"]) <= set(range(COUNT))


def test_sequences_that_see_one_another_are_refused():
    batch = packed_batch()
    refuse_mixing(build("llama", lora=True), batch)

    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build("llama", lora=False)

        def forward(self, input_ids, position_ids, use_cache):
            return self.inner(input_ids=input_ids, position_ids=position_ids, use_cache=True)

    with pytest.raises(SgoifError, match="attend to one another"):
        refuse_mixing(Mixing(), batch)


def words_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<pad>"}
    known = {"<pad>": 0, "<end>": 1} | {f"w{number}": number for number in range(2, 23)}
    inner = Tokenizer(models.WordLevel(known, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def texts(count, seed):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(2, 23, (count, 7), generator=generator).tolist()
    rows = [[f"w{number}" for number in row] for row in drawn]
    return {"prompt": [" ".join(r[:3]) for r in rows], "completion": [" " + " ".join(r[3:]) for r in rows]}


def sft(folder, *, watched, packing=False):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    model = build("llama", lora=True)
    arguments = trl.SFTConfig(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=BATCH, learning_rate=1e-2, seed=1,
        use_cpu=True, remove_unused_columns=False, report_to=[], save_strategy="no", logging_strategy="no",
        disable_tqdm=True, bf16=False, max_length=32, gradient_checkpointing=False,
        packing=packing,
    )  # fmt: skip
    rows = datasets.Dataset.from_dict(texts(COUNT, 1) | {"id": [f"text {i}" for i in range(COUNT)]})
    groups = {"math": datasets.Dataset.from_dict(texts(4, 2))}
    trainer = trl.SFTTrainer(
        model, arguments, train_dataset=rows, eval_dataset=groups, processing_class=words_tokenizer()
    )
    watching = None
    if watched:
        plan = sgoif.Budget(plan=PLAN)
        watching = watch_trainer(trainer, trainer.eval_dataset, task="sequences", budget=plan)
    else:
        trainer.train_dataset = trainer.train_dataset.remove_columns("id")
    trainer.train()
    return watching, {name: value.clone() for name, value in model.state_dict().items()}


def test_sft_trainer_of_trl(tmp_path):
    _, bare = sft(tmp_path, watched=False)
    watching, weights = sft(tmp_path, watched=True)
    assert all(torch.equal(bare[name], weights[name]) for name in bare)
    assert watching.monitor.faults == {} and watching.run.info["counters"]["visits"] == 4 * BATCH
    assert all(name.startswith("text ") for name in watching.run.table["id"])
    assert set(watching.run.table["num_tokens"]) == {5}  # four words and the end of the sequence
    found = watching.audit().sequence_issues()
    assert found.num_rows == COUNT and set(found["num_tokens"].to_pylist()) == {5}
    assert found["conflict"].null_count == 0
    with pytest.raises(SgoifError, match="padding_free=True"):
        sft(tmp_path, watched=True, packing=True)
