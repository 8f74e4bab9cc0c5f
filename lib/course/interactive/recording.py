"""A step of a wrapper of `from_scratch`, recorded on one rank as it works.

No launch, no network: what a page shows is what the lesson's own lines did. It shows what a rank
holds, not which numbers, so a collective takes the rank's own tensors for those of the others.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from from_scratch import Comm

RANKS = 4
ARRIVED = SimpleNamespace(wait=lambda: None)  # the handle of a collective that is done already

# (network, comm) → model, optimizer, and what is sharded of each layer
Wrap = Callable[[nn.Sequential, Comm], tuple[Any, Any, list[Any]]]


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
    """The `Comm` of one rank, and its notes of a step of some layers, sharded as `wrap` does."""

    ranks = RANKS

    def __init__(self, rank: int, layers: int, wrap: Wrap) -> None:
        self.rank = rank
        self.notes: list[Note] = []
        self.phase = ""
        net = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(layers)))
        self.weights = list(net.parameters())
        for number, weight in enumerate(self.weights):  # before the hooks of a wrapper
            net[number].register_forward_hook(partial(self.note, "forward", number))
            ready = partial(self.note, "gradient", number)
            weight.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]
        self.model, self.optimizer, self.owned = wrap(net, self)
        for number, unit in enumerate(self.owned):
            if hasattr(unit, "reshard"):  # FSDP's, which frees its weights
                unit.reshard = partial(self._freed, unit, unit.reshard, number)
        inner: Any = getattr(self.optimizer, "inner", self.optimizer)
        inner.register_step_post_hook(partial(self.note, "step", -1))

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

    def note(self, what: str, layer: int = -1, *_: object) -> None:
        """Write down what was done, which buffers take memory and which gradients are set."""
        if what == "step":
            self.phase = what
        weights = ["all"] * len(self.weights)
        gradients = ["" if weight.grad is None else "all" for weight in self.weights]
        for number, each in enumerate(self.owned):
            moving = getattr(each, "gathering", None)
            gathered = each.buffer.untyped_storage().size() > 0
            weights[number] = ("moving" if moving else "all") if gathered else "own"
            if each.shard.grad is not None:
                gradients[number] = gradients[number] or "own"
        self.notes.append(Note(what, self.phase, layer, weights, gradients))

    def _freed(self, unit: Any, reshard: Callable[[], None], layer: int) -> None:
        gathered = unit.buffer.untyped_storage().size() > 0
        reshard()
        if gathered:
            self.note("free", layer)

    # ---- collectives ----

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> None:
        """Keep the tensor: wrappers broadcast before the step that is noted."""

    def all_reduce(self, tensor: Tensor, *, async_op: bool = False) -> Any:
        """Note DDP's bucket, a layer: a copy, so what tells it is how many have left before."""
        self.note("all_reduce", len(self.weights) - 1 - len(self.model.in_flight))
        return ARRIVED

    def reduce_scatter(self, output: Tensor, input: Tensor, *, async_op: bool = False) -> Any:
        """Keep this rank's part."""
        return self._write("reduce_scatter", output, input.chunk(RANKS)[self.rank])

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Any:
        """Collect as many inputs as there are ranks."""
        return self._write("all_gather", output, input.repeat(RANKS))

    def _write(self, name: str, output: Tensor, result: Tensor) -> Any:
        output.copy_(result)
        own = [output is each.buffer or output is each.shard.grad for each in self.owned]
        self.note(name, own.index(True))
        return ARRIVED
