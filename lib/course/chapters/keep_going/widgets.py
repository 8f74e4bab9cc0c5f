"""Three rounds of a quorum, one of whose workers is killed and comes back."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from course.interactive.frames import Cell, Frame, FramesStepper, Rows, drawing

EVERY = 4  # steps in a round
LOOKS = {"held": "there", "moving": "on its way", "old": "lost", "": "not there"}


class Worker(NamedTuple):
    """A worker's place in its round, and the round after which it has its weights."""

    steps: int
    weights: int | None
    alive: bool = True


class Moment(NamedTuple):
    """Three workers, the changes that the quorum has, and what happens."""

    phase: str
    workers: Sequence[Worker]
    changes: Sequence[int]
    says: str
    moving: Sequence[int] = ()  # workers to which something is on its way


DEAD, NEW = Worker(2, None, alive=False), Worker(0, None)


def moments() -> Iterator[Moment]:
    """The story of a quorum of three whose worker 2 is killed in the first round."""
    begin, half, done = (Worker(steps, 0) for steps in (0, 2, EVERY))
    yield Moment("", [begin] * 3, (), "All three begin a round, from the same weights.")
    yield Moment("round 1", [half] * 3, (), "They step by themselves; nothing is sent.")
    yield Moment(
        "round 1", [half, half, DEAD], (),
        "Worker 2 is killed. Its connection breaks, so the quorum does not wait for it.",
    )  # fmt: skip
    yield Moment(
        "round 1", [done, Worker(3, 0), DEAD], (0,),
        "Worker 0 has made its steps, and sends its change. Worker 1 is still alive: it is "
        "waited for, but not for ever.",
    )  # fmt: skip
    yield Moment(
        "round 1", [done, done, DEAD], (0, 1),
        "Both changes are there. The quorum sends their sum, and that it is of two.", (0, 1),
    )  # fmt: skip
    yield Moment(
        "round 2", [Worker(2, 1)] * 2 + [NEW], (),
        "Both have made the outer step, and the next round is under way. Worker 2 has been started "
        "again, with no weights that are worth anything. It joins, and waits.",
    )  # fmt: skip
    yield Moment(
        "round 2", [Worker(EVERY, 1)] * 2 + [NEW], (0, 1),
        "The sum of round 2 is of two again. With it the quorum asks worker 0 for its state.",
        (0, 1),
    )  # fmt: skip
    yield Moment(
        "round 3", [Worker(0, 2), Worker(1, 2), NEW], (),
        "Worker 0 sends its weights and its outer momentum, which the quorum passes on.", (2,),
    )  # fmt: skip
    yield Moment(
        "round 3", [Worker(2, 2), Worker(3, 2), Worker(1, 2)], (),
        "Worker 2 is a member again, a little behind the others in this one round.",
    )  # fmt: skip
    yield Moment(
        "round 3", [Worker(EVERY, 2)] * 3, (0, 1, 2),
        "Three changes, and their sum. The death has cost worker 2 two rounds, and the others "
        "nothing.", (0, 1, 2),
    )  # fmt: skip


def rounds_stepper() -> FramesStepper:
    """The members of each round's sum, and the source of a returning worker's weights."""
    frames = [Frame(_picture(each), each.says, each.phase) for each in moments()]
    return FramesStepper("A worker dies, and comes back", frames, LOOKS)


def _picture(now: Moment) -> str:
    rows: Rows = {}
    for number, worker in enumerate(now.workers):
        look = "held" if worker.alive else "old"
        steps = [
            Cell("gradients", look if step < worker.steps else "", f"{step + 1}")
            for step in range(EVERY)
        ]
        coming = "moving" if number in now.moving else ""
        after = "" if worker.weights is None else f"{worker.weights}"
        weights = Cell("weights", coming or ("held" if after else ""), after)
        rows[f"worker {number}"] = [[steps], [[weights]]]
    changes = [
        Cell("gradients", "held" if number in now.changes else "", f"{number}")
        for number in range(len(now.workers))
    ]
    rows["quorum"] = [[changes], "changes that have come, by worker"]
    there = ", ".join(map(str, now.changes)) or "nobody"
    dead = [f"worker {n} is dead" for n, each in enumerate(now.workers) if not each.alive]
    description = "; ".join([*dead, f"the quorum has the changes of {there}"]) + "."
    return drawing(("steps of the round", "weights after round"), rows, description)
