"""Each call that PyTorch's documentation shows for DistributedDataParallel, made of ours.

It does the same, or is refused; what to do instead stands in the same table on the book's API page.
"""

import inspect
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist import DistributedDataParallel, launch
from minidist.parallel.ddp.checks import INSTEAD
from tests.proof.attacks import NoGradient

torch_ddp = nn.parallel.DistributedDataParallel
Wrap = Callable[..., Any]


class Net(nn.Module):
    """A buffer that each forward changes, and a layer that may be left out."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("seen", torch.full((1,), float(seed)))

    def forward(self, x: torch.Tensor, short: bool = False) -> torch.Tensor:
        self.seen += 1
        x = self.first(x).tanh() + self.seen.detach().clone()
        return self.last(x if short else self.second(x))


class Undefined(Net):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, short: bool = False) -> torch.Tensor:
        return super().forward(NoGradient.apply(x, self.weight), short)


class Cut(torch.autograd.Function):
    """Its backward gives no gradient at all."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:
        return None


def batch(step: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(2, 3, generator=source)


def trained(model: Any, steps: int = 3, **more: Any) -> Any:
    """The gradients and buffers after some steps, or what was raised."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step), **more).square().mean().backward()
        optimizer.step()
    found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return [*found, *(b.clone() for b in model.buffers())]


def of_rank() -> Net:
    return Net(dist.get_rank())


def positional(wrap: Wrap) -> Any:
    return trained(wrap(of_rank(), None, None, 0, True, True, None, 25, True, False, True, False))


def option(wrap: Wrap, **options: Any) -> Any:
    return trained(wrap(of_rank(), **options))


def unused(wrap: Wrap, **options: Any) -> Any:
    return trained(wrap(of_rank(), **options), short=True)


def accumulated(wrap: Wrap) -> Any:
    model = wrap(of_rank())
    for step in range(4):
        with model.no_sync() if step % 2 == 0 else nullcontext():
            model(batch(step)).square().mean().backward()
    return [p.grad for p in model.parameters()]


class Checkpointed(nn.Module):
    """Runs a wrapped model in a checkpoint."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.model, x, use_reentrant=False)


def checkpointed(wrap: Wrap) -> Any:
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return trained(Checkpointed(wrap(net)))


def joined(wrap: Wrap) -> Any:
    model = wrap(of_rank())
    with model.join():
        trained(model, 1 + dist.get_rank())
    return [p.detach().clone() for p in model.parameters()]


def hooked(wrap: Wrap) -> Any:
    """The documentation's own example, which sends in full what it might encode."""

    def encode_and_decode(
        state: object, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    model = wrap(of_rank())
    model.register_comm_hook(state=None, hook=encode_and_decode)
    return trained(model)


def cut(wrap: Wrap) -> Any:
    model = wrap(of_rank())
    Cut.apply(model(batch(0))).sum().backward()
    return [p.grad for p in model.parameters()]


def saved(wrap: Wrap) -> Any:
    """A state dict of torch's, loaded as the documentation loads it."""
    model, other = torch_ddp(of_rank()), wrap(of_rank())
    other.load_state_dict(model.state_dict())
    return [p.detach().clone() for p in other.parameters()]


# call → how to make it; torch refuses the first two as well
CALLS: dict[str, Callable[[Wrap], Any]] = {
    "DDP(net, device_ids=[rank]), net on the CPU": lambda wrap: wrap(of_rank(), device_ids=[0]),
    "DDP(net, [rank]), net on the CPU": lambda wrap: wrap(of_rank(), [0]),
    "DDP(net)": lambda wrap: trained(wrap(of_rank())),
    "DDP(net, None, None, 0, True, True, None, 25, True, False, True, False)": positional,
    "process_group=group": lambda wrap: option(wrap, process_group=dist.new_group([0, 1])),
    "broadcast_buffers=False": lambda wrap: option(wrap, broadcast_buffers=False),
    "forward_sync_buffers=False": lambda wrap: option(wrap, forward_sync_buffers=False),
    "init_sync=False": lambda wrap: trained(wrap(Net(), init_sync=False)),
    "bucket_cap_mb=None": lambda wrap: option(wrap, bucket_cap_mb=None),
    "find_unused_parameters=True": lambda wrap: unused(wrap, find_unused_parameters=True),
    "gradient_as_bucket_view=True": lambda wrap: option(wrap, gradient_as_bucket_view=True),
    "check_reduction=True": lambda wrap: option(wrap, check_reduction=True),
    "static_graph=True": lambda wrap: unused(wrap, static_graph=True),
    "model.no_sync()": accumulated,
    "model.join()": joined,
    "model.register_comm_hook(state, hook)": hooked,
    "model.load_state_dict(torch_ddp.state_dict())": saved,
    "checkpoint(model, x, use_reentrant=False)": checkpointed,
    "autograd.Function that returns None for a weight": lambda wrap: trained(wrap(Undefined())),
    "autograd.Function after the model that returns None": cut,
    "the same, find_unused_parameters=True": lambda wrap: trained(
        wrap(Undefined(), find_unused_parameters=True)
    ),
}


def outcome(call: Callable[[Wrap], Any], wrap: Wrap) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what torch will rename
            return call(wrap)
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error)


def alike(ours: Any, theirs: Any) -> bool:
    if not (isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs)):
        return False
    return all(
        one is other if one is None or other is None else torch.allclose(one, other)
        for one, other in zip(ours, theirs, strict=True)
    )


