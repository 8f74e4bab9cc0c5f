"""`explain`, and algorithm="auto", which does what it says."""

import sys

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import explain, launch
from minidist.collectives.shared_memory import segments as shared_segments
from minidist.collectives.tuner import TABLES
from minidist.schedule.algorithms import segments
from minidist.schedule.cost import Link, nodes, seconds, shared, switch
from tests.support.collectives import all_reduced, data, same

FAST = Link(1e-6, 1e-11)
SLOW = Link(1e-5, 1e-9)
TOPOLOGIES = [switch(SLOW), shared(FAST), nodes(4, FAST, SLOW)]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="shared memory needs Linux")


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)
@pytest.mark.parametrize("ranks", [2, 8, 13])
@pytest.mark.parametrize("nbytes", [0, 4096, 1 << 26])
def test_every_schedule_is_priced_as_the_model_says(
    nbytes: int, ranks: int, topology: object
) -> None:
    for collective, table in TABLES.items():
        found = explain(nbytes, collective=collective, ranks=ranks, topology=topology)
        assert set(found.seconds) == set(table) - {"hierarchical"}
        for name, predicted in found.seconds.items():
            more = {"segments": segments(nbytes)} if name == "double_tree" else {}
            assert predicted == seconds(table[name](ranks, **more), nbytes, topology)
        assert found.seconds[found.choice] == min(found.seconds.values())


def test_latency_or_bandwidth_decides() -> None:
    assert explain(64, ranks=64, topology=switch(SLOW)).choice == "recursive_doubling"
    assert explain(1 << 30, ranks=64, topology=switch(SLOW)).choice in ("halving_doubling", "ring")


def test_the_table_says_what_was_asked_and_what_is_chosen() -> None:
    lines = repr(explain(1 << 20, ranks=8, topology=switch(SLOW))).splitlines()
    assert lines[0].startswith("all_reduce of 1,048,576 bytes between 8 ranks: ")
    assert lines[1].split()[0] == lines[0].split()[-1], "the fastest first"
    assert lines[-1] == "(the model: switch)"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nbytes": -1}, "nbytes must be 0 or more, got -1"),
        (
            {"collective": "all_to_none"},
            "collective must be one of all_reduce, .*got 'all_to_none'",
        ),
        ({"ranks": 4}, "ranks and topology go together"),
        ({"topology": switch(SLOW)}, "ranks and topology go together"),
    ],
)
def test_bad_input(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        explain(**({"nbytes": 1} | wrong))


def every_auto() -> tuple[list[str], list[str]]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong, chosen = [], []
    for size in (0, 1, 7, 1001, 300_000):
        for async_op in (False, True):
            mine = data(rank, (size, 2), torch.int64).t()
            work = minidist.all_reduce(mine, async_op=async_op, algorithm="auto")
            if work:
                work.wait()
            if not same(mine, all_reduced(ranks, (size, 2), torch.int64).t()):
                wrong.append(f"all_reduce of {size}")
        whole = data(rank, size * ranks, torch.bfloat16)
        want = all_reduced(ranks, size * ranks, torch.bfloat16).view(ranks, size)
        part = torch.empty(size, dtype=torch.bfloat16)
        minidist.reduce_scatter_tensor(part, whole, algorithm="auto")
        if not same(part, want[rank]):
            wrong.append(f"reduce_scatter of {size}")
        minidist.all_gather_into_tensor(whole, part, algorithm="auto")
        if not same(whole, want.reshape(-1)):
            wrong.append(f"all_gather of {size}")
    if ranks > 1:
        for collective in TABLES:
            found = explain(1 << 16, collective=collective)
            chosen += [found.choice, *found.seconds]
    return wrong, chosen


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_auto_is_right_and_alike_on_all_ranks(ranks: int) -> None:
    results = launch(every_auto, ranks)
    assert [wrong for wrong, _ in results] == [[]] * ranks
    assert len({tuple(chosen) for _, chosen in results}) == 1
    if ranks > 1 and sys.platform == "linux":
        assert results[0][1].count("shared_memory") >= len(TABLES)


def no_shared_memory() -> tuple[list[str], list[str]]:
    if dist.get_rank() == 1:
        shared_segments._FUTEX = 0  # as on a system that has none
    return every_auto()


@on_linux
def test_auto_without_shared_memory_takes_a_schedule() -> None:
    results = launch(no_shared_memory, 3)
    assert [wrong for wrong, _ in results] == [[]] * 3
    assert "shared_memory" not in results[0][1]


def in_rows() -> list[float]:
    rank = dist.get_rank()
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = torch.tensor([float(10**rank)])
    minidist.all_reduce(mine, group=rows[rank // 2], algorithm="auto")
    return mine.tolist()


def test_auto_in_a_subgroup() -> None:
    assert launch(in_rows, 4) == [[11.0], [11.0], [1100.0], [1100.0]]


def alone() -> None:
    with pytest.raises(ValueError, match="nobody"):
        explain(8)


def test_one_rank_has_nothing_to_choose() -> None:
    launch(alone, 1)


def on_meta() -> str:
    with pytest.raises(ValueError, match="device") as caught:
        explain(10, device=torch.device("meta"))
    return str(caught.value)


def test_a_device_that_the_group_cannot_send_from_is_refused() -> None:
    for said in launch(on_meta, 2):
        assert said.startswith("device: the group moves tensors on cpu")
        assert said.endswith("got meta")


def recorded() -> int:
    with minidist.record() as sent:
        minidist.all_reduce(torch.ones(1 << 16), algorithm="shared_memory")
        explain(8)
    return len(sent)


@on_linux
def test_shared_memory_sends_no_message_and_measuring_is_not_recorded() -> None:
    assert launch(recorded, 3) == [0, 0, 0]
