"""Ranks as threads of this process, whose wrappers of `from_scratch` are recorded as they work.

No launch, no network: what a page shows is what the lesson's own lines did, on every rank.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course.widgets.frames import Cell

RANKS = 4
PATIENCE = 60  # seconds until a rank gives up waiting for the others


class Arrived:
    """A collective that is done as soon as it has begun."""

    def wait(self) -> bool:
        """Return at once."""
        return True


class Threads:
    """A `Comm` between threads. `heard` is called after each collective, with its tensors."""

    heard: Callable[[str, Tensor, Tensor], None] | None = None

    def __init__(self, rank: int, places: list[Tensor], barrier: Barrier) -> None:
        self.rank, self.ranks = rank, len(places)
        self._places, self._barrier = places, barrier

    def _exchange(self, mine: Tensor) -> list[Tensor]:
        self._barrier.wait(PATIENCE)  # all have read what was there before
        self._places[self.rank] = mine.detach().clone()
        self._barrier.wait(PATIENCE)
        return list(self._places)

    def _done(self, name: str, output: Tensor, input: Tensor) -> Arrived:
        if self.heard:
            self.heard(name, output, input)
        return Arrived()

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Arrived:
        """Give every rank rank `group_src`'s tensor."""
        tensor.copy_(self._exchange(tensor)[group_src])
        return self._done("broadcast", tensor, tensor)

    def all_reduce(self, tensor: Tensor, *, async_op: bool = False) -> Arrived:
        """Sum a tensor over the ranks."""
        tensor.copy_(torch.stack(self._exchange(tensor)).sum(0))
        return self._done("all_reduce", tensor, tensor)

    def reduce_scatter(self, output: Tensor, input: Tensor, *, async_op: bool = False) -> Arrived:
        """Sum the input; rank r keeps the r-th part."""
        whole = torch.stack(self._exchange(input)).sum(0)
        output.copy_(whole.chunk(self.ranks)[self.rank])
        return self._done("reduce_scatter", output, input)

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Arrived:
        """Collect all inputs in the order of ranks."""
        output.copy_(torch.cat(self._exchange(input)))
        return self._done("all_gather", output, input)


# (network, comm) → model, optimizer, and what is sharded of each layer
Wrap = Callable[[nn.Sequential, Threads], tuple[Any, Any, list[Any]]]


class Held(NamedTuple):
    """How much of each layer's weights and gradients a rank has: "all", "own", "moving" or ""."""

    weights: tuple[str, ...]
    gradients: tuple[str, ...]


class Note(NamedTuple):
    """Something that a rank did, to which layer (-1: to none of them), and what it then held."""

    what: str
    layer: int
    held: Held


class Recorder:
    """One rank's notes of a step of some layers, sharded as `wrap` shards them."""

    def __init__(self, comm: Threads, layers: int, wrap: Wrap) -> None:
        self.notes: list[Note] = []
        self.recording = False
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
        inner.register_step_post_hook(lambda *_: self.note("step"))

    def second_step(self) -> list[Note]:
        """Train two steps; note the second, when state and the order of units are there."""
        for step in range(2):
            if step == 1:
                self.recording = True
                self.note("start")
            self.model(torch.randn(2, 8)).square().mean().backward()
            if hasattr(self.model, "synchronize"):
                self.model.synchronize()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.note("end")
        return self.notes

    def note(self, what: str, layer: int = -1) -> None:
        """Write down what was done and what there is now."""
        if self.recording:
            self.notes.append(Note(what, layer, self._held()))

    def _held(self) -> Held:
        """What there is: buffers that take memory, and gradients that are set."""
        weights, gradients = ["all"] * len(self.weights), [""] * len(self.weights)
        for number, each in enumerate(self.owned):
            moving = getattr(each, "gathering", None)
            gathered = each.buffer.untyped_storage().size() > 0
            weights[number] = ("moving" if moving else "all") if gathered else "own"
            gradients[number] = "" if each.shard.grad is None else "own"
        for number, weight in enumerate(self.weights):
            gradients[number] = gradients[number] if weight.grad is None else "all"
        return Held(tuple(weights), tuple(gradients))

    def _heard(self, name: str, output: Tensor, input: Tensor) -> None:
        """Note a collective, and the layer whose tensor lies where its own does.

        The buckets of DDP, a layer each, are copies: what tells them is how many have left before.
        """
        if name == "all_reduce" and hasattr(self.model, "in_flight"):
            self.note(name, len(self.weights) - 1 - len(self.model.in_flight))
            return
        if name == "all_gather":
            mine, among = input, [each.shard for each in self.owned]
        else:
            mine, among = output, [each.shard.grad for each in self.owned]
        among = among or [each.grad for each in self.weights]
        places = [None if each is None else each.data_ptr() for each in among]
        self.note(name, places.index(mine.data_ptr()) if mine.data_ptr() in places else -1)

    def _hooked(self, what: str, layer: int, *_: object) -> None:
        self.note(what, layer)

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
