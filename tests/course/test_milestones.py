"""Each milestone refuses a class that is right but for what it sends."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from course.project import scores
from course.project.milestones import MILESTONES, Milestone
from course.project.models import MODELS
from course.project.parity import check_parity
from course.project.report import _check_cost, source
from course.project.scores import WIDTH, Cost, cost, memory
from course.verdict import Wrong
from minidist import launch
from tests.support.by_hand.spoiled import COSTS, RESULTS, spoiled

RANKS = 3


def on_a_rank(milestone: Milestone) -> tuple[dict[str, str], dict[str, Cost]]:
    """What parity says to each way to spoil results, and what each way to waste costs.

    Measured is what a way wastes, traffic or memory; the other is that of the right one.
    """
    kind = source("from_scratch", milestone.file, milestone.target)()
    said = {}
    for name, spoil in RESULTS.items():
        wrong = replace(milestone, train=spoiled(milestone.train, spoil))
        try:
            check_parity(wrong, kind, "three layers", *MODELS["three layers"])
            said[name] = "right"
        except Wrong as error:
            said[name] = str(error)
        dist.barrier()
    costs = {"right": (right := cost(kind, milestone))}
    for name, spoil in COSTS.items():
        wrong = replace(milestone, train=spoiled(milestone.train, spoil))
        if name in ("keeps", "hoards"):
            peak, kept = memory(wrong, kind, torch.ones(1, WIDTH).double())
            costs[name] = right._replace(peak=peak, kept=kept)
        else:
            with patch.object(scores, "memory", return_value=(right.peak, right.kept)):
                costs[name] = cost(kind, wrong)
    return said, costs


@pytest.mark.parametrize("milestone", MILESTONES, ids=lambda each: each.name)
def test_what_is_spoiled_on_the_way_is_refused(
    milestone: Milestone, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_ranks: list[Any] = launch(on_a_rank, RANKS, milestone, device="cpu")
    for name in RESULTS:
        assert any("off by" in said[name] for said, _ in of_ranks), name
    right = of_ranks[0][1]["right"]
    monkeypatch.setattr("course.project.report.reference", lambda _: right)
    _check_cost([costs["right"] for _, costs in of_ranks], milestone)
    refused = {"twice": "together send", "keeps": "at the peak" if milestone.lean else ""}
    refused["hoards"] = "let the process of a rank grow" if milestone.lean else ""
    refused["waits"] = "times in a step a call is on its way" if milestone.overlap else ""
    for name, why in refused.items():
        spoilt = [costs[name] for _, costs in of_ranks]
        if why:
            with pytest.raises(Wrong, match=why):
                _check_cost(spoilt, milestone)
        else:
            _check_cost(spoilt, milestone)
