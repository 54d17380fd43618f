"""A GPT-2 with LoRA through Trainer and SFTTrainer: weights to the bit, and the scores of the plain loop."""

from functools import cache

import pytest
import torch

import sgoif
from sgoif.errors import SgoifError
from sgoif.influence.sequence_sets import pad_items
from tests.integrations.trainers import ARGUMENTS, transformers, watch_trainer
from tests.language_models import build, packed_batch, sequences

pytest.importorskip("peft")

from sgoif.integrations.packing import refuse_mixing
from sgoif.integrations.transformers import _count_repeated_ids

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]
PLAN = sgoif.Plan(refresh_every=2, examples_per_refresh=4, observe_every=2, early_steps=0)
COUNT, BATCH = 10, 2
STEPS = {**ARGUMENTS, "max_steps": 6, "per_device_train_batch_size": BATCH, "learning_rate": 1e-2, "seed": 1}


def items(count=COUNT, seed=3, family="gpt2"):
    return [{key: value.tolist() for key, value in one.items()} for one in sequences(count, seed, family)]


def groups_of(family="gpt2"):
    return {"math": items(5, 20, family), "code": items(4, 21, family)}


def make_trainer(folder, data, *, family="gpt2", packs=False, accumulate=1, **settings):
    model = build(family, lora=True, **({"resid_pdrop": 0.1} if family == "gpt2" else {}))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), gradient_accumulation_steps=accumulate,
        gradient_checkpointing_kwargs={"use_reentrant": False}, **STEPS, **settings,
    )  # fmt: skip
    collate = transformers.DataCollatorWithFlattening() if packs else pad_items
    return transformers.Trainer(model, arguments, train_dataset=data, data_collator=collate)


def watched(trainer, groups):
    return watch_trainer(trainer, groups, task="sequences", budget=sgoif.Budget(plan=PLAN))


def weights_of(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


@cache
def train(folder, is_watched, family="gpt2", **settings):
    """Train; gives the callback and the weights, which tests only read."""
    own = items(family=family)
    trainer = make_trainer(folder, sgoif.with_ids(own) if is_watched else own, family=family, **settings)
    watching = watched(trainer, groups_of(family)) if is_watched else None
    trainer.train()
    return watching, weights_of(trainer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("trainer")


def assert_same(one, two):
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(("accumulate", "bf16"), [(1, False), (2, False), (2, True)])
def test_weights_are_those_of_the_trainer_alone_to_the_bit(accumulate, bf16, folder):
    settings = {"accumulate": accumulate, "bf16": bf16}
    watching, weights = train(folder, True, **settings)
    assert_same(train(folder, False, **settings)[1], weights)
    assert watching.monitor.faults == {}
    counters = watching.run.info["counters"]
    assert counters["visits"] == counters["visits_offered"] == (6 * BATCH if accumulate == 1 else 2 * COUNT)
    assert watching.run.sequence_issues(top=3).num_rows == 3
    assert watching.run.most_helpful("code", 2).num_rows == 2
    assert watching.monitor._seen.is_checked and not watching.monitor._seen.is_unproven


def test_an_item_without_an_id_costs_its_batch_the_scores_and_not_the_training(folder):
    """Before, it was a KeyError in the collator, in the midst of the training."""
    data = [{**item, "id": f"seq {place}"} for place, item in enumerate(items())]
    data[9]["id"] = "seq 8"
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0)).tolist()
    trainer = make_trainer(folder, data, bf16=False)
    watching = watched(trainer, {"math": items(5, 20)})
    with torch.random.fork_rng():
        first = next(iter(trainer.get_train_dataloader()))["id"]
    del data[next(place for place in order if f"seq {place}" not in first)]["id"]
    trainer.train()
    assert_same(train(folder, False, accumulate=1, bf16=False)[1], weights_of(trainer))
    counters, told = watching.run.info["counters"], watching.run.info["warnings"]
    assert "1 of 10 training examples have an id that an earlier one has" in told["repeated_ids"]
    assert counters["visits_refused"] >= BATCH and counters["visits"] == 6 * BATCH - counters["visits_refused"]


