"""The exercises of the lab on local SGD: other right ways, and a round's rule beside real ones."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
import torch

from course.chapters.keep_going import exercises as grade
from course.pages.price import ask
from course.training.quorum import Member, Quorum, Round
from tests.course.test_quorum import State
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("keep_going")


def complete(members: list[int], events: list[grade.Event], patience: float) -> bool:
    """Whether no one is late, and someone is there at the end to take the sum."""
    dead = {worker for _, worker, what in events if what == "dies"}
    on_time = grade.present(members, events, patience) == grade.present(members, events, 1e9)
    return on_time and bool({*members} - dead)


CASES = [case for case in grade.in_the_round.table().cases if complete(*case)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_real_round_has_those_whom_the_rule_names(case: tuple, tmp_path: Path) -> None:  # type: ignore[type-arg]
    members, events, _ = case
    ended: SimpleQueue[Round] = SimpleQueue()
    path = tmp_path / "q"
    with Quorum(path, len(members), after_round=ended.put), ThreadPoolExecutor() as pool:
        there = {worker: Member(path, worker) for worker in members}
        list(pool.map(lambda each: each.join(State(0)), there.values()))
        newcomers = []
        for _, worker, what in events:
            if what == "arrives":
                there[worker]._send({"change": torch.ones(1)})
            elif what == "dies":
                there[worker]._socket.shutdown(socket.SHUT_RDWR)
            else:
                newcomers.append(Member(path, worker))
        assert ended.get(timeout=60).members == grade.present(*case)


def test_the_cases_have_what_the_rule_is_about() -> None:
    assert len(CASES) >= 15
    cases = grade.in_the_round.table().cases
    assert sum(not complete(*case) for case in cases) >= 5


def test_long_rounds_win_samples_per_second_and_lose_the_way_to_a_loss() -> None:
    """Two buildings against one: H = 100 is 1.7 times as fast, and needs 4 times the samples."""
    record = Path(__file__).parents[2] / "benchmarks" / "results" / "local_sgd.json"
    runs = json.loads(record.read_text())["rows"]
    ddp = next(run for run in runs if run["way"] == "DDP")
    needed = {}
    for every in (10, 100):
        best = min(run["loss"][-1] for run in runs if run["every"] == every)
        steps = np.interp(-best, -np.array(ddp["loss"]), ddp["steps"])
        needed[every] = ddp["steps"][-1] / steps
    assert needed == pytest.approx({10: 1.42, 100: 4.04}, abs=0.02)
    compute, line = ask("compute"), 12.851e9 / 1.25e9  # the 10 Gb/s between the buildings
    faster = 2 * compute / (compute + line / 100)
    assert faster == pytest.approx(1.68, abs=0.02)
    assert needed[100] / faster > 2
