"""A step under FSDP as the GPU saw it: torch's and minidist's, trimmed to what a figure shows.

All ranks share one GPU, so messages go through host memory: what a record can show is the order of
gathers, compute and reductions, and which of them overlap; their speed is not that of a network.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile, record_function

import minidist
from benchmarks.cases import fsdp
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.training import Config, build, corpus

CONFIG = Config(width=1024, layers=6, batch=1024)  # compute takes as long as copies do
WAYS = ("torch", "fsdp")
WARM_UP = 3
JOINED = 0.02  # milliseconds between two kernels of a phase that are drawn as one
PHASES = ("forward", "backward", "update")
COPIES = {"DtoH": "to host", "HtoD": "from host"}
Spans = list[list[float]]


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each way: what ran when, in milliseconds since rank 0's step began."""
    setup = next((each for each in scope.setups if each.ranks == 2), Setup(2, scope.device))
    for done, way in enumerate(WAYS):
        seconds = clock.share(len(WAYS) - done).left()
        row, *_ = setup.launch(on_rank, way, CONFIG, timeout=seconds)
        yield {"setup": setup.name, "ranks": 2, "what": "trace", "way": way, **row}


def on_rank(way: str, config: Config) -> Row:
    """A profiled step."""
    device = minidist.device()
    model, optimizer = fsdp.ways("bf16")[way](build(config, device))
    ids = corpus()[0][: config.batch * (config.tokens + 1)].view(config.batch, -1).to(device)
    for _ in range(WARM_UP):
        step(model, optimizer, ids)
    events = profiled(lambda: step(model, optimizer, ids))
    return {"width": config.width, "layers": config.layers, "batch": config.batch, **trim(events)}


def profiled(call: Callable[[], object]) -> list[Row]:
    """Events of a call in Chrome's format, of host and GPU; all ranks begin together."""
    activities, on_gpu = [ProfilerActivity.CPU], minidist.device().type == "cuda"
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    dist.barrier()
    with profile(activities=activities, acc_events=True) as found:
        call()
        if on_gpu:
            torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        found.export_chrome_trace(path := str(Path(folder) / "trace.json"))
        events: list[Row] = json.loads(Path(path).read_text())["traceEvents"]
    return events


def step(model: Any, optimizer: Optimizer, ids: torch.Tensor) -> None:
    """Forward, backward and update, each under its name in a trace."""
    with record_function("forward"):
        scores = model(ids[:, :-1]).flatten(0, 1)
        loss = nn.functional.cross_entropy(scores.float(), ids[:, 1:].flatten())
    with record_function("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    with record_function("update"):
        optimizer.step()
        optimizer.zero_grad()


def trim(events: Sequence[Mapping[str, Any]]) -> Row:
    """Spans of phases on the host, of their kernels, and of copies between GPU and host.

    A kernel belongs to the phase in which the host launched it.
    """
    whole = [event for event in events if event.get("ph") == "X"]
    called = {
        each["name"]: each
        for each in whole
        if each["name"] in PHASES and each.get("cat") == "user_annotation"
    }
    start = called["forward"]["ts"]

    def span(event: Mapping[str, Any]) -> list[float]:
        begin = (event["ts"] - start) / 1e3
        return [round(begin, 3), round(begin + event["dur"] / 1e3, 3)]

    hosts = {phase: span(called[phase]) for phase in PHASES}
    launched = {
        event["args"]["correlation"]: span(event)[0]
        for event in whole
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event["args"]
    }
    lanes: dict[str, Spans] = {name: [] for name in (*PHASES, *COPIES.values())}
    for event in sorted(whole, key=lambda event: event["ts"]):
        if event.get("cat") == "gpu_memcpy":
            copy = next((lane for kind, lane in COPIES.items() if kind in event["name"]), None)
            if copy:
                lanes[copy].append(span(event))
        elif event.get("cat") == "kernel":
            at = launched.get(event["args"].get("correlation"), span(event)[0])
            phase = next((p for p in reversed(PHASES) if at >= hosts[p][0]), PHASES[0])
            lanes[phase].append(span(event))
    return {"host_ms": hosts, "gpu_ms": {name: joined(spans) for name, spans in lanes.items()}}


def joined(spans: Spans) -> Spans:
    """The same, where short pauses are closed."""
    found: Spans = []
    for begin, end in spans:
        if found and begin - found[-1][1] <= JOINED:
            found[-1][1] = max(end, found[-1][1])
        else:
            found.append([begin, end])
    return found
