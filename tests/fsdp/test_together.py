"""A unit of several modules: as torch's, and as one process; what it sends, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from minidist import (
    full_gradients,
    full_state_dict,
    fully_shard,
    launch,
    load_full_state_dict,
    materialize,
)
from minidist.comm.counted import Counted
from minidist.comm.ours import Ours
from tests.support.training import far

WORDS, WIDTH = 7, 5
F64 = torch.float64


class Net(nn.Module):
    """An embedding and a head, whose weights are tied, around blocks; a skip round the head."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH, dtype=F64)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=F64) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH, dtype=F64)
        self.head = nn.Linear(WIDTH, WORDS, dtype=F64)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor, head: bool = True) -> torch.Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        x = self.norm(x)
        return self.head(x) if head else x


def loss_of(net: Any, rank: int, step: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(100 * step + rank)
    words = torch.randint(WORDS, (4, 3), generator=source)
    return nn.functional.cross_entropy(net(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def by_chunks(net: Any, rank: int, step: int) -> torch.Tensor:
    """The head runs later than the model, a chunk at a time."""
    source = torch.Generator().manual_seed(100 * step + rank)
    words = torch.randint(WORDS, (4, 3), generator=source)
    x = net(words[:, :-1], head=False)
    chunks = zip(x.chunk(2), words[:, 1:].chunk(2), strict=True)
    found = [nn.functional.cross_entropy(net.head(x).flatten(0, 1), y.flatten()) for x, y in chunks]
    return torch.stack(found).mean()


def checkpointed(net: Any, rank: int, step: int) -> torch.Tensor:
    return checkpoint(loss_of, net, rank, step, use_reentrant=False)  # type: ignore[no-any-return]


def together(net: Any, *names: str, wrap: Callable[..., Any] = fully_shard, **options: Any) -> Any:
    for block in net.blocks:
        wrap(block, **options)
    found = [getattr(net, name) for name in names]
    assert wrap(found, **options) is found
    return wrap(net, **options)


def train(net: Any, ranks: range, loss: Callable[..., torch.Tensor]) -> dict[str, Any]:
    """Three steps; the second backward adds to the first's gradients."""
    optimizer = AdamW(net.parameters(), lr=0.01)
    for step in range(3):
        for twice in range(2):
            (sum(loss(net, rank, 2 * step + twice) for rank in ranks) / len(ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(net.named_parameters(remove_duplicate=False))


CASES = [
    (("embed", "head"), True, loss_of, {}),
    (("embed", "head"), False, loss_of, {"reshard_after_forward": False}),
    (("norm", "head"), False, by_chunks, {"reshard_after_forward": None}),
    (("head", "embed"), True, checkpointed, {}),
]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_unit_of_several_modules_trains_as_one_process_and_as_torch_s(ranks: int) -> None:
    def run() -> list[str]:
        from torch.distributed.fsdp import fully_shard as torchs

        me, found = range(dist.get_rank(), dist.get_rank() + 1), []
        for names, tied, loss, options in CASES:
            alone = train(Net(tied), range(dist.get_world_size()), loss)
            net = together(Net(tied), *names, **options)
            train(net, me, loss)
            found.append(far(full_state_dict(net), alone))
            if loss is loss_of:
                theirs = train(together(Net(tied), *names, wrap=torchs, **options), me, loss)
                full = {name: each.full_tensor() for name, each in theirs.items()}
                found.append(far(full_state_dict(net), full))
        return found

    assert {said for found in launch(run, ranks) for said in found} == {""}


def test_it_is_gathered_once_for_a_forward_and_once_for_a_backward() -> None:
    """In a list the two send what one module would; the tied weight travels once."""

    def run() -> list[Any]:
        found = []
        for names in (("embed", "head"), ("embed",)):
            counted = Counted(Ours())
            net = together(Net(tied=len(names) == 2), *names, comm=counted)
            loss_of(net, dist.get_rank(), 0).backward()
            counted.clear()
            loss_of(net, dist.get_rank(), 1).backward()
            sent = [call for call in counted.calls if call.name != "all_reduce"]
            found.append([(call.name, call.nbytes) for call in sent])
        return found

    rows = 8 * (-(-WORDS // 2) * 2)  # of ranks that do not divide them, padded
    block, norm, tied, head = 8 * (6 * 5 + 6), 8 * 6 * 2, rows * (WIDTH + 1), rows * (WIDTH + 1)
    for both, one in launch(run, 2):
        assert sorted(n for name, n in both if name == "all_gather") == sorted(
            2 * [norm, tied, block, block]
        )
        assert sorted(n for name, n in both if name == "reduce_scatter") == sorted(
            [norm, tied, block, block]
        )
        assert len(one) == len(both)
        assert sum(n for _, n in one) == sum(n for _, n in both) + 3 * (head - 8 * 8)


def test_modules_alone_are_one_unit_each_time_and_its_state_is_whole() -> None:
    """Without a unit around them."""

    def run() -> list[str]:
        net = Net()
        fully_shard([net.embed, net.head])
        words = torch.tensor([[1, 2, dist.get_rank()]])
        net.head(net.embed(words)).square().sum().backward()
        want = Net()
        for rank in range(2):
            x = torch.tensor([[1, 2, rank]])
            (want.head(want.embed(x)).square().sum() / 2).backward()
        tied = {"embed.weight": want.embed.weight.grad, "head.bias": want.head.bias.grad}
        got = full_gradients(net)
        with torch.device("meta"):
            late = Net()
        materialize(together(late, "embed", "head"), "cpu")
        load_full_state_dict(late, want.state_dict())
        return [
            far({name: got[name] for name in tied}, tied),
            far(full_state_dict(late), want.state_dict()),
        ]

    assert launch(run, 2) == [["", ""]] * 2
