"""An audit of sequences: one pass over a finished language model, exact and without a trace."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

import sgoif
from sgoif.errors import SgoifError
from sgoif.gradients.adapters import find_sequence_layers
from sgoif.influence import near_prompts
from sgoif.influence.sequence_keys import sequence_keys
from sgoif.influence.sequence_sets import pad_items
from sgoif.tasks.sequences import next_tokens, sample_targets, sequence_losses, token_losses
from sgoif.training.sequences import tuned
from tests.cli.runs import invoke
from tests.language_models import build, in_double, padded_batch, sequences, without_tokens

IDENTITY = sgoif.Method(curvature="identity")


@pytest.fixture
def untuned(monkeypatch):
    """Leave out the losses once the evaluation sequences are learnt, which take most of an audit's time."""
    monkeypatch.setattr(tuned, "_LEAST", 10**6)


def audit(trained, held, *, model=None, **settings):
    groups = held if isinstance(held, dict) else {"all": held}
    model = build("gpt2", lora=True) if model is None else model
    return sgoif.audit(model, trained, anchors=groups, task="sequences", **settings)


def column(run, name):
    rows = run.sequence_issues()
    return torch.from_numpy(np.array(rows[name].to_pylist(), float)[np.argsort(rows["id"].to_pylist())])


def gradients(model, items):
    """Of every sequence's summed loss at the scored layers, one row each, and how many tokens they predict."""
    batch = pad_items(items)
    targets = next_tokens(batch["labels"], is_causal=True)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    parameters = [p for layer in find_sequence_layers(model) for p in layer.parameters.values()]
    rows = []
    for loss in sequence_losses(token_losses(logits, targets)):
        parts = torch.autograd.grad(loss, parameters, retain_graph=True)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows), int((targets != -100).sum())


def conflicts(model, trained, held):
    """The products of normed gradients that a conflict weighs, one row per training sequence."""
    own, theirs = (gradients(model, items)[0] for items in (trained, held))
    own, theirs = (rows / rows.norm(dim=1, keepdim=True).sqrt() for rows in (own, theirs))
    return -own @ theirs.T


@pytest.mark.usefixtures("untuned")
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "block"])
def test_harm_is_that_of_autograd_with_the_whole_group(family, lora, monkeypatch):
    model = in_double(build(family, lora=lora), monkeypatch)
    trained, groups = sequences(12, 3), {"math": sequences(40, 20), "code": sequences(5, 21)}
    run = audit(trained, groups, model=model, method=IDENTITY, batch_size=5)
    own, _ = gradients(model, trained)
    for name, group in groups.items():
        held, tokens = gradients(model, group)
        expected = -own @ held.sum(0) / tokens
        rows = run.sql("select id, harm from group_effects where group_name = $name order by id", name=name)
        found = torch.tensor(rows["harm"].to_pylist(), dtype=torch.float64)
        assert rows["id"].to_pylist() == list(range(12))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * float(expected.abs().max()))


def read_prompts(model, name, items):
    """What a layer is given at the position that predicts the first token, one row per sequence."""
    seen = []
    (layer,) = (layer for layer in find_sequence_layers(model) if layer.name == name)
    handle = layer.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = pad_items(items)
    model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    handle.remove()
    first = [(row != -100).nonzero()[0, 0] - 1 for row in batch["labels"]]
    return torch.stack([row[place] for row, place in zip(seen[0], first)]).detach()


def two_prompts(count, seed):
    """Sequences with one of two prompts in turn: their distance is not to be that of a prompt to itself."""
    prompts, rng = torch.tensor([[3, 4, 5], [6, 7, 8]]), torch.Generator().manual_seed(seed)
    rows = [torch.cat([prompts[i % 2], torch.randint(9, 20, (4,), generator=rng)]) for i in range(count)]
    return [{"input_ids": row, "labels": torch.where(torch.arange(7) < 3, -100, row)} for row in rows]


