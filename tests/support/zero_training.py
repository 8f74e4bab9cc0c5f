"""What a ZeroOptimizer must do: train as one process does with the mean of all ranks' gradients."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW, Optimizer

from minidist import DistributedDataParallel, ZeroOptimizer
from minidist.comm.comm import Comm, Counted, Native, Ours
from tests.support.training import numbers

MODES: dict[str, dict[str, Any]] = {
    "stage 1 on DDP": {"stage": 1},
    "stage 1": {"stage": 1, "gradients": "local"},
    "stage 2": {"stage": 2},
}
LOCAL = [mode for mode, options in MODES.items() if options != {"stage": 1}]
COMMS: dict[str, Callable[[], Comm]] = {
    "ring": lambda: Ours(algorithm="ring"),
    "shared": lambda: Ours(algorithm="shared_memory"),
    "auto": lambda: Ours(),
    "native": lambda: Native(),
}
CAP = 2e-4  # MiB: some parts of each model here

Loss = Callable[[Any, int, int], torch.Tensor | None]  # loss(model, rank, step)


def squares(model: Any, rank: int, step: int) -> torch.Tensor:
    """Of the outputs for inputs of this rank and step; its first parameter tells how wide."""
    first = next(model.parameters())
    wide = first.shape[-1]
    x = numbers(rank, step, 3, wide, dtype=first.dtype)
    return model(x).square().mean()


class Twins:
    """A model under a ZeroOptimizer, and its copy under the bare one, alone with all batches.

    Args:
        build: makes the model.
        mode: one of MODES.
        kind: of optimizer.
        groups: takes the model's parameters apart.
        find: parameters may be left out.
        zero: arguments of the ZeroOptimizer, and of the bare one those it knows.
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
        if MODES[mode] == {"stage": 1}:
            self.model = DistributedDataParallel(self.net, find_unused_parameters=find)
        self.zero = ZeroOptimizer(
            groups(self.net),
            kind,
            comm=comm,
            bucket_cap_mb=bucket_cap_mb,
            **MODES[mode],
            **defaults,
        )
        self.bare = kind(groups(self.alone), **defaults)

    def backward(self, loss: Loss, step: int) -> None:
        mine = loss(self.model, dist.get_rank(), step)
        if mine is not None:
            mine.backward()
        self.whole(loss, step)

    def whole(self, loss: Loss, step: int) -> None:
        """The copy's part: all ranks' batches."""
        for rank in range(self.ranks):
            theirs = loss(self.alone, rank, step)
            if theirs is not None:
                (theirs / self.ranks).backward()

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
        """What differs: "" if nothing. Parameters, and the whole state."""
        named = zip(self.net.named_parameters(), self.alone.parameters(), strict=True)
        for (name, mine), right in named:
            if off := differs(mine, right, tolerance):
                return f"{name} is off by {off}"
        got, want = self.zero.full_state_dict(), self.bare.state_dict()
        if got["param_groups"] != want["param_groups"]:
            return f"groups {got['param_groups']} for {want['param_groups']}"
        for number, parameter in enumerate(
            each for g in self.bare.param_groups for each in g["params"]
        ):
            if not parameter.numel():  # torch keeps a count of steps of it
                want["state"].pop(number, None)
        if got["state"].keys() != want["state"].keys():
            return f"state of {list(got['state'])} for {list(want['state'])}"
        for number, kept in want["state"].items():
            if got["state"][number].keys() != kept.keys():
                return f"{number} keeps {list(got['state'][number])} for {list(kept)}"
            for key, value in kept.items():
                if off := differs(got["state"][number][key], value, tolerance):
                    return f"{key} of {number} is off by {off}"
        return ""


def differs(got: Any, want: Any, tolerance: float) -> str:
    """How far they are apart; "" if they are alike."""
    if not torch.is_tensor(want):
        return "" if got == want else f"{got} for {want}"
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{tuple(got.shape)}, {got.dtype} for {tuple(want.shape)}, {want.dtype}"
    if torch.allclose(got, want, tolerance, tolerance, equal_nan=True):
        return ""
    return f"{(got.detach() - want.detach()).abs().max():.2g}"


def bytes_by_call(comm: Counted) -> dict[str, int]:
    """The bytes that this rank sent in all calls of a name."""
    found: dict[str, int] = {}
    for call, log in zip(comm.calls, comm._logs, strict=True):
        found[call.name] = found.get(call.name, 0) + sum(message.nbytes for message in log)
    return found
