"""A pipeline: each rank has a stage or more of the model, and works on a micro-batch at a time.

("F", stage, m) is a stage's forward with micro-batch m, ("B", stage, m) its backward. All ranks
walk through one list of such work, in which each piece comes after those that it needs, and do
their part of it. So any two post their messages in the same order, as NCCL wants it::

    pipeline = Pipeline(layers, stages, border)
    loss = pipeline.step(works, x, y, loss_of)

Huang et al., *GPipe* (2019); Narayanan et al., *PipeDream* (2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Work = tuple[str, int, int]  # kind, stage, micro-batch


class Pipeline:
    """This rank's stages of a model; stage s is on rank s % N of the group, or of all.

    `border` is a tensor like those that pass from one stage to the next, the same at each border.
    """

    def __init__(
        self, layers: nn.Sequential, stages: int, border: Tensor, group: Any = None
    ) -> None:
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        if len(layers) % stages or stages % self.ranks:
            text = f"{len(layers)} layers, {stages} stages and {self.ranks} ranks"
            raise ValueError(f"{text}: each has to divide the one before")
        size = len(layers) // stages
        own = range(self.rank, stages, self.ranks)
        self.modules = {s: layers[s * size : (s + 1) * size] for s in own}
        self.last, self.border, self.group = stages - 1, border, group
        self.held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # input, output, for backward
        self.arriving: dict[Work, tuple[Tensor, Any]] = {}  # input, message that brings it
        self.leaving: list[tuple[Tensor, Any]] = []

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of this rank's stages."""
        return [p for module in self.modules.values() for p in module.parameters()]

    def step(self, works: Sequence[Work], x: Tensor, y: Tensor, loss_of: Callable[..., Any]) -> Any:
        """Add a batch's gradients to `.grad`; return its mean loss, on the last stage's rank."""
        last, micro = max(s for _, s, _ in works), 1 + max(m for _, _, m in works)
        if last != self.last:
            raise ValueError(f"the order is for {last + 1} stages, the model has {self.last + 1}")
        if len(x) % micro:
            raise ValueError(f"{len(x)} samples do not divide into {micro} micro-batches")
        xs, ys, losses = x.chunk(micro), y.chunk(micro), []
        for kind, stage, m in works:
            result, to = None, stage + 1 if kind == "F" else stage - 1
            if stage in self.modules and kind == "F":
                given = self.received(("F", stage, m)).requires_grad_() if stage else xs[m]
                module = self.modules[stage]
                out = module(given)
                if stage == last:
                    out = loss_of(out, ys[m]) / micro
                    losses.append(out.detach())
                self.held[stage, m], result = (given, out), out.detach()
            elif stage in self.modules:
                given, out = self.held.pop((stage, m))
                out.backward(self.received(("B", stage, m)) if stage < last else None)
                result = given.grad
            if 0 <= to <= last:
                self.carry((kind, to, m), result, stage % self.ranks, to % self.ranks)
        for _, message in self.leaving:
            message.wait()
        return torch.stack(losses).sum() if losses else None

    def carry(self, work: Work, out: Any, src: int, dst: int) -> None:
        """Start to move what `work` needs from rank `src` to rank `dst`."""
        if src == self.rank and out.shape != self.border.shape:
            raise ValueError(f"{[*out.shape]} is no border, which is {[*self.border.shape]}")
        self.leaving = [each for each in self.leaving if not each[1].is_completed()]
        if src == dst == self.rank:
            self.arriving[work] = out, None
        elif src == self.rank:
            self.leaving.append((out, dist.isend(out, group=self.group, group_dst=dst)))
        elif dst == self.rank:
            buffer = torch.empty_like(self.border)
            self.arriving[work] = buffer, dist.irecv(buffer, group=self.group, group_src=src)

    def received(self, work: Work) -> Tensor:
        """The tensor that a piece of work needs, once it has arrived."""
        tensor, message = self.arriving.pop(work)
        if message:
            message.wait()
        return tensor