@pytest.mark.usefixtures("untuned")
@pytest.mark.parametrize(
    ("family", "lora", "most", "make"),
    [
        ("gpt2", True, 256, sequences),
        ("llama", False, 256, sequences),
        ("gpt2", True, 4, sequences),
        ("llama", False, 4, sequences),
        ("gpt2", True, 256, two_prompts),
    ],
)
def test_conflict_is_that_of_autograd_with_like_prompts(family, lora, most, make, monkeypatch):
    """By pairs of sequences where there are as many clusters; else a centroid stands for the prompts of a cluster."""
    monkeypatch.setattr(near_prompts, "_MOST", most)
    model = in_double(build(family, lora=lora), monkeypatch)
    trained, groups = make(12, 3), {"math": make(20, 20), "code": make(5, 21)}
    run = audit(trained, groups, model=model, method=IDENTITY, batch_size=5)
    reader, held = run.info["near_prompts"]["layer"], [*groups["math"], *groups["code"]]
    rows, asked = (read_prompts(model, reader, items) for items in (held, trained))
    place = partial(torch.nn.functional.normalize, dim=1)
    near, asked = place(rows - rows.mean(0)), place(asked - rows.mean(0))
    distances = 1 - near @ near.T
    width = 0.25 * distances[distances > 1e-4].median()
    if most == 4:
        made = KMeans(4, n_init=1, max_iter=20, random_state=0).fit(near.numpy())
        centroids = place(torch.from_numpy(made.cluster_centers_))
        near = centroids[(near @ centroids.T).argmax(1)]
    assert run.info["near_prompts"]["clusters"] == min(most, 25)
    weights = ((asked @ near.T - 1) / width).exp()
    expected = (weights * conflicts(model, trained, held)).sum(1) / weights.sum(1)
    atol = 1e-7 * float(expected.abs().max())
    torch.testing.assert_close(column(run, "conflict"), expected, rtol=1e-7, atol=atol)


