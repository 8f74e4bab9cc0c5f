"""On a GPU the messages of a step go as one group; shown on the CPU, with fakes for NCCL's part."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import minidist
from benchmarks.checks import collectives as correct
from minidist.collectives.runtime import executor
from minidist.schedule import program


def test_on_a_gpu_every_message_of_a_post_goes_into_one_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL runs what is grouped at once; one at a time, a send waits for ever for its receive."""
    batches: list[list[Any]] = []
    monkeypatch.setattr(dist, "P2POp", lambda *args, **options: SimpleNamespace(op=args, **options))
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda ops: batches.append(ops) or ["work"])
    to, back = torch.zeros(2), torch.ones(2)
    assert executor._grouped([(back, 3), (back, 1)], [(to, 1)], None) == ["work"]
    assert executor._grouped([], [], None) == [], "nothing to send is no group"
    (ops,) = batches
    calls = [(each.op[0], each.group_peer) for each in ops]
    assert calls == [(dist.irecv, 3), (dist.irecv, 1), (dist.isend, 1)]


def as_on_nccl() -> tuple[int, dict[str, tuple[int, list[str]]]]:
    """Run all collectives by the GPU's path, as NCCL does: a group begins when the last has ended.

    How many groups there were, and what `check` says.
    """
    groups = 0
    grouped = executor._grouped

    def one_after_another(*args: Any) -> list[dist.Work]:
        nonlocal groups
        groups += 1
        for work in grouped(*args):
            work.wait()
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "_grouped", one_after_another)
        patch.setattr(executor._Flight, "on_gpu", property(lambda _: True, lambda *_: None), False)
        patch.setattr(program, "MAX_MESSAGE", 4096)  # bytes of a message
        variants = [correct.Variant(numel, torch.float32, False, False) for numel in (1, 5123)]
        patch.setattr(correct, "variants", lambda part_bytes: variants)
        calls = {name: call for name, call in correct.library().items() if "auto" not in name}
        found = correct.check(calls, part_bytes=0)
    return groups, found


def test_groups_of_messages_one_after_another_neither_deadlock_nor_mix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINIDIST_CHECK", "0")
    for groups, found in minidist.launch(as_on_nccl, 5, device="cpu", timeout=200):
        assert groups > len(found), "messages went by groups"
        assert {name: wrong for name, (_, wrong) in found.items() if wrong} == {}
