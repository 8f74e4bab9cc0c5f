"""What is saved is whole, finite and seen by all, and saving takes little; so does the order."""

import errno
import resource
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

import minidist
from tests.scripts.test_training import call, last_checkpoint, load, runs, start


def test_gradients_that_are_no_numbers_end_the_run_before_they_step_or_are_saved(
    tmp_path: Path,
) -> None:
    for name in ("ddp", "fsdp2"):  # the first step is infinite; its checkpoint must not be found
        with pytest.raises(minidist.RankError, match=r"^ranks 0, 1 raised .* is non-finite"):
            minidist.launch(runs, 2, call(name, tmp_path, rate=torch.inf, save_every=1))
    assert not list(tmp_path.glob("step-*"))


def on_a_disk_of_its_own(folder: Path, name: str) -> None:
    """On a rank: a script whose folder for checkpoints is not that of the other."""
    start(**call(name, folder / str(dist.get_rank())))


def test_hosts_that_do_not_share_the_folder_are_told_so_at_the_first_save(tmp_path: Path) -> None:
    for name in ("ddp", "fsdp2"):
        says = r"rank 0 sees no {'__1_0.distcp'} in .*unfinished-00000005: do all hosts share it"
        with pytest.raises(minidist.RankError, match=says):
            minidist.launch(on_a_disk_of_its_own, 2, tmp_path / name, name)
    assert not list(tmp_path.rglob("step-*"))


def disturbed(name: str, folder: Path) -> tuple[list[str], list[str]]:
    """On a rank: what a run prints, and what is printed after its third save has failed on rank 1.

    While the next run's first save is pending, rank 1 gets the scheduler's signal; a third ends.
    """
    write, save = FileSystemWriter.write_data, dcp.async_save

    def full(self: FileSystemWriter, *given: Any) -> Any:
        if dist.get_rank() == 1 and "00000003" in str(self.path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, *given)

    def pending(*given: Any, **how: Any) -> Any:
        future = save(*given, **how)
        if dist.get_rank() == 1:
            signal.raise_signal(signal.SIGUSR1)
        return SimpleNamespace(done=lambda: False, result=future.result)

    how = call(name, folder / name, save_every=1)
    never = start(**call(name, folder / f"{name}-never"))
    FileSystemWriter.write_data = full  # type: ignore[method-assign]
    with pytest.raises(CheckpointException, match="No space left"):
        start(**how)
    FileSystemWriter.write_data, dcp.async_save = write, pending  # type: ignore[method-assign]
    lines = start(**how, warned=-1)
    dcp.async_save = save
    return never, lines + start(**how)


def both_disturbed(folder: Path) -> list[tuple[list[str], list[str]]]:
    """On a rank: what `disturbed` returns of each script."""
    return [disturbed(name, folder) for name in ("ddp", "fsdp2")]


def test_a_full_disk_and_a_warning_while_a_save_is_pending_lose_nothing_that_was_saved(
    tmp_path: Path,
) -> None:
    said = minidist.launch(both_disturbed, 2, tmp_path)[0]
    for name, (never, lines) in zip(("ddp", "fsdp2"), said, strict=True):
        assert lines == never[2:], "saved after steps 1 and 2"
        first, second = (
            last_checkpoint(tmp_path / each, tmp_path / "one.pt")["model"]
            for each in (name, f"{name}-never")
        )
        assert all(map(torch.equal, first.values(), second.values()))


def memory_of_an_order(name: str, windows: int) -> float:
    """On a rank: how many bytes per window this process grows by, at most, for a first batch."""
    module = load(name)
    module.WINDOWS = torch.zeros(1, 65, dtype=torch.uint8).expand(windows, 65)
    before = psutil.Process().memory_info().rss
    assert len(next(module.batches(1, 8))) == 8 // dist.get_world_size()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (peak * (1024 if sys.platform == "linux" else 1) - before) / windows


def test_an_order_of_a_thousand_million_windows_fits_into_memory() -> None:
    for name in ("ddp", "fsdp2"):
        worst = max(minidist.launch(memory_of_an_order, 2, name, windows := 10_000_000))
        assert worst < 8, f"{name}: {worst:.0f} bytes per window, of {windows:,}"
