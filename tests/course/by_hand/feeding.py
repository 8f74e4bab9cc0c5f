"""What learners may write for the lab on feeding the ranks. Light: every rank imports it."""

import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def accumulate(
    *, divide: float = 4, quiet: int = 3, batches: int = 4, repeat: int = 1
) -> Callable[[Any, list[torch.Tensor], Any], None]:
    """Right as it stands: divide by 4, and be quiet in the first 3."""

    def by_hand(model: Any, given: list[torch.Tensor], loss: Any) -> None:
        for number, batch in enumerate(given[:batches] * repeat):
            with model.no_sync() if number < quiet else nullcontext():
                (loss(model(batch)) / divide).backward()

    return by_hand


def saver(
    *,
    ranks: tuple[int, ...] = (0,),
    wait: bool = True,
    move: Callable[[Path, Path], object] = os.replace,
    leave: bool = False,
) -> Callable[[dict[str, Any], Path], None]:
    """Right as it stands, with a knob for each way to get it wrong."""

    def by_hand(state: dict[str, Any], path: Path) -> None:
        if dist.get_rank() in ranks:
            beside = path.with_name(f"{path.name}.{dist.get_rank()}")
            torch.save(state, beside)
            move(beside, path)
            if leave:
                beside.touch()
        if wait:
            dist.barrier()

    return by_hand


def removes_first(beside: Path, path: Path) -> None:
    path.unlink()
    os.replace(beside, path)


def elsewhere(state: dict[str, Any], path: Path) -> None:
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as other:
            torch.save(state, Path(other) / "new")
            os.replace(Path(other) / "new", path)
    dist.barrier()
