"""What only GPUs can show, and most of it only two or more: right or wrong, beside torch's own.

On one GPU never a message goes over NCCL. So each check says how many it needs, and one that the
machine is too small for is recorded as skipped. Numbers are those of the review of the GPU code.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import minidist
from benchmarks.harness.record import Row, worst_of_ranks
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import MIB, Scope, Setup
from minidist.diagnose import record
from minidist.diagnose.records import read

HANG = 5.0  # seconds after which a ring that is still on its way hangs


class Check(NamedTuple):
    """`on_rank` tells whether it is right, and what it saw."""

    number: int
    name: str
    on_rank: Callable[[int], Row]  # given the bytes of a large message
    gpus: int = 2
    cpu_too: bool = False
    may_hang: bool = False  # which is what is to be seen


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each check.

    Raises:
        AssertionError: after them, if one is wrong on some rank.
    """
    on_cpu, largest = scope.device == "cpu", max(scope.message_bytes)
    found = max(setup.ranks for setup in scope.setups if not setup.shared)
    wrong = []
    for done, check in enumerate(CHECKS):
        row: Row = {"review": check.number, "check": check.name}
        if found < check.gpus or (on_cpu and not check.cpu_too):
            yield row | {"skipped": f"needs {check.gpus} GPUs, found {0 if on_cpu else found}"}
            continue
        left = clock.share(len(CHECKS) - done).left()
        seconds = min(left, HANG) if check.may_hang else left
        setup = Setup(found, scope.device)
        try:
            row |= worst_of_ranks(tuple(setup.launch(check.on_rank, largest, timeout=seconds)))
        except minidist.RankError as error:
            row |= {"right": check.may_hang, "error": str(error).splitlines()[0]}
        wrong += [] if row["right"] else [f"{check.number} {check.name}"]
        yield row
    assert not wrong, f"wrong: {', '.join(wrong)}"


# ---- on each rank ----


def sync_batch_norm(_: int) -> Row:
    """Its statistics and gradients under our DDP and torch's: its collectives are in our group."""
    device, found = minidist.device(), []
    for wrap in (minidist.DistributedDataParallel, nn.parallel.DistributedDataParallel):
        torch.manual_seed(0)
        layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.BatchNorm1d(64))]
        net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(*layers)).to(device)
        model = wrap(net, device_ids=[device])
        torch.manual_seed(dist.get_rank())
        for _ in range(3):
            model(torch.randn(32, 64, device=device)).square().mean().backward()
        found.append([*net.buffers(), *(p.grad for p in net.parameters() if p.grad is not None)])
    pairs = list(zip(*found, strict=True))
    return {"right": all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs)}


def barrier_is_queued(_: int) -> Row:
    """What the recorder says of a barrier that the GPU has yet to reach."""
    with TemporaryDirectory() as folder:
        with record(folder):
            dist.barrier()
            dist.all_reduce(torch.ones(1, device=minidist.device()))
        (mine,) = read(Path(folder))
    return {"right": [call.state for call in mine.calls] == ["queued", "queued"]}


