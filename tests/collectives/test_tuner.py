"""`explain`, and algorithm="auto", which does what it says."""

import sys
from contextlib import suppress
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import explain, launch
from minidist.collectives import tuner
from minidist.collectives.runtime import group
from minidist.collectives.shared_memory import segments as shared_segments
from minidist.collectives.tuner import TABLES, Explanation, predicted
from minidist.schedule.algorithms import segments
from minidist.schedule.cost import Link, Topology, nodes, seconds, switch
from tests.support.collectives import all_reduced, data, same

FAST = Link(1e-6, 1e-11)
SLOW = Link(1e-5, 1e-9)


def test_every_schedule_is_priced_as_the_model_says() -> None:
    topologies: list[Topology] = [switch(SLOW), nodes(4, FAST, SLOW)]
    for topology, nbytes, collective in product(topologies, [0, 4096, 1 << 26], TABLES):
        table, found = TABLES[collective], predicted(collective, nbytes, 8, topology)
        prices = {}
        for name in set(table) - {"hierarchical"}:
            more = {"segments": segments(nbytes)} if name == "double_tree" else {}
            prices[name] = seconds(table[name](8, **more), nbytes, topology)
        assert found == prices, (topology.name, nbytes, collective)
        chosen = Explanation(collective, nbytes, 8, found, "").choice
        assert found[chosen] == min(found.values()), (topology.name, nbytes, collective)


def test_the_table_says_what_was_asked_and_what_is_chosen() -> None:
    found = predicted("all_reduce", 1 << 20, 8, switch(SLOW))
    lines = repr(Explanation("all_reduce", 1 << 20, 8, found, "the model")).splitlines()
    assert lines[0].startswith("all_reduce of 1,048,576 bytes between 8 ranks: ")
    assert lines[1].split()[0] == lines[0].split()[-1], "the fastest first"
    assert lines[-1] == "(the model)"


def test_bad_input() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"nbytes": -1}, "nbytes must be at least 0, got -1"),
        ({"nbytes": 1.5}, "nbytes: expected a whole number, got 1.5"),
        ({"nbytes": True}, "nbytes: expected a whole number, got True"),
        ({"collective": "all_to_none"}, "collective must be one of all_reduce, .*'all_to_none'"),
    ]
    for arguments, said in wrong:
        with pytest.raises((TypeError, ValueError), match=said):
            explain(**({"nbytes": 1} | arguments))


def test_a_noisy_run_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    took, other = iter([9.0] * tuner.WARM + [5.0, 2.0, 7.0] + [6.0] * tuner.TIMES), {"seconds": "1"}
    clock = [0.0]

    def run() -> None:
        clock[0] += next(took)

    monkeypatch.setattr(tuner.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(tuner, "exchange_notes", lambda note, group: [note, other])
    assert tuner._slowest(run, torch.device("cpu"), None) == 2


def test_on_a_gpu_the_own_stream_alone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[str]()
    own = SimpleNamespace(synchronize=lambda: waited.append("own stream"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: own)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: waited.append("all streams"))
    monkeypatch.setattr(tuner, "exchange_notes", lambda note, group: [note])
    tuner._slowest(int, torch.device("cuda:0"), None)
    assert waited == ["own stream"] * (tuner.WARM + tuner.TIMES)


def measured_on(device: str) -> tuple[set[str], str]:
    """Where `explain` measures, in a group whose GPUs NCCL connects; and what it refuses."""
    found = set[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "_calibrated", lambda group, where: found.add(str(where)) or explain)
        patch.setattr(tuner, "backends", lambda group: {"cpu": "gloo", "cuda": "nccl"})
        patch.setattr(group, "backends", lambda group: {"cpu": "gloo", "cuda": "nccl"})
        for asked in (None, "cpu", "cuda:1"):
            patch.setenv("MINIDIST_DEVICE", device)
            with suppress(TypeError):  # of the stand-in for what explains
                explain(8, device=asked)
        try:
            explain(8, device="mps")
        except ValueError as error:
            return found, str(error)
    return found, "nothing"


def test_a_gpu_s_choice_is_measured_on_the_gpu() -> None:
    refused = "device: expected cpu or cuda, as the group, got mps"
    assert launch(measured_on, 1, "cuda:0") == [({"cuda:0", "cpu", "cuda:1"}, refused)]
    assert launch(measured_on, 1, "cpu") == [({"cpu", "cuda:1"}, refused)]


def every_auto(shared: bool) -> tuple[list[str], list[object], int]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if not shared and rank == 1:
        shared_segments._FUTEX = 0  # as on a system that has none
    wrong, chosen, group = [], list[object](), dist.new_group()
    for size in (0, 1, 7, 1001, 300_000):
        for async_op in (False, True):
            mine = data(rank, (size, 2), torch.int64).t()
            work = minidist.all_reduce(mine, async_op=async_op, algorithm="auto")
            if work:
                work.wait()
            if not same(mine, all_reduced(ranks, (size, 2), torch.int64).t()):
                wrong.append(f"all_reduce of {size}")
    with minidist.record() as sent:  # measuring is not recorded, and shared memory sends nothing
        for collective in TABLES if ranks > 1 else ():
            found = explain(1 << 16, collective=collective, group=group)
            chosen += [found.choice, *found.seconds.items()]
        if ranks == 1:
            with pytest.raises(ValueError, match="one rank has nobody to send to"):
                explain(8)
        if shared:
            minidist.all_reduce(torch.ones(1 << 16), algorithm="shared_memory")
    return wrong, chosen, len(sent)


@pytest.mark.parametrize(("ranks", "shared"), [(1, True), (5, True), (3, False)])
def test_auto_is_right_and_alike_on_all_ranks(ranks: int, shared: bool) -> None:
    if shared and sys.platform != "linux":
        pytest.skip("shared memory needs Linux")
    results = launch(every_auto, ranks, shared)
    assert [wrong for wrong, _, _ in results] == [[]] * ranks
    assert len({tuple(chosen) for _, chosen, _ in results}) == 1
    assert [sent for *_, sent in results] == [0] * ranks
    if ranks > 1:
        assert ("shared_memory" in str(results[0][1])) == shared
