"""The memory of a rank while something runs, without what the process takes once and keeps."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from minidist.memory.meter import Curve, Meter

T = TypeVar("T")


def curve_of(make: Callable[[], T], run: Callable[[T], object], warm_up: int = 0) -> Curve | None:
    """On all ranks: the memory of rank 0 from `make` on, while `run(make())` runs; elsewhere None.

    It is rehearsed once, because the first time takes buffers that later ones use again; then it
    runs `warm_up` times before it is measured. The curve's `value` is what `run` returns.
    """
    Meter()  # from here on the allocator keeps account
    run(make())
    meter = Meter() if dist.get_rank() == 0 else None
    made = make()
    for _ in range(warm_up):
        run(made)
    if meter:
        return meter.curve(lambda: run(made))
    run(made)
    return None
