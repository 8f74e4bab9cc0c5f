"""Grade a project, a milestone or all of it, and say what is next."""

import importlib.util
import os
import secrets
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from random import Random

from tqdm import tqdm  # type: ignore[import-untyped]

from course.ask.verdict import Grader, Verdict, many
from course.project import costs, held
from course.project.check import check_cases
from course.project.messages import check_order
from course.project.milestones import MILESTONES, by_name
from course.project.mutation import boards, catches
from course.project.scoreboard import scoreboard
from course.project.submission import graded, mine, source
from minidist.schedule.replay import listing

__all__ = ["grade", "lines", "mine", "scoreboard"]

RANKS = (1, 2, 3, 4, 5)
MORE = (6, 7, 8)  # one of them is drawn
TARGETS = {  # name → in which file, and what to write there
    **{name: (each.file, listing(each.names)) for name, each in MILESTONES.items()},
    "checks": ("checks", "check"),
}


def grade(name: str, package: str = "mine") -> Verdict:
    """Grade "checks", or the milestone of this name, as it stands in a package."""
    return catches(package) if name == "checks" else works(package, name)


@Grader
def works(package: str, name: str) -> str:
    """Grade a milestone: what comes out, what each rank sends, and what a training step costs."""
    milestone = by_name(name)
    seed = int(os.environ.get("COURSE_SEED") or secrets.randbelow(1000))  # unknown before
    written = source(package, milestone.file, *milestone.names)
    more = [Random(seed).choice(MORE)] if MORE else []
    for ranks in tqdm([*RANKS, *more], f"{name}, on 1 to 8 ranks", leave=False, disable=None):
        of_ranks = graded(written, ranks, check_cases, milestone, seed)
        for case in milestone.cases:
            place = f'in case "{case}" on {many(ranks, "rank")} ({of_ranks[0][case].drawn})'
            check_order(place, [sent[case].batches for sent in of_ranks])
    on_all = f"on {' and '.join([f'{RANKS[0]} to {RANKS[-1]}', *map(str, more)])} ranks"
    if milestone.held:
        graded(written, held.RANKS, held.check_held, milestone)
    if not milestone.train:
        also = (
            "computes, holds or " if milestone.computes else "holds or " if milestone.held else ""
        )
        return (
            f"for {', '.join(milestone.cases)}: {on_all}, what comes out is that of one process "
            f"with the whole batch, and no rank {also}sends more than it has to."
        )
    of_ranks = graded(written, costs.RANKS, costs.cost, milestone)
    costs.check_cost(
        of_ranks, name, lambda: graded(written, costs.RANKS, costs.lines, milestone)[0]
    )
    return (
        f"It trains {len(milestone.others)} models {on_all} as one process does, with "
        f"{many(of_ranks[0].calls, 'call')} and {of_ranks[0].nbytes:,} bytes a step on "
        f"{costs.RANKS} ranks, the least there is."
    )


def names_of(only: str) -> list[str]:
    """The milestones to grade: all, those of a file, or one.

    Raises:
        ValueError: there is no such file or milestone.
    """
    names = [name for name, (file, _) in TARGETS.items() if only in ("", file, name)]
    if not names:
        known = ", ".join(dict.fromkeys([*(file for file, _ in TARGETS.values()), *TARGETS]))
        raise ValueError(f"there is no milestone {only!r}; there are {known}")
    return names


def lines(
    package: str, only: str = "", verdicts: dict[str, Verdict] | None = None
) -> Iterator[str]:
    """The report, as it comes: each milestone's verdict and scoreboard; the last is what to do."""
    verdicts = {} if verdicts is None else verdicts
    for name in names_of(only):
        verdicts[name] = verdict = grade(name, package)
        yield f"{name}: {verdict}"
        if verdict or (name == "checks" and package in boards):
            yield f"\n{scoreboard(name, package).data}\n"
    right = sum(map(bool, verdicts.values()))
    yield f"{right} of {len(verdicts)}. {next_step(package, verdicts)}"


def next_step(package: str, verdicts: Mapping[str, Verdict]) -> str:
    """Advice on what to write or mend next, and where."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        return "Next: `make lab`, which puts the files to write into work/mine."
    for name, verdict in verdicts.items():
        if not verdict:
            do = "write" if verdict.status == "not yet" else "mend"
            file, target = TARGETS[name]
            again = f"run `make grade ONLY={file}` again"
            return f"Next: {name}. In {_path(spec, file)} {do} {target}; then {again}."
    later = [*TARGETS][[*TARGETS].index([*verdicts][-1]) + 1 :]
    if not later:
        return "All that was graded is right. Next: the capstone, a lab that `make lab` opens."
    file, target = TARGETS[later[0]]
    return (
        f"All that was graded is right. Next: {later[0]}. In {_path(spec, file)} write {target}; "
        f"then run `make grade ONLY={file}`."
    )


def _path(spec: ModuleSpec, file: str) -> str:
    """A file of the package, from where the reader is."""
    return os.path.relpath(Path(spec.origin or "").with_name(f"{file}.py"))
