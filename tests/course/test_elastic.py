"""What a dead rank does to a training run, and what it leaves of a checkpoint."""

import os
from pathlib import Path

import pytest
import torch.distributed as dist

from course.chapters.map_reduce import elastic
from minidist import RankError, launch
from tests.support.processes import living, note, noted

STEPS = 10


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
