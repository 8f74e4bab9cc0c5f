"""The memory of a rank while something runs, without what the process takes once and keeps."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from minidist.memory.meter import Curve, Meter

T = TypeVar("T")


def curve_of(make: Callable[[], T], run: Callable[[T], object], warm_up: int = 0) -> Curve | None:
    """On all ranks: the memory of rank 0 while `run(make())` runs; on other ranks None.

    It is counted from before `make` on. All of it is rehearsed once before, because the first time
    takes buffers that later ones use again.

    Args:
        make: makes what is run, such as a model and its optimizer.
        run: is given what `make` returned; the curve's `value` is what it returns.
        warm_up: how often it runs before it is measured.
    """
    Meter()  # from here on the allocator keeps account
    rehearsed = make()
    run(rehearsed)
    del rehearsed
    meter = Meter() if dist.get_rank() == 0 else None
    made = make()
    for _ in range(warm_up):
        run(made)
    if meter:
        return meter.curve(lambda: run(made))
    run(made)
    return None