def test_each_call_does_as_torchs_or_is_refused() -> None:
    def run() -> dict[str, str]:
        wrong, where = {}, f"rank {dist.get_rank()}: DistributedDataParallel: device_ids, output"
        for name, call in CALLS.items():
            ours, theirs = (outcome(call, wrap) for wrap in (DistributedDataParallel, torch_ddp))
            both_refuse = isinstance(theirs, str) and isinstance(ours, str) and where in ours
            if not (both_refuse or alike(ours, theirs)):
                wrong[name] = str(ours)
        return wrong

    assert launch(run, 2) == [{}, {}]


def test_torchs_arguments_in_torchs_order() -> None:
    ours = inspect.signature(DistributedDataParallel).parameters
    theirs = list(inspect.signature(torch_ddp).parameters)
    here = [name for name, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert here == theirs[: len(here)]
    assert here[-1] == "static_graph"
    assert set(theirs) - set(ours) <= set(INSTEAD)


def test_the_table_is_on_the_api_page() -> None:
    page = (Path(__file__).parents[2] / "book" / "api" / "torch.md").read_text()
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|$", page, re.MULTILINE)
    table = {call: what for calls, what in rows for call in re.findall("`([^`]+)`", calls)}
    for name in CALLS:
        expected = "refused, as by torch" if "net on the CPU" in name else "the same"
        assert table[name].startswith(expected), name
    replaced = table["torch.func.functional_call(model, others, x)"]  # seen as any change is
    assert replaced.startswith("refused: call it on `model.module`")
    for name, instead in INSTEAD.items():
        (what,) = (what for call, what in table.items() if name in call)
        assert what.replace("`", "") == f"refused: {instead}"


def refusals() -> dict[str, str]:
    said = {}
    model = DistributedDataParallel(Net())
    of_join = inspect.signature(model.join).parameters
    for name in [*INSTEAD, "no_such_argument"]:
        option, _, value = name.partition("=")
        options: dict[str, Any] = {option: value != "False"}
        try:
            if option in of_join:
                with model.join(**options):
                    pass
            else:
                DistributedDataParallel(Net(), **options)
        except TypeError as error:
            said[name] = str(error)
    return said


def test_what_torch_alone_has_is_refused_with_what_to_do() -> None:
    expected = {**INSTEAD, "no_such_argument": "there is no such argument"}
    where = "rank 0: DistributedDataParallel: "
    (said,) = launch(refusals, 1)
    assert said == {name: f"{where}{name}: {instead}" for name, instead in expected.items()}
