"""Everyone is timed on the same gradients, and who does not run is recorded with the reason."""

import pytest
import torch

from benchmarks import peers


def test_other_gradients_are_not_timed():
    right = {"weight": torch.ones(2, 3)}
    with pytest.raises(AssertionError, match="sgoif differs from vmap by"):
        peers.measure_differences({"vmap": lambda: right, "sgoif": lambda: {"weight": 1.001 * right["weight"]}})
    with pytest.raises(AssertionError, match=r"sgoif has other tensors: \['bias'\]"):
        peers.measure_differences({"vmap": lambda: right, "sgoif": lambda: {**right, "bias": torch.ones(2)}})
