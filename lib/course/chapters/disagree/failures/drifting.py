"""Nothing hangs: the ranks train to the end, and the result or its checkpoint is wrong."""

# mypy: disable-error-code=no-untyped-call

import hashlib
import io
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DistributedSampler, TensorDataset

from course.chapters.disagree.failures.case import Case, Kit
from course.training import models

Sample = tuple[torch.Tensor, ...]


def case_12(kit: Kit) -> str:
    """set_epoch is forgotten: each epoch has the first one's order."""
    sampler: DistributedSampler[Sample] = DistributedSampler(TensorDataset(torch.arange(20)))
    drawn = []
    for _ in range(3):
        drawn.append(list(sampler)[:4])
    return " then ".join(map(str, drawn))


def case_13(kit: Kit) -> str:
    """All ranks drop the same units: the noise of N ranks is that of one."""
    random = torch.Generator().manual_seed(0)
    return _dropped(kit, torch.rand(1000, generator=random) > 0.5)


def _dropped(kit: Kit, mask: torch.Tensor) -> str:
    kit.all_reduce(total := mask.float())
    spread = (total / dist.get_world_size()).std()
    return f"mask {mask[:8].int().tolist()}...; the ranks' mean mask varies by {spread:.2f}"


def case_9(kit: Kit) -> str:
    """Rank 1 changes a weight between two steps, as by clipping or loading on one rank alone."""

    def between(step: int, layer: nn.Linear) -> None:
        if step == 1 and dist.get_rank() == 1:
            layer.bias[0] += 1e-3

    return _three_steps(kit, between)


def _three_steps(kit: Kit, between: Callable[[int, nn.Linear], None]) -> str:
    """The checksum of each parameter at the end."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 2)
    net = nn.Sequential(nn.Tanh(), layer)
    model = kit.ddp(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        with torch.no_grad():
            between(step, layer)
        model(torch.ones(5, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    named = net.named_parameters()
    return "checksums " + ", ".join(f"{name} {checksum(weights)}" for name, weights in named)


def checksum(weights: torch.Tensor) -> str:
    """A hash of all bits, by which plain PyTorch can compare ranks."""
    return hashlib.blake2b(weights.detach().numpy().tobytes(), digest_size=4).hexdigest()


def case_10(kit: Kit) -> str:
    """Rank 1 normalizes a batch whose samples are all alike; a step later all ranks have NaN."""
    model, optimizer, loss = _forward(kit)
    loss.backward()  # also where it is NaN: the others wait for its gradient
    optimizer.step()
    return f"own loss {loss:.2f}, weight afterwards {model.module.weight.item():.2f}"


def _forward(kit: Kit) -> tuple[Any, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Linear(1, 1)
    model, optimizer = kit.ddp(net), torch.optim.SGD(net.parameters(), lr=0.1)
    batch = torch.ones(4, 1) if dist.get_rank() == 1 else torch.arange(4.0)[:, None]
    loss = model((batch - batch.mean()) / batch.std()).square().mean()  # 0 / 0
    return model, optimizer, loss


def case_14(kit: Kit) -> str:
    """Four ranks take batches four times as large, and the learning rate of one."""
    return _trained(kit, rate=0.05)


def _trained(kit: Kit, rate: float) -> str:
    torch.manual_seed(0)
    points, net = torch.randn(640, 8), models.mlp((8, 16, 2))
    labels = (points.square().sum(1) > 8).long()  # in a ball, or outside
    model, entropy = kit.ddp(net), functional.cross_entropy
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    sampler: DistributedSampler[Sample] = DistributedSampler(TensorDataset(points))
    for epoch in range(6):
        sampler.set_epoch(epoch)
        for batch in torch.tensor(list(sampler)).split(16):
            optimizer.zero_grad()
            entropy(model(points[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return f"loss {entropy(net(points), labels).item():.2f} after 6 epochs"


def case_15(kit: Kit) -> str:
    """Four micro-batches add up to a gradient four times as large."""
    net, batches = nn.Linear(2, 1), [torch.full((3, 2), dist.get_rank() + 1.0)] * 4
    model = kit.ddp(net)
    for number, batch in enumerate(batches, 1):
        with model.no_sync() if number < len(batches) else nullcontext():
            loss = model(batch).mean()
            loss.backward()
    return f"gradient {_gradient(net):.2f} after {len(batches)} micro-batches"


def _gradient(net: nn.Linear) -> float:
    assert net.weight.grad is not None
    return net.weight.grad[0, 0].item()


def case_11(kit: Kit) -> str:
    """Every rank saves to one path. Rank 1 is slower; rank 0 restarts and finds half a file."""
    path, state = kit.folder / "checkpoint.pt", {"step": 5, "weights": torch.ones(500)}
    _save_on_each_rank(kit, state, path)
    return _found(path)


def _save_on_each_rank(kit: Kit, state: object, path: Path) -> None:
    """`torch.save(state, path)` on both ranks, at a moment when rank 1 is half done."""
    if dist.get_rank() == 0:
        torch.save(state, path)
    kit.barrier()
    if dist.get_rank() == 1:
        torch.save(state, full := io.BytesIO())
        path.write_bytes(full.getvalue()[:1000])
    kit.barrier()


def _found(path: Path) -> str:
    try:
        return f"found step {torch.load(path)['step']}"
    except (RuntimeError, EOFError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def case_16(kit: Kit) -> str:
    """FSDP replaces the parameters; the optimizer steps those that were there before."""
    torch.manual_seed(0)
    net = models.mlp((4, 8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    kit.fully_shard(net)
    return _losses(net, optimizer)


def _losses(net: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    losses = []
    for _ in range(3):
        loss = net(torch.ones(5, 4)).sub(1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(f"{loss.item():.3f}")
    return f"losses {', '.join(losses)}"


CASES = [
    Case("set_epoch forgotten", case_12),
    Case("The same seed on every rank", case_13, ranks=4),
    Case("A parameter changed on one rank", case_9, ranks=3),
    Case("NaN on one rank", case_10),
    Case("The learning rate not scaled", case_14, ranks=4),
    Case("The loss not divided under accumulation", case_15),
    Case("A checkpoint that every rank writes", case_11),
    Case("An optimizer built before wrapping", case_16),
]
