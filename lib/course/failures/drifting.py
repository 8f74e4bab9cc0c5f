"""Nothing hangs and nothing is raised: the ranks train, and the result is wrong."""

# mypy: disable-error-code=no-untyped-call

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DistributedSampler, TensorDataset

import minidist
from course.failures.case import Case, Kit
from course.training import models

Sample = tuple[torch.Tensor, ...]


def same_order(kit: Kit) -> str:
    """set_epoch is forgotten: each epoch has the first one's order."""
    return _epochs(told=False)


def same_order_repaired(kit: Kit) -> str:
    """The sampler is told of each epoch."""
    return _epochs(told=True)


def _epochs(told: bool) -> str:
    sampler: DistributedSampler[Sample] = DistributedSampler(TensorDataset(torch.arange(20)))
    drawn = []
    for epoch in range(3):
        if told:
            sampler.set_epoch(epoch)
        drawn.append(str(list(sampler)[:4]))
    return " then ".join(drawn)


def same_seed(kit: Kit) -> str:
    """All ranks drop the same units: the noise of N ranks is that of one."""
    return _masks(kit, torch.Generator().manual_seed(0))


def same_seed_repaired(kit: Kit) -> str:
    """Each rank has a seed of its own, after the model is made."""
    return _masks(kit, torch.Generator().manual_seed(dist.get_rank()))


def _masks(kit: Kit, random: torch.Generator) -> str:
    mask = (torch.rand(1000, generator=random) > 0.5).float()
    total = mask.clone()
    kit.all_reduce(total)
    spread = (total / dist.get_world_size()).std()
    return f"drops {mask[:6].int().tolist()}..., mean mask's spread {spread:.2f}"


def changed_parameter(kit: Kit) -> str:
    """Rank 1 changes a weight between two steps, as by clipping or loading on one rank alone."""
    return _two_steps(kit, everywhere=False)


def changed_parameter_repaired(kit: Kit) -> str:
    """All ranks make the change."""
    return _two_steps(kit, everywhere=True)


def _two_steps(kit: Kit, everywhere: bool) -> str:
    torch.manual_seed(0)
    layer = nn.Linear(4, 2)
    net = nn.Sequential(nn.Tanh(), layer)
    model = kit.ddp(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        if step == 1 and (everywhere or dist.get_rank() == 1):
            with torch.no_grad():
                layer.bias[0] += 1e-3
        model(torch.ones(5, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return f"checksum {checksum(net)}; {_checked(net)}"


def checksum(net: nn.Module) -> str:
    """Of all bits of the parameters: what plain PyTorch needs to compare ranks."""
    found = hashlib.blake2b(digest_size=4)
    for parameter in net.parameters():
        found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def _checked(net: nn.Module) -> str:
    try:
        minidist.check_replicas(net)
    except minidist.ReplicaError as error:
        return str(error)
    return "replicas are equal"


def nan(kit: Kit) -> str:
    """Rank 1 normalizes a batch whose samples are all alike; a step later all ranks have NaN."""
    return _step_with_nan(kit, guarded=False)


def nan_repaired(kit: Kit) -> str:
    """Each rank looks at its own loss; if one is not finite, all skip the step."""
    return _step_with_nan(kit, guarded=True)


def _step_with_nan(kit: Kit, guarded: bool) -> str:
    torch.manual_seed(0)
    net = nn.Linear(1, 1)
    model, optimizer = kit.ddp(net), torch.optim.SGD(net.parameters(), lr=0.1)
    batch = torch.ones(4, 1) if dist.get_rank() == 1 else torch.arange(4.0)[:, None]
    loss = model((batch - batch.mean()) / batch.std()).square().mean()  # 0 / 0
    loss.backward()  # also where it is NaN: the others wait for its gradient
    fine = torch.isfinite(loss.detach()).float()
    if guarded:
        kit.all_reduce(fine, minidist.ReduceOp.MIN)  # one rank's veto is everyone's
    if not guarded or fine:
        optimizer.step()
    return f"own loss {loss.item():.2f}, weight afterwards {net.weight.item():.2f}"


def rate_not_scaled(kit: Kit) -> str:
    """Four ranks take batches four times as large, and the learning rate of one."""
    return _trained(kit, scale=1)


def rate_not_scaled_repaired(kit: Kit) -> str:
    """The rate grows with the batch: Goyal et al. (2017), section 2.1."""
    return _trained(kit, scale=dist.get_world_size())


def _trained(kit: Kit, scale: int) -> str:
    torch.manual_seed(0)
    points, net = torch.randn(640, 8), models.mlp((8, 16, 2))
    labels = (points.square().sum(1) > 8).long()  # in a ball, or outside
    model, entropy = kit.ddp(net), functional.cross_entropy
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05 * scale, momentum=0.9)
    sampler: DistributedSampler[Sample] = DistributedSampler(TensorDataset(points))
    for epoch in range(6):
        sampler.set_epoch(epoch)
        for batch in torch.tensor(list(sampler)).split(16):
            optimizer.zero_grad()
            entropy(model(points[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return f"loss {entropy(net(points), labels).item():.2f} after 6 epochs"


def not_divided(kit: Kit) -> str:
    """Four micro-batches add up to a gradient four times as large."""
    return _accumulated(kit, divided=False)


def not_divided_repaired(kit: Kit) -> str:
    """Each micro-batch's loss is divided by their number."""
    return _accumulated(kit, divided=True)


def _accumulated(kit: Kit, divided: bool) -> str:
    torch.manual_seed(0)
    net, micro = nn.Linear(2, 1), 4
    model: Any = kit.ddp(net)
    for number in range(micro):
        loss = model(torch.full((3, 2), dist.get_rank() + 1.0)).mean()
        loss = loss / micro if divided else loss
        if number < micro - 1:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
    assert net.weight.grad is not None
    return f"gradient {net.weight.grad[0, 0]:.2f}; of the whole batch 1.50"


CASES = [
    Case(
        "set_epoch forgotten",
        same_order,
        same_order_repaired,
        "the first indices of each epoch",
        "sampler.set_epoch(epoch) at the start of each epoch",
        "log a few indices per epoch and rank",
    ),
    Case(
        "The same seed on every rank",
        same_seed,
        same_seed_repaired,
        "the random numbers of two ranks, side by side",
        "torch.manual_seed(seed + rank), after the model is made",
        "gather one random number from each rank: they must differ",
        ranks=4,
    ),
    Case(
        "A parameter changed on one rank",
        changed_parameter,
        changed_parameter_repaired,
        "a checksum of the parameters on each rank",
        "make every change on all ranks, or broadcast it",
        "minidist.check_replicas(model) every few hundred steps; in PyTorch gather the checksums",
        ranks=3,
    ),
    Case(
        "NaN on one rank",
        nan,
        nan_repaired,
        "each rank's own loss, before anything is averaged",
        "skip the step on all ranks if one rank's loss is not finite",
        "all-reduce isfinite(loss) with MIN, and log which rank it was",
    ),
    Case(
        "The learning rate not scaled",
        rate_not_scaled,
        rate_not_scaled_repaired,
        "the loss per epoch beside that of one rank",
        "N times the rate for N ranks, with warm-up",
        "compute the rate from the global batch in one place",
        ranks=4,
    ),
    Case(
        "The loss not divided under accumulation",
        not_divided,
        not_divided_repaired,
        "the gradient's norm beside that of the whole batch in one process",
        "loss / micro_batches",
        "a test: accumulated and whole gradients agree",
    ),
]
