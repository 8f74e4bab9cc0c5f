"""A pipeline: each rank has a stage or more of the model, and works on a micro-batch at a time.

("F", stage, m) is a stage's forward with micro-batch m, ("B", stage, m) its backward; or backward
comes in two pieces, "I" for the gradient of the stage's input, and later "W" for those of weights.
All ranks walk through one list of such work, in which each piece comes after those that it needs,
and do their part of it. So any two post their messages in the same order, as NCCL wants it::

    pipeline = Pipeline(layers, stages, border)
    loss = pipeline.step(works, x, y, loss_of)

Huang et al., *GPipe* (2019); Narayanan et al., *PipeDream* (2019); Qi et al., *Zero Bubble* (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from from_scratch.refusals import check_batch, check_border, check_layers, labels

Work = tuple[str, int, int]  # kind, stage, micro-batch
Held = tuple[Tensor, Tensor, Tensor | None]  # a stage's input, its output, the output's gradient


class Pipeline:
    """This rank's stages of a model.

    `stages` is their number, and stage s is on rank s % N of the group, or of all; or it lists each
    stage's rank. `border` is a tensor like those that pass from one stage to the next, the same at
    each border. What a stage returns in a narrower dtype, as under autocast, travels in this one.
    """

    def __init__(
        self, layers: nn.Sequential, stages: int | Sequence[int], border: Tensor, group: Any = None
    ) -> None:
        ranks = dist.get_world_size(group)
        each = [s % ranks for s in range(stages)] if isinstance(stages, int) else stages
        check_layers(layers, each, border, group)
        self.homes, stages = each, len(each)
        self.rank = dist.get_rank(group)
        self.last, self.border, self.group = stages - 1, border.new_empty(border.shape), group
        size = len(layers) // stages
        own = [stage for stage, rank in enumerate(self.homes) if rank == self.rank]
        self.modules = {s: layers[s * size : (s + 1) * size] for s in own}
        self.held: dict[tuple[int, int], Held] = {}  # until the end of backward
        self.arriving: dict[Work, tuple[Tensor, Any]] = {}  # input, message that brings it
        self.leaving: list[tuple[Tensor, Any]] = []
        self.checked: set[int] = set()  # stages of which all ranks know that they fit

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of this rank's stages, each once."""
        return list(nn.ModuleList(self.modules.values()).parameters())

    def step(self, works: Sequence[Work], x: Tensor, y: Tensor, loss_of: Callable[..., Any]) -> Any:
        """Add a batch's gradients to `.grad`; return its mean loss, on the last stage's rank.

        Each label counts equally. As in `cross_entropy`, an integer -100 is none.
        """
        last, micro = self.last, 1 + max(m for _, _, m in works)
        check_batch(works, last + 1, x, y)
        xs, ys, losses = x.chunk(micro), y.chunk(micro), []
        share = [labels(each) / labels(y) for each in ys]
        for kind, stage, m in works:
            result, way = None, "F" if kind == "F" else "B"
            to = {"F": stage + 1, "W": -1}.get(kind, stage - 1)  # the stage that waits for it
            if stage in self.modules and kind == "F":
                given = self.received(("F", stage, m)).requires_grad_() if stage else xs[m]
                out = self.modules[stage](given)
                if stage == last:  # the mean over no labels would be NaN
                    out = share[m] * loss_of(out, ys[m]) if share[m] else out[:0].sum()
                    losses.append(out.detach())
                self.held[stage, m], result = (given, out, None), out.detach()
            elif stage in self.modules:
                result = self.backward(kind, stage, m)
            if kind == "F" and stage < last:
                src, first = self.homes[stage], stage not in self.checked
                check_border(result, self.border, stage, src, first, self.group)
                self.checked.add(stage)
            if 0 <= to <= last:
                self.carry((way, to, m), result, self.homes[stage], self.homes[to])
        for _, message in self.leaving:
            message.wait()
        return torch.stack(losses).sum() if losses else None

    def backward(self, kind: str, stage: int, m: int) -> Tensor:
        """Add to the weights' gradients, unless `kind` is "I"; return the input's, unless "W"."""
        given, out, gradient = self.held.pop((stage, m))
        if kind != "W" and stage < self.last:
            gradient = self.received(("B", stage, m))
        if kind == "I":
            self.held[stage, m] = given, out, gradient  # for W, which walks the graph once more
        several = [given] if kind == "I" else self.modules[stage].parameters()
        wanted = None if kind == "B" else [each for each in several if each.requires_grad]
        if out.requires_grad and wanted != []:  # not all that it would be for is frozen
            out.backward(gradient, inputs=wanted, retain_graph=kind == "I")
        return torch.zeros_like(given) if given.grad is None else given.grad

    def carry(self, work: Work, out: Any, src: int, dst: int) -> None:
        """Start to move what `work` needs from rank `src` to rank `dst`."""
        if src == self.rank:
            out = out.to(self.border.dtype).contiguous()
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
