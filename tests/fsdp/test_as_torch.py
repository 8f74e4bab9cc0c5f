"""What torch's documentation shows for FSDP2 works the same, or is refused with what to do."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from minidist import fully_shard, launch
from minidist.parallel.fsdp.checks import INSTEAD
from tests.fsdp.test_checks import pair, says
from tests.support.models import gpt, score, shard_blocks, tokens
from tests.support.training import far, mine


def accumulate(net: Any) -> None:
    net.set_requires_gradient_sync(requires_gradient_sync=False, recurse=True)
    net.set_is_last_backward(False)
    score(net, mine(tokens(5, 4))).backward()
    net.set_requires_gradient_sync(True)
    net.set_is_last_backward(True)


WORKS: dict[str, Callable[[Any], object]] = {
    "unshard()": lambda net: net.unshard(),
    "unshard(async_op=True)": lambda net: net.unshard(async_op=True).wait(),
    "reshard()": lambda net: net.reshard(),
    "set_requires_gradient_sync, set_is_last_backward": accumulate,
    "set_reshard_after_forward": lambda net: net.set_reshard_after_forward(False, recurse=True),
    "zero_grad()": lambda net: net.zero_grad(),
}


def test_calls_that_work_the_same() -> None:
    """Before a step of ours and of torch's; afterwards the gradients are alike."""

    def run() -> dict[str, str]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy
        from torch.distributed.fsdp import fully_shard as torchs

        double = MixedPrecisionPolicy(output_dtype=torch.float64)
        options: list[dict[str, Any]] = [
            {"reshard_after_forward": None, "mp_policy": MixedPrecisionPolicy()},
            {"reshard_after_forward": False, "mp_policy": double},
        ]
        found, mesh = {}, init_device_mesh("cpu", (2,))
        for name, call in WORKS.items():
            for each in options:
                wraps = fully_shard, torchs
                nets = [shard_blocks(gpt(), wrap, mesh=mesh, **each) for wrap in wraps]
                for net in nets:
                    call(net)
                    score(net, mine(tokens(0, 4))).backward()
                got = {n: p.grad.to_local() for n, p in nets[0].named_parameters()}
                want = {n: p.grad.to_local() for n, p in nets[1].named_parameters()}
                found[f"{name}, {each}"] = far(got, want)
        return {name: said for name, said in found.items() if said}

    assert launch(run, 2) == [{}] * 2


def test_what_only_torch_has_is_refused_with_what_to_do_instead() -> None:
    """All that torch's class has is there, refused, or undocumented."""

    def run() -> list[Any]:
        from torch.distributed.fsdp import FSDPModule as Torchs

        net = fully_shard(pair())
        theirs = {name for name in vars(Torchs) if not name.startswith("_")} - {"reset_iter_state"}
        unknown = [each for each in theirs if not hasattr(net, each) and each not in INSTEAD]
        said = {}
        for name in INSTEAD:
            if name.startswith("set_"):
                said[name] = says(lambda name=name: getattr(net, name), AttributeError)
            else:
                said[name] = says(lambda name=name: fully_shard(pair(), **{name: None}), TypeError)
        return [unknown, said]

    table = (Path(__file__).parents[2] / "book" / "api" / "torch.md").read_text()
    for rank, (unknown, said) in enumerate(launch(run, 2)):
        assert unknown == []
        for name, message in said.items():
            assert f"rank {rank}: " in message
            assert message.endswith(f"{name}: {INSTEAD[name]}")
            assert name in table


def test_a_padded_encoder_in_units_of_layers_leaves_the_padding_as_it_comes() -> None:
    """torch's fast path looks at the first layer's parameters, before they are gathered."""

    def run() -> list[list[bool]]:
        found = []
        padded = torch.tensor([[False, False, True], [False, False, False]])
        for inner in (False, True):
            torch.manual_seed(0)
            layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            alone = torch.nn.TransformerEncoder(layer, 2).eval()
            ours = copy.deepcopy(alone)
            for part in [*ours.layers, ours] if inner else [ours]:
                fully_shard(part)
            x = torch.randn(2, 3, 8)
            with torch.no_grad():
                got, want = (each(x, src_key_padding_mask=padded) for each in (ours, alone))
            close = torch.isclose(got, want, atol=1e-6).all(-1)
            found.append([bool(close[~padded].all()), bool(close[padded].all())])
        return found

    assert launch(run, 2) == [[[True, True], [True, False]]] * 2
