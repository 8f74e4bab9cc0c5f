"""What DDP, ZeRO and FSDP refuse to wrap: all in the same words (`parallel/checks.py`), or one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.tensor import distribute_module

from minidist import (
    Counted,
    DistributedDataParallel,
    MismatchError,
    Ours,
    ZeroOptimizer,
    check_replicas,
    clip_grad_norm_,
    fully_shard,
    launch,
)
from minidist.parallel.ddp.comm_hooks import fp16_compress
from minidist.parallel.holders import holder_of
from tests.support.bad_calls import KINDS
from tests.support.refusals import all_refused, says


def zero(module: nn.Module, kind: Any = optim.SGD, **options: Any) -> ZeroOptimizer:
    return ZeroOptimizer(module.named_parameters(), kind, **{"stage": 2, "lr": 0.1, **options})


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
    "rows that a forward rescales": (
        lambda: nn.Sequential(nn.Embedding(4, 2, max_norm=1.0)),
        (DDP, FSDP),
        "'0' rescales the rows that a forward reads, on this rank alone",
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


def tied_apart() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    fully_shard(module[0])
    return module


def same_memory() -> nn.Module:
    one = nn.Parameter(torch.zeros(4, 3))
    return nn.ParameterList([one, nn.Parameter(one.data[1:])])


# who refuses what, with which options, and what is said after the rank and the name
ARGUMENTS: list[tuple[str, Callable[[], Any], dict[str, Any], str]] = [
    (DDP, nn.ReLU, {}, "module: expected a parameter with requires_grad=True, got none"),
    *[
        (DDP, net, {name: wrong}, f"{name}: expected a number of MiB above 0, got {wrong!r}")
        for name, wrong in (("bucket_cap_mb", float("nan")), ("first_bucket_mb", "25"))
    ],
    *[
        (DDP, net, {name: "no"}, f"{name}: expected True or False, got 'no'")
        for name in (
            *("broadcast_buffers", "init_sync", "find_unused_parameters", "static_graph"),
            *("gradient_as_bucket_view", "forward_sync_buffers"),
        )
    ],
    (FSDP, net, {"mesh": "x"}, "mesh: expected a DeviceMesh, as init_device_mesh makes, got 'x'"),
    (
        FSDP,
        net,
        {"mp_policy": torch.bfloat16},
        "mp_policy: expected a MixedPrecisionPolicy, got torch.bfloat16",
    ),
    (
        ZERO,
        net,
        {"kind": optim.SGD(net().parameters(), lr=0.1)},
        "optimizer_class: expected a class such as torch.optim.AdamW, not an instance",
    ),
    (
        ZERO,
        net,
        {"kind": optim.LBFGS},
        "optimizer_class: expected one that treats each element alone, as SGD and Adam do, got LBF",
    ),
    (ZERO, net, {"stage": 3}, "stage: expected 1 or 2 (minidist.fully_shard is 3), got 3"),
    (
        ZERO,
        net,
        {"gradients": "averaged"},
        "gradients: expected one of (None, 'local') with stage=2, got 'averaged'",
    ),
    (ZERO, net, {"bucket_cap_mb": 0}, "bucket_cap_mb: expected a number of MiB above 0, got 0"),
    (ZERO, net, {"overlap_with_ddp": True}, "overlap_with_ddp: expected False, got True"),
    (ZERO, net, {"lr": -1}, "Invalid learning rate: -1"),
    (ZERO, same_memory, {}, "0 and 1 share memory"),
    (
        ZERO,
        lambda: DistributedDataParallel(net()),
        {},
        "params: the gradient of 'module.0.weight' is averaged by DistributedDataParallel",
    ),
    (FSDP, lambda: nn.ModuleList([net()]), {}, "module: a ModuleList has no forward, before which"),
    (
        FSDP,
        tied_apart,
        {},
        "module: its '1.weight' is tied to parameter 'weight' of the outermost unit (Linear), "
        "which is sharded already; shard the modules that share a parameter together: "
        "fully_shard([one, other])",
    ),
    (
        FSDP,
        lambda: fully_shard(net())[0],  # type: ignore[index]
        {},
        "module: its 'weight' is sharded already, as parameter '0.weight' of the",
    ),
    (FSDP, list, {}, "module: expected a torch.nn.Module or a list of some, got an empty list"),
    (FSDP, lambda: [net(), 1], {}, "module: expected a torch.nn.Module, got a int"),
    (
        FSDP,
        lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True)),
        {},
        "module: '0' has sparse gradients, which cannot be reduce-scattered; build it with sparse=",
    ),
    (
        FSDP,
        net,
        {"reshard_after_forward": 2},
        "reshard_after_forward: expected True, False or None, got 2",
    ),
]
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


@contextmanager
def refusal(offenders: list[str], kind: type[Exception], said: str) -> Iterator[None]:
    """The block is to raise an error of this kind that begins so; what it does else is noted."""
    but = "it is not refused"
    try:
        yield
    except Exception as error:
        if isinstance(error, kind) and str(error).startswith(said):
            return
        but = repr(error)
    offenders.append(f"{said}: expected a {kind.__name__}, but {but}")


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_modules_comms_and_groups_that_no_wrapper_can_handle() -> None:
    def run() -> None:
        where = f"rank {dist.get_rank()}: "
        offenders: list[str] = []
        for case, (make, names, problem) in CASES.items():
            kind = TypeError if "expected a " in problem else ValueError
            for name in names:
                options = of_cpu_group() if "the group's" in case else {}
                said = f"{where}{name}: {'params' if name == ZERO else 'module'}: {problem}"
                with refusal(offenders, kind, said):
                    WRAPPERS[name](make(), **options)
        for name, make, options, problem in ARGUMENTS:
            module = make()
            memory = [p.data_ptr() for p in module.parameters()] if name == ZERO else []
            said = f"{where}{name}: {problem}"
            with refusal(offenders, Exception, said):
                WRAPPERS[name](module, **options)
            if name == ZERO:
                if memory != [p.data_ptr() for p in module.parameters()]:
                    offenders.append(f"{said}: parameters do not lie where they were")
                if any(type(holder_of(p)) is ZeroOptimizer for p in module.parameters()):
                    offenders.append(f"{said}: parameters belong to the one that was refused")
        for make_options, kind, said in COMMS:
            for name in (DDP, ZERO):
                with refusal(offenders, kind, where + said):
                    WRAPPERS[name](net(), **make_options())
        assert not offenders, "\n".join(offenders)

    launch(run, 2)


def test_words_and_nothing_in_place_of_numbers_flags_and_modules() -> None:
    """Of what ranks do together every rank hears, if only rank 0 is wrong."""

    def run() -> list[str]:
        wrong = dist.get_rank() == 0
        unit: Any = fully_shard(net())
        unit(torch.ones(1, 4)).sum().backward()
        ddp: Any = DistributedDataParallel(net())
        params: Any = None if wrong else [nn.Parameter(torch.ones(2))]
        ids: Any = 1.5 if wrong else None
        return [
            says(lambda: ZeroOptimizer(params, optim.SGD, lr=0.1)),
            says(lambda: DistributedDataParallel(net(), device_ids=ids)),
            says(lambda: clip_grad_norm_(unit, cast(Any, "1" if wrong else 1.0))),
            says(lambda: check_replicas(cast(Any, None if wrong else net()))),
            says(lambda: ddp.register_comm_hook(None, "x" if wrong else fp16_compress)),
            says(lambda: Counted(cast(Any, None))),
            says(lambda: unit.set_requires_gradient_sync("no")),
            says(lambda: unit.set_reshard_after_forward("no")),
        ]

    first, second = launch(run, 2)
    for told, part in zip(
        first,
        (
            "TypeError: rank 0: ZeroOptimizer: params: expected parameters or groups of them, got",
            f"ValueError: rank 0: {DDP}: device_ids, output_device: expected None for a module on",
            "TypeError: rank 0: clip_grad_norm_: max_norm: expected a number, got '1'",
            "TypeError: rank 0: module: expected a torch.nn.Module, got a NoneType",
            "TypeError: rank 0: register_comm_hook: hook: expected a function of (state, bucket)",
            "TypeError: comm: expected a Comm, such as Ours(), got NoneType",
            "TypeError: rank 0: requires_gradient_sync: expected True or False, got 'no'",
            "TypeError: rank 0: reshard_after_forward: expected True or False, got 'no'",
        ),
        strict=True,
    ):
        assert told.startswith(part)
    for told in second[:5]:
        assert "rank 0" in told


def test_what_is_no_number_no_list_and_no_function_is_refused_by_the_argument_s_name() -> None:
    all_refused(KINDS, TypeError, ValueError)


def skips(wrap: Callable[..., Any]) -> str:
    """What a rank hears if rank 1 leaves out the first step."""
    module = net()
    if dist.get_rank() == 1:  # before it is wrapped, each may step alone
        optim.SGD(module.parameters(), 0.1).step()
    wrapped = wrap(module)
    model, optimizer = (module, wrapped) if wrap is zero else (wrapped, None)
    optimizer = optimizer or optim.SGD(module.parameters(), 0.1)

    def train() -> None:
        for step in range(2):
            model(torch.ones(2, 4)).sum().backward()
            if (dist.get_rank(), step) != (1, 0):
                optimizer.step()

    return says(train, MismatchError)


def test_a_rank_that_skips_a_step_or_a_part_alone_is_named_on_all() -> None:
    def run() -> list[str]:
        ddp, x = DistributedDataParallel(net()), torch.ones(2, 4)
        if dist.get_rank():
            ddp.module.forward = lambda x: ddp.module[0](x)  # type: ignore[operator, index]
        return [*map(skips, WRAPPERS.values()), says(lambda: ddp(x).sum().backward(), RuntimeError)]

    wants = [
        f"{DDP}, backward after 2 forwards, 1 backwards: the ranks disagree on whether an "
        "optimizer has stepped since the last backward: rank 0 passed True; rank 1 passed False",
        "the ranks disagree on the call: rank 0 passed all_reduce; rank 1 passed ZeroOptimizer, av",
        "fully_shard: unshard root: the ranks disagree on the optimizer's steps: rank 0 passed 1; "
        "rank 1 passed 0",
        ": expected backward to give every parameter a gradient, got none for 2: 1.weight, 1.bias",
    ]
    for heard in launch(run, 2, timeout=30):
        assert [each for want, each in zip(wants, heard, strict=True) if want not in each] == []
