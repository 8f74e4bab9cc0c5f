"""torch.compile inside and around what communicates: every spelling trains as one process does."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters

import minidist
from tests.support.refusals import says

TOLERANCE = 1e-4  # a compiled AdamW corrects its moments in fp32
BACKEND = "aot_eager"  # on GPUs `benchmarks.checks.suites` sets another


def compiled(what: Any) -> Any:
    return torch.compile(what, backend=BACKEND)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.tanh(self.up(x)))
        return x + y


class Net(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(Block(), Block(), nn.Linear(4, 2))
        self.double()


def each_block(net: Any, do: Callable[[Any], Any]) -> Any:
    for place in range(2):
        made = do(net[place])
        net[place] = net[place] if made is None else made
    return net


def shard(net: Any) -> Any:
    return minidist.fully_shard(each_block(net, minidist.fully_shard))


def ddp(net: Any) -> Any:
    return minidist.DistributedDataParallel(net)


def forward_compiled(block: Any) -> None:
    block.forward = compiled(block.forward)


def compiled_in_place(block: Any) -> None:
    block.compile(backend=BACKEND)


def itself(model: Any) -> Any:
    compiled_in_place(model)
    return model


def forward_set_on_the_instance(block: Any) -> Any:
    own: Any = nn.Module()
    own.block, own.forward = block, block.forward
    return own


FORMS: dict[str, Callable[[Any], Any]] = {
    "block.forward = compile(block.forward), then shard": lambda net: shard(
        each_block(net, forward_compiled)
    ),
    "block.compile(), then shard": lambda net: shard(each_block(net, compiled_in_place)),
    "compile(block), then shard": lambda net: shard(each_block(net, compiled)),
    "shard, then block.compile()": lambda net: each_block(shard(net), compiled_in_place),
    "shard, then compile(model)": lambda net: compiled(shard(net)),
    "shard(compile(model))": lambda net: minidist.fully_shard(compiled(net)),
    "DDP of compiled blocks": lambda net: ddp(each_block(net, compiled)),
    "DDP(compile(model))": lambda net: ddp(compiled(net)),
    "compile(DDP(model))": lambda net: compiled(ddp(net)),
    "DDP(model).compile()": lambda net: itself(ddp(net)),
    "self.forward = ..., then shard": lambda net: shard(
        each_block(net, forward_set_on_the_instance)
    ),
}


def train(net: Any, model: Any, ranks: range, **how: Any) -> list[torch.Tensor]:
    if how.get("zero"):
        optimizer: Any = minidist.ZeroOptimizer(net.parameters(), torch.optim.AdamW, lr=0.1)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), 0.1)
    step = compiled(optimizer.step) if how.get("step") else optimizer.step
    for turn in range(2):
        for rank in ranks:
            draw = torch.Generator().manual_seed(9 * turn + rank)
            x = torch.randn(3, 4, dtype=torch.float64, generator=draw)
            (model(x).square().mean() / len(ranks)).backward()
        step()
        optimizer.zero_grad()
    return [*minidist.full_state_dict(net).values()]


def all_off() -> list[str]:
    """The forms that do not train as one process does, and those of which nothing is compiled."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine, net, found, bad = range(rank, rank + 1), Net(), {}, []
    right = train(net, net, range(ranks))
    for name, form in FORMS.items():
        counters.clear()
        net = Net()
        found[name] = train(net, form(net), mine)
        if not name.startswith("self") and not counters["stats"]["unique_graphs"]:
            bad.append(f"{name}: nothing is compiled")
        torch._dynamo.reset()
    net = Net()
    found["compile(step) of shards"] = train(net, shard(net), mine, step=True)
    net = Net()
    found["compile(ZeroOptimizer.step)"] = train(net, ddp(net), mine, step=True, zero=True)
    for name, weights in found.items():
        far = max(float((a - b).abs().max()) for a, b in zip(weights, right, strict=True))
        if not far < TOLERANCE:
            bad.append(f"{name}: off by {far}")
    return bad


def test_every_spelling_trains_as_one_process_and_something_is_compiled() -> None:
    assert minidist.launch(all_off, 2, device="cpu", timeout=300) == [[], []]


def collectives(x: torch.Tensor) -> torch.Tensor:
    y, rows = 2 * x, [torch.empty_like(x) for _ in range(2)]
    minidist.all_reduce(y)
    minidist.all_gather(rows, x + 1)
    z = y.clone()
    work = minidist.all_reduce(z, async_op=True)
    assert work
    work.wait()
    return torch.cat([y, *rows, z + 1])


def communicate() -> list[Any]:
    x = torch.arange(2.0) + dist.get_rank()
    refused = says(lambda: compiled(minidist.all_reduce)(x, op="no"))
    return [collectives(x), compiled(collectives)(x), refused]


def test_a_compiled_function_may_communicate() -> None:
    for right, found, refused in minidist.launch(communicate, 2, device="cpu"):
        assert torch.equal(found, right)
        assert "all_reduce: op must be one of" in refused
