"""Products of per-sequence gradients with directions are those of autograd, for padded and packed batches."""

import pytest
import torch
import torch.nn.functional as F

from sgoif.errors import CaptureError, CoverageError
from sgoif.gradients import Capture, ExactSpace, combine_gradients, dot_directions, gradient_norms2
from sgoif.gradients.adapters import find_sequence_layers
from sgoif.gradients.segments import Segments
from sgoif.tasks.sequences import count_tokens, next_tokens, sequence_losses, token_losses
from tests.language_models import build, in_double, packed_batch, padded_batch

K = 3
WINDOW = 37  # tokens of all micro-batches that the optimiser steps by


def reference(model, batch, layers, directions):
    """Sums of token losses of each sequence by a plain loop, and ⟨φ_k, ∇ℓ_i⟩ by autograd, layer by layer."""
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    is_t5 = model.config.is_encoder_decoder
    if is_t5:
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    logits = model(**inputs).logits
    labels = batch["labels"]
    starts = batch["position_ids"].eq(0) if "position_ids" in batch else None
    losses = []
    for row in range(len(labels)):
        scores, wanted = (logits[row], labels[row]) if is_t5 else (logits[row, :-1], labels[row, 1:])
        each = F.cross_entropy(scores, wanted, ignore_index=-100, reduction="none")
        if starts is None:
            losses.append(each.sum())
        else:
            owner = starts[row].long().cumsum(0)[: len(each)]
            losses += [each[owner == number].sum() for number in range(1, int(starts[row].sum()) + 1)]
    rows = []
    for loss in losses:
        found = torch.zeros(K, dtype=torch.float64)
        for layer in layers:
            names = list(layer.parameters)
            gradients = torch.autograd.grad(loss, [layer.parameters[n] for n in names], retain_graph=True)
            block = layer.block(dict(zip(names, gradients)))
            found += (directions[layer.name] * block).flatten(1).sum(1)
        rows.append(found)
    return torch.stack(losses).detach(), torch.stack(rows)


def scored(family, lora, monkeypatch):
    model = in_double(build(family, lora=lora), monkeypatch)
    layers = find_sequence_layers(model, None if lora else _linears(model))
    generator = torch.Generator().manual_seed(5)
    directions = {
        layer.name: torch.randn(K, *layer.shape.dims, generator=generator, dtype=torch.float64) for layer in layers
    }
    return model, layers, directions


def _linears(model):
    """All linear layers but the output, whose weight is the embedding's in two of the three families."""
    kinds = ("Linear", "Conv1D")
    return [name for name, part in model.named_modules() if type(part).__name__ in kinds and name != "lm_head"]


def products(model, batch, layers, directions, segments=None):
    """By one backward pass of the loss as the Trainer has it: the sum over tokens by the window's number of them."""
    capture = Capture(layers)
    capture.scale, capture.num_examples = float(WINDOW), len(batch["input_ids"])
    with capture:
        if model.config.is_encoder_decoder:  # its own loss is a mean whatever the window
            (_summed(model(**batch).logits, batch["labels"], model) / WINDOW).backward()
        else:
            model(**batch, num_items_in_batch=WINDOW).loss.backward()
    calls = capture.calls if segments is None else segments.split_all(capture.calls)
    spaces = {layer.name: ExactSpace(layer) for layer in layers}
    return calls, spaces, dot_directions(calls, spaces, directions)


def _summed(logits, labels, model):
    shift = 0 if model.config.is_encoder_decoder else 1
    scores, wanted = logits[:, : logits.shape[1] - shift], labels[:, shift:]
    return F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=-100, reduction="sum")


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "linears"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
def test_products_are_those_of_autograd(family, side, lora, monkeypatch):
    model, layers, directions = scored(family, lora, monkeypatch)
    batch = padded_batch(family, side)
    losses, expected = reference(model, batch, layers, directions)
    *_, found = products(model, batch, layers, directions)
    assert (found - expected).abs().max() < 1e-10
    assert expected.abs().max() > 1e-3
    targets = next_tokens(batch["labels"], is_causal=family != "t5")
    ours = sequence_losses(token_losses(model(**batch).logits, targets))
    assert (ours - losses).abs().max() < 1e-10


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "linears"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_packed_sequences_have_the_products_they_have_alone(family, lora, monkeypatch):
    model, layers, directions = scored(family, lora, monkeypatch)
    batch = packed_batch()
    segments = Segments.from_positions(batch["position_ids"])
    losses, expected = reference(model, batch, layers, directions)
    calls, spaces, found = products(model, batch, layers, directions, segments)
    assert (found - expected).abs().max() < 1e-10
    norms = gradient_norms2(calls, spaces)
    summed = combine_gradients(calls, spaces, torch.ones(len(segments), 1, dtype=torch.float64))
    for number, part in enumerate(batch["input_ids"][0].split([5, 3, 4])):
        alone = {"input_ids": part[None], "labels": part[None]}
        single, _, lonely = products(model, alone, layers, directions)
        assert (lonely[0] - found[number]).abs().max() < 1e-10
        assert torch.allclose(gradient_norms2(single, spaces)[0], norms[number], rtol=1e-10)
    for layer in layers:  # what is combined is the gradient of the whole row
        names = list(layer.parameters)
        loss = _summed(model(**batch).logits, batch["labels"], model)
        whole = torch.autograd.grad(loss, [layer.parameters[n] for n in names])
        assert torch.allclose(summed[layer.name][0], layer.block(dict(zip(names, whole))), rtol=1e-9, atol=1e-12)
    targets = next_tokens(batch["labels"], is_causal=True)
    ours = sequence_losses(token_losses(model(**batch).logits, targets), segments)
    assert (ours - losses).abs().max() < 1e-10
    assert count_tokens(targets, segments).tolist() == [4, 2, 3]


def test_cumulative_lengths_say_the_same_as_positions():
    by_positions = Segments.from_positions(packed_batch()["position_ids"])
    by_lengths = Segments.from_lengths(torch.tensor([0, 5, 8, 12]))
    assert torch.equal(by_positions.owner, by_lengths.owner) and torch.equal(by_positions.places, by_lengths.places)
    with pytest.raises(CaptureError, match="cumulative lengths"):
        Segments.from_lengths(torch.tensor([0, 5, 5]))


def test_layers_are_the_adapter_or_the_last_block():
    adapter = find_sequence_layers(build("gpt2", lora=True))
    assert {layer.module_name.split(".")[-2] for layer in adapter} == {"lora_A", "lora_B"}
    assert len(adapter) == 2 * 2 * 3  # A and B, in two blocks, at c_attn and two c_proj
    block = find_sequence_layers(build("t5", lora=False))
    assert {layer.module_name.rsplit(".layer.", 1)[0] for layer in block} == {"decoder.block.1"}


def test_tied_embeddings_are_refused_by_name():
    model = build("gpt2", lora=False)
    with pytest.raises(CoverageError, match=r"transformer\.wte\.weight = lm_head\.weight"):
        find_sequence_layers(model, ["lm_head"])
    frozen = build("gpt2", lora=False).requires_grad_(False)
    with pytest.raises(CoverageError, match="neither trained LoRA"):
        find_sequence_layers(frozen)
