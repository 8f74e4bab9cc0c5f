"""Survivors of a dead rank go on without a checkpoint, each from what it has in its own memory.

Under data parallelism every rank holds all weights and all of the optimizer's state. So a death
takes nothing away but the process group and the step in flight: the survivors make a new group
and do that step again. Elastic Horovod and torchft do this for real jobs, with many more cases.
"""

# mypy: disable-error-code=no-untyped-call

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # exported by torch.distributed, but not typed
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from course.training.rounds import ended, on_worker
from minidist.launch import pickling
from minidist.launch.cleanup import Interrupts, job
from minidist.launch.outcome import Returned

STEPS, DIES_AT, RANKS = 6, 3, 3
TIMEOUT = timedelta(seconds=300)  # of a call in a group
GRACE = timedelta(seconds=5)  # in which a survivor comes to the new group


def train(rank: int, store: Store) -> dict[str, Any]:
    """Train on what is left; the last rank kills itself before step `DIES_AT`."""
    net, optimizer = begin()
    members, groups, step = list(range(RANKS)), list[int](), 0
    while step < STEPS:
        own = PrefixStore(f"group {len(groups)}", store)
        place: dict[str, Any] = {"rank": members.index(rank), "world_size": len(members)}
        dist.init_process_group("gloo", store=own, timeout=TIMEOUT, **place)
        groups.append(len(members))
        model = DistributedDataParallel(net)
        try:
            while step < STEPS:
                if rank == RANKS - 1 and step == DIES_AT:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                loss_of(model, step, members.index(rank), len(members)).backward()
                optimizer.step()
                step += 1
        except RuntimeError:  # a peer is gone: its part of this step never came
            del model  # it holds the group: only without it are the connections closed
            dist.destroy_process_group()
            members = who_is_left(rank, members, own, step)
    weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    return {"groups": groups, "steps": step, "weights": weights.tolist()}


def begin() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The same network and optimizer on each rank."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    return net, torch.optim.Adam(net.parameters(), lr=0.1)


def loss_of(model: torch.nn.Module, step: int, part: int, parts: int) -> torch.Tensor:
    """The loss of one part of a step's twelve samples, which depend on the step's number alone."""
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(12, 4, generator=generator), torch.randn(12, 2, generator=generator)
    return functional.mse_loss(model(x.tensor_split(parts)[part]), y.tensor_split(parts)[part])


def who_is_left(rank: int, members: list[int], store: Store, step: int) -> list[int]:
    """Members that leave a mark in time; whoever has counted first decides for all.

    Raises RuntimeError on a rank that came too late, and on all where some are a step ahead.
    """
    store.set(f"alive {rank}", str(step))
    steps = {}
    for member in members:
        with suppress(DistStoreError):  # it does not come: it is dead
            store.wait([f"alive {member}"], GRACE)
            steps[member] = int(store.get(f"alive {member}"))
    steps = json.loads(store.compare_set("left", "", json.dumps(list(steps.items()))))
    left = [member for member, _ in steps]
    if rank not in left:
        raise RuntimeError(f"rank {rank}: too late, {left} have gone on")
    if len({done for _, done in steps}) > 1:
        raise RuntimeError(f"rank {rank}: expected the survivors at one step, got {dict(steps)}")
    return left


def on_rank(rank: int, port: int) -> dict[str, Any]:
    """`train`, in a process of its own, with the store at this port."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the store warns at length of who is late
    return train(rank, TCPStore("127.0.0.1", port, is_master=False))


def run(on_rank: Callable[[int, int], dict[str, Any]] = on_rank) -> list[dict[str, Any]]:
    """The final state of each survivor."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with Interrupts() as interrupts, job(interrupts) as ours, interrupts.allowed():
        ranks = [ours.start(on_worker, on_rank, rank, store.port) for rank in range(RANKS)]
        ends = [ended(rank) for rank in ranks]
    return [pickling.loads(end.value) for end in ends if isinstance(end, Returned)]
