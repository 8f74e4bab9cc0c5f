"""What the chapter on collectives says of them beyond its own cells: on real ranks."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist.collectives.runtime.executor import execute, program
from minidist.schedule import algorithms
from minidist.schedule.schedule import Collective, Schedule, Step
from minidist.schedule.simulate import replay


def backwards(schedule: Schedule, kind: Collective, reduce: bool) -> Schedule:
    steps = [Step.of(s.dst, s.src, s.chunk, reduce, s.width) for s in schedule][::-1]
    size = schedule.ranks, schedule.chunks
    return Schedule("mirror", kind, *size, lambda: steps, schedule.root).check()


MIRRORS: dict[Callable[[int], Schedule], tuple[Collective, bool]] = {
    algorithms.direct_scatter: ("gather", False),
    algorithms.tree_scatter: ("gather", False),
    algorithms.direct_gather: ("scatter", False),
    algorithms.tree_gather: ("scatter", False),
    algorithms.naive_broadcast: ("reduce", True),
    algorithms.tree_broadcast: ("reduce", True),
    algorithms.chain_broadcast: ("reduce", True),
    algorithms.ring_all_gather: ("reduce_scatter", True),
}


@pytest.mark.parametrize("forwards", MIRRORS, ids=lambda make: make.__name__)
def test_read_backwards_it_is_the_dual_on_real_ranks(forwards: Callable[[int], Schedule]) -> None:
    """Every chunk starts as 10^rank where the rank brings something, and as 0 elsewhere."""
    kind, reduce = MIRRORS[forwards]

    def run() -> list[int]:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        mirror = backwards(forwards(ranks), kind, reduce)
        brings = replay(mirror).start[rank]
        held = torch.tensor([10**rank if who else 0 for who in brings])
        execute(program(mirror, rank), held, torch.Tensor.add_)
        return held.tolist()

    for ranks in (1, 3, 4):
        goal = replay(backwards(forwards(ranks), kind, reduce)).goal
        for held, row in zip(minidist.launch(run, ranks, device="cpu"), goal, strict=True):
            for found, who in zip(held, row, strict=True):
                assert who is None or found == sum(10**rank for rank in who)


def test_a_mirror_counts_twice_what_comes_back_home() -> None:
    """doubling_all_gather(6) sends two ranks their own chunk: harmless forwards, not backwards."""
    mirror = replay(backwards(algorithms.doubling_all_gather(6), "reduce_scatter", True))
    sums = [mirror.state()[rank][rank] for rank in range(6)]
    assert [rank for rank in range(6) if sums[rank].count(rank) == 2] == [0, 2]
    assert mirror.right() == 4
