"""The graders of the chapter on feeding the ranks: typical mistakes."""

import shutil
from collections.abc import Callable
from typing import Any

import torch

from course.graders import feeding as grade
from tests.course.by_hand.feeding import (
    accumulate,
    elsewhere,
    removes_first,
    saver,
)
from tests.course.verdicts import each_mistake, says


def indices(
    *, seed: str = "epoch", pad: bool = True, deal: bool = True, front: bool = True, last: int = 0
) -> Callable[[int, int, int, int, bool], list[int]]:
    """A sampler by hand, right as it stands, with a knob for each way to get it wrong."""

    def by_hand(size: int, ranks: int, rank: int, epoch: int, drop_last: bool) -> list[int]:
        shuffle = torch.Generator().manual_seed({"epoch": epoch, "rank": rank, "": 0}[seed])
        order = torch.randperm(size, generator=shuffle).tolist()
        each = size // ranks if drop_last else -(-size // ranks)
        if pad:
            more = order if front else order[::-1]
            order = (order + more * each * ranks)[: each * ranks]
        each += last
        return order[rank::ranks] if deal else order[rank * each : (rank + 1) * each]

    return by_hand


def test_other_right_ways_are_right_too() -> None:
    assert grade.indices(indices())
    assert grade.save(saver(move=lambda beside, path: beside.replace(path)))


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.indices] = [
    (indices(seed=""), "epoch 3.*That is the order of epoch 0"),
    (indices(seed="rank"), "All ranks must shuffle alike: the seed is the epoch, not the rank"),
    (indices(pad=False), "samples each: one would run out"),
    (indices(front=False), "What is repeated comes from the front"),
    (indices(deal=False), "A fair split, but not the sampler's: rank r takes places r, r"),
    (indices(deal=False, last=-1), "Each rank should have 3 samples, yours have 2"),
    (lambda *case: [n + 1 for n in indices()(*case)], "Samples are numbered 0 to 9"),
    (lambda *case: None, "you return None; expected a list of numbers"),
]
MISTAKES[grade.rate] = [
    (lambda step, base, k, warm: k * base, "For step 0 .* not zero, and not yet scaled"),
    (lambda step, base, k, warm: k * base * min(1, step / warm), "it is not zero"),
    (lambda step, base, k, warm: base + step * (k - 1) * base / max(warm, 1), "not grow"),
    (lambda step, base, k, warm: base if step < warm else k * base, "as much as the one"),
]
MISTAKES[grade.accumulate] = [
    (accumulate(divide=1), "4 times too large: divide each loss"),
    (accumulate(divide=16), "4 times too small: it was divided twice"),
    (accumulate(quiet=0), "the gradient is right, but .* 4 times the 332"),
    (accumulate(quiet=4), "rank 0 has all-reduced nothing"),
    (accumulate(batches=3, quiet=2), "Every batch must go through"),
    (lambda model, batches, loss: None, "not every parameter has a gradient"),
]
MISTAKES[grade.save] = [
    (saver(move=shutil.copyfile), "a reader finds the new file at path"),
    (saver(move=removes_first), "removed first: for a moment there is none"),
    (elsewhere, "If that is another disk"),
    (saver(wait=False), "when rank . is back it finds the old file: rank 0 is still writing"),
    (saver(ranks=(0, 1, 2)), r"ranks \[0, 1, 2\] write"),
    (saver(leave=True), "beside the file there is left model.pt.0"),
    (lambda state, path: None, "when rank 0 is back it finds the old file"),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
