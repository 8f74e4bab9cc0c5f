"""N ranks must train as one process does on the whole batch: both, and how far they are apart."""

import copy
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW, Optimizer

from minidist import DistributedDataParallel, ZeroOptimizer, full_state_dict
from minidist.comm.comm import Comm
from minidist.comm.counted import Counted
from minidist.comm.replicas import digest as digest_of

MODES: dict[str, dict[str, Any]] = {
    "stage 1 on DDP": {"stage": 1},
    "stage 1": {"stage": 1, "gradients": "local"},
    "stage 2": {"stage": 2},
}
LOCAL = [mode for mode, options in MODES.items() if options != {"stage": 1}]
CAP = 2e-4  # MiB: some buckets of each model here

Tensors = dict[str, torch.Tensor | None]
Loss = Callable[[Any, int, int], torch.Tensor | None]  # loss(model, rank, step)


# ---- what is trained ----


def numbers(rank: int, step: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Of this rank and step."""
    source = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(*shape, generator=source, dtype=torch.float64).to(dtype)


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow, dtype=torch.float64), nn.Tanh()]
    return nn.Sequential(*layers)


def squares(model: Any, rank: int, step: int) -> torch.Tensor:
    """Of the outputs for inputs of this rank and step, as wide as the first parameter."""
    first = next(model.parameters())
    x = numbers(rank, step, 3, first.shape[-1], dtype=first.dtype)
    return model(x).square().mean()


def mine(batch: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch."""
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def quiet(model: Any) -> Any:
    """Without communication, where there is some."""
    return model.no_sync() if hasattr(model, "no_sync") else nullcontext()


def scaled_step(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> tuple[float, bool]:
    """Step with loss scaling; the scale after it, and whether this rank's parameters changed."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    before = [each.detach().clone() for each in parameters]
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale(), not all(map(torch.equal, before, parameters))


# ---- what is compared ----


def far(got: dict[str, Any], want: dict[str, Any], tolerance: float = 1e-10) -> str:
    """In what two sets of tensors and numbers differ; "" if in nothing."""
    if set(got) != set(want):
        return f"names: {sorted(set(got) ^ set(want))}"
    for name, right in want.items():
        found = got[name]
        if not (torch.is_tensor(found) and torch.is_tensor(right)):
            if type(found) is not type(right) or found != right:
                return f"{name}: {found} instead of {right}"
        elif (found.shape, found.dtype) != (right.shape, right.dtype):
            return f"{name}: {found.shape}, {found.dtype} instead of {right.shape}, {right.dtype}"
        elif not torch.allclose(found, right, tolerance, tolerance, equal_nan=True):
            return f"{name}: off by {(found.detach() - right.detach()).abs().max():.2g}"
    return ""


def grads_of(net: nn.Module) -> Tensors:
    return {name: parameter.grad for name, parameter in net.named_parameters()}


def wholes(model: nn.Module) -> Tensors:
    """Every full parameter; all ranks must call it."""
    state = full_state_dict(model)
    return {name: state[name] for name, _ in model.named_parameters()}


def digest(model: nn.Module) -> str:
    """Of every bit of the gradients and parameters."""
    found = [tensor for each in model.parameters() for tensor in (each, each.grad)]
    return digest_of(tensor for tensor in found if tensor is not None)


def bytes_of_flags(comm: Counted, parameters: int) -> int:
    """What this rank sends for the flags that say which parameters it has used."""
    before = comm.bytes_sent
    comm.all_reduce(torch.zeros(parameters, dtype=torch.uint8))
    return comm.bytes_sent - before


class Twins:
    """A model under a ZeroOptimizer, and its copy under the bare one, alone with all batches.

    Args:
        build: makes the model.
        mode: one of MODES.
        kind: of optimizer.
        groups: takes the model's parameters apart.
        find: parameters may be left out.
        defaults: arguments of both optimizers.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        mode: str = "stage 2",
        kind: type[Optimizer] = AdamW,
        groups: Callable[[nn.Module], Any] = lambda net: net.parameters(),
        find: bool = False,
        comm: Comm | None = None,
        bucket_cap_mb: float = CAP,
        **defaults: Any,
    ) -> None:
        defaults = defaults or {"lr": 0.01}
        torch.manual_seed(5)
        self.net = build()
        self.alone = copy.deepcopy(self.net)
        if dist.get_rank():  # rank 0's must win
            with torch.no_grad():
                for parameter in self.net.parameters():
                    parameter.add_(1)
        self.ranks = dist.get_world_size()
        self.model: Any = self.net
        if mode not in LOCAL:
            self.model = DistributedDataParallel(self.net, find_unused_parameters=find)
        options = {"comm": comm, "bucket_cap_mb": bucket_cap_mb, **MODES[mode]}
        self.zero = ZeroOptimizer(groups(self.net), kind, **options, **defaults)
        self.bare = kind(groups(self.alone), **defaults)

    def backward(self, loss: Loss, step: int) -> None:
        """This rank's batch for the model, all ranks' for the copy."""
        value = loss(self.model, dist.get_rank(), step)
        if value is not None:
            value.backward()
        self.whole(loss, step)

    def whole(self, loss: Loss, step: int) -> None:
        """The copy's part: all ranks' batches."""
        for rank in range(self.ranks):
            value = loss(self.alone, rank, step)
            if value is not None:
                (value / self.ranks).backward()

    def step(self, to_none: bool = True) -> None:
        for optimizer in (self.zero, self.bare):
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)

    def train(self, loss: Loss = squares, steps: Iterable[int] = range(3)) -> "Twins":
        for step in steps:
            self.backward(loss, step)
            self.step()
        return self

    def apart(self, tolerance: float = 1e-12) -> str:
        """What differs, of parameters and the full state: "" if nothing."""
        got, want = self.zero.full_state_dict(), self.bare.state_dict()
        if got["param_groups"] != want["param_groups"]:
            return f"groups {got['param_groups']} for {want['param_groups']}"
        parameters = [each for group in self.bare.param_groups for each in group["params"]]
        for number, parameter in enumerate(parameters):
            if not parameter.numel():  # torch keeps a count of steps of it
                want["state"].pop(number, None)
        states = (
            {
                f"{key} of {number}": x
                for number, kept in each["state"].items()
                for key, x in kept.items()
            }
            for each in (got, want)
        )
        weights = (dict(net.named_parameters()) for net in (self.net, self.alone))
        return far(*weights, tolerance) or far(*states, tolerance)
