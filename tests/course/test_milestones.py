"""Each milestone refuses a class that is right but for what it sends."""

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from course.ask.verdict import Wrong
from course.project import costs, held
from course.project.check import compare
from course.project.costs import WIDTH, Cost, check_cost, cost, memory, of_all
from course.project.held import Held, Lines
from course.project.milestones import MILESTONES
from course.project.models import MODELS, Drawn
from course.project.scenarios import Tally, training
from course.project.submission import source
from minidist import Ours, launch
from tests.support.spoiled import COSTS, RESULTS, spoiled

RANKS = 3


def on_a_rank(name: str) -> tuple[dict[str, str], dict[str, Cost]]:
    """What parity says to each way to spoil results, and what each way to waste costs.

    Measured is what a way wastes, traffic or memory; the other is that of the right one.
    """
    milestone = MILESTONES[name]
    kind = source("from_scratch", milestone.file, *milestone.names)()
    said = {}
    for way, spoil in RESULTS.items():
        train, comm = spoiled(milestone.train, spoil), Tally(Ours(algorithm="ring"))
        try:
            for each in training(kind, comm, Drawn(0), train, MODELS["three layers"]):
                compare(each.what, each.mine, each.right)
            said[way] = "right"
        except Wrong as error:
            said[way] = str(error)
        dist.barrier()
    measured = {"right": (right := cost(kind, milestone))}
    for way, spoil in COSTS.items():
        wrong = replace(milestone, train=spoiled(milestone.train, spoil))
        if way in ("keeps", "hoards"):
            peak, kept = memory(wrong, kind, torch.ones(1, WIDTH).double())
            measured[way] = right._replace(peak=peak, kept=kept)
        else:
            with patch.object(costs, "memory", return_value=Held(right.peak, right.kept)):
                measured[way] = cost(kind, wrong)
    return said, measured


@pytest.mark.parametrize(("levels", "kept"), [([9, 99, 12, 12, 12], 3), ([9, 20, 30, 40, 50], 11)])
def test_what_is_freed_late_is_not_kept_and_what_is_kept_stays(
    levels: list[int], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(levels)
    monkeypatch.setattr(held, "of_the_process", lambda: next(left))
    assert held.measured(lambda: lambda: None).kept == kept


@pytest.mark.parametrize("name", [name for name, each in MILESTONES.items() if each.train])
def test_what_is_spoiled_on_the_way_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    milestone = MILESTONES[name]
    of_ranks: list[Any] = launch(on_a_rank, RANKS, name, device="cpu")
    for way in RESULTS:
        assert any("off by" in said[way] for said, _ in of_ranks), way
    right = [measured["right"] for _, measured in of_ranks]
    monkeypatch.setattr(costs, "reference", lambda _: of_all(right))

    def nothing() -> Lines:
        return Lines(Counter(), Counter())

    check_cost(right, name, nothing)
    refused = {"twice": "together send", "keeps": "at the peak" if milestone.lean else ""}
    refused["hoards"] = "let the process of rank 0 grow" if milestone.lean else ""
    refused["waits"] = "times in a step a call is on its way" if milestone.overlap else ""
    for way, why in refused.items():
        spoilt = [measured[way] for _, measured in of_ranks]
        if why:
            with pytest.raises(Wrong, match=why):
                check_cost(spoilt, name, nothing)
        else:
            check_cost(spoilt, name, nothing)
