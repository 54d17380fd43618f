"""What is exchanged is the same whatever the number of ranks; tests/training/test_exchange.py asks one process."""

import pytest
import torch
import torch.distributed as dist

from benchmarks.scale import ranks
from benchmarks.scale.ranks import Declared, Timed
from sgoif.distributed import Group
from sgoif.influence import AnchorDraw
from sgoif.records import GradientRows
from sgoif.training.exchange import gather_draw


def seen(positions):
    """What any rank sees of some hold-out examples."""
    features = positions[:, None] + torch.arange(3.0)
    rows = GradientRows("head", features[:, None, :, None], -features[:, None, :2, None])
    return AnchorDraw(positions, positions % 2, 10 * features[:, :2], {"head": rows})


def drawn(positions):
    peers = Group(range(dist.get_world_size()))
    found = gather_draw(peers, seen(peers.share_of(positions)), positions, positions % 2)
    return found.outputs, found.rows["head"].inputs, found.rows["head"].output_grads


@pytest.mark.parametrize("count", [1, 2, 5])  # 1: more than two ranks for each, whose rows are summed and not gathered
def test_a_draw_is_that_of_one_process(worlds, count):
    positions = torch.arange(count) + 7
    whole = seen(positions)
    for outputs, inputs, output_grads in worlds.run(4, drawn, positions):
        assert torch.equal(outputs, whole.outputs)
        assert torch.equal(inputs, whole.rows["head"].inputs)
        assert torch.equal(output_grads, whole.rows["head"].output_grads)


def counted(shape):
    return ranks.count_exchanges(shape, Timed(range(dist.get_world_size())))


@pytest.mark.parametrize("size", [2, 4])
def test_declared_ranks_count_what_real_ones_exchange(worlds, size):
    declared = ranks.count_exchanges(ranks.TINY, Declared(size))
    assert declared["bytes_per_step"] > 0
    assert worlds.run(size, counted, ranks.TINY) == [declared] * size
