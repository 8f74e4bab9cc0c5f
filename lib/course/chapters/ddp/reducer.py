"""The life of PyTorch's reducer: what its buckets hold, step by step, as a hook on them sees it."""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import minidist
from course.training import models
from minidist.formulas.memory import MIB

HEAD = ["DDP with", "step 1, MiB", "step 2, MiB", "step 3, MiB"]

Left = tuple[int, int]  # of a bucket that leaves: its MiB, and how many gradients are ready


def buckets_of_steps(options: dict[str, Any]) -> list[list[Left]]:
    """On this rank: the buckets that leave in each of three steps, with these options of DDP.

    The network has nine layers of 4 MiB, and 18 gradients.
    """
    net, ready, steps = models.mlp([1024] * 10), list[nn.Parameter](), list[list[Left]]()
    if options.get("find_unused_parameters"):
        net.unused = nn.Parameter(torch.zeros(1))
    model = DistributedDataParallel(net, **options)
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(ready.append)  # type: ignore[no-untyped-call]

    def leaves(_: object, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        steps[-1].append((round(bucket.buffer().nbytes / MIB), len(ready)))
        return allreduce_hook(cast(dist.ProcessGroup, dist.group.WORLD), bucket)

    model.register_comm_hook(None, leaves)
    for _ in range(3):
        ready.clear()
        steps.append([])
        model(torch.randn(1, 1024)).sum().backward()
    return steps


def life_of_buckets(*options: dict[str, Any]) -> list[list[str]]:
    """Rows under `HEAD`, three steps of two ranks under each of these, and one column more.

    That column says how many gradients are ready as the first bucket of each step leaves.
    """
    rows = []
    for each in options:
        steps, _ = minidist.launch(buckets_of_steps, 2, each, device="cpu")
        name = ", ".join(f"`{key}={value}`" for key, value in each.items())
        sizes = [" + ".join(str(mib) for mib, _ in step) for step in steps]
        first = ", ".join(str(step[0][1]) for step in steps)
        rows.append([name or "its defaults", *sizes, first])
    return rows
