"""Gradients at very many outputs by their largest entries: exact where these are all, close where they are few."""

import numpy as np
import pytest
import torch

from sgoif.influence.near_outputs import NEAR, NearOutputs
from sgoif.influence.scoring import near_classes


def softmax_gradients(batch, outputs, sharpness, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(batch, outputs, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, outputs, (batch,), generator=generator)
    gradients = logits.softmax(1)
    gradients[torch.arange(batch), labels] -= 1
    return logits, labels, gradients


def product(near, rows, inputs):
    at = torch.einsum("bni,bi->bn", near.pick(rows), inputs)
    return near.weigh(at, inputs @ rows.sum(0))


@pytest.mark.parametrize("count", [20, 50])
def test_with_all_outputs_products_are_exact(count):
    _, _, gradients = softmax_gradients(6, 20, 1.0)
    rows, inputs = torch.randn(20, 5, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    expected = torch.einsum("bc,ci,bi->b", gradients, rows, inputs)
    torch.testing.assert_close(product(NearOutputs.of(gradients, count), rows, inputs), expected)


def test_outputs_that_are_even_need_not_be_kept():
    gradients = torch.full((3, 40), 0.2, dtype=torch.float64)
    gradients[:, 7] = -5.0
    rows, inputs = torch.randn(40, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    expected = torch.einsum("bc,ci,bi->b", gradients, rows, inputs)
    torch.testing.assert_close(product(NearOutputs.of(gradients, 1), rows, inputs), expected)


@pytest.mark.parametrize("sharpness", [0.1, 2.0, 4.0])
def test_few_outputs_of_a_softmax_say_nearly_all(sharpness):
    """Flat, sharp, and between them, where the rest is neither even nor small."""
    _, _, gradients = softmax_gradients(200, 3000, sharpness)
    rows, inputs = torch.randn(3000, 5, dtype=torch.float64), torch.randn(200, 5, dtype=torch.float64)
    expected = torch.einsum("bc,ci,bi->b", gradients, rows, inputs)
    found = product(NearOutputs.of(gradients), rows, inputs)
    assert np.corrcoef(found, expected)[0, 1] > 0.97
    assert NearOutputs.of(gradients).columns.shape == (200, NEAR)


def test_the_most_probable_classes_are_among_them():
    logits, labels, gradients = softmax_gradients(50, 3000, 3.0)
    assert torch.equal(NearOutputs.of(gradients).most_probable(logits, labels), near_classes(logits, labels))
