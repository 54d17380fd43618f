"""What is exchanged is the same whatever the number of ranks; tests/training/test_exchange.py asks one process."""

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


def drawn(draws):
    peers = Group(range(dist.get_world_size()))
    found = [gather_draw(peers, seen(peers.share_of(positions)), positions, positions % 2) for positions in draws]
    return [(draw.outputs, draw.rows["head"].inputs, draw.rows["head"].output_grads) for draw in found]


def test_a_draw_is_that_of_one_process(worlds):
    # 1: more than two ranks for each, whose rows are summed and not gathered
    draws = [torch.arange(count) + 7 for count in (1, 2, 5)]
    for parts in worlds.run(4, drawn, draws):
        for positions, (outputs, inputs, output_grads) in zip(draws, parts, strict=True):
            whole = seen(positions)
            assert torch.equal(outputs, whole.outputs)
            assert torch.equal(inputs, whole.rows["head"].inputs)
            assert torch.equal(output_grads, whole.rows["head"].output_grads)


def counted(shape):
    return ranks.count_exchanges(shape, Timed(range(dist.get_world_size())))


def test_declared_ranks_count_what_real_ones_exchange(worlds):
    declared = ranks.count_exchanges(ranks.TINY, Declared(4))
    assert declared["bytes_per_step"] > 0
    assert worlds.run(4, counted, ranks.TINY) == [declared] * 4
