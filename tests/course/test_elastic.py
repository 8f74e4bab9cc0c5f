"""What a dead rank does to a training run, and how the run resumes."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course.training import elastic
from minidist import RankError, launch
from tests.support.processes import living, note, noted

STEPS = 10


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run in which nobody dies."""
    first, second = launch(elastic.train, 2, tmp_path_factory.mktemp("whole"), STEPS, timeout=120)
    assert first == second
    return first


@pytest.mark.claim("A5")
def test_when_a_rank_is_killed_the_others_stop_and_the_error_names_it(tmp_path: Path) -> None:
    pids, heard = tmp_path / "pids", tmp_path / "heard"
    pids.mkdir()
    heard.mkdir()

    def training() -> None:
        note(pids, os.getpid())
        dist.barrier()
        try:
            elastic.train(tmp_path, STEPS, die_at=2)
        except RuntimeError as error:
            (heard / str(dist.get_rank())).write_text(str(error))
            raise

    with pytest.raises(RankError) as caught:
        launch(training, 3, timeout=120)
    assert str(caught.value) == "rank 2 was killed by SIGKILL", "not: did not end within 120 s"
    assert caught.value.ranks == (2,)
    assert len(noted(pids)) == 3
    assert living(noted(pids)) == set()
    told = [path.read_text() for path in heard.iterdir()]
    assert told, "its peers hear of it too"
    for error in told:
        assert "Connection" in error or "connection" in error, error


def test_what_was_done_after_the_checkpoint_is_done_again(
    tmp_path: Path, undisturbed: list[float]
) -> None:
    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL"):
        launch(elastic.train, 2, tmp_path, STEPS, 6, timeout=120)
    saved = torch.load(tmp_path / "checkpoint.pt")["losses"]
    assert saved == undisturbed[: 6 // elastic.EVERY * elastic.EVERY]
    assert launch(elastic.train, 2, tmp_path, STEPS, timeout=120) == [undisturbed] * 2


def test_a_checkpoint_is_never_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.pt"
    elastic._save({"losses": [1.0]}, path)

    def half(state: Any, unfinished: Path) -> None:
        unfinished.write_bytes(b"half")
        raise OSError("killed here")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="killed here"):
        elastic._save({"losses": [2.0]}, path)
    assert torch.load(path) == {"losses": [1.0]}
