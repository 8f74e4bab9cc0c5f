"""Survivors hear of a death whatever they wait for, and agree on who is left and on the step."""

import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore  # exported by torch.distributed, but not typed

from course.chapters.cluster import regroup


def slow(rank: int, port: int) -> dict[str, Any]:
    """In the step of the death, rank 0 has sent its part and waits for rank 1, which is late."""
    kill, loss_of = os.kill, regroup.loss_of

    def dies_later(pid: int, number: int) -> None:
        time.sleep(0.5)
        kill(pid, number)

    def late(model: torch.nn.Module, step: int, part: int, parts: int) -> torch.Tensor:
        if (step, part, parts) == (regroup.DIES_AT, 1, regroup.RANKS):
            time.sleep(1)
        return loss_of(model, step, part, parts)

    os.kill, regroup.loss_of = dies_later, late
    return regroup.on_rank(rank, port)


def test_whoever_waits_for_a_survivor_hears_of_the_death() -> None:
    """Its own connections are whole: it hears by the survivor's closing theirs."""
    survivors = regroup.run(slow)
    assert [each["groups"] for each in survivors] == [[3, 2], [3, 2]]
    assert survivors[0]["weights"] == survivors[1]["weights"]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    """With nobody dead, and a short wait for the one who is."""
    monkeypatch.setattr(regroup, "GRACE", timedelta(seconds=0.01))
    store = HashStore()
    for rank in range(3):
        store.set(f"alive {rank}", "3")
    return store


def test_the_first_count_is_everybodys(store: HashStore) -> None:
    """One that comes after it is told so."""
    store.delete_key("alive 2")
    assert regroup.who_is_left(0, [0, 1, 2], store, 3) == [0, 1]
    with pytest.raises(RuntimeError, match=r"rank 2: too late, \[0, 1\] have gone on"):
        regroup.who_is_left(2, [0, 1, 2], store, 3)
    assert regroup.who_is_left(1, [0, 1, 2], store, 3) == [0, 1]


def test_a_survivor_a_step_ahead_is_named(store: HashStore) -> None:
    """Its peers cannot go on from their own memory."""
    expected = r"rank 0: expected the survivors at one step, got \{0: 4, 1: 3, 2: 3\}"
    with pytest.raises(RuntimeError, match=expected):
        regroup.who_is_left(0, [0, 1, 2], store, 4)
