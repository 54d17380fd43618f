"""What processes exchange, as far as one process can tell; tests/distributed asks several."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale.ranks import Declared
from sgoif.curvature import Statistic, reduce_statistics
from sgoif.distributed import SingleProcess
from sgoif.training.exchange import gather_scores, reduce_curvature


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


class Beside(SingleProcess):
    """A process beside another one, of which it is known what it gives to each exchange."""

    size = 2

    def __init__(self, others=()):
        self.given, self.others = [], iter(others)

    def _exchange(self, values, join):
        self.given.append(values)
        return [join(mine, other) for mine, other in zip(values, next(self.others, values), strict=True)]

    def all_reduce_max(self, values):
        return self._exchange(values, max)

    def all_reduce_sum(self, tensors):
        return self._exchange(tensors, torch.add)

    def all_gather(self, tensors):
        return self._exchange(tensors, lambda mine, other: torch.cat([mine, other]))


def test_curvature_of_processes_counts_their_examples():
    def measured(count):
        mean = Statistic(torch.tensor([[1.0, 0.5], [0.5, 2.0]]) * count, count, "mean", is_symmetric=True)
        return {"mean": mean, "columns": Statistic(torch.full((2, count), float(count)), count, "concat")}

    other = Beside()
    reduce_curvature(other, measured(3))
    found = reduce_curvature(Beside(other.given), measured(1))
    expected = reduce_statistics([measured(1), measured(3)])
    torch.testing.assert_close(found["mean"].tensor, expected["mean"].tensor)
    assert float(found["mean"].count) == float(found["columns"].count) == 4
    columns = found["columns"].tensor  # those that are short are filled up with zeros
    torch.testing.assert_close(columns[:, columns.any(0)], expected["columns"].tensor)
