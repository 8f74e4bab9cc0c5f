"""Which samples the ranks read, epoch by epoch, as torch's `DistributedSampler` deals them."""

from collections.abc import Iterator, Sequence
from itertools import chain, product

from torch.utils.data import DistributedSampler

from course.interactive.frames import Cell, Frame, FramesChoice, FramesStepper, Rows, drawing

SAMPLES, RANKS, EPOCHS, SEED = 10, 4, 3, 0
ENDS = {"repeat samples": False, "drop_last=True": True}
CALLS = {"in every epoch": True, "never": False}
LOOKS = {"held": "read now", "done": "read before", "": "not read yet"}
REPEATED = {"old": "repeated to fill the last step"}

Deal = list[list[int]]  # each rank's samples of one epoch, in its order


def deal(epoch: int, drop: bool) -> Deal:
    """The samples of every rank in one epoch."""
    samplers: list[DistributedSampler[int]] = [
        DistributedSampler(range(SAMPLES), RANKS, rank, seed=SEED, drop_last=drop)  # type: ignore[arg-type]
        for rank in range(RANKS)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


def sampler_stepper() -> FramesChoice:
    """Three epochs of ten samples on four ranks, padded or not, with `set_epoch` or without."""
    several, title = {}, f"{EPOCHS} epochs of {SAMPLES} samples on {RANKS} ranks"
    for (call, counts), (end, drop) in product(CALLS.items(), ENDS.items()):
        deals = [deal(epoch if counts else 0, drop) for epoch in range(EPOCHS)]
        looks = LOOKS if drop else LOOKS | REPEATED
        several[call, end] = FramesStepper(title, [*_frames(deals)], looks)
    return FramesChoice(("set_epoch", "Uneven end"), several)


def _frames(deals: Sequence[Deal]) -> Iterator[Frame]:
    steps = len(deals[0][0])
    start = f"Each step takes {RANKS} samples, one per rank, and {SAMPLES} is no multiple of that."
    yield Frame(_picture(deals, 0), start)
    for done in range(1, EPOCHS * steps + 1):
        epoch, step = divmod(done - 1, steps)
        yield Frame(_picture(deals, done), _says(deals, epoch, step), f"epoch {epoch}")


def _picture(deals: Sequence[Deal], done: int) -> str:
    steps = len(deals[0][0])
    rows: Rows = {}
    for rank in range(RANKS):
        own = list(chain.from_iterable(each[rank] for each in deals))
        looks = list(chain.from_iterable(_looks(each, rank) for each in deals))[:done]
        if looks and looks[-1] != "old":
            looks[-1] = "held"
        cells = [Cell("samples", how, f"{own[n]}") for n, how in enumerate(looks)]
        cells += [Cell("samples", "")] * (len(own) - done)
        strips = ([cells[n * steps : (n + 1) * steps]] for n in range(EPOCHS))
        rows[f"rank {rank}"] = [*strips, f"{len({*own[:done]})} of {SAMPLES}"]
    left = [_named(_left_out(each)) for each in deals[: done // steps]]
    rows["left out"] = [*left, *[""] * (EPOCHS + 1 - len(left))]
    heads = [*(f"epoch {epoch}" for epoch in range(EPOCHS)), "has seen"]
    said = (f"Rank {rank} has seen {rows[f'rank {rank}'][-1]} samples." for rank in range(RANKS))
    return drawing(heads, rows, " ".join(said))


def _looks(epoch: Deal, rank: int) -> list[str]:
    """The look of each of a rank's samples: "old" if it stood earlier in the epoch's order."""
    order = [sample for step in zip(*epoch, strict=True) for sample in step]
    places = range(rank, len(order), RANKS)
    return ["old" if order[place] in order[:place] else "done" for place in places]


def _left_out(epoch: Deal) -> list[int]:
    return sorted({*range(SAMPLES)} - {*chain.from_iterable(epoch)})


def _named(samples: Sequence[int]) -> str:
    return ", ".join(map(str, samples)) or "none"


def _says(deals: Sequence[Deal], epoch: int, step: int) -> str:
    now = deals[epoch]
    drawn = ", ".join(str(own[step]) for own in now)
    said = [f"The ranks read samples {drawn}."]
    if step == 0 and epoch:
        same = now == deals[0]
        said.append("The same as at first: the order has not changed." if same else "A new order.")
    if step < len(now[0]) - 1:
        return " ".join(said)
    again = [rank for rank in range(RANKS) if _looks(now, rank)[step] == "old"]
    if again:
        ranks = " and ".join(map(str, again))
        said.append(f"Those of ranks {ranks} have been read in this epoch before.")
    if left := _left_out(now):
        said.append(f"The epoch is over, without samples {_named(left)}.")
    if epoch == EPOCHS - 1:
        seen = {*chain.from_iterable(each[0] for each in deals)}
        never = sorted(set.intersection(*({*_left_out(each)} for each in deals)))
        said.append(f"In {EPOCHS} epochs rank 0 has seen {len(seen)} different samples.")
        if never:
            said.append(f"Nobody has ever seen {_named(never)}.")
    return " ".join(said)
