"""Tokens' shares of the harm of a sequence: exact, and the model does not feel it."""

import json

import numpy as np
import pytest
import torch

import sgoif
from sgoif.errors import SgoifError
from sgoif.export import write_token_harms
from sgoif.report.token_harms import read_token_harms
from sgoif.tasks.sequences import is_causal, next_tokens, token_losses
from tests.language_models import build, in_double, padded_batch

PLAN = sgoif.Plan(refresh_every=2, examples_per_refresh=6, observe_every=1, early_steps=0)
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]


def rows_of(batch):
    return [{name: value[i] for name, value in batch.items()} for i in range(len(batch["labels"]))]


def watched(model, family):
    """A monitor after two steps, the second of which moved nothing."""
    groups = {
        name: rows_of(padded_batch(family, "right", count=count, seed=seed))
        for name, count, seed in (("a", 3, 20), ("b", 2, 21))
    }
    monitor = sgoif.watch(model, anchors=groups, train_size=8, task="sequences", budget=sgoif.Budget(plan=PLAN))
    batch = padded_batch(family, "right", count=4, seed=3)
    for ids in ([1, 2, 3, 4], [101, 102, 103, 104]):
        with monitor.step(ids, batch["labels"]):
            model(**batch).loss.backward()
        model.zero_grad()
    return monitor, batch


@pytest.fixture(scope="module")
def gpt2():
    """A model with LoRA, its monitor, and the sequences that it was trained on."""
    model = build("gpt2", lora=True)
    monitor, batch = watched(model, "gpt2")
    return model, monitor, batch


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "block"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bert"])
def test_shares_of_tokens_are_those_of_autograd_and_add_up(family, lora, monkeypatch):
    model = in_double(build(family, lora=lora), monkeypatch)
    monitor, batch = watched(model, family)
    layers = monitor.engine.layers
    harm = dict(zip(monitor.recorder.groups, monitor.recorder._waiting[-1].packed[:, 2:].T))
    run = monitor.close()  # it can be asked afterwards, too
    targets = next_tokens(batch["labels"], is_causal=is_causal(model))
    parameters = {name: p for layer in layers for name, p in layer.parameters.items()}
    for group in ("a", "b"):
        direction = {
            n: t for layer in layers for n, t in layer.tensors(monitor.engine.direction(group)[layer.name]).items()
        }
        for place, item in enumerate(rows_of(batch)):
            found = monitor.explain_tokens(item, group)
            losses = token_losses(model(**batch).logits, targets)[place]
            wanted = (targets[place] != -100).nonzero()[:, 0]
            for row, at in enumerate(wanted.tolist()):
                slopes = torch.autograd.grad(losses[at], list(parameters.values()), retain_graph=True)
                expected = -sum(float((direction[n] * s).sum()) for n, s in zip(parameters, slopes))
                assert found["harm"][row] == pytest.approx(expected, rel=1e-10, abs=1e-10)
                assert found["loss"][row] == pytest.approx(float(losses[at]), rel=1e-10)
            assert abs(found["harm"].sum() - float(harm[group][place])) < 1e-10
            labels = batch["labels"][place]
            assert found["token"].tolist() == labels[found["position"]].tolist()
    whole = monitor.explain_tokens(rows_of(batch)[0])["harm"].sum()
    assert whole == pytest.approx(dict(zip(run.table["id"].tolist(), run.table["harm"]))[101], rel=1e-10)


def test_the_model_is_left_as_found_and_shares_do_not_depend_on_its_mode():
    model = build("gpt2", lora=True, resid_pdrop=0.3)
    monitor, batch = watched(model, "gpt2")
    item = rows_of(batch)[1]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    owned, rng = dict(model.named_parameters()), torch.get_rng_state()
    found = monitor.explain_tokens(item, "a")
    assert all(value is owned[name] and value.grad is None for name, value in model.named_parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training and torch.equal(rng, torch.get_rng_state())
    assert not any(module._forward_hooks for module in model.modules())
    model.eval()
    assert np.array_equal(found["harm"], monitor.explain_tokens(item, "a")["harm"])
    whole = {name: value[None] for name, value in item.items()} | {"id": ["x"]}
    lists = {name: value[item["attention_mask"] > 0].tolist() for name, value in item.items()}  # without padding
    for other in (whole, lists):
        assert np.allclose(found["harm"], monitor.explain_tokens(other, "a")["harm"], rtol=1e-4, atol=1e-6)


def test_checkpointed_and_narrow_models_are_explained_too():
    model = build("llama", lora=True)
    monitor, batch = watched(model, "llama")
    item = rows_of(batch)[0]
    expected = monitor.explain_tokens(item, "a")["harm"]
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert np.array_equal(monitor.explain_tokens(item, "a")["harm"], expected)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = monitor.explain_tokens(item, "a")["harm"]
    assert np.corrcoef(narrow, expected)[0, 1] > 0.99


def test_what_cannot_be_explained_is_said(gpt2, monkeypatch):
    model, monitor, batch = gpt2
    item = rows_of(batch)[0]
    with pytest.raises(SgoifError, match="not been looked at yet"):
        sgoif.watch(model, anchors={"a": [item]}, train_size=8, task="sequences").explain_tokens(item)
    with pytest.raises(SgoifError, match="no group 'c'; there are a, b"):
        monitor.explain_tokens(item, "c")
    with pytest.raises(SgoifError, match="input_ids and labels"):
        monitor.explain_tokens({"input_ids": [1, 2]})
    with pytest.raises(SgoifError, match=r"one sequence, with labels \[T\] or \[1, T\].*\(4, 9\)"):
        monitor.explain_tokens(batch)
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    off = sgoif.watch(model, anchors={"a": [item]}, train_size=8, task="sequences")
    assert off.explain_tokens(item)["harm"].size == 0


class _Opaque(torch.autograd.Function):
    """An operation with a backward pass alone, as fused kernels have it."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_an_operation_without_forward_mode_is_named(gpt2, monkeypatch):
    model, monitor, batch = gpt2
    block = model.get_base_model().transformer.h[1].mlp
    inner = block.forward
    monkeypatch.setattr(block, "forward", lambda states: _Opaque.apply(inner(states)))
    with pytest.raises(SgoifError, match="no forward-mode derivative"):
        monitor.explain_tokens(rows_of(batch)[0])


class Tokenizer:
    """Words with a blank before each but the first, which is lost where one is decoded alone."""

    def decode(self, tokens):
        return " ".join(f"w{token}" for token in tokens)


def test_harms_of_tokens_are_written_for_the_page(gpt2, tmp_path):
    _, monitor, batch = gpt2
    items, path = rows_of(batch), tmp_path / "tokens.jsonl"
    chosen = [(np.int64(1), items[0]), (2, items[1])]
    assert write_token_harms(monitor, chosen, path, tokenizer=Tokenizer(), groups={1: "b"}) == 2
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert (first["id"], first["group"], second["id"], second["group"]) == (1, "b", 2, None)
    for row, item, group in ((first, items[0], "b"), (second, items[1], None)):
        found = monitor.explain_tokens(item, group)
        assert [token["harm"] for token in row["tokens"]] == found["harm"].tolist()
        assert "".join(token["text"] for token in row["tokens"]) == Tokenizer().decode(found["token"].tolist())
    read = read_token_harms(path, {"2"})
    assert list(read) == ["2"] and read["2"][0].group == "" and len(read["2"][0].tokens) == len(second["tokens"])
