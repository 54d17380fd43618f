"""An audit of sequences: one pass over a finished language model, exact and without a trace."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from typer.testing import CliRunner

import sgoif
from sgoif.cli.main import app
from sgoif.errors import SgoifError
from sgoif.gradients.adapters import find_sequence_layers
from sgoif.influence import near_prompts
from sgoif.influence.sequence_keys import sequence_keys
from sgoif.influence.sequence_sets import pad_items
from sgoif.tasks.sequences import next_tokens, sample_targets, sequence_losses, token_losses
from tests.language_models import build, in_double, padded_batch


def sequences(count, seed, family="gpt2"):
    batch = padded_batch(family, "right", count=count, seed=seed)
    sizes = batch["attention_mask"].sum(1).tolist()
    return [{name: batch[name][i, :n] for name in ("input_ids", "labels")} for i, n in enumerate(sizes)]


def gradients(model, layers, items):
    """Of every sequence's summed loss, one row each, and how many tokens they predict."""
    batch = pad_items(items)
    targets = next_tokens(batch["labels"], is_causal=True)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    parameters = [p for layer in layers for p in layer.parameters.values()]
    rows = []
    for loss in sequence_losses(token_losses(logits, targets)):
        parts = torch.autograd.grad(loss, parameters, retain_graph=True)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows), int((targets != -100).sum())


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "block"])
def test_harm_is_that_of_autograd_with_the_whole_group(family, lora, monkeypatch):
    model = in_double(build(family, lora=lora), monkeypatch)
    trained, groups = sequences(12, 3), {"math": sequences(40, 20), "code": sequences(5, 21)}
    run = sgoif.audit(
        model, trained, anchors=groups, task="sequences", method=sgoif.Method(curvature="identity"), batch_size=5
    )
    layers = find_sequence_layers(model)
    own, _ = gradients(model, layers, trained)
    for name, group in groups.items():
        held, tokens = gradients(model, layers, group)
        expected = -own @ held.sum(0) / tokens
        rows = run.sql("select id, harm from group_effects where group_name = $name order by id", name=name)
        found = torch.tensor(rows["harm"].to_pylist(), dtype=torch.float64)
        assert rows["id"].to_pylist() == list(range(12))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * float(expected.abs().max()))


def read_prompts(model, layer, items):
    """What a layer is given at the position that predicts the first token, one row per sequence."""
    seen = []
    handle = layer.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = pad_items(items)
    model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    handle.remove()
    first = [(row != -100).nonzero()[0, 0] - 1 for row in batch["labels"]]
    return torch.stack([row[place] for row, place in zip(seen[0], first)]).detach()


@pytest.mark.parametrize("most", [256, 4])
@pytest.mark.parametrize(("family", "lora"), [("gpt2", True), ("llama", False)])
def test_conflict_is_that_of_autograd_with_like_prompts(family, lora, most, monkeypatch):
    """By pairs of sequences where there are as many clusters; else a centroid stands for the prompts of a cluster."""
    monkeypatch.setattr(near_prompts, "_MOST", most)
    model = in_double(build(family, lora=lora), monkeypatch)
    trained, groups = sequences(12, 3), {"math": sequences(20, 20), "code": sequences(5, 21)}
    run = sgoif.audit(
        model, trained, anchors=groups, task="sequences", method=sgoif.Method(curvature="identity"), batch_size=5
    )
    layers, held = find_sequence_layers(model), [*groups["math"], *groups["code"]]
    reader = next(layer for layer in layers if layer.name == run.info["near_prompts"]["layer"])
    own, theirs = (gradients(model, layers, items)[0] for items in (trained, held))
    own, theirs = (rows / rows.norm(dim=1, keepdim=True).sqrt() for rows in (own, theirs))
    rows = read_prompts(model, reader, held)
    place = partial(torch.nn.functional.normalize, dim=1)
    near, asked = place(rows - rows.mean(0)), place(read_prompts(model, reader, trained) - rows.mean(0))
    width = 0.25 * (1 - near @ near.T).median()
    if most == 4:
        made = KMeans(4, n_init=1, max_iter=20, random_state=0).fit(near.numpy())
        centroids = place(torch.from_numpy(made.cluster_centers_))
        near = centroids[(near @ centroids.T).argmax(1)]
    assert run.info["near_prompts"]["clusters"] == min(most, 25)
    weights = ((asked @ near.T - 1) / width).exp()
    expected = -(weights * (own @ theirs.T)).sum(1) / weights.sum(1)
    found = torch.tensor(run.sql("select conflict from examples order by id")["conflict"].to_pylist()).double()
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7 * float(expected.abs().max()))


