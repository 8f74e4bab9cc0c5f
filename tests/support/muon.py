"""minidist.Muon on shards beside torch.optim.Muon on whole matrices, on the ranks' device."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import minidist
from tests.support.training import far, numbers

# Tall, wide and square, not divisible, rows fewer than ranks; the last is frozen.
SHAPES = [(6, 10), (12, 5), (7, 7), (3, 8), (1, 4), (33, 16), (8, 64)]
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "as AdamW's": {"lr": 0.02, "weight_decay": 0.3, "adjust_lr_fn": "match_rms_adamw"},
    "plain": {"momentum": 0.8, "nesterov": False, "weight_decay": 0.0},
    "other numbers": {"ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 3, "eps": 1e-3},
}
CLOSE = {torch.float32: 1e-6, torch.bfloat16: 2**-7}  # the last is the rounding of a weight


def matrices(dtype: torch.dtype) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(wide, high, bias=False, dtype=dtype) for high, wide in SHAPES)


def sharded(net: nn.ModuleList, device: torch.device, rows: int = 0) -> list[nn.Parameter]:
    """Its parameters, each layer a unit; of `rows` of ranks each has all."""
    mesh = None
    if rows:
        shape, names = (rows, dist.get_world_size() // rows), ("replicate", "shard")
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    for layer in net.to(device):
        minidist.fully_shard(layer, mesh=mesh)
    return list(net.parameters())


def apart(dtype: torch.dtype, rows: int = 0, device: Any = "cpu", **options: Any) -> str:
    """What differs after four steps, of weights and momentum; "" if nothing does.

    The last matrix is frozen, the first has no gradient in the second step.
    """
    device = torch.device(device)
    net = matrices(dtype)
    alone = copy.deepcopy(net).to(device)
    ours = minidist.Muon([{"params": sharded(net, device, rows)}], **options)
    theirs = torch.optim.Muon(alone.parameters(), **options)
    for step in range(4):
        pairs = list(zip(net.parameters(), alone.parameters(), strict=True))
        for place, (part, whole) in enumerate(pairs[:-1]):
            whole.grad = numbers(place, step, *whole.shape, dtype=dtype).to(device)
            part.grad = part.part_of(whole.grad).clone()  # type: ignore[attr-defined]
            if step == 1 and not place:
                whole.grad = part.grad = None
        ours.step()
        theirs.step()
    got = {f"{place}": minidist.full_state_dict(net[place])["weight"] for place in range(len(net))}
    want = {f"{place}": whole.detach() for place, (_, whole) in enumerate(pairs)}
    for place, (part, whole) in enumerate(pairs):
        if (whole in theirs.state) != (part in ours.state):
            return f"{place}: momentum where there is none, or none where there is one"
        if whole in theirs.state:
            got[f"momentum {place}"] = ours.state[part]["momentum_buffer"]
            mean = theirs.state[whole]["momentum_buffer"]
            want[f"momentum {place}"] = part.part_of(mean)  # type: ignore[attr-defined]
    return far(got, want, CLOSE[dtype])


def all_off() -> dict[str, str]:
    """What differs, by options, dtype and rows of ranks."""
    here, ranks, found = minidist.device(), dist.get_world_size(), {}
    for name, options in OPTIONS.items():
        for dtype in CLOSE:
            if dtype == torch.bfloat16 and not options.get("nesterov", True):
                continue  # torch 2.13 overwrites the momentum: pytorch#194664
            for rows in (0, 2) if ranks % 2 == 0 else (0,):
                found[f"{name}, {dtype}, {rows} rows"] = apart(dtype, rows, here, **options)
    return {name: said for name, said in found.items() if said}
