"""Borders between buckets that a reader moves, beside DDP's own and the best possible."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np

from course.widgets.overlap import PER_TOKEN, Backward, backward, gradient_bytes, send
from course.widgets.page import Slider, control, seconds_text
from course.widgets.timeline import Bar, Lane, Marks, milliseconds, still
from minidist.parallel.sharding.partition import MIB
from minidist.planner.hardware import H100, NETWORK_LATENCY
from minidist.planner.jobs import SMALL
from minidist.schedule.algorithms import ALL_REDUCE
from minidist.schedule.cost import Link, price, switch

GPUS, ALGORITHM = 16, "halving_doubling"
LINK = Link(NETWORK_LATENCY, 1 / H100.node_network)
TOKENS = (1024, 2048, 4096, 8192)  # on each GPU
BEGIN = 4096
LEGEND = {"backward": "backward", "communication": "all-reduce"}
all_reduce = price(ALL_REDUCE[ALGORITHM](GPUS), switch(LINK))  # of so many bytes, in seconds
ABOUT = "Buckets, in GB; the last block first"
FEW = 20  # buckets that can be told apart


def borders_slider() -> Slider:
    """The small job's gradients, in the order in which backward makes them, in six buckets."""
    sizes = gradient_bytes()
    first, *rest, last = sizes
    block = rest[: len(rest) // SMALL.units]
    start = [round(len(sizes) * part / 6) for part in range(1, 6)]
    best = {tokens: best_borders(sizes, tokens) for tokens in TOKENS}
    axes = {tokens: axis(sizes, tokens) for tokens in TOKENS}
    own = {"name": "borders", "label": "Border", "about": ABOUT, "page": len(block), "start": start}
    data = {
        "sizes": [[1, [first]], [SMALL.units, block], [1, [last]]],
        "borders": own,
        "perToken": PER_TOKEN,
        "cap": 25 * MIB,
        "few": FEW,
        "algorithm": ALGORITHM,
        "gpus": GPUS,
        "link": {"alpha": LINK.alpha, "beta": LINK.beta},
        "best": best,
        "axes": axes,
        "legend": LEGEND,
    }
    ways = {
        "your buckets": sent(sizes, start, BEGIN),
        "DDP, 25 MiB": backward(sizes, BEGIN * PER_TOKEN, "overlapped", 25 * MIB, all_reduce),
        "best possible": sent(sizes, best[BEGIN], BEGIN),
    }
    most, marks = axes[BEGIN]
    lanes = [*_row(sizes, block, start, most)]
    lanes += [lane for name, done in ways.items() for lane in _way(name, done)]
    picture = still(lanes, most, marks, LEGEND, _says(*ways.values()))
    title = f"The small job's gradients on {GPUS} GPUs"
    controls = [control("tokens", "Tokens per GPU", TOKENS, BEGIN)]
    return Slider("borders", title, controls, data, picture)


def axis(sizes: Sequence[int], tokens: int) -> tuple[float, Marks]:
    """How many milliseconds it has, enough for an all-reduce after backward, and its marks."""
    most = 1e3 * sent(sizes, [], tokens).travels[-1][1]
    return most, milliseconds(most, 20 if most < 100 else 50 if most < 250 else 100)


def between(count: int, borders: Sequence[int]) -> list[list[int]]:
    """Buckets of indexes, the last parameter first; each border: how many come before it."""
    edges = [0, *sorted(borders), count]
    buckets = [[count - 1 - place for place in range(*pair)] for pair in pairwise(edges)]
    return [bucket for bucket in buckets if bucket]


def sent(sizes: Sequence[int], borders: Sequence[int], tokens: int) -> Backward:
    """A backward pass with these borders."""
    return send(between(len(sizes), borders), sizes, tokens * PER_TOKEN, all_reduce)


def best_borders(sizes: Sequence[int], tokens: int) -> list[int]:
    """The fewest borders with which the last all-reduce ends as early as with any.

    For each number of buckets: how early the first so many gradients can have travelled in them,
    which is best if those before the last bucket have travelled as early as they can.
    """
    made = np.cumsum([0, *reversed(sizes)])  # bytes
    ready = tokens * PER_TOKEN * made
    latency = all_reduce(0)
    moved = all_reduce(made[-1]) - latency
    ends, froms = np.where(made > 0, np.inf, 0.0), []
    finals = list[float]()
    while len(finals) < 2 or finals[-1] < finals[-2]:
        start = np.maximum(ends[None, :], ready[:, None])
        after = start + latency + moved * (made[:, None] - made[None, :]) / made[-1]
        after[np.triu_indices(len(made))] = np.inf
        froms.append(after.argmin(axis=1))
        ends = after.min(axis=1)
        finals.append(float(ends[-1]))
    places, borders = len(sizes), []
    for origin in reversed(froms[: 1 + int(np.argmin(finals))]):
        places = int(origin[places])
        borders.append(places)
    return borders[:-1][::-1]


def _row(
    sizes: Sequence[int], block: Sequence[int], borders: Sequence[int], most: float
) -> Iterator[Lane]:
    """The gradients themselves, blocks above and buckets below, over the whole width."""
    each = most / sum(sizes)
    ends = [0, sizes[-1], *(sizes[-1] + sum(block) * n for n in range(1, SMALL.units + 1))]
    ends.append(sum(sizes))
    parts = [Bar(each * a, each * b) for a, b in pairwise(ends)]
    yield Lane("gradients", "GB per bucket, the last block first", parts, "thin blocks")
    buckets = [sum(sizes[index] for index in own) for own in between(len(sizes), borders)]
    edges = pairwise([0, *accumulate(buckets)])
    yield Lane(
        "", "", [Bar(each * a, each * b, text=f"{(b - a) / 1e9:.1f}") for a, b in edges], "buckets"
    )


def _way(name: str, done: Backward) -> Iterator[Lane]:
    """Backward, divided by buckets if they are few, and the all-reduces."""
    count = len(done.buckets)
    note = f"{count} all-reduce{'s' * (count > 1)} · {seconds_text(done.exposed)} exposed"
    full = [0.0, *(1e3 * max(done.ready[index] for index in own) for own in done.buckets)]
    parts = pairwise(full) if count <= FEW else [(0.0, 1e3 * done.end)]
    yield Lane(name, note, [Bar(*part) for part in parts], "thin backward")
    travels = [Bar(1e3 * start, 1e3 * end) for start, end in done.travels]
    kind = "thin communication" if count <= FEW else "thin communication dense"
    yield Lane("", "", travels, kind)


def _says(yours: Backward, ddp: Backward, best: Backward) -> str:
    """What the optimizer waits for after backward."""
    return (
        f"After backward the optimizer waits {seconds_text(yours.exposed)} for your "
        f"{len(yours.buckets)} buckets, {seconds_text(ddp.exposed)} for DDP's {len(ddp.buckets)}, "
        f"and {seconds_text(best.exposed)} at best."
    )
