"""Ranks as threads of this process, whose wrappers of `from_scratch` are recorded as they work.

No launch, no network: what a page shows is what the lesson's own lines did, on every rank.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course.widgets.frames import Cell

RANKS = 4
PATIENCE = 60  # seconds until a rank gives up waiting for the others
ARRIVED = SimpleNamespace(wait=lambda: None)  # the handle of a collective that is done already


class Threads:
    """A `Comm` between threads. `heard` is called after each collective, with what it wrote."""

    def __init__(self, rank: int, places: list[Tensor], barrier: Barrier) -> None:
        self.rank, self.ranks = rank, len(places)
        self.heard: Callable[[str, Tensor], None] = lambda *_: None
        self._places, self._barrier = places, barrier

    def _exchange(self, mine: Tensor) -> list[Tensor]:
        self._barrier.wait(PATIENCE)  # all have read what was there before
        self._places[self.rank] = mine.detach().clone()
        self._barrier.wait(PATIENCE)
        return list(self._places)

    def _write(self, name: str, output: Tensor, result: Tensor) -> Any:
        output.copy_(result)
        self.heard(name, output)
        return ARRIVED

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Any:
        """Give every rank rank `group_src`'s tensor."""
        return self._write("broadcast", tensor, self._exchange(tensor)[group_src])

    def all_reduce(self, tensor: Tensor, *, async_op: bool = False) -> Any:
        """Sum a tensor over the ranks."""
        return self._write("all_reduce", tensor, torch.stack(self._exchange(tensor)).sum(0))

    def reduce_scatter(self, output: Tensor, input: Tensor, *, async_op: bool = False) -> Any:
        """Sum the input; rank r keeps the r-th part."""
        total = torch.stack(self._exchange(input)).sum(0)
        return self._write("reduce_scatter", output, total.chunk(self.ranks)[self.rank])

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Any:
        """Collect all inputs in the order of ranks."""
        return self._write("all_gather", output, torch.cat(self._exchange(input)))


# (network, comm) → model, optimizer, and what is sharded of each layer
Wrap = Callable[[nn.Sequential, Threads], tuple[Any, Any, list[Any]]]


class Note(NamedTuple):
    """Something that a rank did, to which layer (-1: to none of them), and what it then held.

    Of each layer's weights and gradients it has "all", its "own", "moving" ones or "", none.
    """

    what: str
    phase: str  #: "" at the start, then "forward", "backward" or "step"
    layer: int
    weights: list[str]
    gradients: list[str]


class Recorder:
    """One rank's notes of a step of some layers, sharded as `wrap` shards them."""

    def __init__(self, comm: Threads, layers: int, wrap: Wrap) -> None:
        self.notes: list[Note] = []
        self.phase = ""
        net = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(layers)))
        self.weights = list(net.parameters())
        for number, weight in enumerate(self.weights):  # before the hooks of a wrapper
            net[number].register_forward_hook(partial(self._hooked, "forward", number))
            ready = partial(self._hooked, "gradient", number)
            weight.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]
        self.model, self.optimizer, self.owned = wrap(net, comm)
        comm.heard = self._heard
        for number, unit in enumerate(self.owned):
            if hasattr(unit, "reshard"):  # FSDP's, which frees its weights
                unit.reshard = partial(self._freed, unit, unit.reshard, number)
        inner: Any = getattr(self.optimizer, "inner", self.optimizer)
        inner.register_step_post_hook(self._stepped)

    def second_step(self) -> list[Note]:
        """Train two steps; note the second, when state and the order of units are there."""
        for _ in range(2):
            self.notes, self.phase = [], ""
            self.note("start")
            self.phase = "forward"
            loss = self.model(torch.randn(2, 8)).square().mean()
            self.phase = "backward"
            loss.backward()
            if hasattr(self.model, "synchronize"):
                self.model.synchronize()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.note("end")
        return self.notes

    def note(self, what: str, layer: int = -1) -> None:
        """Write down what was done, which buffers take memory and which gradients are set."""
        weights = ["all"] * len(self.weights)
        gradients = ["" if weight.grad is None else "all" for weight in self.weights]
        for number, each in enumerate(self.owned):
            moving = getattr(each, "gathering", None)
            gathered = each.buffer.untyped_storage().size() > 0
            weights[number] = ("moving" if moving else "all") if gathered else "own"
            if each.shard.grad is not None:
                gradients[number] = gradients[number] or "own"
        self.notes.append(Note(what, self.phase, layer, weights, gradients))

    def _heard(self, name: str, output: Tensor) -> None:
        """Note a collective, and the layer that it is for.

        The buckets of DDP, a layer each, are copies: what tells them is how many have left before.
        """
        if name == "all_reduce":
            self.note(name, len(self.weights) - 1 - len(self.model.in_flight))
        else:
            own = [output is each.buffer or output is each.shard.grad for each in self.owned]
            self.note(name, own.index(True))

    def _hooked(self, what: str, layer: int, *_: object) -> None:
        self.note(what, layer)

    def _stepped(self, *_: object) -> None:
        self.phase = "step"
        self.note("step")

    def _freed(self, unit: Any, reshard: Callable[[], None], layer: int) -> None:
        gathered = unit.buffer.untyped_storage().size() > 0
        reshard()
        if gathered:
            self.note("free", layer)


def on_threads(layers: int, wrap: Wrap) -> list[list[Note]]:
    """What each rank notes of a step."""
    places, barrier = [torch.empty(0)] * RANKS, Barrier(RANKS)

    def run(rank: int) -> list[Note]:
        try:
            return Recorder(Threads(rank, places, barrier), layers, wrap).second_step()
        except BaseException:
            barrier.abort()  # or the others would wait
            raise

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(run, range(RANKS)))


def strip(part: str, how: str, rank: int, old: bool = False) -> list[Cell]:
    """A cell for each shard of a part, of which a rank holds "all", its "own" or nothing."""
    others = {"all": "old" if old else "held", "moving": "moving"}.get(how, "")
    looks = [("held" if how else "") if shard == rank else others for shard in range(RANKS)]
    return [Cell(part, look, f"{n}" if look else "") for n, look in enumerate(looks)]
