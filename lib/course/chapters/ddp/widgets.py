"""Borders between buckets that a reader moves, beside DDP's own and the best possible."""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, combinations, pairwise
from typing import Any

import numpy as np

from course.interactive.in_page import between, bordered, during
from course.interactive.page import Slider, control, seconds_text
from course.interactive.sliders import SMALL_JOB
from course.interactive.timeline import Bar, Lane, Marks, milliseconds, still
from course.pages.price import step_of
from minidist.formulas.inputs import TrainingStep
from minidist.formulas.links import collective
from minidist.formulas.memory import buckets, gradient_bytes
from minidist.planner.hardware import H100

GPUS = 16
TOKENS = (1024, 2048, 4096, 8192)  # on each GPU
BEGIN = 4096
LEGEND = {"backward": "backward", "communication": "all-reduce"}
ABOUT = "Buckets, in GB; the last block first"
FEW = 20  # buckets that can be told apart


def borders_slider() -> Slider:
    """The small job's gradients, in the order in which backward makes them, in six buckets."""
    steps = {tokens: step_of("small", GPUS, tokens) for tokens in TOKENS}
    shown = steps[BEGIN]
    count = len(gradient_bytes(shown))
    start = [round(count * part / 6) for part in range(1, 6)]
    best = {tokens: best_borders(step) for tokens, step in steps.items()}
    axes = {tokens: axis(step) for tokens, step in steps.items()}
    thumbs: dict[str, object] = {
        "name": "borders",
        "label": "Border",
        "about": ABOUT,
        "start": start,
    }
    thumbs["page"] = len(shown.sizes.block)
    stops = {tokens: [most, [at for at, _ in marks]] for tokens, (most, marks) in axes.items()}
    data = {"few": FEW, "gpus": GPUS, "gpu": H100._asdict(), "legend": LEGEND}
    data |= SMALL_JOB | {"best": best, "axes": stops}
    data["borders"] = thumbs | {"page": len(shown.sizes.block)}
    ways = {
        "your buckets": bordered(shown, start),
        "DDP, 25 MiB": during(shown, buckets(shown)),
        "best possible": bordered(shown, best[BEGIN]),
    }
    most, marks = axes[BEGIN]
    lanes = [*_row(shown, ways["your buckets"]["nbytes"], most)]
    lanes += [lane for name, done in ways.items() for lane in _way(name, done)]
    picture = still(lanes, most, marks, LEGEND, _says(*ways.values()))
    title = f"The small job's gradients on {GPUS} GPUs"
    controls = [control("tokens", "Tokens per GPU", TOKENS, BEGIN)]
    return Slider("borders", title, controls, data, picture)


def axis(step: TrainingStep) -> tuple[float, Marks]:
    """The axis in milliseconds, long enough for an all-reduce after backward, and its marks."""
    most = round(1e3 * bordered(step, [])["travels"][-1][1], 1)
    return most, milliseconds(most, 20 if most < 100 else 50 if most < 250 else 100)


def best_borders(step: TrainingStep) -> list[int]:
    """The fewest borders with which the last all-reduce ends as early as with any.

    For each number of buckets: how early the first so many gradients can have travelled in them,
    which is best if those before the last bucket have travelled as early as they can.
    """
    sizes = gradient_bytes(step)
    made = [0.0, *during(step, between(len(sizes), [*range(len(sizes))]))["full"][: len(sizes)]]
    takes, ready = _prices(step, sizes), np.array(made)
    early = np.zeros(len(made))  # the ends if any number of buckets is allowed
    for place in range(1, len(made)):
        early[place] = (np.maximum(early[:place], ready[place]) + takes[place, :place]).min()
    ends, froms = np.where(np.arange(len(made)) > 0, np.inf, 0.0), []
    while not ends[-1] <= early[-1] + 1e-12:
        after = np.maximum(ends[None, :], ready[:, None]) + takes
        froms.append(after.argmin(axis=1))
        ends = after.min(axis=1)
    place, borders = len(sizes), list[int]()
    for origin in reversed(froms):
        place = int(origin[place])
        borders.append(place)
    return borders[:-1][::-1]


def _prices(step: TrainingStep, sizes: Sequence[float]) -> Any:
    """Seconds of an all-reduce of the gradients from one border to another, infinite backwards."""
    sums = [0, *accumulate(round(size) for size in reversed(sizes))]
    price = cache(partial(collective, step, "all_reduce"))
    found = np.full((len(sums), len(sums)), np.inf)
    for end, start in combinations(range(len(sums) - 1, -1, -1), 2):
        found[end, start] = price(sums[end] - sums[start])
    return found


def _row(step: TrainingStep, yours: Sequence[float], most: float) -> Iterator[Lane]:
    """The gradients themselves, blocks above and buckets below, over the whole width."""
    sizes = gradient_bytes(step)
    each, first, last = most / sum(sizes), len(step.sizes.before), len(step.sizes.after)
    ends = [0, *range(last, len(sizes) - first + 1, len(step.sizes.block)), len(sizes)]
    edges = [0.0, *accumulate(reversed(sizes))]
    parts = [Bar(each * edges[a], each * edges[b]) for a, b in pairwise(ends)]
    yield Lane("gradients", "GB per bucket, the last block first", parts, "thin blocks")
    pieces = pairwise([0.0, *accumulate(yours)])
    bars = [Bar(each * a, each * b, text=f"{(b - a) / 1e9:.1f}") for a, b in pieces]
    yield Lane("", "", bars, "buckets")


def _way(name: str, done: dict[str, Any]) -> Iterator[Lane]:
    """Backward, divided by buckets if they are few, and the all-reduces."""
    count = len(done["travels"])
    note = f"{count} all-reduce{'s' * (count > 1)} · {seconds_text(done['exposed'])} exposed"
    full = done["full"][:count] if count <= FEW else [done["backward"]]
    parts = pairwise([0.0, *(1e3 * end for end in full)])
    yield Lane(name, note, [Bar(*part) for part in parts], "thin backward")
    travels = [Bar(1e3 * start, 1e3 * end) for start, end in done["travels"]]
    kind = "thin communication" if count <= FEW else "thin communication dense"
    yield Lane("", "", travels, kind)


def _says(yours: dict[str, Any], ddp: dict[str, Any], best: dict[str, Any]) -> str:
    """A sentence on the optimizer's wait after backward."""
    late = [seconds_text(each["exposed"]) for each in (yours, ddp, best)]
    return (
        f"After backward the optimizer waits {late[0]} for your {len(yours['travels'])} buckets, "
        f"{late[1]} for DDP's {len(ddp['travels'])}, and {late[2]} at best."
    )
