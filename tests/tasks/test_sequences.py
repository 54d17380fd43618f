"""Losses of tokens, whatever share of the positions has a target."""

import pytest
import torch
import torch.nn.functional as F

from sgoif.tasks import sequences
from sgoif.tasks.sequences import IGNORED, token_losses


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.8, 1.0])
def test_losses_and_gradients_are_those_of_all_positions_at_once(share, dtype, monkeypatch):
    monkeypatch.setattr(sequences, "_AT_ONCE", 100)  # two rows
    torch.manual_seed(0)
    logits = torch.randn(5, 7, 50, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, 50, (5, 7)).masked_fill(torch.arange(35).view(5, 7) >= 35 * share, IGNORED)
    found = token_losses(logits, targets)
    wide = logits if dtype == torch.float64 else logits.float()
    expected = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="none").view(5, 7)
    assert found.dtype == expected.dtype and torch.equal(found, expected)
    slopes = [torch.autograd.grad(losses.sum(), logits)[0] for losses in (found, expected)]
    assert torch.equal(*slopes)


def test_no_sequences_have_no_losses():
    assert token_losses(torch.zeros(0, 7, 5), torch.zeros(0, 7, dtype=torch.long)).shape == (0, 7)
