"""What DDP, ZeRO and FSDP all refuse to wrap (`parallel/checks.py`), in the same words."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.tensor import distribute_module

from minidist import DistributedDataParallel, Ours, ZeroOptimizer, fully_shard, launch


def zero(module: nn.Module, **options: Any) -> ZeroOptimizer:
    return ZeroOptimizer(module.named_parameters(), torch.optim.SGD, stage=2, lr=0.1, **options)


WRAPPERS: dict[str, Callable[..., Any]] = {
    "DistributedDataParallel": DistributedDataParallel,
    "ZeroOptimizer": zero,
    "fully_shard": fully_shard,
}
DDP, ZERO, FSDP = WRAPPERS


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def with_bias(bias: nn.Parameter) -> nn.Module:
    module = net()
    module[0].bias = bias  # type: ignore[assignment]
    return module


class Elsewhere(nn.Parameter):
    """There is no GPU here: a device is said to be another one."""

    device = torch.device("cuda:0")  # type: ignore[assignment]


def of_cpu_group() -> dict[str, Any]:
    return {"process_group": dist.new_group(backend="cpu:gloo")}


# case → module, who refuses it, and what is said after "module: " or "params: "
Case = tuple[Callable[[], Any], tuple[str, ...], str]
CASES: dict[str, Case] = {
    "no module": (lambda: "net", (DDP, FSDP), "expected a torch.nn.Module, got a str"),
    "wrapped": (
        lambda: DistributedDataParallel(net()),
        (DDP, FSDP),
        "it is a DistributedDataParallel already; wrap the bare module",
    ),
    "a part is wrapped by torch": (
        lambda: nn.Sequential(nn.parallel.DistributedDataParallel(net())),
        (DDP, FSDP),
        "its part '0' is a DistributedDataParallel already",
    ),
    "a unit of FSDP": (
        lambda: fully_shard(nn.Linear(4, 4)),
        (DDP, FSDP),
        "it is a FSDPModule already; wrap the bare module",
    ),
    "a part is a unit of torch's FSDP": (
        lambda: nn.Sequential(torch_fully_shard(nn.Linear(4, 4))),
        (DDP,),
        "its part '0' is a FSDPModule already",
    ),
    "lazy": (lambda: nn.LazyLinear(3), (DDP, ZERO, FSDP), "'weight' has no shape yet"),
    "a DTensor": (
        lambda: distribute_module(nn.Linear(4, 4), init_device_mesh("cpu", (2,))),
        (DDP, ZERO, FSDP),
        "'weight': expected a plain tensor, got a DTensor: is it sharded?",
    ),
    "meta": (
        lambda: nn.Linear(4, 3).to("meta"),
        (DDP, ZERO),
        "'weight' is on the meta device, where it has no values",
    ),
    "another device than the group's": (
        lambda: with_bias(Elsewhere(torch.zeros(3))),
        (DDP, ZERO),
        "'0.bias' is on cuda:0, but the group moves tensors on cpu",
    ),
    "two devices": (
        lambda: with_bias(Elsewhere(torch.zeros(3))),
        (DDP, ZERO, FSDP),
        "expected all parameters on one device, got '0.weight' on cpu and '0.bias' on cuda:0",
    ),
    "shared memory": (
        lambda: with_bias(nn.Parameter(torch.zeros(1).expand(3))),
        (DDP, ZERO, FSDP),
        "'0.bias' has elements that share memory; use a clone()",
    ),
}
# options → what is said after the rank
COMMS: list[tuple[Callable[[], dict[str, Any]], type[Exception], str]] = [
    (
        lambda: {"process_group": dist.group.WORLD, "comm": Ours()},
        ValueError,
        "process_group and comm: expected one of them, got both",
    ),
    (lambda: {"comm": 5}, TypeError, "comm: expected a Comm, such as Ours()"),
    (lambda: {"process_group": [0, 1]}, TypeError, "group: expected a process group"),
]


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_modules_comms_and_groups_that_no_wrapper_can_handle() -> None:
    def run() -> None:
        where = f"rank {dist.get_rank()}: "
        for case, (make, names, problem) in CASES.items():
            kind = TypeError if "expected a " in problem else ValueError
            for name in names:
                options = of_cpu_group() if "the group's" in case else {}
                said = f"{where}{name}: {'params' if name == ZERO else 'module'}: {problem}"
                with pytest.raises(kind, match=f"^{re.escape(said)}"):
                    WRAPPERS[name](make(), **options)
        for make_options, kind, said in COMMS:
            for name in (DDP, ZERO):
                with pytest.raises(kind, match=f"^{re.escape(where + said)}"):
                    WRAPPERS[name](net(), **make_options())

    launch(run, 2)
