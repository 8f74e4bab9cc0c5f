"""Grade the reader's test by mutation: it passes what is right, and catches planted faults."""

from functools import partial
from typing import Any

from IPython.display import Markdown
from tqdm import tqdm  # type: ignore[import-untyped]

from course.ask.line import answering
from course.ask.verdict import Grader, Wrong, draws, on_ranks
from course.pages.table import table
from course.project.faults import FAULTS, Meeting
from course.project.submission import found, with_submission
from course.project.trainer import WAYS, run
from minidist.errors import RankError

RIGHT_RANKS, RANKS = (2, 3), 3  # those of the right ways, and of the faults
TIMEOUT = 10.0

Caught = dict[tuple[str, str], bool]  # (fault, way) → whether the test has caught it

boards: dict[str, Caught] = {}  # package → of its test, when it was last graded


@Grader
def catches(package: str) -> str:
    """Grade `checks.py`: right ways on two and three ranks, and each with each fault, shuffled."""
    boards.pop(package, None)
    right = [(way, "", ranks) for ranks in RIGHT_RANKS for way in WAYS]
    trials = [*right, *((way, fault, RANKS) for way in WAYS for fault in FAULTS)]
    caught: Caught = {}
    for way, fault, ranks in tqdm(
        draws(90).sample(trials, len(trials)), "trainers", leave=False, disable=None
    ):
        failure = failed(package, ranks, way, fault)
        other = failure and not isinstance(_raised(failure), AssertionError)
        on_right = failed(package, ranks, way) if fault and other else None if fault else failure
        if on_right:
            raise Wrong(f"your test must pass a right {way}, and does not. {on_right}")
        if other:
            raise Wrong(
                f"under {way} with {fault} your test does not end with an AssertionError, which "
                f"alone counts as caught. {failure}"
            )
        if fault:
            caught[fault, way] = failure is not None
    boards[package] = caught
    if not any(caught.values()):
        raise Wrong(
            f"your test fails on none of {len(caught)} planted faults. It fails by raising "
            "AssertionError, on one rank at least, where training is not that of one process."
        )
    if not all(caught.values()):
        raise Wrong(f"your test catches {_counts(caught)}. {' '.join(_missed(caught))}")
    return (
        f"It passes {', '.join(WAYS)} on {' and '.join(map(str, RIGHT_RANKS))} ranks, and catches "
        f"every planted fault: {_counts(caught)}."
    )


def failed(package: str, ranks: int, way: str, fault: str = "") -> Wrong | None:
    """The failure of the reader's test there; None if it passes.

    Raises:
        NotImplementedError: it is still to be written.
        Wrong: its file cannot be loaded.
    """
    check = partial(found, package, "checks", "check")
    try:
        with answering(Meeting(ranks, fault)) as path:
            on_ranks(with_submission, ranks, check, run, way, path, timeout=TIMEOUT)
    except Wrong as wrong:
        if isinstance(diagnosis := _raised(wrong), Wrong):
            raise diagnosis from wrong
        return wrong
    return None


def _raised(failure: Wrong) -> Any:
    """The exception of the first rank that failed; None if it raised nothing."""
    error = failure.__cause__
    return error.__cause__ if isinstance(error, RankError) else None


def _counts(caught: Caught) -> str:
    """Such as "DDP 5 of 5, ZeRO 4 of 5, FSDP 5 of 5"."""
    return ", ".join(f"{way} {_of(caught, way)}" for way in WAYS)


def _of(caught: Caught, way: str) -> str:
    return f"{sum(caught[fault, way] for fault in FAULTS)} of {len(FAULTS)}"


def _missed(caught: Caught) -> list[str]:
    """A sentence and a hint for each fault that it has missed."""
    missed = {fault: [way for way in WAYS if not caught[fault, way]] for fault in FAULTS}
    return [
        f"Missed under {', '.join(ways)}: {fault}. {FAULTS[fault].hint}"
        for fault, ways in missed.items()
        if ways
    ]


def board(package: str) -> Markdown:
    """A table of the faults that this package's test caught when last graded."""
    caught = boards[package]
    rows = [
        [f"{fault}: {FAULTS[fault].what}", *("caught" if caught[fault, w] else "-" for w in WAYS)]
        for fault in FAULTS
    ]
    return table(["planted", *WAYS], [*rows, ["", *(_of(caught, way) for way in WAYS)]])