def test_prompts_that_do_not_differ_weigh_alike(monkeypatch):
    """As those of plain texts, which have none: the first position knows nothing of the sequence."""
    model = in_double(build("gpt2", lora=True), monkeypatch)
    trained, held = ([{**item, "labels": item["input_ids"]} for item in sequences(n, n)] for n in (6, 9))
    for item in (*trained, *held):
        item["input_ids"][0] = 7
    method = sgoif.Method(curvature="identity")
    run = sgoif.audit(model, trained, anchors={"all": held}, task="sequences", method=method)
    assert run.info["near_prompts"]["clusters"] == 1
    own, theirs = (gradients(model, find_sequence_layers(model), items)[0] for items in (trained, held))
    own, theirs = (rows / rows.norm(dim=1, keepdim=True).sqrt() for rows in (own, theirs))
    found = torch.tensor(run.sql("select conflict from examples order by id")["conflict"].to_pylist()).double()
    torch.testing.assert_close(found, -(own @ theirs.T).mean(1), rtol=1e-7, atol=1e-9)


def test_suspicion_is_the_loss_weighed_by_the_conflict():
    run = sgoif.audit(build("gpt2", lora=True), sequences(9, 3), anchors={"all": sequences(6, 20)}, task="sequences")
    rows = run.sequence_issues()
    conflict, loss = (np.array(rows[name].to_pylist()) for name in ("conflict", "loss_last"))
    x = conflict / (2 * np.median(np.abs(conflict)))
    expected = loss * (x + np.sqrt(1 + x * x))
    assert rows["suspicion"].to_pylist() == pytest.approx(expected)
    assert (np.diff(expected) <= 0).all()


@pytest.mark.parametrize("curvature", ["kfac", "diagonal"])
def test_nothing_is_left_behind(curvature):
    model = build("gpt2", lora=True, resid_pdrop=0.1)
    weights, modes = {n: v.clone() for n, v in model.state_dict().items()}, [m.training for m in model.modules()]
    torch.manual_seed(4)
    before = torch.get_rng_state()
    method = sgoif.Method(curvature=curvature)
    run = sgoif.audit(model, sequences(9, 3), anchors={"all": sequences(6, 20)}, task="sequences", method=method)
    assert torch.equal(torch.get_rng_state(), before) and [m.training for m in model.modules()] == modes
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert run.info["kind"] == "audit" and run.info["num_not_judged"] == 0
    assert run.info["groups"]["all"]["num_sequences"] == 6


def test_a_sequence_is_behind_itself(tmp_path):
    """What is behind one generation: a group of that sequence alone."""
    model, trained = build("llama", lora=True), sgoif.with_ids(sequences(20, 3), ids=[f"s{i}" for i in range(20)])
    generated = {name: value for name, value in trained[7].items() if name != "id"}
    folder = str(tmp_path / "run")
    found = sgoif.audit(model, trained, anchors={"this": [generated]}, task="sequences", out=folder)
    assert found.most_helpful("this", 1)["id"].to_pylist() == ["s7"]
    assert sgoif.load(folder).most_helpful("this", 3).to_pylist() == found.most_helpful("this", 3).to_pylist()


def test_tokens_are_drawn_from_the_model():
    logits = torch.tensor([[[0.0, 1.0, -1.0], [9.0, 0.0, 0.0]]]).repeat(20_000, 1, 1)
    targets = torch.tensor([[2, -100]]).repeat(20_000, 1)
    drawn = sample_targets(logits, targets, torch.Generator().manual_seed(0))
    assert bool((drawn[:, 1] == -100).all())
    shares = torch.bincount(drawn[:, 0], minlength=3) / len(drawn)
    torch.testing.assert_close(shares, logits[0, 0].softmax(0), atol=0.01, rtol=0)


def test_curvature_does_not_know_the_completions():
    """Completions as given would put wrong ones into the curvature: harm to a group depends on them by g_i alone."""
    model, groups = build("gpt2", lora=True), {"all": sequences(6, 20)}
    trained = sequences(9, 3)
    other = [dict(item) for item in trained]
    other[0] = {**other[0], "labels": torch.where(other[0]["labels"] == -100, -100, 1 + other[0]["labels"] % 5)}
    harms = [
        sgoif.audit(model, items, anchors=groups, task="sequences").sql("select id, harm from examples order by id")
        for items in (trained, other)
    ]
    one, two = (found["harm"].to_pylist() for found in harms)
    assert one[0] != two[0] and one[1:] == pytest.approx(two[1:], rel=1e-6)


