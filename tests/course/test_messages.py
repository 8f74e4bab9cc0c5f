"""Messages that the chapter on disagreement explains: each is what PyTorch says today."""

import io
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from minidist import launch

PAGE = Path(__file__).parents[2] / "book" / "disagree.md"
TABLE = re.compile(r"^\| the message contains .*\n\| --- .*\n((?:\|.*\n)+)", re.MULTILINE)


class Net(nn.Module):
    """Two layers; `forward` uses one of them, both with one weight, or one by checkpointing."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        if how == "tied":
            self.other.weight = self.one.weight
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "checkpointed":
            return checkpoint(self.one, x, use_reentrant=True)  # type: ignore[no-any-return]
        return self.other(self.one(x)) if self.how == "tied" else self.one(x)  # type: ignore[no-any-return]


def backward(net: nn.Module) -> None:
    net(torch.ones(2, 4, requires_grad=True)).sum().backward()


def peer_dies() -> None:
    if dist.get_rank() == 1:
        dist.destroy_process_group()  # its connections end as those of a process do
    else:
        dist.all_reduce(torch.ones(2))


def left_out() -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2), group=group)


def does_not_arrive() -> None:
    if dist.get_rank() == 0:
        dist.monitored_barrier(timeout=timedelta(seconds=1))


def other_calls() -> None:
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # for groups made from here on
    group, ones = dist.new_group(), torch.ones(2)
    if dist.get_rank() == 0:
        dist.all_reduce(ones, group=group)
    else:
        dist.broadcast(ones, src=0, group=group)


def unused() -> None:
    net = DistributedDataParallel(Net())
    backward(net)
    backward(net)


def ready_twice() -> None:
    backward(DistributedDataParallel(Net("checkpointed"), find_unused_parameters=True))


def tied_across_units() -> None:
    net = Net("tied")
    for each in (net.one, net.other, net):
        fully_shard(each)
    backward(net)


def used_outside() -> None:
    net = Net()
    fully_shard(net)
    _ = net.one.weight + torch.ones(4, 4)


def from_the_wrapper() -> None:
    Net().load_state_dict(DistributedDataParallel(Net()).state_dict())


def half_a_file() -> None:
    whole = io.BytesIO()
    torch.save(Net().state_dict(), whole)
    torch.load(io.BytesIO(whole.getvalue()[:200]))


def without_torchrun() -> None:
    dist.destroy_process_group()
    os.environ.pop("MASTER_ADDR", None)
    dist.init_process_group("gloo", rank=0, world_size=1)


PROVOKED: dict[str, Callable[[], None]] = {
    "typically caused by a remote worker": peer_dies,
    "Timed out waiting": left_out,
    "failed to pass monitoredBarrier": does_not_arrive,
    "Detected mismatch between collectives on ranks": other_calls,
    "Expected to have finished reduction in the prior iteration": unused,
    "Expected to mark a variable ready only once": ready_twice,
    "is shared with a parameter already managed by another FSDP group": tied_across_units,
    "got mixed torch.Tensor and DTensor": used_outside,
    'Unexpected key(s) in state_dict: "module.': from_the_wrapper,
    "PytorchStreamReader failed reading zip archive": half_a_file,
    "environment variable MASTER_ADDR expected, but not set": without_torchrun,
}
SINCE = {"is shared with a parameter already managed by another FSDP group": "2.13"}


def test_the_page_explains_these_messages() -> None:
    (rows,) = TABLE.findall(PAGE.read_text())
    assert re.findall(r"^\| `(.+?)` \|", rows, re.MULTILINE) == list(PROVOKED)


@pytest.mark.parametrize("message", PROVOKED)
def test_pytorch_says_it(message: str) -> None:
    if torch.__version__ < SINCE.get(message, ""):
        pytest.skip(f"torch says it since {SINCE[message]}")
    heard = launch(hears, 2, PROVOKED[message], device="cpu")
    assert any(message in each for each in heard if each)


def hears(provoke: Callable[[], None]) -> str:
    """What a rank is told, "" if nothing."""
    try:
        provoke()
    except Exception as error:
        return str(error)
    return ""
