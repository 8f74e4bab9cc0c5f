"""Which parameters some rank has used: on a GPU the host waits only where it cannot know."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import minidist
from minidist.comm.comm import on_some_rank
from minidist.comm.ours import Ours
from minidist.parallel.zero.optimizer import ZeroOptimizer

CUDA = torch.device("cuda:0")
READS = ("tolist", "item", "cpu", "__bool__", "__float__", "__int__")


class Moved(TorchFunctionMode):
    """In the place of a GPU: new tensors stay on the CPU, and how they would leave is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Any, Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor:
            device, pinned = kwargs.pop("device", None), kwargs.pop("pin_memory", False)
            self.found.append(("made", device, pinned))
        if func is torch.Tensor.to:
            self.found.append(("moved", args[1], kwargs["non_blocking"]))
            return args[0]
        return func(*args, **kwargs)


def test_flags_are_pinned_and_copied_while_the_host_goes_on() -> None:
    comm: Any = SimpleNamespace(all_reduce=lambda *_: None)
    with Moved() as moved:
        assert on_some_rank([True, False], CUDA, comm) == [True, False]
    assert moved.found == [("made", "cpu", True), ("moved", CUDA, True)]


@contextmanager
def reading() -> Iterator[list[str]]:
    """Note what a host would wait for on a GPU: numbers that it reads."""
    found: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        read = getattr(Tensor, name)
        return lambda *args: (found.append(name), read(*args))[1]

    with ExitStack() as patches:
        for name in READS:
            patches.enter_context(patch.object(Tensor, name, noting(name)))
        yield found


class Branches(nn.Module):
    """Uses its second layer, or all ranks but the first leave it out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, both: bool) -> Tensor:
        x = self.first(x)
        return self.second(x) if both else x


def reads(both: bool) -> dict[str, list[str]]:
    """What is read in a step of each wrapper, with its clipping; `both`: all ranks use all."""
    found = {}
    for name in ("ddp", "zero", "fsdp"):
        net: Any = Branches()
        comm = Ours(algorithm="ring", check=False)
        model = net
        if name == "ddp":
            model = minidist.DistributedDataParallel(net, comm=comm, find_unused_parameters=True)
        if name == "fsdp":
            minidist.fully_shard(net, comm=comm)
        optimizer = (
            ZeroOptimizer(net.parameters(), torch.optim.SGD, stage=2, comm=comm, lr=0.1)
            if name == "zero"
            else torch.optim.SGD(net.parameters(), 0.1)
        )
        with reading() as read:
            model(torch.ones(2, 3), both or dist.get_rank() == 0).sum().backward()
            minidist.clip_grad_norm_(model, 1.0)
            optimizer.step()
        found[name] = read
    return found


def test_nothing_is_read_where_all_is_used(monkeypatch: Any) -> None:
    monkeypatch.setenv("MINIDIST_CHECK", "0")
    nothing: dict[str, list[str]] = {"ddp": [], "zero": [], "fsdp": []}
    assert minidist.launch(reads, 2, True) == [nothing] * 2
    first, second = minidist.launch(reads, 2, False)
    assert first == nothing  # what it has not used is used elsewhere
    assert second == {name: ["tolist"] for name in nothing}