def one_context(_: int) -> Row:
    """Each process is on one GPU, by nvidia-smi, also after calls that a thread might make."""
    tensor = torch.ones(MIB, device=minidist.device())
    work = minidist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    torch.cuda.synchronize()
    dist.barrier()
    tool = shutil.which("nvidia-smi") or "nvidia-smi"
    query = [tool, "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.splitlines()
    mine = sum(line.split(",")[0].strip() == str(os.getpid()) for line in listed)
    dist.barrier()
    return {"right": mine <= 1, "seen": mine > 0}  # in a container it may see no process


def groups_in_turn(nbytes: int) -> Row:
    """As HSDP: sums over half of the ranks, each followed by one over pairs, many on their way."""
    rank, ranks, device = dist.get_rank(), dist.get_world_size(), minidist.device()
    half = ranks // 2
    halves = [dist.new_group(range(start, start + half)) for start in (0, half)]
    pairs = [dist.new_group([r, r + half]) for r in range(half)]
    if rank >= 2 * half:
        return {"right": True}
    tensors = [torch.full((nbytes // 64,), float(rank + k), device=device) for k in range(8)]
    last = None
    for tensor in tensors:
        first = minidist.all_reduce(tensor, group=halves[rank // half], async_op=True, check=False)
        if last:
            minidist.all_reduce(last[0], group=pairs[rank % half], check=False)
        assert first is not None
        first.wait()
        last = (tensor,)
    minidist.all_reduce(tensors[-1], group=pairs[rank % half], check=False)
    wants = [sum(r + k for r in range(2 * half)) for k in range(8)]
    return {"right": all(bool((t == w).all()) for t, w in zip(tensors, wants, strict=True))}


def no_hidden_wait(_: int) -> Row:
    """A third step raises where the host waits for the GPU."""
    device, found = minidist.device(), {}
    os.environ["MINIDIST_CHECK"] = "0"
    for name in ("ddp", "zero", "fsdp"):
        net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).to(device)
        comm = minidist.Native()
        if name == "fsdp":
            minidist.fully_shard(net, comm=comm)
        ddp = partial(minidist.DistributedDataParallel, comm=comm, find_unused_parameters=True)
        model = ddp(net) if name == "ddp" else net
        sgd, weights = torch.optim.SGD, net.parameters()
        sharded = partial(minidist.ZeroOptimizer, optimizer_class=sgd, stage=2, comm=comm)
        optimizer = (sharded if name == "zero" else sgd)(weights, lr=0.1)
        inputs, error = torch.randn(8, 64, device=device), ""
        for number in range(3):
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if number == 2 else "default")
            try:
                model(inputs).square().mean().backward()
                minidist.clip_grad_norm_(model, 1.0)
                optimizer.step()
                optimizer.zero_grad()
            except RuntimeError as raised:
                error = str(raised).splitlines()[0]
            finally:
                torch.cuda.set_sync_debug_mode("default")
        found[name] = error or "never waits"
    return {"right": set(found.values()) == {"never waits"}, **found}


def segments(nbytes: int) -> Row:
    """How many messages a rank sends in a ring, and that it is right."""
    ranks, device = dist.get_world_size(), minidist.device()
    tensor = torch.ones(nbytes // 4, device=device)
    with minidist.record() as log:
        minidist.all_reduce(tensor, algorithm="ring", check=False)
    longest = 64 * MIB if device.type == "cuda" else 4 * MIB
    expected = 2 * (ranks - 1) * -(-nbytes // ranks // longest)
    return {"right": len(log) == expected and bool((tensor == ranks).all()), "messages": len(log)}


def batched_ring(nbytes: int) -> Row:
    """All ranks send and receive at once, messages larger than NCCL's buffers: ours ends."""
    tensor = torch.ones(nbytes // 4, device=minidist.device())
    minidist.ring_shift(tensor)
    return {"right": bool((tensor == 1).all())}


def unbatched_ring(nbytes: int) -> Row:
    """The same by `isend` and then `irecv`, which over NCCL hangs."""
    rank, ranks, device = dist.get_rank(), dist.get_world_size(), minidist.device()
    sent, come = torch.ones(nbytes // 4, device=device), torch.zeros(nbytes // 4, device=device)
    works = [dist.isend(sent, (rank + 1) % ranks), dist.irecv(come, (rank - 1) % ranks)]
    for work in works:
        assert work is not None
        work.wait()
    return {"right": bool((come == 1).all())}


CHECKS = [
    Check(1, "SyncBatchNorm in a DDP model, as under torch's", sync_batch_norm),
    Check(2, "NCCL's barrier is recorded as queued", barrier_is_queued, gpus=1),
    Check(6, "a batched ring ends", batched_ring, cpu_too=True),
    Check(6, "an unbatched one may not", unbatched_ring, cpu_too=True, may_hang=True),
    Check(7, "two groups' collectives in turn, as HSDP's", groups_in_turn, gpus=4, cpu_too=True),
    Check(8, "each process is on one GPU", one_context),
    Check(13, "a step never waits for the GPU", no_hidden_wait, gpus=1),
    Check(16, "messages of 64 MiB", segments, cpu_too=True),
]
