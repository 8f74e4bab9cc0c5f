"""Models for the wrappers: a GPT, and one with a bit of everything, with every way to wrap it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from course.training.models import GPT
from minidist import DistributedDataParallel, Ours, ZeroOptimizer, fully_shard
from tests.support.training import numbers

F64 = torch.float64
WIDTH, WORDS = 5, 7


# ---- a GPT ----


def gpt() -> GPT:
    """Tied weights in the root, three blocks; its sizes divide by nothing."""
    torch.manual_seed(0)
    return GPT(vocab=17, width=12, layers=3, heads=2, context=7).double()


def tokens(step: int, rows: int) -> torch.Tensor:
    return torch.randint(17, (rows, 7), generator=torch.Generator().manual_seed(step))


def score(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1).double(), ids[:, 1:].flatten())


def shard_blocks(net: Any, wrap: Callable[..., Any] = fully_shard, **options: Any) -> Any:
    """Each block a unit, and the root with the rest."""
    for block in net.blocks:
        wrap(block, **options)
    return wrap(net, **options)


# ---- a bit of everything ----


class Block(nn.Module):
    """Sizes that divide by nothing; two parts of it are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, dtype=F64)
        self.up = nn.Linear(WIDTH, 3, dtype=F64)
        self.again = nn.Linear(WIDTH, 3, bias=False, dtype=F64)
        self.again.weight = self.up.weight
        self.down = nn.Linear(3, WIDTH, dtype=F64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(torch.tanh(self.up(y)) + self.again(y))


class Net(nn.Module):
    """Frozen, tied and unused parameters, a tiny one; buffers, saved or not; an extra state."""

    def __init__(self, seed: int = 0, blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(WORDS, WIDTH, dtype=F64)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.frozen = nn.Linear(WIDTH, WIDTH, dtype=F64).requires_grad_(False)
        self.tiny = nn.Parameter(torch.rand((), dtype=F64))
        self.unused = nn.Parameter(torch.rand(4, 2, dtype=F64))
        self.head = nn.Linear(WIDTH, WORDS, bias=False, dtype=F64)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.tensor(seed + 3))
        self.register_buffer("shift", torch.linspace(0, 1, WIDTH, dtype=F64), persistent=False)
        self.extra = seed

    def get_extra_state(self) -> int:
        return self.extra

    def set_extra_state(self, state: int) -> None:
        self.extra = state

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words) * self.tiny + self.shift
        for block in self.blocks:
            x = block(x)
        return self.head(self.frozen(x))


def words(rank: int, step: int = 0) -> torch.Tensor:
    source = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(WORDS, (4,), generator=source)


def loss(net: Any, rank: int, step: int = 0) -> torch.Tensor:
    """Of this rank's words; large, so that there is something to clip."""
    return (net(words(rank, step)) * numbers(rank, step, 4, WORDS)).square().mean() * 30


def right_gradients(
    ranks: int, step: int = 0, state: dict[str, Any] | None = None
) -> dict[str, torch.Tensor | None]:
    """The mean of all ranks', in one process; of a model with this state."""
    net = Net(0)
    if state:
        net.load_state_dict(state)
    sum(loss(net, rank, step) for rank in range(ranks)).div(ranks).backward()
    return {name: parameter.grad for name, parameter in net.named_parameters()}


# ---- the ways to wrap it: of a net that differs from rank to rank, rank 0's counts ----


def bare(net: Net) -> nn.Module:
    for tensor in [*net.parameters(), *net.buffers()]:
        dist.broadcast(tensor.detach(), 0)
    return net


def ddp(net: Net) -> nn.Module:
    return DistributedDataParallel(net, find_unused_parameters=True)


def torch_ddp(net: Net) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)


def zero(net: Net, **options: Any) -> nn.Module:
    """The optimizer goes with the model, or it would be gone."""
    held = bare(net)
    net.zero = [ZeroOptimizer(list(net.parameters()), torch.optim.SGD, lr=1e-3, **options)]
    return held


def zero_averaged(net: Net) -> nn.Module:
    model = ddp(net)
    net.zero = [ZeroOptimizer(list(net.parameters()), torch.optim.SGD, lr=1e-3)]
    return model


def only_blocks(net: Net) -> nn.Module:
    """What is in no unit is for the user to average."""
    for block in net.blocks:
        fully_shard(block)
    inside = {p for block in net.blocks for p in block.parameters()}
    for parameter in net.parameters():
        if parameter not in inside:
            dist.broadcast(parameter.detach(), 0)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(average)
    for buffer in net.buffers():
        dist.broadcast(buffer, 0)
    return net


def average(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def units(net: Net, root: bool = True, **options: Any) -> nn.Module:
    return shard_blocks(net, **options) if root else only_blocks(net)


def hybrid(net: Net) -> nn.Module:
    """Pairs of neighbours share a model; the pairs are replicas."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([r, r + 1]) for r in range(0, ranks, 2)]
    lanes = [dist.new_group(list(range(lane, ranks, 2))) for lane in (0, 1)]
    return units(net, comm=(Ours(lanes[rank % 2]), Ours(pairs[rank // 2])))


WRAPPINGS: dict[str, Callable[[Net], nn.Module]] = {
    "bare": bare,
    "ddp": ddp,
    "torch's ddp": torch_ddp,
    "zero 1, averaged": zero_averaged,
    "zero 1, local": lambda net: zero(net, gradients="local"),
    "zero 2": lambda net: zero(net, stage=2, bucket_cap_mb=1e-4),
    "units": units,
    "kept whole after forward": lambda net: units(net, reshard_after_forward=False),
    "only blocks": only_blocks,
    "only the root": fully_shard,
    "mixed": lambda net: units(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32)),
}
EVEN = {"hybrid": hybrid}  # wants an even number of ranks


def wrappings(ranks: int) -> dict[str, Callable[[Net], nn.Module]]:
    return WRAPPINGS | (EVEN if ranks % 2 == 0 else {})