@pytest.mark.usefixtures("untuned")
@pytest.mark.parametrize("begins_alike", [True, False])
def test_prompts_that_do_not_differ_weigh_alike(begins_alike, monkeypatch):
    """As those of plain texts, which have none, whether these begin alike or not."""
    model = in_double(build("gpt2", lora=True), monkeypatch)
    trained, held = ([{**item, "labels": item["input_ids"]} for item in sequences(n, n)] for n in (6, 9))
    if begins_alike:
        for item in (*trained, *held):
            item["input_ids"][0] = 7
    run = audit(trained, held, model=model, method=IDENTITY)
    assert run.info["near_prompts"]["clusters"] == 1
    expected = conflicts(model, trained, held).mean(1)
    torch.testing.assert_close(column(run, "conflict"), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("untuned")
def test_what_no_evaluation_sequence_asks_for_is_ranked_by_its_loss():
    """Its conflict is with others, and so is one with a single evaluation sequence: neither is a reason for doubt."""
    torch.manual_seed(0)
    model = build("gpt2", lora=True)

    def items(count, first):  # prompts of two tokens, one of which names what is asked
        rows = torch.randint(9, 20, (count, 6))
        rows[:, :2] = first
        return [{"input_ids": row, "labels": torch.where(torch.arange(6) < 2, -100, row)} for row in rows]

    trained = [*items(20, 3), *items(20, 7)]
    for held in (items(60, 3), [*items(30, 3), *items(1, 7)]):
        run = audit(trained, held, model=model)
        coverage, change = column(run, "coverage"), (column(run, "suspicion") / column(run, "loss_last")).log().abs()
        assert coverage[:20].min() > 0.7 and coverage[20:].max() < 0.2
        assert change[20:].median() < 0.4 * change[:20].median()
        assert "20 of 40 training sequences have a prompt that few or no" in run.info["warnings"]["not_covered"]


@pytest.mark.usefixtures("untuned")
def test_nothing_tells_what_plain_texts_cover(caplog):
    trained, held = ([{**item, "labels": item["input_ids"]} for item in sequences(n, n)] for n in (9, 12))
    run = audit(trained, held)
    assert column(run, "coverage").isnan().all()
    assert "no `coverage`" in run.info["warnings"]["no_prompts"] in caplog.text
    conflict, loss, suspicion = (column(run, name).numpy() for name in ("conflict", "loss_last", "suspicion"))
    x = conflict / (2 * np.median(np.abs(conflict)))
    np.testing.assert_allclose(suspicion, loss * (x + np.sqrt(1 + x * x)))


@pytest.mark.parametrize("curvature", ["kfac", "diagonal"])
def test_nothing_is_left_behind(curvature):
    model = build("gpt2", lora=True, resid_pdrop=0.1)
    weights, modes = {n: v.clone() for n, v in model.state_dict().items()}, [m.training for m in model.modules()]
    torch.manual_seed(4)
    before = torch.get_rng_state()
    run = audit(sequences(9, 3), sequences(6, 20), model=model, method=sgoif.Method(curvature=curvature))
    assert torch.equal(torch.get_rng_state(), before) and [m.training for m in model.modules()] == modes
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert run.info["kind"] == "audit" and run.info["num_not_judged"] == 0
    assert run.info["groups"]["all"]["num_sequences"] == 6


def test_a_sequence_is_behind_itself(tmp_path):
    """What is behind one generation: a group of that sequence alone."""
    generated = sequences(20, 3)[7]
    trained = sgoif.with_ids(sequences(20, 3), ids=[f"s{i}" for i in range(20)])
    found = audit(trained, {"this": [generated]}, model=build("llama", lora=True), out=str(tmp_path / "run"))
    assert found.most_helpful("this", 1)["id"].to_pylist() == ["s7"]
    assert sgoif.load(tmp_path / "run").most_helpful("this", 3).to_pylist() == found.most_helpful("this", 3).to_pylist()


def test_tokens_are_drawn_from_the_model():
    logits = torch.tensor([[[0.0, 1.0, -1.0], [9.0, 0.0, 0.0]]]).repeat(20_000, 1, 1)
    targets = torch.tensor([[2, -100]]).repeat(20_000, 1)
    drawn = sample_targets(logits, targets, torch.Generator().manual_seed(0))
    assert bool((drawn[:, 1] == -100).all())
    shares = torch.bincount(drawn[:, 0], minlength=3) / len(drawn)
    torch.testing.assert_close(shares, logits[0, 0].softmax(0), atol=0.01, rtol=0)


def test_curvature_does_not_know_the_completions():
    """Completions as given would put wrong ones into the curvature: harm to a group depends on them by g_i alone."""
    trained = sequences(9, 3)
    other = [dict(item) for item in trained]
    other[0]["labels"] = torch.where(other[0]["labels"] == -100, -100, 1 + other[0]["labels"] % 5)
    one, two = (column(audit(items, sequences(6, 20)), "harm") for items in (trained, other))
    assert one[0] != two[0]
    torch.testing.assert_close(one[1:], two[1:], rtol=1e-6, atol=0)


def test_sequences_with_nothing_to_predict_are_counted_come_last_and_are_no_copies():
    """Before, all of them were said to be the same, and to be evaluation sequences too."""
    trained, held = sequences(9, 3), sequences(6, 20)
    trained[4:8], held[:1] = without_tokens(trained[4:8]), without_tokens(held[:1])  # two whole batches
    run = audit(trained, held, batch_size=2)
    assert run.info["num_not_judged"] == 4
    assert run.sequence_issues()["id"].to_pylist()[-4:] == [4, 5, 6, 7]
    assert run.duplicates().num_rows == 0 and "in_evaluation" not in run.info["warnings"]
    assert "4 of 9 training sequences have no token to predict" in run.info["warnings"]["no_tokens"]


def test_evaluation_sequences_without_a_token_to_predict_are_left_out_and_counted(caplog):
    held, empty = sequences(9, 20), without_tokens(sequences(20, 40))
    runs = [
        audit(sequences(6, 3), {"a": group, "b": sequences(5, 60)}, method=IDENTITY)
        for group in (held, [*empty[:3], *held, *empty[3:]])
    ]
    assert runs[1].info["groups"]["a"]["num_sequences"] == 9
    assert "20 of 34 evaluation sequences have no token" in runs[1].info["warnings"]["empty_evaluation"] in caplog.text
    assert "empty_evaluation" not in (runs[0].info.get("warnings") or {})
    for name in ("harm", "conflict"):  # the groups have the shares that they should
        np.testing.assert_allclose(*(column(run, name) for run in runs), rtol=1e-4)
    assert all("fewer than 8" not in run.info["tuning"].get("why_not", "") for run in runs)


def test_a_sequence_that_is_too_long_is_told_of_by_its_length():
    rows, model = torch.randint(3, 20, (200,)), build("gpt2", lora=True)
    most = model.config.max_position_embeddings
    assert most < 200
    with pytest.raises(SgoifError, match=rf"longest of 200 tokens, and takes {most} by its configuration: IndexError"):
        audit([*sequences(6, 3), {"input_ids": rows, "labels": rows}], sequences(4, 20), model=model)


def test_an_encoder_decoder_is_judged_by_what_its_decoder_reads(caplog):
    """Completions as long as their prompts do not make the encoder's states those of the decoder."""
    rng = torch.Generator().manual_seed(0)

    def items(count, source, target):
        sizes = {"input_ids": source, "labels": target}
        return [{k: torch.randint(3, 20, (n,), generator=rng) for k, n in sizes.items()} for _ in range(count)]

    model, trained = build("t5", lora=True), [*items(4, 7, 7), *items(4, 8, 5)]
    run = audit(trained, items(5, 7, 7), model=model, batch_size=4)
    assert run.sequence_issues()["conflict"].null_count == 0
    encoder = [name for name, _ in model.named_modules() if ".encoder." in name and name.endswith("lora_A.default")]
    run = audit(trained, items(5, 8, 5), model=model, method=sgoif.Method(layers=encoder))
    assert run.sequence_issues()["conflict"].null_count == 8
    assert "there is no `conflict`" in run.info["warnings"]["no_conflict"] and "no `conflict`" in caplog.text


def test_what_cannot_be_audited_is_refused():
    trained, held, broken = sequences(40, 3), sequences(4, 20), build("gpt2", lora=True)
    with torch.no_grad():
        next(p for p in broken.parameters() if p.requires_grad).fill_(float("nan"))
    empty = without_tokens(trained)
    for said, items, settings in (
        ("snapshot", trained, {"snapshot": "x"}),
        ("'adam'", trained, {"method": sgoif.Method(curvature="adam")}),
        (r"dataset .*have no labels", [{"input_ids": torch.arange(3)}], {}),
        ("weights that are not finite, first", trained, {"model": broken}),
        ("no sequence of dataset has a token to predict: all labels are -100", empty, {}),
    ):
        with pytest.raises(SgoifError, match=said):
            audit(items, held, **settings)
    assert audit([*empty[:39], trained[39]], held).info["num_not_judged"] == 39  # tokens are looked for in all


def test_copies_and_other_completions_of_a_prompt_are_named(tmp_path):
    trained, held = sequences(8, 3), sequences(6, 20)

    def complete_otherwise(item):
        is_prompt = item["labels"] == -100
        other = torch.where(is_prompt, item["input_ids"], item["input_ids"] % 22 + 1)
        return {"input_ids": other, "labels": torch.where(is_prompt, -100, other)}

    trained += [dict(trained[0]), complete_otherwise(trained[0]), dict(held[2]), complete_otherwise(trained[2])]
    run = audit(trained, {"math": held[:3], "code": held[3:]}, out=str(tmp_path / "run"), batch_size=4)
    found = run.duplicates().to_pylist()
    assert [(row["kind"], row["id"], row["other_id"], row["group_name"], row["n_same"]) for row in found] == [
        ("other completion", 9, 0, None, 1),  # that of 0 is there twice
        ("other completion", 11, 2, None, 1),  # each once: the first by number is the usual one
        ("evaluation", 10, None, "math", 1),
        ("same", 8, 0, None, 2),
    ]
    assert "1 of 12 training sequences are evaluation sequences too" in run.info["warnings"]["in_evaluation"]
    done = invoke("duplicates", tmp_path / "run")
    assert done.exit_code == 0 and "that repeat another: 1" in done.stdout and "completed otherwise" in done.stdout


@pytest.mark.parametrize("family", ["gpt2", "t5", "bert"])
def test_keys_do_not_depend_on_padding(family):
    batch, is_causal = padded_batch(family, "right", count=4, seed=1), family == "gpt2"
    whole = sequence_keys(batch, is_causal=is_causal)
    more = {
        name: torch.nn.functional.pad(value, (0, 3), value=-100 if name == "labels" else 0)
        for name, value in batch.items()
    }
    np.testing.assert_array_equal(sequence_keys(more, is_causal=is_causal), whole)
    assert len(np.unique(whole[:, 1])) == 4
    if is_causal:  # which needs no mask
        bare = {name: batch[name] for name in ("input_ids", "labels")}
        np.testing.assert_array_equal(sequence_keys(bare, is_causal=True), whole)


def test_plain_texts_have_no_prompt():
    rows = torch.tensor([[5, 6, 7, 1], [8, 9, 1, 1]])
    end = {"labels": torch.where(rows == 1, -100, rows), "attention_mask": torch.ones_like(rows)}
    for more in ({"labels": rows}, end):  # the second as DataCollatorForLanguageModeling has texts that end in padding
        keys = sequence_keys({"input_ids": rows, **more}, is_causal=True)
        assert (keys[:, 0] == 0).all() and keys[0, 1] != keys[1, 1]
    assert not sequence_keys({"input_features": rows, "labels": rows}, is_causal=False).any()  # sounds


def test_a_collator_that_packs_is_called_for_each_sequence():
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithFlattening

    trained, held = ([{k: v.tolist() for k, v in item.items()} for item in sequences(n, n)] for n in (6, 5))
    packed, padded = (
        audit(DataLoader(trained, collate_fn=collate), DataLoader(held, collate_fn=collate))
        for collate in (DataCollatorWithFlattening(), pad_items)
    )
    for name in ("harm", "conflict", "loss_last"):
        torch.testing.assert_close(column(packed, name), column(padded, name), rtol=1e-4, atol=1e-7)
