"""Ranks as threads of this process, whose wrappers of `from_scratch` are recorded as they work.

No launch, no network: what a page shows is what the lesson's own lines did, on every rank.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

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
    """One rank's notes; `look` says what it holds."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.look: Callable[[], Held] | None = None  # None: not recording yet

    def note(self, what: str, layer: int = -1) -> None:
        """Write down what was done and what there is now."""
        if self.look:
            self.notes.append(Note(what, layer, self.look()))

    def note_about(self, what: str, tensor: Tensor, among: Sequence[Tensor | None]) -> None:
        """The same, about the layer whose tensor lies where this one does."""
        places = [None if each is None else each.data_ptr() for each in among]
        here = tensor.data_ptr()
        self.note(what, places.index(here) if here in places else -1)

    def watch(self, layers: Sequence[nn.Module]) -> None:
        """Note each forward and each gradient, before any hook that is registered later."""
        for number, layer in enumerate(layers):
            layer.register_forward_hook(partial(self._hooked, "forward", number))
            for parameter in layer.parameters():
                ready = partial(self._hooked, "gradient", number)
                parameter.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]

    def watch_units(self, units: Sequence[Any]) -> None:
        """Note when each unit of FSDP frees its weights."""
        for number, unit in enumerate(units):
            unit.reshard = partial(self._freed, unit, unit.reshard, number)

    def second_step(self, model: Any, optimizer: Any, look: Callable[[], Held]) -> list[Note]:
        """Train two steps; note the second, when state and the order of units are there."""
        for step in range(2):
            if step == 1:
                self.look = look
                self.note("start")
            model(torch.randn(2, 8)).square().mean().backward()
            if hasattr(model, "synchronize"):
                model.synchronize()
            optimizer.step()
            optimizer.zero_grad()
            self.note("end")
        return self.notes

    def _hooked(self, what: str, layer: int, *_: object) -> None:
        self.note(what, layer)

    def _freed(self, unit: Any, reshard: Callable[[], None], layer: int) -> None:
        gathered = unit.buffer.untyped_storage().size() > 0
        reshard()
        if gathered:
            self.note("free", layer)


def network(layers: int, width: int = 8) -> nn.Sequential:
    """Linear layers that ranks can share evenly."""
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def on_threads(rank: Callable[[Threads], list[Note]], ranks: int = RANKS) -> list[list[Note]]:
    """Run a function as every rank, and return what each has noted."""
    places, barrier = [torch.empty(0)] * ranks, Barrier(ranks)

    def run(number: int) -> list[Note]:
        try:
            return rank(Threads(number, places, barrier))
        except BaseException:
            barrier.abort()  # or the others would wait
            raise

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, range(ranks)))
