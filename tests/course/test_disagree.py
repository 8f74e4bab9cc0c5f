"""Ranks that disagree: the lab's exercise, and what the page says of shards."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from minidist import launch
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("disagree")


def shards_that_differ() -> tuple[bool, bool]:
    """Under hybrid sharding: whether shards differ among replicas, and among all ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    fully_shard(net, mesh=mesh)
    bits = [each.to_local().detach().view(torch.int32).sum() for each in net.parameters()]  # type: ignore[attr-defined]
    differ = []
    for group in (mesh["replicate"].get_group(), None):
        low, high = torch.stack(bits), torch.stack(bits)
        dist.all_reduce(low, dist.ReduceOp.MIN, group)
        dist.all_reduce(high, dist.ReduceOp.MAX, group)
        differ.append(not low.equal(high))
    return differ[0], differ[1]


def test_under_sharding_a_fingerprint_compares_replicas_alone() -> None:
    assert launch(shards_that_differ, 4, device="cpu") == [(False, True)] * 4
