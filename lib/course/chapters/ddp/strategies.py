"""Four strategies of DDP over time, predicted: six layers of 1 MiB, two ranks, a slow link."""

from course.chapters.ddp.figures import Travel
from minidist.formulas.memory import MIB
from minidist.schedule.algorithms import ring_all_reduce
from minidist.schedule.buckets import assign
from minidist.schedule.cost import Link, price, switch
from minidist.schedule.lanes import spans
from minidist.schedule.steps import bucketed

LAYERS, LAYER_MS = 6, 8.0  # of backward
SIZES = [4 * n for _ in range(LAYERS) for n in (512 * 512, 512)]  # each weight and bias, in bytes
LINK = Link(alpha=1e-3, beta=1 / 200e6)
CAPS = {
    "naive: one gradient at a time": 0,
    "flat: all gradients together": sum(SIZES),
    "bucketed: two layers together": 2 * MIB,
    "overlapped: two layers together": 2 * MIB,
}


def layers() -> list[tuple[str, float]]:
    """Backward's pieces: a layer, and when it has computed, in milliseconds."""
    return [(str(LAYERS - i), LAYER_MS * (i + 1)) for i in range(LAYERS)]


def predicted() -> dict[str, list[Travel]]:
    """Strategy → of each bucket, when it is full, leaves and arrives, in milliseconds."""
    return {name: _travels(cap, name.startswith("overlapped")) for name, cap in CAPS.items()}


def _travels(cap: int, early: bool) -> list[Travel]:
    seconds = price(ring_all_reduce(2), switch(LINK))
    buckets, backward = assign(SIZES, cap, cap), LAYERS * LAYER_MS
    ready = [backward * sum(SIZES[place:]) / sum(SIZES) for place in range(len(SIZES))]
    takes = [1e3 * seconds(sum(SIZES[place] for place in bucket)) for bucket in buckets]
    sent = spans(bucketed(ready, buckets, takes, early=early))[-len(buckets) :]
    full = [max(ready[place] for place in bucket) for bucket in buckets]
    return [Travel(at, each.start, each.end) for at, each in zip(full, sent, strict=True)]
