"""A backward pass whose gradients travel during it or after it, in buckets or one by one."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from course.widgets.cost import link_controls
from course.widgets.page import Control, Slider, control
from minidist.parallel.sharding.partition import MIB, assign
from minidist.planner.hardware import H100
from minidist.planner.jobs import SMALL

STRATEGIES = ("naive", "flat", "bucketed", "overlapped")
TOKENS = 4096  # that each rank has in a step, to start with
PER_TOKEN = 4 / 4 / H100.rate(SMALL.width)  # 4 operations per parameter, of 4 bytes
CAPS = sorted({25 * MIB, *(1 << exponent for exponent in range(17, 31))})


class Backward(NamedTuple):
    """When each gradient is ready, and when each bucket travels, as (start, end); in seconds."""

    buckets: list[list[int]]  #: of indexes of parameters
    ready: list[float]  #: of each parameter
    travels: list[tuple[float, float]]

    @property
    def end(self) -> float:
        """The end of backward itself."""
        return max(self.ready)

    @property
    def exposed(self) -> float:
        """How much longer the optimizer waits for the last bucket."""
        return max(0.0, self.travels[-1][1] - self.end)


def backward(
    sizes: Sequence[int],
    per_byte: float,
    strategy: str,
    cap: float,
    seconds: Callable[[float], float],
    first: float = MIB,
) -> Backward:
    """Simulate one backward pass, which makes gradients from the last parameter to the first.

    Buckets travel one after the other, as they do on one link: "overlapped" as soon as they are
    full, after backward under "naive", each gradient alone, "flat", all together, and "bucketed".

    Args:
        sizes: bytes of each parameter's gradient.
        per_byte: seconds that backward takes to make a byte of gradients.
        strategy: one of `STRATEGIES`.
        cap: bytes of a bucket.
        seconds: what an all-reduce of so many bytes takes.
        first: bytes of the first bucket, if that is less.
    """
    whole = sum(sizes)
    limits = {"naive": (0, 0), "flat": (whole, whole)}.get(strategy, (min(first, cap), cap))
    buckets = assign(sizes, *limits)
    return send(buckets, sizes, per_byte, seconds, early=strategy == "overlapped")


def send(
    buckets: list[list[int]],
    sizes: Sequence[int],
    per_byte: float,
    seconds: Callable[[float], float],
    *,
    early: bool = True,
) -> Backward:
    """Simulate one backward pass with these buckets: as `backward` does with its own."""
    ready = [*accumulate(per_byte * size for size in reversed(sizes))][::-1]
    free, travels = 0.0, list[tuple[float, float]]()
    for bucket in buckets:
        full = max(ready[index] for index in bucket) if early else ready[0]
        start = max(free, full)
        free = start + seconds(sum(sizes[index] for index in bucket))
        travels.append((start, free))
    return Backward(buckets, ready, travels)


def overlap_slider() -> Slider:
    """Four strategies of DDP as lanes over time; what of the communication backward does not hide.

    The model is a Llama 3.2 3B, whose gradients are float32, on H100s.
    """
    batches = [1 << exponent for exponent in range(9, 18)]
    texts = [f"{each // MIB} MiB" if each >= MIB else f"{each // 2**10} KiB" for each in CAPS]
    controls = [
        Control("cap", "Bucket", CAPS, texts, 25 * MIB),
        control("tokens", "Tokens per rank", batches, TOKENS),
        *link_controls(16, H100.node_network),
    ]
    data = {"sizes": [*gradient_bytes()], "perToken": PER_TOKEN}
    return Slider("overlap", "One backward pass under four strategies", controls, data)


def bucket_bytes(cap: float) -> list[int]:
    """Of each bucket that DDP makes of them: since it splits no tensor, most are larger."""
    sizes = gradient_bytes()
    return [sum(sizes[index] for index in bucket) for bucket in assign(sizes, MIB, cap)]


def gradient_bytes() -> tuple[int, ...]:
    """Of each parameter of the job `SMALL`."""
    width, shared, hidden = SMALL.width, 1024, 8192
    block = [width**2, *[width * shared] * 2, width**2, *[width * hidden] * 3, width, width]
    ends = SMALL.rest - width, width  # the embedding, which is the head too; the last norm
    return tuple(4 * each for each in (ends[0], *block * SMALL.units, ends[1]))
