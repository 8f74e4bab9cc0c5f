"""How far the host runs ahead of the GPU in a forward of PyTorch's FSDP2, and its gathers with it.

Eight layers of the medium job under `fully_shard`, on one rank. A trace shows of each layer when
the host launched its first kernel and when that began. It is taken as the model is; with `.item()`
in each layer, which waits for the GPU; and with short layers, where the host is the limit.

On one rank torch leaves the all-gather out and copies instead. So the last case tells torch that
there are eight ranks, of a backend that sends nothing: then it gathers, from nobody, and the
numbers mean nothing. Steps are timed without the profiler, which slows the host.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.profiler import record_function

import minidist
from benchmarks.cases.small_job import PARTS, Shape, block_of
from benchmarks.cases.trace import profiled
from benchmarks.harness import turns
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.streams import attempt, streamed
from minidist.planner import jobs

LAYERS = 8
MEDIUM = Shape(LAYERS, *jobs.SHAPES["medium"][1:6])
NARROW = Shape(LAYERS, 1024, 3584, 8, 2, 0)
WARM_UP, ROUNDS = 3, 7
START = 12  # seconds for a process to begin, and for the last case to end
LAUNCHES = ("cuda_runtime", "cuda_driver")


class Case(NamedTuple):
    """A sequence of so many tokens. `waits`: each layer asks the GPU for a number."""

    name: str
    shape: Shape
    tokens: int
    waits: bool = False
    ranks: int = 1  # that torch is told of


CASES = (
    Case("as it is", MEDIUM, 4096),
    Case("item in each layer", MEDIUM, 4096, waits=True),
    Case("short", MEDIUM, 256),
    Case("short and narrow", NARROW, 256),
    Case("as it is, gathers from nobody", MEDIUM, 4096, ranks=8),
)


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each case."""
    alone, seconds = Setup(1, scope.device), clock.left()
    yield from streamed(alone, on_rank, CASES, seconds - START, timeout=seconds)


def on_rank(cases: Sequence[Case], seconds: float, path: str) -> None:
    """On the only rank: each case, and a line for each.

    Raises:
        RuntimeError: some failed, but not for want of time.
    """
    clock, failed = Clock(seconds), 0
    for case in cases:
        row: Row = {"what": "ahead", "case": case.name, "width": case.shape.width}
        row |= {"tokens": case.tokens, "waits": case.waits, "ranks": case.ranks}
        failed += attempt(path, row, partial(in_time, clock, case))
        gc.collect()  # no group that could meet is left after the last case
        torch.cuda.empty_cache()
    if failed:
        raise RuntimeError(f"{failed} of {len(cases)} cases failed")


def in_time(clock: Clock, case: Case) -> Iterator[Row]:
    """Its row, if there is time left."""
    clock.left()
    if case.ranks > 1:
        pretend(case.ranks)
    yield measured(case)


def pretend(ranks: int) -> None:
    """Let this be the first of so many ranks, whose messages go nowhere."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)  # type: ignore[no-untyped-call]


class Layer(nn.Module):
    """A Llama's block, named in a trace."""

    def __init__(self, shape: Shape, name: str, waits: bool) -> None:
        super().__init__()
        self.block = block_of(shape, checkpointed=False)
        self._name, self._waits = name, waits

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        with record_function(self._name):
            y: Tensor = self.block(x)
            if self._waits:
                y[0, 0, 0].item()
        return y


def measured(case: Case) -> Row:
    """Times of a step's parts, and of each layer's forward in a trace."""
    parts = parts_of(case)
    for _ in range(WARM_UP):
        turns.in_order(parts, 1)
    ms = turns.quartiles([turns.in_order(parts, ROUNDS)])

    def step() -> None:
        for part, call in parts.items():
            with record_function(part):
                call()

    row: Row = {"ms": {part: turns.milliseconds(ms[part]) for part in PARTS}}
    return row | lead(profiled(step), case.shape.layers)


def parts_of(case: Case) -> dict[str, turns.Call]:
    """Parts of a step, to be called in this order."""
    device = minidist.device()
    with torch.device("meta"):
        model = nn.Sequential(
            *(Layer(case.shape, layer(place), case.waits) for place in range(case.shape.layers))
        )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for each in (*model, model):
        fully_shard(each, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    for parameter in model.parameters():
        shard: Any = parameter.detach()
        if parameter.ndim > 1:
            shard.to_local().normal_(std=0.02)
        else:
            shard.to_local().fill_(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    size = 1, case.tokens, case.shape.width
    x, gradient = torch.randn(2, *size, device=device, dtype=torch.bfloat16).unbind()
    outputs: list[Tensor] = []

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return {
        "forward": lambda: outputs.append(model(x)),
        "backward": lambda: outputs.pop().backward(gradient),
        "update": update,
    }


def layer(place: int) -> str:
    """A layer's name in a trace."""
    return f"layer {place}"


def lead(events: Sequence[Mapping[str, Any]], layers: int) -> Row:
    """Of each layer's forward, milliseconds since forward began on the host.

    `launched` and `started`: the first kernel, on the host and on the GPU; `ended`: the last one;
    `entered`: the host begins to prepare its parameters; `gathered`: it asks for their all-gather.
    `lead_ms`: from the first launch to the start; `gathers_ahead_ms`: from the next layer's
    all-gather, or its preparation where torch gathers nothing, to this layer's start on the GPU.
    """
    whole = [event for event in events if event.get("ph") == "X"]
    marks = [event for event in whole if event.get("cat") == "user_annotation"]
    begin, end = next((e["ts"], e["ts"] + e["dur"]) for e in marks if e["name"] == "forward")

    def since(moment: float) -> float:
        milliseconds: float = round((moment - begin) / 1e3, 3)
        return milliseconds

    def marked(name: str) -> list[float]:
        inside = [event for event in marks if begin <= event["ts"] <= end]
        return sorted(since(e["ts"]) for e in inside if e["name"].split(" (")[0] == name)

    kernels = {e["args"].get("correlation"): e for e in whole if e.get("cat") == "kernel"}
    launches = [
        (event["ts"], kernels[event["args"]["correlation"]])
        for event in sorted(whole, key=lambda event: event["ts"])
        if event.get("cat") in LAUNCHES and event["args"].get("correlation") in kernels
    ]
    found: dict[str, list[float]] = {"launched": [], "started": [], "ended": []}
    for place in range(layers):
        mark = next(event for event in marks if event["name"] == layer(place))
        inside = [each for each in launches if 0 <= each[0] - mark["ts"] <= mark["dur"]]
        if inside:  # a CPU has no kernels
            found["launched"].append(since(inside[0][0]))
            found["started"].append(since(inside[0][1]["ts"]))
            found["ended"].append(since(max(e["ts"] + e["dur"] for _, e in inside)))
    found["entered"] = marked("FSDP::pre_forward")
    found["gathered"] = marked("FSDP::all_gather")
    asked = (found["gathered"] or found["entered"])[1:]
    ahead = [round(start - ask, 3) for start, ask in zip(found["started"], asked, strict=False)]
    pairs = zip(found["launched"], found["started"], strict=True)
    return {
        "layers": found,
        "lead_ms": [round(start - launch, 3) for launch, start in pairs],
        "gathers_ahead_ms": ahead,
        "gathers_ahead": sum(each > 0 for each in ahead),
    }
