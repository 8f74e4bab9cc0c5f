"""What happens between the ranks of a trainer, right or with one of five faults.

This runs in the grader's process, where the reader's test cannot look.
"""

from threading import Barrier, BrokenBarrierError
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Fault(NamedTuple):
    """A planted fault, and how a test can see it."""

    what: str
    hint: str


SUM, STALE, CLIP = "no division", "a stale bucket", "clipping by the local norm"
SEED, BUFFER = "the same rows everywhere", "a forgotten buffer"
FAULTS = {
    SUM: Fault(
        "gradients are added up over the ranks and not divided by their number",
        "AdamW and clipping hide the scale of a gradient: train by SGD, and compare the norm.",
    ),
    STALE: Fault(
        "a bucket leaves before its last gradient is in it, so that of the step before travels",
        "Compare the weights after a few steps, each on other data.",
    ),
    CLIP: Fault(
        "each rank clips by the norm of what it has itself, not by that of the whole gradient",
        "Give `step` a max_norm below the norm; compare what it returns, and the weights.",
    ),
    SEED: Fault(
        "the sampler draws with the same seed and does not know the rank, so all draw the same",
        "Train on `trainer.rows`, and the one process on all rows, no two of them equal.",
    ),
    BUFFER: Fault(
        "rank 0's buffers never reach the other ranks",
        "Give each rank a model whose buffer starts with other values, and the output needs it.",
    ),
}


class Meeting:
    """Answers to the ranks of one run of the reader's test, all of which must ask alike."""

    def __init__(self, ranks: int, fault: str) -> None:
        self._ranks, self._fault = ranks, fault
        self._asked: dict[int, tuple[Any, ...]] = {}  # by rank: a name, and what comes with it
        self._answers: list[Any] = ranks * [None]
        self._error = ""
        self._barrier = Barrier(ranks, self._meet)
        self._sent = 0  # buckets in this step
        self._late: dict[int, list[Tensor]] = {}  # a bucket's number → its last gradients, by rank

    def __call__(self, name: str, rank: int, *given: Any) -> Any:
        """The answer to a rank, when all have asked; rows are nobody else's business."""
        if name == "rows":
            return self._rows(rank, *given)
        self._asked[rank] = name, *given
        try:
            self._barrier.wait()
        except (BrokenBarrierError, RuntimeError) as error:
            raise RuntimeError(self._error) from error
        return self._answers[rank]

    def _meet(self) -> None:
        asked = [self._asked[rank] for rank in range(self._ranks)]
        name, *_ = names = [each[0] for each in asked]
        if len({*names}) > 1:
            calls = "; ".join(f"rank {rank} makes {each}" for rank, each in enumerate(names))
            self._error = f"the ranks disagree on the call: {calls}"
            raise RuntimeError(self._error)
        every = [each[1:] for each in asked]
        if name == "norm":
            self._sent, self._answers = 0, self._norms(every)
        elif name != "end":
            self._answers = getattr(self, f"_{name}")([tensor for (tensor,) in every])

    def _broadcast(self, every: list[Tensor]) -> list[Tensor]:
        return self._ranks * every[:1]

    def _all_gather(self, every: list[Tensor]) -> list[Tensor]:
        return self._ranks * [torch.cat(every)]

    def _all_reduce(self, every: list[Tensor]) -> list[Tensor]:
        return self._ranks * [self._sum(every)]

    def _reduce_scatter(self, every: list[Tensor]) -> list[Tensor]:
        return [part.clone() for part in self._sum(every).chunk(self._ranks)]

    def _sum(self, every: list[Tensor]) -> Tensor:
        if self._fault == STALE:
            late = [each.flatten()[each.numel() // 2 :] for each in every]  # views
            before = self._late.get(self._sent, [torch.zeros_like(each) for each in late])
            self._late[self._sent] = [each.clone() for each in late]
            for now, old in zip(late, before, strict=True):
                now.copy_(old)
        self._sent += 1
        total = torch.stack(every).sum(0)
        return total * self._ranks if self._fault == SUM else total

    def _norms(self, every: list[tuple[bool, Tensor, Tensor]]) -> list[Tensor]:
        """Norms from (whether parts are sharded, squares before the average, squares after it)."""
        local = [after if sharded else before for sharded, before, after in every]
        sharded, _, whole = every[0]
        if sharded:
            whole = torch.stack([after for *_, after in every]).sum()
        squares = local if self._fault == CLIP else self._ranks * [whole]
        return [each.sqrt() for each in squares]

    def _buffer(self, every: list[Tensor]) -> list[Tensor]:
        return every if self._fault == BUFFER else self._broadcast(every)

    def _rows(self, rank: int, step: int, count: int) -> Tensor:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(step))
        place = 0 if self._fault == SEED else rank
        return order.chunk(self._ranks)[place].clone()