def test_repeated_ids_are_looked_for_without_a_transform_of_the_users():
    datasets = pytest.importorskip("datasets")
    asked = []
    rows = datasets.Dataset.from_dict({"id": ["a", "b", "a"], "text": ["x", "y", "z"]})
    rows.set_transform(lambda batch: asked.append(1) or {"text": batch["text"]})
    assert _count_repeated_ids(rows) == 1 and not asked
    assert _count_repeated_ids([{"id": ["not", "hashable"]}]) == 0  # said at the first step, as any wrong id


def test_the_finished_model_is_audited_with_the_data_of_the_trainer(folder, tmp_path, monkeypatch):
    watching, weights = train(folder, True, accumulate=1, bf16=False)
    found = watching.audit(out=str(tmp_path / "audit"))
    data = sgoif.with_ids(items())
    expected = sgoif.audit(watching.trainer.model, data, anchors=groups_of(), task="sequences").sequence_issues()
    rows = sgoif.load(str(tmp_path / "audit")).sequence_issues()
    assert rows["id"].to_pylist() == expected["id"].to_pylist() and found.info["kind"] == "audit"
    for column in ("suspicion", "conflict", "harm"):
        assert rows[column].to_pylist() == pytest.approx(expected[column].to_pylist(), rel=1e-6)
    assert_same(weights, weights_of(watching.trainer))
    monkeypatch.setitem(watching.settings, "method", sgoif.Method(curvature="adam"))  # a finished model has nothing
    assert watching.audit().info["method"]["curvature"] == "kfac"
    with monkeypatch.context() as patch, pytest.raises(SgoifError, match="not over"):
        patch.setattr(watching, "run", None)
        watching.audit()
    monkeypatch.delitem(watching.settings, "task")
    with pytest.raises(SgoifError, match=r"call sgoif\.audit"):
        watching.audit()


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bert", {"accumulate": 2}),
        ("llama", {"accumulate": 2, "gradient_checkpointing": True}),
        ("t5", {"accumulate": 2, "gradient_checkpointing": True}),
        ("llama", {"packs": True}),
    ],
)
def test_other_models_checkpointing_and_packing_through_the_trainer(family, settings, folder):
    watching, weights = train(folder, True, family, **settings)
    assert_same(train(folder, False, family, **settings)[1], weights)
    assert watching.monitor.faults == {} and set(watching.run.table["id"]) <= set(range(COUNT))
    assert watching.run.info["counters"]["visits"] == (6 * BATCH if "packs" in settings else 2 * COUNT)
    assert "packs" in settings or watching.run.info["num_not_judged"] == 0
    assert watching.monitor._seen.is_checked and not watching.monitor._seen.is_unproven


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


def sft(folder, *, is_watched, **settings):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    model = build("llama", lora=True)
    given = {"max_steps": 4, "bf16": False, "max_length": 32, "gradient_checkpointing": False, **settings}
    arguments = trl.SFTConfig(output_dir=str(folder), **{**STEPS, **given})
    rows = datasets.Dataset.from_dict(texts(COUNT, 1) | {"id": [f"text {i}" for i in range(COUNT)]})
    groups = {"math": datasets.Dataset.from_dict(texts(4, 2))}
    trainer = trl.SFTTrainer(
        model, arguments, train_dataset=rows, eval_dataset=groups, processing_class=words_tokenizer()
    )
    if not is_watched:
        trainer.train_dataset = trainer.train_dataset.remove_columns("id")
    watching = watched(trainer, trainer.eval_dataset) if is_watched else None
    trainer.train()
    return watching, weights_of(trainer)


def test_sft_trainer_of_trl(tmp_path):
    watching, weights = sft(tmp_path, is_watched=True)
    assert_same(sft(tmp_path, is_watched=False)[1], weights)
    assert watching.monitor.faults == {} and watching.run.info["counters"]["visits"] == 4 * BATCH
    assert all(name.startswith("text ") for name in watching.run.table["id"])
    assert set(watching.run.table["num_tokens"]) == {5}  # four words and the end of the sequence
    found = watching.audit().sequence_issues()
    assert found.num_rows == COUNT and set(found["num_tokens"].to_pylist()) == {5}
    assert found["conflict"].null_count == 0
    with pytest.raises(SgoifError, match="padding_free=True"):
        sft(tmp_path, is_watched=True, packing=True)
