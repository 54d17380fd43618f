"""Watched trainings of encoder-decoders, masked models and checkpointed blocks: exact scores, weights to the bit."""

from contextlib import nullcontext

import pytest
import torch

import sgoif
from sgoif.tasks.sequences import is_causal, next_tokens, sequence_losses, token_losses
from tests.language_models import build, in_double, padded_batch

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]
PLAN = sgoif.Plan(refresh_every=2, examples_per_refresh=6, observe_every=1, early_steps=0)
COUNT = 8
DROPOUT = {"gpt2": "resid_pdrop", "llama": "attention_dropout", "t5": "dropout_rate", "bert": "hidden_dropout_prob"}
CHECKPOINTS = {"plain": None, "checkpoint": False, "reentrant": True}  # by name: use_reentrant
KINDS = pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bert"])
MODES = pytest.mark.parametrize("checkpoint", list(CHECKPOINTS))


def make(family, *, lora, checkpoint, **settings):
    model = build(family, lora=lora, **settings)
    if CHECKPOINTS[checkpoint] is not None:
        model.gradient_checkpointing_enable({"use_reentrant": CHECKPOINTS[checkpoint]})
        model.enable_input_require_grads()  # a reentrant checkpoint is passed over where no input needs a gradient
    return model


def call(model, batch):
    return model(**batch) if "bert" in str(type(model.config)) else model(**batch, use_cache=False)


def rows_of(batch, chosen):
    return {name: value[chosen] for name, value in batch.items()}


def watch(model, family, optimizer=None, **method):
    held = padded_batch(family, "right", count=3, seed=20)
    groups = {"math": [rows_of(held, i) for i in range(3)]}
    return sgoif.watch(
        model, optimizer, anchors=groups, train_size=COUNT, task="sequences", method=sgoif.Method(**method),
        budget=sgoif.Budget(plan=PLAN),
    )  # fmt: skip


def gradient(model, layers, batch, wanted=slice(None)):
    """Of the summed losses of some sequences, as one vector, by autograd alone; and the number of tokens."""
    targets = next_tokens(batch["labels"], is_causal=is_causal(model))
    losses = sequence_losses(token_losses(call(model, batch).logits, targets))
    parameters = [p for layer in layers for p in layer.parameters.values()]
    found = torch.autograd.grad(losses[wanted].sum(), parameters)
    return torch.cat([part.flatten() for part in found]), int((targets != -100).sum())


@MODES
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "block"])
@KINDS
def test_harm_is_the_product_of_gradients_by_autograd(family, lora, checkpoint, monkeypatch):
    model = in_double(make(family, lora=lora, checkpoint=checkpoint), monkeypatch)
    monitor = watch(model, family, curvature="identity")
    batch = padded_batch(family, "right", count=4, seed=3)
    for ids in ([1, 2, 3, 4], [101, 102, 103, 104]):  # the first step looks at the group; nothing moves
        with monitor.step(ids, batch["labels"]):
            call(model, batch).loss.backward()
        model.zero_grad()
    assert monitor._seen.is_checked and not monitor._seen.is_unproven
    run = monitor.close()
    assert run.info["faults"] == {}
    rows = {row["id"]: row for row in run.examples().to_pylist()}
    if CHECKPOINTS[checkpoint] is not None:  # autograd.grad is not allowed through a reentrant checkpoint
        model.gradient_checkpointing_disable()
    layers = monitor.engine.layers
    held, tokens = gradient(model, layers, padded_batch(family, "right", count=3, seed=20))
    for place in range(4):
        (own, _), found = gradient(model, layers, batch, slice(place, place + 1)), rows[101 + place]
        assert found["harm"] == pytest.approx(-float(held @ own) / tokens, rel=1e-9, abs=1e-12)
        assert found["cosine"] == pytest.approx(-float(held @ own / held.norm() / own.norm()), rel=1e-9, abs=1e-12)
        assert abs(found["harm"]) > 1e-6
        assert found["num_tokens"] == int((batch["labels"][place, int(is_causal(model)) :] != -100).sum())


def test_adam_divides_by_the_root_of_its_second_moments(monkeypatch):
    """A rate of 0 moves nothing, and the moments of one gradient again and again are its square."""
    model = in_double(build("gpt2", lora=True), monkeypatch)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0)
    monitor = watch(model, "gpt2", optimizer, curvature="adam", curvature_settings={"damping": 1e-3})
    batch = padded_batch("gpt2", "right", count=4, seed=3)
    for first in (1, 1, 1, 101):  # the third step looks at the group again, before its own step of the optimiser
        with monitor.step(range(first, first + 4), batch["labels"]):
            model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    harm = dict(monitor.close().sql("select id, harm from examples").to_pandas().to_numpy().tolist())
    layers = monitor.engine.layers
    (held, tokens), (whole, count) = (
        gradient(model, layers, rows) for rows in (padded_batch("gpt2", "right", count=3, seed=20), batch)
    )
    solved = held / tokens / ((whole / count).abs() + 1e-3)
    for place in range(4):
        own, _ = gradient(model, layers, batch, slice(place, place + 1))
        assert harm[101 + place] == pytest.approx(-float(solved @ own), rel=1e-6)


def train(family, checkpoint, *, is_watched, dropout=0.1):
    model = make(family, lora=True, checkpoint=checkpoint, **{DROPOUT[family]: dropout})
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    monitor = watch(model, family, optimizer, curvature="kfac") if is_watched else None
    batch, generator = padded_batch(family, "right", count=COUNT, seed=3), torch.Generator().manual_seed(0)
    torch.manual_seed(9)
    for _ in range(5):
        chosen = torch.randperm(COUNT, generator=generator)[:4]
        part = rows_of(batch, chosen)
        with nullcontext() if monitor is None else monitor.step(chosen, part["labels"]):
            call(model, part).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state(), monitor


@MODES
@KINDS
def test_weights_are_those_of_a_bare_training_to_the_bit(family, checkpoint):
    bare, bare_rng, _ = train(family, checkpoint, is_watched=False)
    watched, watched_rng, monitor = train(family, checkpoint, is_watched=True)
    assert all(torch.equal(bare[name], watched[name]) for name in bare) and torch.equal(bare_rng, watched_rng)
    assert monitor.faults == {} and monitor.refreshes == 3
    assert monitor.close().info["counters"]["visits"] == 20


@KINDS
def test_scores_do_not_depend_on_checkpointing(family):
    """Whether a first token counts for K-FAC once depended on rounding errors in its query's gradient."""
    plain, checkpointed = (
        train(family, kind, is_watched=True, dropout=0.0)[2].close() for kind in ("plain", "checkpoint")
    )
    assert torch.allclose(
        torch.tensor(plain.table["harm"]),
        torch.tensor(checkpointed.table["harm"]),
        rtol=1e-3,
        atol=1e-4,
        equal_nan=True,
    )
