"""On a GPU the messages of a step go as one group: NCCL runs what is grouped at once.

One at a time, a send waits for ever for its receive. Shown on the CPU.
"""

import pytest
import torch
import torch.distributed as dist

import minidist
from benchmarks.checks import collectives as correct
from minidist.collectives.runtime import executor
from minidist.schedule import program


def as_on_nccl() -> tuple[int, dict[str, tuple[int, list[str]]]]:
    """Run all collectives by the GPU's path, as NCCL does: a group begins when the last has ended.

    How many groups there were, and what `check` says.
    """
    groups = 0
    batch = dist.batch_isend_irecv

    def one_after_another(ops: list[dist.P2POp]) -> list[dist.Work]:
        nonlocal groups
        groups += 1
        for work in batch(ops):
            work.wait()
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "batch_isend_irecv", one_after_another)
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
