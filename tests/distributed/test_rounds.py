"""Exchanges in rounds: what every rank gets is what one process computes from all of it."""

import pytest
import torch
import torch.distributed as dist

from sgoif.distributed import Group


def numbers(rank, count):
    return torch.randn(count, generator=torch.Generator().manual_seed(100 * rank + count))


def asked(counts):
    """What a rank gets from exchanges of several sizes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = Group(range(size))
    found = []
    for count in counts:
        mine = numbers(rank, count)
        (total,), (rows,) = group.all_reduce_sum([mine]), group.all_gather([mine.view(-1, 1)])
        found.append((group.all_reduce_max(mine.tolist()), total, rows.flatten()))
        assert torch.equal(mine, numbers(rank, count))  # what was given stays as it was
    group.check_in_sync(5, 1)
    return found


@pytest.mark.parametrize("size", [2, 3, 4])  # 3: a rank beyond the power of two
def test_every_rank_has_the_largest_the_sum_and_all_rows(worlds, size):
    counts = [1, 2, 5, 1001]  # fewer than ranks, and no multiple of them
    parts = worlds.run(size, asked, counts)
    for index, count in enumerate(counts):
        everyone = torch.stack([numbers(rank, count) for rank in range(size)])
        for part in parts:
            largest, total, rows = part[index]
            assert largest == everyone.amax(0).double().tolist()
            torch.testing.assert_close(total, everyone.sum(0))
            assert torch.equal(total, parts[0][index][1])  # to the bit
            assert torch.equal(rows, everyone.flatten())


def asked_in_a_part():
    """What ranks 1 and 2 get from each other, while rank 0 is by itself."""
    rank = dist.get_rank()
    group = Group([0] if rank == 0 else [1, 2])
    (rows,) = group.all_gather([torch.tensor([[rank]])])
    return group.broadcast(f"of {rank}"), rows.flatten().tolist(), group.all_reduce_max([rank])


def test_a_group_of_some_ranks_is_led_by_its_own_first(worlds):
    assert worlds.run(3, asked_in_a_part) == [("of 0", [0], [0.0])] + 2 * [("of 1", [1, 2], [2.0])]
