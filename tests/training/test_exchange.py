"""What processes exchange, as far as one process can tell; tests/distributed asks several."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale.ranks import Declared
from sgoif.distributed import SingleProcess
from sgoif.training.exchange import gather_scores


def member(rank, size):
    peers = SingleProcess()
    peers.rank, peers.size = rank, size
    return peers


@given(st.integers(1, 40), st.integers(1, 50))
def test_shares_are_of_one_size_and_together_the_whole_in_its_order(count, size):
    positions = torch.arange(count) * 3
    shares = [member(rank, size).share_of(positions) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    assert torch.equal(torch.cat(shares)[:count], positions)


def test_many_scores_are_sampled_and_visits_counted_in_full():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=10_000)
    (found,) = gather_scores(SingleProcess(), [(10_000, {"harm": scores})], ["harm"])
    kept = found.scores["harm"][np.isfinite(found.scores["harm"])]
    assert found.num_visits == 10_000 and 3000 < len(kept) <= 4096
    assert np.median(kept) == pytest.approx(np.median(scores), abs=0.1)  # five standard errors


@pytest.mark.parametrize("size", [3, 600, 2000])
def test_all_processes_together_send_few_scores(size):
    peers = Declared(size)
    (found,) = gather_scores(peers, [(64, {"harm": np.arange(64.0)})], ["harm"])
    assert found.num_visits == 64 * size
    assert np.isfinite(found.scores["harm"]).sum() <= 4096
