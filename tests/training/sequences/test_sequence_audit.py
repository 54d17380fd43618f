"""An audit of sequences: one pass over a finished language model, exact and without a trace."""

import pytest
import torch

import sgoif
from sgoif.errors import SgoifError
from sgoif.gradients.adapters import find_sequence_layers
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
    assert not any(module._forward_hooks for module in model.modules())
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