def test_sequences_without_a_token_to_predict_are_counted_and_stop_nothing():
    trained = sequences(9, 3)
    for place in (4, 5, 6, 7):  # two whole batches
        trained[place] = {**trained[place], "labels": torch.full_like(trained[place]["labels"], -100)}
    model = build("gpt2", lora=True)
    run = sgoif.audit(model, trained, anchors={"all": sequences(4, 20)}, task="sequences", batch_size=2)
    assert run.info["num_not_judged"] == 4
    assert run.sequence_issues()["id"].to_pylist()[-4:] == [4, 5, 6, 7]


@pytest.mark.parametrize("family", ["t5", "bert"])
def test_other_families_are_audited(family):
    model = build(family, lora=True)
    run = sgoif.audit(model, sequences(6, 3, family), anchors={"all": sequences(4, 20, family)}, task="sequences")
    assert run.info["num_not_judged"] == 0


def test_what_is_not_there_is_refused_by_name():
    model, trained, groups = build("gpt2", lora=True), sequences(6, 3), {"all": sequences(4, 20)}
    with pytest.raises(SgoifError, match="snapshot"):
        sgoif.audit(model, trained, anchors=groups, task="sequences", snapshot="x")
    with pytest.raises(SgoifError, match="'adam'"):
        sgoif.audit(model, trained, anchors=groups, task="sequences", method=sgoif.Method(curvature="adam"))
    with pytest.raises(SgoifError, match=r"dataset .*have no labels"):
        sgoif.audit(model, [{"input_ids": torch.arange(3)}], anchors=groups, task="sequences")


def test_copies_and_other_completions_of_a_prompt_are_named(tmp_path):
    model, trained, held = build("gpt2", lora=True), sequences(8, 3), sequences(6, 20)
    prompt = trained[0]["labels"] == -100
    other = torch.where(prompt, trained[0]["input_ids"], trained[0]["input_ids"].roll(1) + 1)
    trained += [
        dict(trained[0]),  # 8: the completion of 0 twice
        {"input_ids": other, "labels": torch.where(prompt, -100, other)},  # 9: another one, once
        {name: torch.cat([held[2][name], torch.zeros(0, dtype=torch.long)]) for name in held[2]},  # 10
    ]
    groups = {"math": held[:3], "code": held[3:]}
    run = sgoif.audit(model, trained, anchors=groups, task="sequences", out=str(tmp_path / "run"), batch_size=4)
    found = run.duplicates().to_pylist()
    assert [(row["kind"], row["id"], row["other_id"], row["group_name"], row["n_same"]) for row in found] == [
        ("other completion", "9", "0", None, 1),
        ("evaluation", "10", None, "math", 1),
        ("same", "8", "0", None, 2),
    ]
    assert "1 of 11 training sequences are evaluation sequences too" in run.info["warnings"]["in_evaluation"]
    done = CliRunner().invoke(app, ["duplicates", str(tmp_path / "run")])
    assert done.exit_code == 0 and "that repeat another: 1" in done.stdout and "completed otherwise" in done.stdout


@pytest.mark.parametrize("family", ["gpt2", "t5", "bert"])
def test_keys_do_not_depend_on_padding(family):
    batch = padded_batch(family, "right", count=4, seed=1)
    is_causal = family == "gpt2"
    whole = sequence_keys(batch, is_causal=is_causal)
    more = {
        name: torch.nn.functional.pad(value, (0, 3), value=-100 if name == "labels" else 0)
        for name, value in batch.items()
    }
    np.testing.assert_array_equal(sequence_keys(more, is_causal=is_causal), whole)
    assert len(np.unique(whole[:, 1])) == 4


def test_plain_texts_have_no_prompt():
    rows = torch.arange(12).reshape(2, 6)
    keys = sequence_keys({"input_ids": rows, "labels": rows}, is_causal=True)
    assert (keys[:, 0] == 0).all() and keys[0, 1] != keys[1, 1]
    assert not sequence_keys({"input_features": rows, "labels": rows}, is_causal=False).any()  # sounds
