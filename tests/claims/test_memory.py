"""The claims of the chapter on memory, each shown by a run."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from course.training.models import GPT
from minidist.memory.activations import expected, saved
from minidist.memory.meter import Meter
from minidist.memory.predict import predict
from minidist.memory.state import FP32, MIXED, share, state

GB = 10**9
TIME = 32
IDS = torch.arange(8 * (TIME + 1)).view(8, -1) % 50


def gpt(width: int = 64, layers: int = 3, heads: int = 4) -> GPT:
    torch.manual_seed(0)
    return GPT(50, width, layers, heads, TIME)


def loss_of(net: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


# ---- D3: see also tests/memory/test_memory.py, where four ranks hold what is predicted ----


@pytest.mark.claim("D3")
def test_112_gb_are_28_on_four_ranks_and_the_unit_and_the_activations_come_on_top() -> None:
    assert state(7 * GB, FP32).total == 112 * GB
    assert share(state(7 * GB, FP32), 4, 3).total == 28 * GB
    with torch.device("meta"):
        net, rows = GPT(32_000, 4096, 34, 32, 2048), torch.zeros(1, 2049, dtype=torch.int64)
        shallow = [GPT(32_000, 4096, layers, 32, 2048) for layers in (1, 2)]
    one, two = (sum(expected(partial(loss_of, each, rows)).values()) for each in shallow)
    kept = one + 33 * (two - one)
    units = [f"blocks.{i}" for i in range(34)]
    ddp = predict(net, 4, "ddp", activations=kept)
    fsdp = predict(net, 4, "fsdp", units=units, activations=kept)
    assert abs(ddp.state.total / (112 * GB) - 1) < 0.01
    assert abs(fsdp.state.total / (28 * GB) - 1) < 0.01
    block = sum(p.nbytes for p in net.blocks[0].parameters())
    assert fsdp.unsharded > 4 * block
    assert fsdp.peak > 1.3 * fsdp.state.total
    far = predict(net, 64, "fsdp", units=units, activations=kept)
    assert far.state.total * 64 == pytest.approx(ddp.state.total, rel=0.01)
    assert far.peak > kept + far.at_begin, "which no number of ranks makes smaller"


# ---- D11 ----


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = checkpoint(self.block, x, use_reentrant=False)
        return output


def one_step(checkpoints: bool, early: bool = True) -> tuple[int, int, int, torch.Tensor]:
    """Bytes kept after forward; at the most in a step; operations; gradients."""
    meter, net = Meter(), gpt()
    if checkpoints:
        net.blocks = nn.ModuleList(map(Checkpointed, net.blocks))
    kept = saved(lambda: loss_of(net, IDS), [*net.parameters(), IDS])
    with set_checkpoint_early_stop(early):
        peak = meter.curve(lambda: loss_of(net, IDS).backward()).peak
        net.zero_grad()
        with FlopCounterMode(display=False) as counter:
            loss_of(net, IDS).backward()
    gradients = [p.grad.flatten() for p in net.parameters() if p.grad is not None]
    return kept, peak, counter.get_total_flops(), torch.cat(gradients)


@pytest.mark.claim("D11")
def test_checkpoints_save_activations_for_up_to_a_third_more_operations() -> None:
    kept, peak, operations, gradients = one_step(False)
    less, lower, more, same = one_step(True)
    _, _, whole, again = one_step(True, early=False)
    assert less < kept / 5
    assert lower < 0.7 * peak
    assert torch.equal(gradients, same)
    assert torch.equal(gradients, again)
    tokens, blocks = IDS[:, 1:].numel(), [p for p in gpt().blocks.parameters() if p.dim() == 2]
    forward = 2 * tokens * sum(p.numel() for p in blocks)
    assert whole - operations == forward, "exactly one more forward of the blocks"
    assert 3 * forward < operations < 3.1 * forward
    last = 2 * tokens * sum(p.numel() for p in blocks if p.shape == (64, 256))
    assert more == whole - last, "torch leaves out the last matrix of each block"


# ---- E10 ----


@pytest.mark.claim("E10")
def test_the_weights_of_7b_fit_a_card_of_24_gb_and_their_training_does_not() -> None:
    seven = state(7 * GB, MIXED)
    assert seven.weights == 14 * GB < 24 * GB
    assert seven.weights + seven.gradients > 24 * GB
    assert seven.total == 112 * GB
    assert share(seven, 8, 3).total < 24 * GB < share(seven, 4, 3).total


@pytest.mark.claim("E10")
@pytest.mark.parametrize(("what", "fits"), [("use", True), ("gradients", False), ("train", False)])
def test_a_thousandth_of_both_on_the_allocator(what: str, fits: bool) -> None:
    meter = Meter()
    net = gpt(256, 9).bfloat16()
    count = sum(parameter.numel() for parameter in net.parameters())
    assert abs(count / 7e6 - 1) < 0.05

    def run() -> None:
        if what == "use":
            with torch.no_grad():
                net(IDS[:1, :-1])
            return
        loss_of(net, IDS[:1, :9]).backward()
        if what == "train":
            masters = [parameter.detach().float() for parameter in net.parameters()]
            for master, parameter in zip(masters, net.parameters(), strict=True):
                assert parameter.grad is not None
                master.grad = parameter.grad.float()
            torch.optim.Adam(masters).step()

    curve = meter.curve(run)
    assert curve.start == 2 * count
    assert (curve.peak < 24 * 10**6) == fits
    if what == "train":
        assert curve.peak > state(count, MIXED).total
