"""The graders of the chapter on feeding the ranks: typical mistakes."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from course.chapters.feeding import exercises as grade
from course.pages.price import ask, step_of
from minidist.formulas.step import forecast
from minidist.planner.hardware import H100
from tests.course.verdicts import diagnosed, reader
from tests.support.by_hand import feeding as hand


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


def warmed(step: int, base: float, factor: float, warmup: int) -> float:
    return base + (factor - 1) * base * (min(1, step / warmup) if warmup else 1)


def test_other_right_ways_are_right_too() -> None:
    assert grade.indices(indices())
    assert grade.indices(lambda *case: np.array(indices()(*case)))
    assert grade.rate(lambda *case: np.float64(warmed(*case)))
    assert grade.rate(lambda *case: torch.tensor(warmed(*case)))
    assert grade.accumulate(hand.accumulate(afterwards=hand.averaged))
    assert grade.save(hand.saver(move=lambda beside, path: beside.replace(path)))


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.accumulate] = rows("""
mistake | hand.accumulate(divide=lambda many: 1) | 4 times too large: divide each loss
mistake | hand.accumulate(divide=lambda many: many**2) | 4 times too small: divide .* once
constant | hand.accumulate(divide=lambda many: 4) | with 1 batches .* is 4 times too small
these sizes | hand.accumulate(quiet=lambda many: 3) | with 1 batches .* nothing was all-reduced
traffic | hand.accumulate(quiet=lambda many: 0) | batches is right, but .* 4 times the 1,328
traffic | hand.accumulate(afterwards=hand.averaged_in_parts) | make fewer calls
gathers all | hand.accumulate(afterwards=hand.gathered) | batches is right, but .* 1.5 times
two ranks | hand.accumulate(afterwards=hand.of_two) | is 1.5 times too large
torch's own | hand.accumulate(afterwards=hand.by_torch) | torch.distributed's all_reduce
mistake | hand.accumulate(quiet=lambda many: many) | rank 0 of 3, with .* nothing was all-reduced
memory | hand.all_at_once | a forward has 20 rows, where a batch has 5.*one at a time
mistake | hand.accumulate(left_out=1) | Every batch must go through
mistake | lambda model, batches, loss: None | no gradient of every parameter
""")
WRONG[grade.save] = [
    ("mistake", hand.at_once, "a reader finds a file that cannot be read"),
    ("mistake", hand.in_memory_first, "a reader finds the new file at path"),
    ("memory", hand.saver(move=hand.keeps_a_backup), "removed first: for a moment there is none"),
    ("mistake", hand.saver(move=shutil.copyfile), "a reader finds the new file at path"),
    ("mistake", hand.saver(move=hand.removes_first), "removed first: for a moment there is none"),
    ("mistake", hand.elsewhere, "If that is another disk"),
    ("mistake", hand.saver(wait=False),
     "on rank 1 of 3, there is the old file .* is back: rank 0 is still"),
    ("traffic", hand.saver(ranks=(0, 1, 2)), "rank 1 of 3, your function writes, too"),
    ("memory", hand.saver(leave=True), "there is left model.pt.0 beside the file"),
    ("constant", hand.under_one_name, "rank 0 of 2, there is the old file at path when"),
    ("mistake", hand.after_a_while, "sleeps for a fixed time"),
    ("two ranks", hand.with_rank_1, "rank 2 of 3, there is the old file at path when"),
    ("mistake", lambda state, path: None, "rank 0 of 3, there is the old file at path when"),
]  # fmt: skip

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)


# ---- the worked problem ----


def test_what_no_sync_saves_with_eight_network_cards_and_with_one() -> None:
    compute = 16 * ask("compute", gpus=16, tokens=4096)
    assert round(compute, 2) == 3.54
    eight = ask("exposed", gpus=16, tokens=4096)
    assert [round(1e3 * eight, 1), round(1e3 * 16 * eight)] == [8.0, 129]
    seen = ask("exposed", gpus=16, tokens=4096, tariff="published")
    assert round(1e3 * seen, 1) == 6.9
    one = replace(step_of("small", 16, 4096), gpu=H100._replace(network=50e9 / 8))
    waited = forecast(one, "ddp")["exposed"]
    assert round(1e3 * waited) == 375
    assert [round(100 * times * waited / compute) for times in (1, 16)] == [11, 170]
